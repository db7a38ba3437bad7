"""The folder of a study: where fits lie, who may write, and how a file appears whole or not at all."""

from __future__ import annotations

import json
import os
import platform
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["StudyFolder", "finish_folder", "write_json"]


class StudyFolder:
    """``ROOT/NAME/PRESET-DATASET/`` and what stands in it.

    A fit is counted when ``fits/KEY/`` exists: it is written under ``tmp/`` and renamed. Only one
    driver at a time may hold the folder.
    """

    def __init__(self, root: Path, name: str, label: str) -> None:
        self.root = root
        self.name = name
        self.label = label
        self.path = root / name / label
        self.fits = self.path / "fits"
        self.tmp = self.path / "tmp"
        self.logs = self.path / "logs"
        self.locks = self.path / "locks"
        self.checkpoints = self.path / "checkpoints"

    def fit(self, key: str) -> Path:
        """Return the folder of one fit, there or not."""
        return self.fits / key

    def finished(self, key: str) -> bool:
        """Tell whether this fit is counted."""
        return (self.fits / key).is_dir()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the folder as its only driver, with what a dead driver left half-written removed.

        Raises
        ------
        ValueError
            If another driver holds it, with its process and host.
        """
        from filelock import FileLock, Timeout

        for folder in (self.fits, self.logs, self.locks, self.checkpoints):
            folder.mkdir(parents=True, exist_ok=True)
        holder = self.locks / "driver.json"
        lock = FileLock(self.locks / "driver.lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise ValueError(f"{self.path} is held by {_holder(holder)}; wait for it, or stop it.") from None
        try:
            write_json(holder, {"pid": os.getpid(), "host": platform.node()})
            # Workers of a driver that was killed die with it; each holds a lock until it has.
            for old in sorted(self.locks.glob("worker-*.lock")):
                with FileLock(old).acquire(timeout=60):
                    pass
            shutil.rmtree(self.tmp, ignore_errors=True)
            self.tmp.mkdir()
            yield
        finally:
            lock.release()


def write_json(path: Path, value: Any) -> None:
    """Write indented JSON whole or not at all.

    Raises
    ------
    ValueError
        If a number is NaN or infinite.
    """
    text = json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False) + "\n"
    fresh = path.with_name(f".{path.name}-{os.getpid()}")
    with fresh.open("w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(fresh, path)


def finish_folder(fresh: Path, final: Path) -> None:
    """Let `fresh` become `final` in one step; if `final` is there already, drop `fresh`."""
    for entry in fresh.iterdir():
        with entry.open("rb+") as stream:
            os.fsync(stream.fileno())
    try:
        os.rename(fresh, final)
    except OSError:
        if not final.is_dir():
            raise
        shutil.rmtree(fresh, ignore_errors=True)


def _holder(path: Path) -> str:
    try:
        holder = json.loads(path.read_text(encoding="utf-8"))
        return f"process {holder['pid']} on {holder['host']}"
    except (OSError, ValueError, KeyError):
        return "another process"

"""The folder of a study: where fits lie, who may write, and how a file appears whole or not at all."""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import polars as pl

__all__ = [
    "DamagedFit",
    "StudyFolder",
    "append_line",
    "damage",
    "digest",
    "file_text",
    "finish_folder",
    "fit_bytes",
    "fit_json",
    "fit_table",
    "parts_of",
    "write_json",
]

MANIFEST = "files.json"
# What a fit of each role cannot do without; whatever else it wrote is in its manifest.
OWED = {
    "tuning": ("result.json", "timing.json", "metrics.json"),
    "final": ("result.json", "timing.json", "metrics.json", "forecasts.parquet"),
    "baseline": ("result.json", "timing.json", "forecasts.parquet"),
}
SET_ASIDE = ".damaged-"


# How long a worker may take to see that its driver was killed.
WORKER_S = 60


class DamagedFit(RuntimeError):
    """A finished fit that was whole when the run started, and is not any more."""

    def __init__(self, folder: Path, reason: str) -> None:
        super().__init__(
            f"{folder} must stay as its fit wrote it, and {reason}: run again, which sets it aside and gets "
            "it anew; all other fits are kept."
        )


class StudyFolder:
    """``ROOT/NAME/PRESET-DATASET/`` and what stands in it.

    A fit is counted when ``fits/KEY/`` exists: it is written under ``tmp/`` and renamed. What has
    damaged it since is found when a run starts (`set_aside_damaged`). Only one driver at a time may
    hold the folder.

    Raises
    ------
    ValueError
        If a name would lead elsewhere: names come from databases that others write, too.
    """

    def __init__(self, root: Path, name: str, label: str) -> None:
        for part in (name, label):
            _refuse_path(part, "a study's folder")
        self.root = root
        self.name = name
        self.label = label
        self.path = root / name / label
        self.fits = self.path / "fits"
        self.tmp = self.path / "tmp"
        self.logs = self.path / "logs"
        self.locks = self.path / "locks"
        self.checkpoints = self.path / "checkpoints"
        # What `study.json` does not say, for whoever hands the study on.
        self.baselines = self.path / "baselines.json"
        # Tables and report of a run that has not ended.
        self.so_far = self.path / "so_far"

    def fit(self, key: str) -> Path:
        """Return the folder of one fit, there or not."""
        _refuse_path(key, "a fit's folder")
        return self.fits / key

    def finished(self, key: str) -> bool:
        """Tell whether this fit is counted."""
        return (self.fits / key).is_dir()

    def whole(self) -> set[str]:
        """Return the keys of the fits that are there and not damaged."""
        return {path.name for path in self._folders() if not damage(path)}

    def set_aside_damaged(self) -> list[str]:
        """Rename each damaged fit, so that it is made again; nothing is deleted.

        Returns
        -------
        list of str
            A line a damaged fit.
        """
        lines = []
        for path in self._folders():
            if not (reason := damage(path)):
                continue
            aside = path.with_name(f"{path.name}{SET_ASIDE}{time.strftime('%Y%m%d-%H%M%S')}")
            number = 1
            while aside.exists():
                number += 1
                aside = aside.with_name(f"{aside.name.partition('_')[0]}_{number}")
            path.rename(aside)
            lines.append(f"damaged: fits/{path.name}: {reason}; set aside, to be fitted again")
        return lines

    def _folders(self) -> list[Path]:
        if not self.fits.is_dir():
            return []
        return [path for path in sorted(self.fits.iterdir()) if path.is_dir() and SET_ASIDE not in path.name]

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
                try:
                    with FileLock(old).acquire(timeout=WORKER_S):
                        pass
                except Timeout:
                    raise ValueError(
                        f"a worker of a run that has ended still holds {old}, and does not end: end it (its "
                        "process may be stopped), then run again; what was finished is kept."
                    ) from None
            shutil.rmtree(self.tmp, ignore_errors=True)
            self.tmp.mkdir()
            yield
        finally:
            lock.release()


def parts_of(name: str) -> tuple[str, str]:
    """Return study and label of a name in a shared storage, ``study/label``.

    Raises
    ------
    ValueError
        If it has not two parts.
    """
    study, slash, label = name.partition("/")
    if not slash:
        raise ValueError(f"the name of a shared study must be STUDY/LABEL; got {name!r}.")
    return study, label


def _refuse_path(name: str, what: str) -> None:
    if name in ("", ".", "..") or any(sign in name for sign in "/\\\0"):
        raise ValueError(f"the name of {what} must be one plain name, not a path; got {name!r}.")


def append_line(path: Path, row: dict[str, Any]) -> None:
    """Add a row to a file of JSON lines."""
    with path.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(row) + "\n")


def write_json(path: Path, value: Any) -> None:
    """Write indented JSON whole or not at all.

    Raises
    ------
    ValueError
        If a number is NaN or infinite.
    """
    text = file_text(value)
    fresh = path.with_name(f".{path.name}-{os.getpid()}")
    with fresh.open("w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(fresh, path)


def file_text(value: Any) -> str:
    """Return the content of a JSON file.

    Raises
    ------
    ValueError
        If a number is NaN or infinite.
    """
    return json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False) + "\n"


def finish_folder(fresh: Path, final: Path) -> None:
    """Let `fresh` become `final` in one step, with a manifest; if `final` is there already, drop `fresh`."""
    files = sorted(path for path in fresh.rglob("*") if path.is_file())
    write_json(fresh / MANIFEST, {path.relative_to(fresh).as_posix(): digest(path) for path in files})
    for path in [*files, fresh / MANIFEST]:
        with path.open("rb+") as stream:
            os.fsync(stream.fileno())
    try:
        os.rename(fresh, final)
    except OSError:
        if not final.is_dir():
            raise
        shutil.rmtree(fresh, ignore_errors=True)


def damage(folder: Path) -> str:
    """Return what is wrong with the folder of a finished fit, in a few words; nothing if it is whole.

    Every file must be as its manifest says. A folder without one was written before there were
    manifests: what its role owes must be there, and what is there must look like what it is.
    """
    if not (folder / MANIFEST).is_file():
        return _damage_without_manifest(folder)
    try:
        files = _read_json(folder / MANIFEST)
        for name, wanted in files.items():
            if not (folder / name).is_file():
                return f"{name} is missing"
            if digest(folder / name) != wanted:
                return f"{name} has changed"
    except (OSError, ValueError, AttributeError):
        return f"{MANIFEST} cannot be read"
    return "" if "result.json" in files else f"{MANIFEST} is not whole"


def fit_bytes(folder: Path, name: str) -> bytes | None:
    """Return a file of a finished fit as it was written, None if the fit wrote none of that name.

    What is returned is what was checked: no moment lies between the two in which the file could change.

    Raises
    ------
    DamagedFit
        If the file has changed, or cannot be read.
    """
    try:
        wanted = _read_json(folder / MANIFEST) if (folder / MANIFEST).is_file() else None
        if name not in wanted if wanted is not None else not (folder / name).exists():
            return None
        content = (folder / name).read_bytes()
    except (OSError, ValueError, TypeError) as error:
        raise DamagedFit(folder, f"{name} or its {MANIFEST} cannot be read") from error
    if wanted is not None and _digest(content) != wanted[name]:
        raise DamagedFit(folder, f"{name} has changed")
    return content


def fit_json(folder: Path, name: str) -> dict[str, Any]:
    """Return what a JSON file of a finished fit holds.

    Raises
    ------
    DamagedFit
        If it is missing, has changed, or holds no JSON object.
    """
    content = fit_bytes(folder, name)
    if content is None:
        raise DamagedFit(folder, f"{name} is missing")
    try:
        found = json.loads(content)
    except ValueError as error:
        raise DamagedFit(folder, f"{name} cannot be read") from error
    if not isinstance(found, dict):
        raise DamagedFit(folder, f"{name} is no JSON object")
    return found


def fit_table(folder: Path, name: str) -> pl.DataFrame | None:
    """Return what a parquet file of a finished fit holds, None if the fit wrote none of that name.

    Raises
    ------
    DamagedFit
        If it has changed, or is no parquet.
    """
    import polars as pl

    content = fit_bytes(folder, name)
    if content is None:
        return None
    try:
        return pl.read_parquet(io.BytesIO(content))
    except (pl.exceptions.PolarsError, OSError) as error:
        raise DamagedFit(folder, f"{name} is no parquet") from error


def _damage_without_manifest(folder: Path) -> str:
    try:
        owed = OWED[_read_json(folder / "result.json")["role"]]
    except FileNotFoundError:
        return "result.json is missing"
    except (OSError, ValueError, TypeError, KeyError):
        return "result.json cannot be read"
    for name in sorted({*owed, *(path.name for path in folder.glob("*.parquet"))}):
        if not (folder / name).is_file():
            return f"{name} is missing"
        if not _readable(folder / name):
            return f"{name} cannot be read"
    return ""


def _readable(path: Path) -> bool:
    if path.suffix == ".parquet":
        content = path.read_bytes()
        return len(content) >= 12 and content[:4] == content[-4:] == b"PAR1"
    try:
        return isinstance(_read_json(path), dict)
    except (OSError, ValueError):
        return False


def _read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def digest(path: Path) -> str:
    """Return 16 hex digits of a file's content."""
    return _digest(path.read_bytes())


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _holder(path: Path) -> str:
    try:
        holder = json.loads(path.read_text(encoding="utf-8"))
        return f"process {holder['pid']} on {holder['host']}"
    except (OSError, ValueError, KeyError):
        return "another process"

"""Scaled features of a large panel in a file, mapped into memory and used again while nothing changes.

A store is a folder ``FINTS_HOME/windows/KEY`` of two files: ``values.f32``, (A, D, F) little-endian float32
in C order, and ``store.json`` with format, shape, scaler and a checksum. KEY is a hash of the content of the
panel, the features with their scaler, and the code that computes them: where one differs, so does the folder.

A store grows under another name and gets its own when it is whole, so a process that is killed leaves nothing
that could be read. Two processes that want the same store make one.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import sys
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from fints.data.catalog import home
from fints.data.feature_table import FeatureTable
from fints.data.panel import Panel
from fints.data.scaling import StandardScaler
from fints.words import counted

__all__ = ["large_from", "store_folder", "stored_scaler", "stored_values"]

FORMAT_VERSION = 1
VALUES, SPEC = "values.f32", "store.json"
BUILDING = ".building-"
# Features of this many MiB and more are kept in a file.
LARGE_MIB = 1024
SETTING = "FINTS_STORE_FROM_MIB"
# What the numbers of a store are computed by.
SOURCES = ("exact.py", "feature_table.py", "features.py", "grid.py", "scaling.py", "space.py")
CHUNK = 1 << 24


def large_from() -> int:
    """Return from how many bytes on features are kept in a file: FINTS_STORE_FROM_MIB, else 1 GiB.

    Raises
    ------
    ValueError
        If the setting is no number of at least 0.
    """
    text = os.environ.get(SETTING, "").strip()
    try:
        size = float(text) if text else float(LARGE_MIB)
    except ValueError:
        size = -1.0
    if not 0 <= size < float("inf"):
        raise ValueError(f"{SETTING} must be a number of MiB, at least 0; got {text!r}.")
    return int(size * 2**20)


def store_folder() -> Path:
    """Return the folder of all stores, ``FINTS_HOME/windows``, made if it is not there.

    Raises
    ------
    ValueError
        If it cannot be made.
    """
    folder = home() / "windows"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(
            f"the features of a large panel are kept in {folder}, which cannot be made ({error.strerror}). "
            "Set FINTS_HOME to a folder that can be written."
        ) from error
    return folder


def stored_scaler(
    panel: Panel, table: FeatureTable, scaler: StandardScaler, first_day: int, end_day: int
) -> StandardScaler:
    """Return `scaler` fitted to the days [first_day, end_day) of a table, measured once and kept.

    Raises
    ------
    ValueError
        As `StandardScaler.fit`, or if the disk is full.
    """
    key = _key(panel, list(table.names), scaler.clip, first_day, end_day)
    path = store_folder() / f"scaler-{key}.json"
    try:
        return StandardScaler.from_dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError):
        # Absent, or cut short by a full disk: it is only a note of what can be measured again.
        pass
    fitted = scaler.of(table.moments(first_day, end_day), len(panel))
    with _a_full_disk_in_words(path, 0):
        fresh = path.with_name(f".{path.name}-{os.getpid()}")
        fresh.write_text(json.dumps(fitted.to_dict()), encoding="utf-8")
        fresh.replace(path)
    return fitted


def stored_values(panel: Panel, table: FeatureTable, scaler: StandardScaler) -> np.ndarray:
    """Return the scaled features (A, D, F) float32 of a table, mapped from their store, made if need be.

    Raises
    ------
    ValueError
        If the store is damaged, or the disk is full; with the folder's name and what to do.
    """
    folder = store_folder() / _key(panel, scaler.to_dict())
    shape = (*table.grid.shape, len(table.names))
    with _alone(folder):
        if not folder.is_dir():
            _sweep(folder)
            _write(folder, shape, table.scaled(scaler), {"panel": panel.name, "scaler": scaler.to_dict()})
    return _open(folder, shape)


def _key(panel: Panel, *parts: Any) -> str:
    made = [panel.checksum, _code(), *parts]
    return hashlib.sha256(json.dumps(made).encode()).hexdigest()[:24]


@cache
def _code() -> str:
    """Return a hash of what computes the numbers of a store."""
    digest = hashlib.sha256(f"{FORMAT_VERSION} numpy {np.__version__} polars {pl.__version__}".encode())
    for name in SOURCES:
        digest.update(Path(__file__).with_name(name).read_bytes())
    return digest.hexdigest()


@contextmanager
def _alone(folder: Path, *, wait: bool = True) -> Iterator[bool]:
    """Hold the lock of one store, and tell whether it is held; it is free when the process ends, however.

    Windows has no such lock: there two processes may make one store twice, and the second is thrown away.
    """
    if sys.platform == "win32":
        yield True
        return
    import fcntl

    with folder.with_name(f".{folder.name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


def _sweep(folder: Path) -> None:
    """Remove what processes that are gone left half made, but for the store of `folder` itself."""
    for left in folder.parent.glob(f"{BUILDING}*"):
        name = left.name.removeprefix(BUILDING)
        if name != folder.name:
            with _alone(folder.with_name(name), wait=False) as free:
                if free:
                    shutil.rmtree(left, ignore_errors=True)


def _write(
    folder: Path,
    shape: tuple[int, ...],
    blocks: Iterable[tuple[int, int, np.ndarray]],
    about: dict[str, Any],
) -> None:
    """Write the blocks, in order of assets, and give the folder its name."""
    size = 4 * int(np.prod(shape, dtype=np.int64))
    fresh = folder.with_name(f"{BUILDING}{folder.name}")
    shutil.rmtree(fresh, ignore_errors=True)
    try:
        with _a_full_disk_in_words(folder, size):
            free = shutil.disk_usage(folder.parent).free
            if free < size:
                raise OSError(errno.ENOSPC, f"{_gibibytes(free)} free")
            fresh.mkdir()
            checksum = 0
            with (fresh / VALUES).open("wb") as file:
                for _, _, block in blocks:
                    data = np.ascontiguousarray(block, "<f4").data
                    checksum = zlib.crc32(data, checksum)
                    file.write(data)
                file.flush()
                os.fsync(file.fileno())
            spec = {
                "format_version": FORMAT_VERSION,
                "shape": list(shape),
                "crc32": checksum,
                "code": _code(),
                **about,
            }
            (fresh / SPEC).write_text(json.dumps(spec, indent=1) + "\n", encoding="utf-8")
            fresh.replace(folder)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _open(folder: Path, shape: tuple[int, ...]) -> np.ndarray:
    """Map a store after its checksum was seen to hold, once a process."""
    path = folder / VALUES
    try:
        spec = json.loads((folder / SPEC).read_text(encoding="utf-8"))
        stamp = (str(path), path.stat().st_size, path.stat().st_mtime_ns)
        fault = None
        if spec["format_version"] != FORMAT_VERSION or spec["shape"] != list(shape):
            fault = f"{SPEC} tells of another table"
        elif stamp[1] != 4 * int(np.prod(shape, dtype=np.int64)):
            fault = f"{VALUES} has {counted(stamp[1], 'byte')}"
        elif stamp not in _SEEN:
            if _checksum(path) != spec["crc32"]:
                fault = f"{VALUES} does not match the checksum in {SPEC}"
            else:
                _SEEN.add(stamp)
    except (OSError, ValueError, KeyError, TypeError) as error:
        fault = repr(error)
    if fault is not None:
        raise ValueError(
            f"the stored features in {folder} are damaged ({fault}). Delete that folder; they are made again."
        )
    # Copy on write: torch wants arrays that may be written, and no write may reach the file.
    return np.asarray(np.memmap(path, "<f4", "c", shape=shape))


_SEEN: set[tuple[str, int, int]] = set()


def _checksum(path: Path) -> int:
    checksum = 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            checksum = zlib.crc32(chunk, checksum)
    return checksum


@contextmanager
def _a_full_disk_in_words(path: Path, size: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        needed = f", which needs {_gibibytes(size)}" if size else ""
        raise ValueError(
            f"the disk is full: the features of this panel are to be kept in {path}{needed} "
            f"({error.strerror}). Make room, delete older stores in {path.parent}, or set FINTS_HOME to "
            "another disk."
        ) from error


def _gibibytes(number: int) -> str:
    return f"{number / 2**30:.2f} GiB"

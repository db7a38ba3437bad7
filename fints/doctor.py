"""Whether this machine is ready: interpreter, versions, devices, stores, disk.

A check never raises: what it finds wrong becomes a row with a remedy.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import sqlite3
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

__all__ = ["Check", "examine"]

GIB = 1024**3
# A quick study stores well under 100 MB; below this a standard one may stop half-way.
ENOUGH_DISK = 2 * GIB


@dataclass(frozen=True, kw_only=True)
class Check:
    """One finding. `state` is "ok", "note" (works, could be better) or "wrong"."""

    name: str
    found: str
    state: str = "ok"
    remedy: str = ""

    def to_dict(self) -> dict[str, str]:
        """Return the finding as a JSON-able table."""
        return asdict(self)


def examine(home: Path) -> list[Check]:
    """Return every check of this machine, with stores and datasets looked for under `home`."""
    home = home.resolve()
    return [*_interpreter(), *_versions(), *_torch(), *_machine(), *_home(home), *_stores(home)]


def _interpreter() -> Iterator[Check]:
    supported = SpecifierSet(">=3.11,<3.14")
    good = platform.python_version() in supported
    yield Check(
        name="python",
        found=f"{platform.python_version()} ({sys.executable})",
        state="ok" if good else "wrong",
        remedy="" if good else "make an environment with Python 3.11, 3.12 or 3.13",
    )


def _versions() -> Iterator[Check]:
    """Every plain dependency against the range that this fints declares."""
    try:
        wanted = importlib.metadata.requires("fints") or []
    except importlib.metadata.PackageNotFoundError:
        yield Check(
            name="fints",
            found="not installed",
            state="wrong",
            remedy="pip install -e . in the clone of fints",
        )
        return
    yield Check(name="fints", found=importlib.metadata.version("fints"))
    for requirement in map(Requirement, wanted):
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        remedy = f"pip install '{requirement.name}{requirement.specifier}'"
        try:
            version = importlib.metadata.version(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            yield Check(name=requirement.name, found="not installed", state="wrong", remedy=remedy)
            continue
        good = requirement.specifier.contains(version, prereleases=True)
        yield Check(
            name=requirement.name,
            found=version if good else f"{version}, outside {requirement.specifier}",
            state="ok" if good else "wrong",
            remedy="" if good else remedy,
        )


def _torch() -> Iterator[Check]:
    try:
        import torch
    except Exception as error:  # a broken build raises what it likes: OSError, RuntimeError, ImportError
        first = (str(error).splitlines() or [type(error).__name__])[0]
        yield Check(
            name="torch build", found=f"import fails: {first}", state="wrong", remedy="reinstall torch"
        )
        return
    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU only"
    yield Check(name="torch build", found=f"{build}, {torch.get_num_threads()} threads")
    if torch.cuda.is_available():
        devices = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
        found = ", ".join(f"{device.name} {device.total_memory / GIB:.0f} GiB" for device in devices)
        yield Check(name="CUDA", found=found)
    elif shutil.which("nvidia-smi") is None:
        yield Check(name="CUDA", found="no device; fits run on the CPU")
    elif torch.version.cuda is None:
        remedy = "for the GPU, install a CUDA build of torch (README, Installation)"
        yield Check(
            name="CUDA", found="an NVIDIA driver, but torch is a CPU build", state="note", remedy=remedy
        )
    else:
        remedy = "see whether nvidia-smi lists a device and its driver is new enough for this torch build"
        yield Check(name="CUDA", found="torch sees no device", state="note", remedy=remedy)


def _machine() -> Iterator[Check]:
    import psutil

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    memory = psutil.virtual_memory()
    yield Check(name="cores", found=f"{cores}; a study runs well with --workers {cores}")
    yield Check(name="memory", found=f"{memory.available / GIB:.1f} GiB free of {memory.total / GIB:.1f} GiB")


def _home(home: Path) -> Iterator[Check]:
    place = home
    while not place.exists():
        place = place.parent
    writable = place.is_dir() and os.access(place, os.W_OK | os.X_OK)
    state = "exists" if place == home else "is made on first use"
    yield Check(
        name="results folder",
        found=f"{home} ({state})" if writable else f"{home} cannot be written",
        state="ok" if writable else "wrong",
        remedy="" if writable else "set FINTS_HOME to a folder that you can write",
    )
    free = shutil.disk_usage(place).free
    enough = free >= ENOUGH_DISK
    yield Check(
        name="disk",
        found=f"{free / GIB:.1f} GiB free there",
        state="ok" if enough else "wrong",
        remedy="" if enough else f"free {ENOUGH_DISK / GIB:.0f} GiB, or set FINTS_HOME to a larger disk",
    )


def _stores(home: Path) -> Iterator[Check]:
    stores = [home / "mlflow.db", *sorted(home.glob("*/*/optuna.db"))]
    for store in stores:
        name = f"store {store.relative_to(home)}"
        if not store.exists():
            yield Check(name=name, found="none yet; the first study makes it")
            continue
        try:
            connection = sqlite3.connect(f"{store.as_uri()}?mode=ro", uri=True, timeout=5)
            try:
                tables = connection.execute("select count(*) from sqlite_master").fetchone()[0]
            finally:
                connection.close()
        except sqlite3.Error as error:
            remedy = "move the file away; the study makes a new one, and finished fits are kept"
            yield Check(name=name, found=f"does not answer: {error}", state="wrong", remedy=remedy)
            continue
        yield Check(name=name, found=f"answers ({tables} tables, {store.stat().st_size / 2**20:.0f} MiB)")

"""Whether this machine is ready: interpreter, versions, devices, compiler, disk, stores, leftovers.

A check ends no command: what it finds wrong, or what it raises, becomes a row with a remedy.
"""

from __future__ import annotations

import email.utils
import importlib.metadata
import json
import os
import platform
import shutil
import sqlite3
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

__all__ = ["Check", "examine"]

GIB = 1024**3
# A quick study stores well under 100 MB; below this a standard one may stop half-way.
ENOUGH_DISK = 2 * GIB
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "POLARS_MAX_THREADS")
# Those that fints.residual.native looks for, in its order.
COMPILERS = ("g++", "clang++", "c++")
# Clocks further apart than this make times in MLflow misleading.
SKEW_S = 30.0


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
    checks = {
        "python": _interpreter(),
        "versions": _versions(),
        "torch": _torch(),
        "machine": _machine(),
        "programs": _programs(),
        "figures": _drawing(),
        "results folder": _home(home),
        "stores": _stores(home),
        "leftovers": _leftovers(home),
        "servers": _servers(),
    }
    return [row for name, rows in checks.items() for row in _ended(name, rows)]


def _ended(name: str, rows: Iterator[Check]) -> Iterator[Check]:
    """Yield what a check finds, and what it raises as one more row."""
    try:
        yield from rows
    except Exception as error:  # whatever this machine has that no check thought of
        yield Check(
            name=name,
            found=f"cannot be checked: {type(error).__name__}: {_line(error)}",
            state="wrong",
            remedy="mend what the words name; if they name nothing that is yours to mend, report them",
        )


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
        yield Check(
            name="torch build", found=f"import fails: {_line(error)}", state="wrong", remedy="reinstall torch"
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
    yield from _threads(cores)
    yield Check(name="memory", found=f"{memory.available / GIB:.1f} GiB free of {memory.total / GIB:.1f} GiB")


def _home(home: Path) -> Iterator[Check]:
    remedy = "set FINTS_HOME to a folder that you can write"
    try:
        place = _nearest(home)
    except OSError as error:
        found = f"{home} cannot be written ({error.strerror})"
        yield Check(name="results folder", found=found, state="wrong", remedy=remedy)
        return
    writable = _can_write(place)
    state = "exists" if place == home else "is made on first use"
    yield Check(
        name="results folder",
        found=f"{home} ({state})" if writable else f"{home} cannot be written",
        state="ok" if writable else "wrong",
        remedy="" if writable else remedy,
    )
    free = shutil.disk_usage(place).free
    enough = free >= ENOUGH_DISK
    yield Check(
        name="disk",
        found=f"{free / GIB:.1f} GiB free there",
        state="ok" if enough else "wrong",
        remedy="" if enough else f"free {ENOUGH_DISK / GIB:.0f} GiB, or set FINTS_HOME to a larger disk",
    )


def _nearest(home: Path) -> Path:
    """Return `home`, or the folder above it that is there; what may not be looked at is an OSError."""
    place = home
    while True:
        try:
            place.stat()
        except (FileNotFoundError, NotADirectoryError):
            place = place.parent
        else:
            return place


def _can_look(home: Path) -> bool:
    """Tell whether it can be seen what is in `home`; if not, its own check has said so."""
    try:
        _nearest(home / "mlflow.db")
    except OSError:
        return False
    return True


def _can_write(place: Path) -> bool:
    """Tell whether a file can be made in a folder, by making one: modes say nothing of a read-only disk."""
    try:
        with tempfile.TemporaryFile(dir=place):
            return True
    except OSError:
        return False


def _threads(cores: int) -> Iterator[Check]:
    """Threads that libraries would start, against the cores there are: fits of a study take one each."""
    asked = {name: os.environ[name] for name in THREADS if os.environ.get(name, "").isdigit()}
    many = {name: value for name, value in asked.items() if int(value) > cores}
    found = ", ".join(f"{name}={value}" for name, value in asked.items()) or "as the libraries choose"
    yield Check(
        name="threads",
        found=found,
        state="note" if many else "ok",
        remedy=f"more than the {cores} cores here slow each other down: unset {', '.join(many)}"
        if many
        else "",
    )
    if (quota := _quota()) is not None and quota < cores:
        yield Check(
            name="processor quota",
            found=f"{quota:g} of {cores} cores, by the container",
            state="note",
            remedy=f"use --workers {max(1, int(quota))}: more only wait for each other",
        )


def _quota() -> float | None:
    """Return the cores that a Linux control group allows, None where nothing limits them."""
    try:
        allowed, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        return None if allowed == "max" else int(allowed) / int(period)
    except (OSError, ValueError):
        return None


def _programs() -> Iterator[Check]:
    """Look for the programs that fints calls."""
    git = shutil.which("git")
    yield Check(
        name="git",
        found=git or "none: results name no commit, and what they claim cannot be traced to code",
        state="ok" if git else "note",
        remedy="" if git else "install git (Debian: apt-get install git)",
    )
    named = os.environ.get("CXX")
    found = next((path for name in ([named] if named else COMPILERS) if (path := shutil.which(name))), None)
    without = "training.compile = true is refused on the CPU; plain training works and gives the same"
    yield Check(
        name="C++ compiler",
        found=f"{found}; training.compile builds its kernels with it"
        if found
        else f"none ({f'CXX={named}' if named else ', '.join(COMPILERS)}): {without}",
        state="ok" if found else "note",
        remedy="" if found else "install g++ (Debian: apt-get install g++), or name a compiler in CXX",
    )


def _drawing() -> Iterator[Check]:
    """Figures are drawn without a screen, with a font that matplotlib brings along."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: F401
        from matplotlib.font_manager import findfont

        font = findfont("DejaVu Sans", fallback_to_default=False)
    except Exception as error:  # a broken build or cache raises what it likes
        line = _line(error)
        remedy = "pip install --force-reinstall matplotlib, and look at MPLBACKEND and MPLCONFIGDIR"
        yield Check(name="figures", found=f"cannot be drawn: {line}", state="wrong", remedy=remedy)
        return
    yield Check(name="figures", found=f"drawn by matplotlib (Agg) with {Path(font).name}")


def _leftovers(home: Path) -> Iterator[Check]:
    """Find what processes that were killed have left, and what takes room for nothing."""
    if not _can_look(home):
        return
    places = [
        home,
        home / "datasets",
        home / "mlartifacts",
        *(path for path in home.glob("*") if path.is_dir()),
    ]
    deleted = sorted({left for place in places for left in place.glob(".deleted-*")})
    damaged = sorted(home.glob("*/*/fits/*.damaged-*"))
    halves = [path for path in sorted(home.glob("*/*/tmp/*")) if not _held(path.parent.parent)]
    for name, left, remedy in (
        ("leftovers of deletions", deleted, f"rm -r {deleted[0]}" if deleted else ""),
        ("damaged fits set aside", damaged, "they have been made again: delete them when you have looked"),
        ("half-written fits", halves, "nothing to do: the next run there removes them"),
    ):
        if left:
            yield Check(name=name, found=f"{len(left)}, first {left[0]}", state="note", remedy=remedy)


def _held(folder: Path) -> bool:
    """Tell whether the process that held a study's folder last is alive, if it was of this machine."""
    try:
        holder = json.loads((folder / "locks" / "driver.json").read_text(encoding="utf-8"))
        if holder["host"] != platform.node():
            return True
        os.kill(int(holder["pid"]), 0)
    except ProcessLookupError:
        return False
    except (OSError, ValueError, KeyError, TypeError):
        return True
    return True


def _servers() -> Iterator[Check]:
    """Ask the stores that the environment names; their secrets are not told."""
    from fints.study.addresses import one_line, without_secrets

    if storage := os.environ.get("FINTS_STORAGE"):
        from fints.study.shared_open import NothingEnqueued, open_existing

        shown = without_secrets(storage)
        try:
            store = open_existing(storage, patience=0.0)
            told = f"{shown} answers ({len(store.studies())} studies)"
            store.close()
            yield Check(name="FINTS_STORAGE", found=told)
        except NothingEnqueued:
            found = f"{shown} has no study yet, and none of our tables"
            remedy = "python studies/NAME.py run --storage enqueues one; until then fints worker is refused"
            yield Check(name="FINTS_STORAGE", found=found, state="note", remedy=remedy)
        except (ValueError, RuntimeError) as error:
            remedy = "start the database or mend the address: fints worker and run --storage need it"
            line = one_line(error, storage)
            yield Check(name="FINTS_STORAGE", found=line, state="wrong", remedy=remedy)
    if uri := os.environ.get("MLFLOW_TRACKING_URI"):
        from fints.study.stores import check_tracker

        try:
            check_tracker(Path(), uri)
        except ValueError as error:
            remedy = "start it (fints server), mend the address, or unset it to track under FINTS_HOME"
            line = one_line(error, uri)
            yield Check(name="MLFLOW_TRACKING_URI", found=line, state="wrong", remedy=remedy)
            return
        yield Check(name="MLFLOW_TRACKING_URI", found=f"{without_secrets(uri)} answers")
        yield from _clock(uri)


def _clock(uri: str) -> Iterator[Check]:
    """Compare the clock of an MLflow server with ours: times of runs are told by both."""
    if not uri.startswith(("http://", "https://")):
        return
    try:
        with urllib.request.urlopen(urllib.request.Request(uri, method="HEAD"), timeout=5) as answer:
            theirs = email.utils.parsedate_to_datetime(answer.headers["Date"]).timestamp()
    except (OSError, ValueError, TypeError):
        # It answers, as was seen above; that it tells no time is no fault.
        return
    off = theirs - time.time()
    yield Check(
        name="clock",
        found=f"{off:+.0f} s on the MLflow server",
        state="ok" if abs(off) <= SKEW_S else "note",
        remedy=""
        if abs(off) <= SKEW_S
        else "times in MLflow will mislead (no result depends on them): run NTP",
    )


def _line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _stores(home: Path) -> Iterator[Check]:
    if not _can_look(home):
        return
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

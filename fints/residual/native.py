"""Builds the kernels beside it (`*.cpp`) with the machine's own C++ compiler, once, and loads it.

Objects and the library lie in the user's cache folder under names that have the source, the compiler, its
flags and the processor in them, so that a change of any of them builds others. Nothing is built before a fit
with ``training.compile`` asks for it.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch import Tensor

__all__ = ["LANES", "MOST_STREAMS", "address", "find_compiler", "kernels"]

# As in vectors.h and streams.h.
LANES = 16
MOST_STREAMS = 8

SOURCES = tuple(sorted(Path(__file__).parent.glob("*.cpp")))
HEADERS = tuple(sorted(Path(__file__).parent.glob("*.h")))
FLAGS = (
    "-O3",
    "-march=native",
    "-fopenmp",
    "-std=c++17",
    "-fPIC",
    "-fno-math-errno",
    "-fno-trapping-math",
)
COMPILERS = ("g++", "clang++", "c++")

_INT, _LONG, _FLOAT, _POINTER = ctypes.c_int, ctypes.c_int64, ctypes.c_float, ctypes.c_void_p
# Of every function but the first argument, t; the last is the number of threads.
_WRITE = [_LONG, _INT, *[_POINTER] * 3, _LONG]
_NORM = [*[_POINTER] * 2, _INT, _FLOAT]
_GIVEN = [*_WRITE, _POINTER, _LONG, *_NORM]
_DYNAMIC = [*_WRITE, *[_POINTER] * 8, _FLOAT, _INT, *_NORM]
_ATTENTION = [_LONG, _INT, _INT, *[_POINTER] * 3, _LONG, *[_POINTER] * 2]
_SINGLE = [_LONG, *[_POINTER] * 4, _INT, *_NORM, _FLOAT]
_DEPTH = [_LONG, _LONG, _POINTER, *[_INT] * 5, _FLOAT, _FLOAT, *[_POINTER] * 2, _INT, _FLOAT, _POINTER]
_FRAC = [*_WRITE, *[_POINTER] * 10, _INT, _FLOAT, _FLOAT]
_GATED = [_LONG, _INT, *[_POINTER] * 3, _INT, *[_POINTER] * 2]
_GATED += [_INT, _FLOAT, _FLOAT, *[_POINTER] * 2, _INT, _FLOAT]
_MEMBERS = [*[_LONG] * 4, *[_POINTER] * 5]
_ATTENTIONS = [_LONG, _LONG, _INT, _INT, _LONG, *[_POINTER] * 3]
_SINGLES = [_LONG, _LONG, _LONG, *[_POINTER] * 4, _INT, _FLOAT]
_SIGNATURES: dict[str, list[type]] = {
    "fints_given": [*_GIVEN, *[_POINTER] * 3],
    "fints_given_back": [*_GIVEN, *[_POINTER] * 8],
    "fints_dynamic": [*_DYNAMIC, *[_POINTER] * 7],
    "fints_dynamic_back": [*_DYNAMIC, *[_POINTER] * 11],
    "fints_gelu": [_LONG, *[_POINTER] * 3],
    "fints_gelu_back": [_LONG, *[_POINTER] * 4],
    # Of several networks; the first argument is their number.
    "fints_feed_forwards": [*_MEMBERS, _POINTER],
    "fints_feed_forwards_back": [*_MEMBERS, *[_POINTER] * 6],
    "fints_attentions": [
        *_ATTENTIONS,
        *[_POINTER] * 3,
        _LONG,
        *[_POINTER] * 2,
        _LONG,
        *[_POINTER] * 4,
    ],
    "fints_attentions_back": [
        *_ATTENTIONS,
        *[_POINTER] * 1,
        _LONG,
        *[_POINTER] * 2,
        _LONG,
        *[_POINTER] * 11,
    ],
    "fints_singles": [*_SINGLES, *[_POINTER] * 3],
    "fints_singles_back": [*_SINGLES, *[_POINTER] * 5],
    "fints_attention": [*_ATTENTION, *[_POINTER] * 2],
    "fints_attention_back": [*_ATTENTION, *[_POINTER] * 5],
    "fints_depth": [*_DEPTH, _POINTER, *[_INT] * 3, *[_POINTER] * 5],
    "fints_depth_back": [*_DEPTH, _POINTER, _INT, _INT, _LONG, *[_POINTER] * 9],
    "fints_frac": [*_FRAC, *[_POINTER] * 6],
    "fints_frac_back": [*_FRAC, *[_POINTER] * 19],
    "fints_gated": [*_GATED, *[_POINTER] * 5],
    "fints_gated_back": [*_GATED, *[_POINTER] * 12],
    "fints_single": [*_SINGLE, *[_POINTER] * 3],
    "fints_single_back": [*_SINGLE, *[_POINTER] * 6],
    "fints_manifold": [*_WRITE, *[_POINTER] * 3, _FLOAT, _INT, *[_POINTER] * 6],
    "fints_manifold_back": [*_WRITE, *[_POINTER] * 3, _FLOAT, _INT, *[_POINTER] * 10],
}


def find_compiler() -> str:
    """Return the C++ compiler: `CXX` of the environment, else the first of g++, clang++, c++.

    Raises
    ------
    ValueError
        If there is none.
    """
    named = os.environ.get("CXX")
    for name in (named,) if named else COMPILERS:
        if found := shutil.which(name):
            return found
    missing = f"CXX = {named!r} is none" if named else f"none of {', '.join(COMPILERS)} is on the path"
    raise ValueError(
        f"training.compile needs a C++ compiler on the CPU; {missing}. Install one (Debian: apt-get install "
        "g++; macOS: xcode-select --install), name it in CXX, or set training.compile = false."
    )


@functools.cache
def kernels() -> ctypes.CDLL:
    """Return the library, built if it was not yet.

    Raises
    ------
    ValueError
        If there is no compiler, or it refuses the source.
    """
    compiler = find_compiler()
    shared = (*(path.read_text() for path in HEADERS), compiler, *FLAGS, _version(compiler), _processor())
    objects = {
        source: _cache() / f"{source.stem}-{_key(source.read_text(), *shared)}.o" for source in SOURCES
    }
    library = _cache() / f"kernels-{_key(*(made.name for made in objects.values()))}.so"
    if not library.exists():
        _build(compiler, objects, library)
    loaded = ctypes.CDLL(str(library))
    for function, arguments in _SIGNATURES.items():
        found = getattr(loaded, function)
        found.argtypes, found.restype = [_LONG, *arguments, _INT], None
    return loaded


def address(tensor: Tensor | None) -> int | None:
    """Return where the numbers of a contiguous float32 tensor lie, None for None."""
    if tensor is None:
        return None
    assert tensor.dtype == torch.float32, tensor.dtype
    assert tensor.is_contiguous(), tensor.stride()
    # An empty tensor lies nowhere, and null would say that there is none: its kernel would leave sums unset.
    return tensor.data_ptr() or LANES


def _build(compiler: str, objects: dict[Path, Path], library: Path) -> None:
    """Compile the sources whose object is not there yet, as many at a time as there are cores, and link."""
    library.parent.mkdir(parents=True, exist_ok=True)

    def made(target: Path, *arguments: str) -> None:
        # Built beside and moved: two workers that build at once both end with a whole file.
        with tempfile.TemporaryDirectory(dir=library.parent) as folder:
            fresh = Path(folder) / target.name
            _run([compiler, *FLAGS, *arguments, "-o", str(fresh)])
            os.replace(fresh, target)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        missing = [(source, target) for source, target in objects.items() if not target.exists()]
        for done in [pool.submit(made, target, "-c", str(source)) for source, target in missing]:
            done.result()
    made(library, "-shared", *map(str, objects.values()))


def _key(*parts: str) -> str:
    return hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:16]


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ValueError(
            f"{' '.join(command)} ended with code {done.returncode}: {done.stderr.strip()[-800:]}\n"
            "It needs C++17, vector extensions and OpenMP, as g++ 9 and clang++ 12 with libomp have. "
            "Name another compiler in CXX, or set training.compile = false."
        )


def _cache() -> Path:
    if folder := os.environ.get("XDG_CACHE_HOME"):
        return Path(folder) / "fints"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "fints"
    return Path.home() / ".cache" / "fints"


def _version(compiler: str) -> str:
    return subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False).stdout


def _processor() -> str:
    """Return what -march=native depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return "\n".join(sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))}))

"""The key of a fit: whatever can change its numbers changes the key, and nothing else does."""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterator
from functools import cache
from importlib.metadata import version
from pathlib import Path

from fints.config import Experiment, fingerprint

__all__ = [
    "AFFECTS_BASELINES",
    "WORDS",
    "device_type",
    "fit_key",
    "number_sources",
    "sources_hash",
    "torch_version",
]

# Of a spec: they may change without making another plan.
WORDS = ("title", "docstring", "larger")
# Built where they run, by `fints.residual.native`.
KERNELS = ("*.cpp", "*.h")
COMMENT = re.compile(r" *//[^\n]*")
PACKAGE = Path(__file__).resolve().parent.parent
# What a fit runs through; tests/study/test_fingerprint.py checks that nothing else is imported by it.
AFFECTS_NUMBERS = (
    "config.py",
    "data",
    "residual",
    "model",
    "training",
    "diagnostics",
    "interventions",
    "evaluation/walk_forward.py",
    "fitting.py",
    "forecaster.py",
    "forecasting.py",
    "study/fits.py",
    "study/grouping.py",
)
# What every baseline's forecasts run through; `fints.study.baselines` has what one of them does beside.
AFFECTS_BASELINES = (
    "data",
    "evaluation/baselines.py",
    "evaluation/metrics.py",
    "evaluation/rows.py",
    "evaluation/walk_forward.py",
    "study/baselines.py",
)


def fit_key(
    experiment: Experiment,
    *,
    role: str,
    fold: dict[str, list[str]],
    seed: int,
    checksum: str,
    until: str | None,
    sources: str,
    device: str,
    torch: str,
) -> str:
    """Return 16 hex digits that name one fit.

    Parameters
    ----------
    experiment : Experiment
        With the design point put in.
    role : str
        "tuning" (no test forecasts), "final" or a baseline's name.
    fold : dict
        First and last date of "train", "validation" and "test".
    seed : int
        The training seed.
    checksum : str
        Of the whole dataset.
    until : str or None
        First sealed date, None where nothing is sealed.
    sources : str
        `sources_hash()` of what it runs through.
    device, torch : str
        `device_type` and `torch_version` where it runs: another device or kernel rounds otherwise, and
        arms must not differ by that. Empty for a baseline that uses neither.
    """
    return fingerprint(experiment, role, fold, seed, checksum, until, sources, device, torch)


@cache
def device_type(name: str) -> str:
    """Return "cpu", "cuda" or "mps": what the `training.device` of an experiment is on this machine."""
    if name != "auto":
        return name.partition(":")[0]
    from fints.training import resolve_device

    return resolve_device(name).type


@cache
def torch_version() -> str:
    """Return the installed release, e.g. "2.11.0", whatever it was built for; torch is not loaded."""
    return version("torch").partition("+")[0]


def number_sources(package: Path = PACKAGE, entries: tuple[str, ...] = AFFECTS_NUMBERS) -> Iterator[Path]:
    """Yield the source files that affect numbers, sorted within each entry."""
    for entry in entries:
        path = package / entry
        if path.is_dir():
            yield from sorted(path.rglob("*.py"))
        elif path.is_file():
            yield path


@cache
def sources_hash(package: Path = PACKAGE, entries: tuple[str, ...] = AFFECTS_NUMBERS) -> str:
    """Return a hash of the code that affects numbers, blind to comments and docstrings.

    The syntax tree is hashed, so one minor version of Python counts as another source. Kernels are code too.
    """
    digest = hashlib.sha256()
    for path in number_sources(package, entries):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            _drop_docstring(node)
        digest.update(f"{path.relative_to(package).as_posix()}\n{ast.dump(tree)}\n".encode())
    for path in sorted(
        each for entry in entries for kind in KERNELS for each in package.glob(f"{entry}/{kind}")
    ):
        digest.update(f"{path.name}\n{COMMENT.sub('', path.read_text(encoding='utf-8'))}\n".encode())
    return digest.hexdigest()[:16]


def _drop_docstring(node: ast.AST) -> None:
    if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return
    first = node.body[0] if node.body else None
    if (
        isinstance(first, ast.Expr)
        and isinstance(first.value, ast.Constant)
        and isinstance(first.value.value, str)
    ):
        node.body[0] = ast.Expr(ast.Constant(""))

"""The key of a fit: whatever can change its numbers changes the key, and nothing else does."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from fints.config import Experiment, fingerprint

__all__ = ["AFFECTS_BASELINES", "fit_key", "number_sources", "sources_hash"]

PACKAGE = Path(__file__).resolve().parent.parent
# What a fit runs through; tests/study/test_fingerprint.py checks that nothing else is imported by it.
AFFECTS_NUMBERS = (
    "config.py",
    "data",
    "residual",
    "model",
    "training",
    "diagnostics",
    "evaluation/walk_forward.py",
    "forecaster.py",
    "study/fits.py",
)
# What a baseline's forecasts run through.
AFFECTS_BASELINES = ("data", "evaluation/baselines.py", "evaluation/metrics.py", "evaluation/walk_forward.py")


def fit_key(
    experiment: Experiment,
    *,
    role: str,
    fold: dict[str, list[str]],
    seed: int,
    checksum: str,
    until: str | None,
    sources: str,
) -> str:
    """Return 16 hex digits that name one fit.

    Parameters
    ----------
    experiment : Experiment
        With the design point put in.
    role : str
        "tuning" (no test forecasts), "final" or "baseline".
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
    """
    return fingerprint(experiment, role, fold, seed, checksum, until, sources)


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

    The syntax tree is hashed, so one minor version of Python counts as another source.
    """
    digest = hashlib.sha256()
    for path in number_sources(package, entries):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            _drop_docstring(node)
        digest.update(f"{path.relative_to(package).as_posix()}\n{ast.dump(tree)}\n".encode())
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

"""Embedded databases: their tables appear whole or not at all, and two processes can use them."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

__all__ = ["embedded"]


def embedded(path: Path, create: Callable[[str], None]) -> str:
    """Return the address of the SQLite database at `path`, its tables made on first use.

    Neither MLflow nor Optuna survives a kill while it makes its tables: the next run finds some of
    them and fails. So they are made in a file beside, which is renamed when it is whole. A lock
    keeps two processes from making them at once. The journal is written ahead, so that readers do
    not wait for writers.

    Parameters
    ----------
    path : Path
        The database file.
    create : callable
        Receives the address of an empty database, makes the tables and closes what it opened.
    """
    from filelock import FileLock

    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_name(f"{path.name}.lock")):
        if not path.exists():
            for left in path.parent.glob(f".{path.name}-*"):
                left.unlink()
            fresh = path.with_name(f".{path.name}-{os.getpid()}")
            create(f"sqlite:///{fresh}")
            with closing(sqlite3.connect(fresh, timeout=60)) as connection:
                connection.execute("PRAGMA journal_mode=WAL")
            os.replace(fresh, path)
    return f"sqlite:///{path}?timeout=60"

"""Embedded databases: their tables appear whole or not at all, and two processes can use them."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

__all__ = ["check_database", "check_path", "embedded"]

# What ends or escapes a path in the address of a database.
SPECIAL = "?#%"


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

    Raises
    ------
    ValueError
        If the path cannot stand in an address, or the file is damaged.
    """
    from filelock import FileLock

    check_path(path)
    if path.exists():
        # It appeared whole, so nothing needs to be locked; and beside what is no database nothing is written.
        check_database(path)
        return f"sqlite:///{path}?timeout=60"
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
        else:
            check_database(path)
    return f"sqlite:///{path}?timeout=60"


def check_path(path: Path) -> None:
    """Refuse a path that cannot stand in the address of a database.

    Raises
    ------
    ValueError
        If it has a character that means something else there.
    """
    found = [character for character in SPECIAL if character in str(path)]
    if found:
        raise ValueError(
            f"{path} must have none of {' '.join(SPECIAL)} in its name, which have a meaning in the address "
            f"of a database; it has {' '.join(found)}: rename the folder, or choose another one."
        )


def check_database(path: Path) -> None:
    """Refuse a file that is no whole SQLite database; it is left as it is.

    Raises
    ------
    ValueError
        If the file cannot be opened or is damaged.
    """
    try:
        with closing(
            sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, timeout=60)
        ) as connection:
            told = str(connection.execute("PRAGMA quick_check(1)").fetchone()[0])
    except sqlite3.Error as error:
        told = str(error)
    if told != "ok":
        told = " ".join(told.split())
        raise ValueError(
            f"{path} must be a whole SQLite database and is not ({told}): move it away and run again, which "
            "makes it anew from the finished fits."
        )

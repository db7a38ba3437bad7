"""An embedded database appears with all its tables or not at all."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from fints.study.embedded import embedded


def make(url: str) -> None:
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
        connection.execute("create table first (x)")
        time.sleep(0.05)
        connection.execute("create table second (x)")
        connection.commit()


def tables(path: Path) -> set[str]:
    with closing(sqlite3.connect(path)) as connection:
        return {name for (name,) in connection.execute("select name from sqlite_master where type = 'table'")}


def test_tables_are_made_once_and_kept(tmp_path: Path) -> None:
    made: list[str] = []
    path = tmp_path / "deep" / "store.db"
    for _ in range(2):
        url = embedded(path, lambda fresh: (made.append(fresh), make(fresh))[1])
    assert url == f"sqlite:///{path}?timeout=60"
    assert len(made) == 1
    assert tables(path) == {"first", "second"}
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_what_a_kill_left_half_made_is_made_again(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    half = (
        "import os, sqlite3\n"
        "from pathlib import Path\n"
        "from fints.study.embedded import embedded\n"
        "def make(url):\n"
        "    sqlite3.connect(url.removeprefix('sqlite:///')).execute('create table first (x)')\n"
        "    os._exit(9)\n"
        f"embedded(Path({str(path)!r}), make)\n"
    )
    assert subprocess.run([sys.executable, "-c", half], timeout=300, check=False).returncode == 9
    assert not path.exists()
    embedded(path, make)
    assert tables(path) == {"first", "second"}
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["store.db", "store.db.lock"]


def test_two_at_once_make_it_once(tmp_path: Path) -> None:
    path, made = tmp_path / "store.db", []

    def count(url: str) -> None:
        made.append(url)
        make(url)

    threads = [threading.Thread(target=embedded, args=(path, count)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1


def test_a_failure_leaves_no_database(tmp_path: Path) -> None:
    def fail(url: str) -> None:
        make(url)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        embedded(tmp_path / "store.db", fail)
    assert not (tmp_path / "store.db").exists()

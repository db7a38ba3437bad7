"""The shared store: the first result counts, it is read back as it was, nobody waits for the dead."""

from __future__ import annotations

import io
import math
import os
import tarfile
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy

from fints.study import shared_open
from fints.study.archive import checksum, pack, unpack
from fints.study.liveness import MISSED, Liveness
from fints.study.shared import SharedStore, Worker
from fints.study.shared_open import NothingEnqueued, open_existing, open_shared
from fints.study.shared_tables import tables
from fints.study.store import damage, finish_folder, write_json


def fit(folder: Path, key: str, *, text: str = "words") -> Path:
    fresh = folder / f"{key}-fresh"
    (fresh / "forecaster").mkdir(parents=True)
    write_json(fresh / "result.json", {"key": key, "role": "tuning", "validation_loss": 0.5})
    (fresh / "forecaster" / "weights.bin").write_bytes(os.urandom(100))
    (fresh / "notes.txt").write_text(text)
    final = folder / "fits" / key
    final.parent.mkdir(exist_ok=True)
    finish_folder(fresh, final)
    return final


@pytest.fixture
def store(storage_url: str) -> Iterator[SharedStore]:
    opened = open_shared(storage_url, patience=0.0)
    yield opened
    opened.close()


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_a_stored_fit_comes_back_as_it_was_and_the_second_result_does_not_count(
    store: SharedStore, tmp_path: Path
) -> None:
    first, second = fit(tmp_path / "one", "k"), fit(tmp_path / "two", "k", text="other words")
    assert store.put_fit("s", "k", first, loss=math.inf, attempt="a")
    assert not store.put_fit("s", "k", second, loss=0.1, attempt="b")
    # An answer that was lost: the same try finds that it was first.
    assert store.put_fit("s", "k", first, loss=math.inf, attempt="a")
    assert store.losses("s") == {"k": math.inf}
    assert store.losses("other") == {}
    store.get_fit("s", "k", tmp_path / "three" / "k", tmp=tmp_path / "tmp")
    assert contents(tmp_path / "three" / "k") == contents(first)
    assert not damage(tmp_path / "three" / "k")


def test_a_fit_that_the_database_changed_is_refused_and_can_be_made_again(
    store: SharedStore, tmp_path: Path
) -> None:
    store.put_fit("s", "k", fit(tmp_path, "k"), loss=0.5, attempt="a")
    table = tables()["fints_fits"]
    with store._engine.begin() as connection:
        content = connection.execute(sqlalchemy.select(table.c.content)).scalar_one()
        torn = bytes(content[:700]) + b"?" + bytes(content[701:])
        connection.execute(table.update().values(content=torn))
    with pytest.raises(ValueError, match="must be as it was stored, and has changed"):
        store.get_fit("s", "k", tmp_path / "back" / "k", tmp=tmp_path / "tmp")
    assert not (tmp_path / "back" / "k").exists()
    store.drop_fit("s", "k")
    assert store.put_fit("s", "k", tmp_path / "fits" / "k", loss=0.5, attempt="b")


@pytest.mark.parametrize("name", ["../outside", "/outside", "link"])
def test_no_name_in_an_archive_leaves_the_folder(name: str, tmp_path: Path) -> None:
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as archive:
        entry = tarfile.TarInfo(name)
        entry.size = 1
        if name == "link":
            entry.type, entry.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(entry, io.BytesIO(b"x"))
    content = whole.getvalue()
    with pytest.raises(ValueError, match="no file of a fit"):
        unpack(content, checksum(content), tmp_path / "fits" / "k", tmp=tmp_path / "tmp")
    assert [path.name for path in tmp_path.rglob("*")] == ["tmp"]


def test_equal_fits_are_equal_bytes_and_a_damaged_one_is_not_handed_on(tmp_path: Path) -> None:
    made = fit(tmp_path, "k")
    first = pack(made)
    os.utime(made / "notes.txt", (0, 0))
    assert pack(made) == first
    (made / "notes.txt").write_text("half")
    with pytest.raises(ValueError, match=r"notes\.txt has changed"):
        pack(made)


def test_a_worker_is_dead_when_its_beats_stand_still_and_not_when_a_server_was_away() -> None:
    now = [1000.0]
    liveness = Liveness(10.0, clock=lambda: now[0])
    grace = MISSED * 10.0

    def seen(beat: int | None) -> bool:
        workers = {} if beat is None else {"w": Worker("w", "s", "elsewhere", 1, beat)}
        return liveness.dead("w", workers)

    assert not seen(1)
    now[0] += grace - 1
    assert not seen(1)
    # The server was away for an hour, the worker beats on: it lives.
    now[0] += 3600
    assert not seen(2)
    now[0] += grace + 1
    assert seen(2)
    assert not seen(3), "a worker that was stopped and goes on lives again"
    # One that never said its name is watched as long.
    assert not seen(None)
    now[0] += grace + 1
    assert seen(None)


def test_two_cannot_hold_one_lock_and_its_holder_may_end_without_a_word(
    store: SharedStore, storage_url: str
) -> None:
    import threading

    other = open_shared(storage_url, patience=0.0)
    held, got = threading.Event(), threading.Event()

    def wait() -> None:
        held.wait(60)
        with other.exclusive("a"):
            got.set()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    with store.exclusive("a"):
        held.set()
        assert not got.wait(0.5)
        with store.exclusive("b"):
            pass
    assert got.wait(60)
    thread.join()
    other.close()


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("nonsense://u:s3cret@x", "cannot be opened"),
        ("mysql://u:s3cret@x/y", "it must begin with postgresql+psycopg:// (many machines)"),
        ("not an address s3cret", "cannot be opened"),
        ("sqlite://", "must begin with"),
    ],
)
def test_an_address_that_cannot_be_used_is_one_line_without_its_password(url: str, told: str) -> None:
    with pytest.raises(ValueError, match="--storage ") as caught:
        open_shared(url)
    line = str(caught.value)
    assert told in line
    assert line.startswith("--storage ")
    assert "\n" not in line
    assert ":s3cret@" not in line


def test_a_server_that_restarts_is_waited_for_and_one_that_was_never_there_is_not(postgres: Any) -> None:
    url = postgres.url(f"test_{uuid.uuid4().hex[:12]}")
    postgres.stop()
    started = threading.Timer(1.0, postgres.start)
    try:
        with pytest.raises(ValueError, match="cannot be opened"):
            open_shared(url)
    finally:
        started.start()
    open_shared(url, wait=60.0).close()
    started.join()
    with pytest.raises(ValueError, match='database "none" does not exist'):
        open_shared(url.rpartition("/")[0] + "/none", wait=60.0)


def test_a_server_that_restarts_while_the_tables_are_made_is_waited_for(
    postgres: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, restarts = shared_open.create_tables, []

    def create_tables(engine: sqlalchemy.Engine) -> None:
        if not restarts:
            restarts.append(1)
            postgres.stop()
            postgres.start()
        real(engine)

    monkeypatch.setattr(shared_open, "create_tables", create_tables)
    store = open_shared(postgres.url(f"test_{uuid.uuid4().hex[:12]}"))
    assert restarts
    assert store.studies() == []
    store.close()


def test_whoever_looks_makes_no_tables_and_finds_those_that_were_made_whole(storage_url: str) -> None:
    fresh = sqlalchemy.create_engine(storage_url)
    file = Path(str(fresh.url.database)) if fresh.dialect.name == "sqlite" else None
    with pytest.raises(NothingEnqueued, match=r"a study was enqueued in, and (none ever was|there is no)"):
        open_existing(storage_url)
    assert file is None or list(file.parent.iterdir()) == []
    # What somebody else made there is no queue of ours either.
    with fresh.begin() as connection:
        connection.execute(sqlalchemy.text("create table theirs (x integer)"))
    with pytest.raises(NothingEnqueued, match="none ever was"):
        open_existing(storage_url)
    assert sqlalchemy.inspect(fresh).get_table_names() == ["theirs"]
    fresh.dispose()
    if file is not None:
        file.unlink()
    made = open_shared(storage_url)
    found = open_existing(storage_url)
    assert found.studies() == []
    found.close()
    # The note of the format is made last: without it a driver that was killed has not made them all.
    with made._engine.begin() as connection:
        connection.execute(tables()["fints_format"].delete())
    with pytest.raises(NothingEnqueued, match="none ever was"):
        open_existing(storage_url)
    made.close()


def test_a_store_of_another_format_is_refused_by_name(store: SharedStore, storage_url: str) -> None:
    with store._engine.begin() as connection:
        connection.execute(tables()["fints_format"].update().values(format=9))
    with pytest.raises(ValueError, match="of format 9 and this fints reads format 1"):
        open_shared(storage_url)

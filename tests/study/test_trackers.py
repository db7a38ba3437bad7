"""A tracker is no condition for a fit: one that is not there is refused at once, one that fails is told."""

from __future__ import annotations

import os
import runpy
import shutil
import socket
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fints.data import simulate
from fints.study import cli, fingerprint, runner
from fints.study.commands import shown
from fints.study.embedded import check_database, check_path, embedded
from fints.study.fits import Cell
from fints.study.plan import make_plan
from fints.study.progress import Report
from fints.study.recorder import Recorder
from fints.study.store import StudyFolder
from fints.study.tracking import NO_PATIENCE, Tracker, check_tracker
from fints.study.trials import open_storage

# MLflow 3.17 configures its tables in a way that SQLAlchemy 2.1 deprecates; ours to report, not to mend.
pytestmark = pytest.mark.filterwarnings(
    "default:The ``noload`` loader strategy is deprecated:sqlalchemy.exc.SADeprecationWarning"
)

CELL = Cell(key="k", arm="a", role="final", fold=0, seed=0, point={}, dates={}, experiment={})


def refusal(root: Path, uri: str | None) -> str:
    import mlflow  # noqa: F401  before the clock starts

    clock = time.monotonic()
    with pytest.raises(ValueError) as caught:  # noqa: PT011 (the message is what the caller looks at)
        check_tracker(root, uri)
    # Seconds on an idle machine; MLflow itself would try for half an hour.
    assert time.monotonic() - clock < 120
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_server_that_is_not_there_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = NO_PATIENCE
    monkeypatch.setenv(first, "3")
    monkeypatch.delenv(second, raising=False)
    told = refusal(tmp_path, "http://127.0.0.1:1")
    assert told.startswith("--tracking-uri http://127.0.0.1:1 must be an MLflow server or store that answers")
    assert told.endswith("start it, or leave the option out to track under the root.")
    assert os.environ[first] == "3"
    assert second not in os.environ


def test_a_server_that_says_nothing_is_refused_within_seconds(tmp_path: Path) -> None:
    with closing(socket.socket()) as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        assert "does not" in refusal(tmp_path, f"http://127.0.0.1:{silent.getsockname()[1]}")


@pytest.mark.parametrize("uri", ["nonsense://x", "sqlite:////proc/x/mlflow.db"])
def test_an_address_that_cannot_be_a_store_is_refused(tmp_path: Path, uri: str) -> None:
    told = refusal(tmp_path, uri)
    assert told.startswith("--tracking-uri ")
    assert " must be" in told
    assert uri in told


def test_a_store_that_was_named_and_is_damaged_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.db"
    path.write_bytes(b"not a database" * 100)
    assert "not a database" in refusal(tmp_path, f"sqlite:///{path}")
    assert path.read_bytes() == b"not a database" * 100


def make(url: str) -> None:
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
        connection.execute("create table numbers (x)")
        connection.executemany("insert into numbers values (?)", [("many words " * 20,)] * 500)
        connection.commit()


@pytest.mark.parametrize("how", ["overwritten", "torn", "scratched"])
@pytest.mark.parametrize("name", ["mlflow.db", "optuna.db"])
def test_a_damaged_database_is_named_and_left_as_it_is(tmp_path: Path, name: str, how: str) -> None:
    path = tmp_path / name
    embedded(path, make)
    check_database(path)
    whole = path.read_bytes()
    left = {
        "overwritten": b"not a database" * 100,
        "torn": whole[: len(whole) // 2],
        "scratched": whole[:20000] + b"\xff" * 40000 + whole[60000:],
    }[how]
    path.write_bytes(left)
    with pytest.raises(ValueError, match="must be a whole SQLite database and is not") as caught:
        check_tracker(tmp_path, None) if name == "mlflow.db" else open_storage(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert path.read_bytes() == left


def test_a_database_of_another_program_is_named(tmp_path: Path) -> None:
    path = tmp_path / "optuna.db"
    open_storage(path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("update version_info set schema_version = 1")
        connection.execute("update alembic_version set version_num = 'v0.9.0.a'")
        connection.commit()
    with pytest.raises(ValueError, match=r"must be a database of Optuna's .*: move it away") as caught:
        open_storage(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("name", ["a?b", "a#b", "100%"])
def test_a_folder_that_cannot_stand_in_an_address_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / name / "store.db"
    with pytest.raises(ValueError, match="rename the folder, or choose another one"):
        embedded(path, make)
    with pytest.raises(ValueError, match="must have none of"):
        check_path(path)
    assert list(tmp_path.iterdir()) == []


class Failing:
    """A tracker whose store goes away at the second fit."""

    def __init__(self) -> None:
        self.finished = 0

    def open(self, fits: Path) -> None:
        """Take no notice."""

    def finish(self, cell: Cell, folder: Path) -> None:
        if self.finished == 1:
            raise OSError("the server has gone\nand more")
        self.finished += 1

    def close(self, status: str) -> None:
        raise AssertionError("a store that fails is not asked again")


def test_a_store_that_goes_away_is_told_once_and_hinders_nothing(tmp_path: Path) -> None:
    tracker: Any = Failing()
    said: list[str] = []
    recorder = Recorder(tracker, tmp_path, said.append)
    for _ in range(5):
        recorder.finish(CELL)
    recorder.close("FINISHED")
    assert recorder.error == "the server has gone"
    assert said == ["tracking failed, the fits go on without it: the server has gone"]
    assert tracker.finished == 1
    assert "tracking" not in {thread.name for thread in threading.enumerate()}


class Away:
    """A tracker whose store is away from the second fit on, for as many questions as `long` says."""

    def __init__(self, long: int) -> None:
        self.left = long
        self.opened = 0
        self.finished: list[str] = []
        self.running: set[str] = set()
        self.closed = ""

    def open(self, fits: Path) -> None:
        self.opened += 1
        self._ask()
        # What was open is found again, and what was lost on the way is not.
        self.running.clear()

    def start(self, cell: Cell) -> None:
        self.running.add(cell.key)

    def finish(self, cell: Cell, folder: Path) -> None:
        if cell.key in self.finished:
            return
        if self.finished:
            self._ask()
        self.running.discard(cell.key)
        self.finished.append(cell.key)

    def kill(self, cell: Cell, status: str, reason: str) -> None:
        self.running.discard(cell.key)

    def close(self, status: str) -> None:
        self.closed = status

    def _ask(self) -> None:
        if self.opened and self.finished and self.left:
            self.left -= 1
            raise OSError("connection refused")


def record(tracker: Any, tmp_path: Path, patience: float) -> tuple[Recorder, list[str]]:
    said: list[str] = []
    recorder = Recorder(tracker, tmp_path, said.append, patience=patience)
    cells = [replace(CELL, key=f"k{number}") for number in range(5)]
    for cell in cells:
        recorder.start(cell)
    for cell in cells[:3]:
        recorder.finish(cell)
    recorder.kill(cells[3])
    recorder.close("FINISHED")
    return recorder, said


def test_a_store_that_comes_back_is_told_everything_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fints.study.recorder.PAUSE_S", 0.001)
    tracker = Away(long=7)
    recorder, said = record(tracker, tmp_path, 60.0)
    assert recorder.error == ""
    assert sorted(tracker.finished) == ["k0", "k1", "k2"]
    assert tracker.running == {"k4"}
    assert tracker.closed == "FINISHED"
    assert said == [
        "tracking failed, the fits go on and are recorded once it is back: connection refused",
        "tracking is back and has been told what it missed",
    ]


def test_a_store_that_stays_away_is_waited_for_no_longer_than_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fints.study.recorder.PAUSE_S", 0.001)
    tracker = Away(long=10**9)
    recorder, said = record(tracker, tmp_path, 0.05)
    assert recorder.error == "connection refused"
    assert said[-1] == "tracking stays away: connection refused"
    assert tracker.closed == ""


class Reached(Exception):
    """Raised where the tracker's thread would start."""


def test_sources_are_hashed_before_another_thread_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CPython 3.11's ast.parse fails now and then (SystemError) while another thread imports."""
    panel = simulate(num_assets=3, num_days=160, seed=1).panel
    panel.frame.write_parquet(tmp_path / "prices.parquet")
    study = runpy.run_path(str(Path(__file__).parent / "tiny.py"))["STUDY"]
    plan = make_plan(study, name="tiny", docstring="", preset="smoke", data=str(tmp_path / "prices.parquet"))
    fingerprint.sources_hash.cache_clear()

    def begin(*_: object, **more: object) -> None:
        monkeypatch.setattr(fingerprint.ast, "parse", None)
        plan.baseline_cells()
        raise Reached

    monkeypatch.setattr(runner, "Recorder", begin)
    folder = StudyFolder(tmp_path / "root", plan.name, plan.label)
    report = Report(Console(), total=8, work=1.0, workers=1)
    with pytest.raises(Reached):
        runner.run(plan, folder, report, workers=1)


@pytest.mark.slow
def test_a_run_whose_tracker_fails_has_its_report_and_the_next_run_completes_the_pages(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    run_study: Callable[..., Any],
    mlflow_tables: Path,
) -> None:
    run_study.work_here(monkeypatch)
    simulate(num_assets=3, num_days=160, seed=1).panel.frame.write_parquet(tmp_path / "prices.parquet")
    path, root = Path(__file__).parent / "tiny.py", tmp_path / "root"
    root.mkdir()
    shutil.copy(mlflow_tables, root / "mlflow.db")
    study = runpy.run_path(str(path))["STUDY"]
    words = ["run", "--preset", "smoke", "--data", str(tmp_path / "prices.parquet"), "--workers", "1"]
    words += ["--root", str(root)]

    def run(code: int) -> str:
        with pytest.raises(SystemExit) as ended:
            cli.main(study, words, file=path)
        told = capsys.readouterr()
        assert ended.value.code == code, told.out + told.err
        return told.out

    def gone(*_: object) -> None:
        raise OSError("the server has gone")

    with monkeypatch.context() as patch:
        patch.setattr(Tracker, "finish", gone)
        said = run(1)
    assert "[8/8]" in said
    assert said.count("tracking failed, the fits go on without it: the server has gone") == 1
    assert "tracking failed (the server has gone): MLflow is behind. Running again completes it:" in said
    assert said.splitlines()[-1] == f"python {shown(path)} {' '.join(words[:5])} --root {root} --workers 1"
    report = next(root.rglob("report.md"))
    before = report.read_bytes()
    assert "/8]" not in run(0)
    assert report.read_bytes() == before
    with closing(sqlite3.connect(root / "mlflow.db")) as store:
        found = dict(store.execute("select status, count(*) from runs group by status").fetchall())
    assert found.pop("FINISHED") == 10
    assert set(found) <= {"KILLED"}


def test_an_empty_address_is_no_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    check_tracker(tmp_path / "root", "")
    assert list(tmp_path.iterdir()) == []

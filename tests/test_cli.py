"""The fints command: what it prints, where it prints it, how it ends."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

import fints
from fints.cli import main
from fints.data import datasets
from fints.doctor import Check, examine
from fints.residual import RESIDUALS

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run the command in this process, 80 columns wide, and return its code, stdout and stderr."""
    monkeypatch.setenv("COLUMNS", "80")

    def call(*words: str | Path) -> tuple[int, str, str]:
        code = main([str(word) for word in words])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def long_csv(path: Path, rows: list[str]) -> Path:
    path.write_text("date,asset,close\n" + "\n".join(rows) + "\n", encoding="utf-8")
    return path


REFUSED = [
    ["--nope"],
    ["nope"],
    ["data"],
    ["data", "lst"],
    ["data", "list", "--jsn"],
    ["data", "show"],
    ["data", "show", "sp500-21"],
    ["data", "show", "sp500-20", "more"],
    ["data", "check"],
    ["data", "check", "absent.csv"],
    ["data", "check", ".", "--layout", "long"],
    ["schemes", "lst"],
    ["ui", "--port", "five"],
    ["ui", "--port", "70000"],
    ["ui", "--root", "absent"],
    ["ui"],
]


@pytest.mark.parametrize("words", REFUSED, ids=" ".join)
def test_what_cannot_be_used_is_refused_in_one_line_with_code_two(run: Run, words: list[str]) -> None:
    code, out, err = run(*words)
    assert code == 2
    assert out == ""
    assert re.fullmatch(r"error: [^\n]+\n", err)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["data", "show", "sp500-21"], "Did you mean 'sp500-20'?"),
        (["data", "shw"], "Did you mean 'show'? Try: fints data --help"),
        (["data", "check", "absent.csv"], "absent.csv"),
        (["ui"], "no MLflow store"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_refusal_says_what_was_meant_or_what_to_do(run: Run, words: list[str], said: str) -> None:
    assert said in run(*words)[2]


def test_no_arguments_print_the_help(run: Run) -> None:
    assert run() == run("--help")
    assert run()[0] == 0


def test_the_version_is_that_of_the_package(run: Run) -> None:
    assert run("--version") == (0, f"fints {fints.__version__}\n", "")


def test_data_list_and_show_print_the_cards(run: Run) -> None:
    cards = {card.name: card for card in datasets()}
    code, out, err = run("data", "list")
    assert (code, err) == (0, "")
    assert all(name in out for name in cards)
    listed = json.loads(run("data", "list", "--json")[1])
    assert [card["name"] for card in listed] == list(cards)

    shown = json.loads(run("data", "show", "sp500-20", "--json")[1])
    assert shown["checksum"] == cards["sp500-20"].checksum
    text = run("data", "show", "sp500-20")[1]
    assert cards["sp500-20"].checksum in text
    assert "grants" in text
    assert "Survivorship" in text


def test_a_good_file_is_described_with_what_looks_odd(run: Run, tmp_path: Path) -> None:
    days = ["2024-01-02", "2024-01-03", "2024-01-04"]
    file = long_csv(tmp_path / "still.csv", [f"{day},{asset},5.0" for day in days for asset in "AB"])
    code, out, err = run("data", "check", file)
    assert (code, err) == (0, "")
    assert "a panel that fints can use" in out
    assert "never changes" in " ".join(out.split())
    report = json.loads(run("data", "check", file, "--json")[1])
    assert report["ok"] is True
    assert report["summary"]["rows"] == 6


@pytest.mark.parametrize(
    "rows",
    [["2024-01-02,A,-1"], ["2024-01-02,A,1", "2024-01-02,A,2"], ["2024-13-02,A,1"], []],
    ids=["negative price", "twice the same key", "no date", "no rows"],
)
def test_a_bad_file_is_refused_in_one_line_and_as_json(run: Run, tmp_path: Path, rows: list[str]) -> None:
    file = long_csv(tmp_path / "bad.csv", rows)
    code, _, err = run("data", "check", file)
    assert code == 2
    assert re.fullmatch(r"error: [^\n]*bad\.csv[^\n]+\n", err)
    code, out, err = run("data", "check", file, "--json")
    assert (code, err) == (2, "")
    assert json.loads(out)["ok"] is False


def test_schemes_prints_every_scheme_as_its_class_states_it(run: Run) -> None:
    out = run("schemes")[1]
    assert run("schemes", "list") == run("schemes")
    assert run("schemes", "list", "--json") == run("schemes", "--json")
    rows = json.loads(run("schemes", "--json")[1])["schemes"]
    assert [row["name"] for row in rows] == list(RESIDUALS)
    for row in rows:
        scheme = RESIDUALS[row["name"]]
        assert row["parameter_formula"] == scheme.parameter_formula
        assert row["extra_parameters"] == scheme.extra_parameters(64, 24, norm="layer_norm")
        assert " ".join(scheme.equation.split()) in " ".join(out.split())


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["data", "--help"],
        ["ui", "--help"],
        ["data", "list"],
        ["data", "show", "sp500-20"],
        ["schemes"],
        ["doctor"],
    ],
    ids=" ".join,
)
def test_pages_keep_to_eighty_columns(run: Run, words: list[str]) -> None:
    out = run(*words)[1]
    assert out
    assert [line for line in out.splitlines() if len(line) > 80] == []


def test_doctor_finds_this_environment_fit(run: Run) -> None:
    code, out, _ = run("doctor")
    checks = json.loads(run("doctor", "--json")[1])
    wrong = [check for check in checks["checks"] if check["state"] == "wrong"]
    assert wrong == []
    assert code == 0
    assert checks["ok"] is True
    assert "Everything fints needs is here." in out
    assert {"python", "torch build", "results folder", "disk"} <= {
        check["name"] for check in checks["checks"]
    }


def test_doctor_ends_with_one_and_a_remedy_when_a_store_is_broken(run: Run, home_of_its_own: Path) -> None:
    (home_of_its_own / "mlflow.db").write_bytes(b"this is no database" * 100)
    code, out, _ = run("doctor")
    assert code == 1
    assert "store mlflow.db: move the file away" in " ".join(out.split())


def test_doctor_refuses_a_home_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("not a folder")
    (check,) = [check for check in examine(tmp_path / "home") if check.name == "results folder"]
    assert check.state == "wrong"
    assert "FINTS_HOME" in check.remedy


def test_doctor_calls_a_home_that_may_not_be_looked_at_one_that_cannot_be_written(
    run: Run, home_of_its_own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Whoever runs this may be root, whom no mode keeps out.
    def stat(path: Path, **options: bool) -> os.stat_result:
        if home_of_its_own in path.parents:
            raise PermissionError(13, "Permission denied", str(path))
        return os.stat(path, **options)

    monkeypatch.setattr(Path, "stat", stat)
    monkeypatch.setenv("FINTS_HOME", str(home_of_its_own / "theirs"))
    code, out, _ = run("doctor", "--json")
    assert code == 1
    (wrong,) = [check for check in json.loads(out)["checks"] if check["state"] == "wrong"]
    assert wrong["name"] == "results folder"
    assert "theirs cannot be written (Permission denied)" in wrong["found"]
    assert "FINTS_HOME" in wrong["remedy"]


def test_whatever_a_check_of_doctor_raises_is_a_row_and_the_others_are_made(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> Iterator[Check]:
        yield Check(name="cores", found="2")
        raise ZeroDivisionError("no cores to share among\nmore words")

    monkeypatch.setattr("fints.doctor._machine", broken)
    code, out, _ = run("doctor", "--json")
    checks = json.loads(out)["checks"]
    assert code == 1
    (wrong,) = [check for check in checks if check["state"] == "wrong"]
    assert wrong["name"] == "machine"
    assert wrong["found"] == "cannot be checked: ZeroDivisionError: no cores to share among"
    assert {"cores", "git", "disk"} <= {check["name"] for check in checks}


def test_doctor_notes_that_git_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert found_by(monkeypatch, tmp_path)["git"].state == "ok"
    found = found_by(monkeypatch, tmp_path, PATH=str(tmp_path))["git"]
    assert found.state == "note"
    assert "install git" in found.remedy


def found_by(monkeypatch: pytest.MonkeyPatch, home: Path, **environment: str) -> dict[str, Check]:
    """Return the checks of this machine by name, under an environment."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return {check.name: check for check in examine(home)}


def test_doctor_says_how_to_mend_what_slows_fits_down(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = found_by(monkeypatch, tmp_path, OMP_NUM_THREADS="4096", CXX="no-such-compiler")
    assert found["threads"].state == "note"
    assert "unset OMP_NUM_THREADS" in found["threads"].remedy
    # A fit does without; what it does without is said.
    assert found["C++ compiler"].state == "note"
    assert "no-such-compiler" in found["C++ compiler"].found
    assert "plain training works" in found["C++ compiler"].found


def test_doctor_finds_a_disk_that_cannot_be_written_whatever_its_modes_say(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system", str(tmp_path))

    monkeypatch.setattr("fints.doctor.tempfile.TemporaryFile", refuse)
    assert found_by(monkeypatch, tmp_path)["results folder"].state == "wrong"


def test_doctor_names_what_killed_processes_have_left(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import platform

    fits = tmp_path / "study" / "quick"
    for left in (
        tmp_path / "datasets" / ".deleted-x" / "mine",
        fits / "fits" / "abc.damaged-20260101-000000",
        fits / "tmp" / "half",
    ):
        left.mkdir(parents=True)
    (fits / "locks").mkdir()
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait(timeout=300)
    (fits / "locks" / "driver.json").write_text(json.dumps({"pid": ended.pid, "host": platform.node()}))
    found = found_by(monkeypatch, tmp_path)
    for name in ("leftovers of deletions", "damaged fits set aside", "half-written fits"):
        assert found[name].state == "note"
        assert str(tmp_path) in found[name].found
    (fits / "locks" / "driver.json").write_text(json.dumps({"pid": os.getpid(), "host": platform.node()}))
    assert "half-written fits" not in found_by(monkeypatch, tmp_path)


def test_doctor_asks_the_stores_of_the_environment_and_keeps_their_secrets(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = found_by(
        monkeypatch,
        tmp_path,
        FINTS_STORAGE="postgresql+psycopg://fints:secret@127.0.0.1:9/fints",
        MLFLOW_TRACKING_URI="nonsense://fints:secret@nowhere",
    )
    for name in ("FINTS_STORAGE", "MLFLOW_TRACKING_URI"):
        assert found[name].state == "wrong"
        assert found[name].remedy
    assert not any("secret" in str(check.to_dict()) for check in found.values())


def test_doctor_makes_no_database_where_none_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    new = tmp_path / "new.db"
    found = found_by(monkeypatch, tmp_path / "home", FINTS_STORAGE=f"sqlite:///{new}")["FINTS_STORAGE"]
    assert found.state == "note"
    assert "has no study yet" in found.found
    assert "run --storage" in found.remedy
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", [["worker"], ["study", "status"], ["study", "report"]], ids=" ".join)
def test_a_database_without_a_study_is_refused_and_stays_as_it_was(
    run: Run, tmp_path: Path, words: list[str]
) -> None:
    theirs = tmp_path / "theirs.db"
    with closing(sqlite3.connect(theirs)) as connection:
        connection.execute("create table theirs (x integer)")
    before = theirs.read_bytes()
    code, _, err = run(*words, "--storage", f"sqlite:///{theirs}")
    assert code == 2
    assert "must be a database that a study was enqueued in, and none ever was" in " ".join(err.split())
    assert theirs.read_bytes() == before
    assert list(tmp_path.iterdir()) == [theirs]


def test_doctor_names_a_version_outside_its_range(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import importlib.metadata

    installed = importlib.metadata.version
    monkeypatch.setattr(
        importlib.metadata, "requires", lambda _: ["polars>=900", "absent_package>=1", "rich"]
    )
    monkeypatch.setattr(importlib.metadata, "version", installed)
    found = {check.name: check for check in examine(tmp_path)}
    assert found["polars"].state == "wrong"
    assert found["polars"].remedy == "pip install 'polars>=900'"
    assert found["absent_package"] == Check(
        name="absent_package", found="not installed", state="wrong", remedy="pip install 'absent_package>=1'"
    )
    assert found["rich"].state == "ok"


def test_help_answers_in_under_half_a_second() -> None:
    def seconds() -> float:
        start = time.perf_counter()
        subprocess.run([sys.executable, "-m", "fints", "--help"], check=True, capture_output=True)
        return time.perf_counter() - start

    # The fastest of five: what the command costs, not what else the machine was doing.
    assert min(seconds() for _ in range(5)) < 0.5

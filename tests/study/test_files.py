"""A stored file that is damaged or gone is named in one line with what to do, and is left as it is."""

from __future__ import annotations

import json
import runpy
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from fints.data import simulate
from fints.study import cli, command_line
from fints.study.analysis import analyse
from fints.study.commands import resume_command, run_command, shown
from fints.study.options import study_parser
from fints.study.plan import make_plan
from fints.study.store import digest, write_json

TINY = Path(__file__).parent / "tiny.py"
STUDY = runpy.run_path(str(TINY))["STUDY"]
TABLES = ("forecasts", "fits", "profiles", "mixing", "history", "baselines")
MakeStudy = Callable[..., tuple[dict[str, Any], Path]]


@pytest.fixture(scope="module")
def prices(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "prices.parquet"
    simulate(num_assets=3, num_days=160, seed=1).panel.frame.write_parquet(path)
    return path


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, make_study: MakeStudy) -> tuple[dict[str, Any], Path]:
    return make_study(
        tmp_path_factory.mktemp("finished"), schemes=("pre_norm", "post_norm"), folds=2, days=20
    )


@pytest.fixture
def study(finished: tuple[dict[str, Any], Path], tmp_path: Path) -> tuple[dict[str, Any], Path]:
    """A copy, to be damaged, of a study's specification and tables."""
    spec, folder = finished
    return spec, Path(shutil.copytree(folder, tmp_path / "study"))


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a verb in this process; it must end with code 2 and one line, which is returned."""

    def call(*words: str) -> str:
        with pytest.raises(SystemExit) as ended:
            cli.main(STUDY, words, file=TINY)
        told = capsys.readouterr().err
        assert ended.value.code == 2, told
        assert told.count("\n") == 1
        return told

    return call


@pytest.fixture
def kept(tmp_path: Path, finished: tuple[dict[str, Any], Path], prices: Path) -> Path:
    """A results folder where `tiny` has finished at preset smoke."""
    spec, made = finished
    folder = Path(shutil.copytree(made, tmp_path / "root" / "tiny" / label(prices, "smoke")))
    stamp(folder, {**spec, "preset": "smoke"})
    return folder


def stamp(folder: Path, spec: dict[str, Any]) -> None:
    tables = {path.name: digest(path) for path in folder.glob("*.parquet")}
    write_json(folder / "tables.json", {"tables": tables, "spec": spec})


def label(prices: Path, preset: str) -> str:
    return make_plan(STUDY, name="tiny", docstring="", preset=preset, data=str(prices)).label


def damage(path: Path, how: str) -> bytes:
    whole = path.read_bytes()
    middle = len(whole) // 2
    path.write_bytes(
        {
            "empty": b"",
            "torn": whole[:middle],
            "overwritten": b"no table at all",
        }[how]
    )
    return path.read_bytes()


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("how", ["empty", "torn", "overwritten"])
def test_a_damaged_table_is_named(study: tuple[dict[str, Any], Path], name: str, how: str) -> None:
    spec, folder = study
    path = folder / f"{name}.parquet"
    left = damage(path, how)
    with pytest.raises(ValueError, match=r"must hold parquet and cannot be read .*: run the study") as caught:
        analyse(spec, folder)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert path.read_bytes() == left


@pytest.mark.parametrize("name", TABLES)
def test_a_table_of_something_else_is_named(study: tuple[dict[str, Any], Path], name: str) -> None:
    spec, folder = study
    path = folder / f"{name}.parquet"
    pl.DataFrame({"price": [1.0]}).write_parquet(path)
    with pytest.raises(ValueError, match=r"\.parquet lacks .*; it has price") as caught:
        analyse(spec, folder)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("text", ["", '{"name": "ti', "[]", "{}", "\x00"])
def test_a_stamp_that_is_damaged_is_named(
    kept: Path, prices: Path, refused: Callable[..., str], text: str
) -> None:
    path = kept / "tables.json"
    path.write_text(text)
    root = str(kept.parent.parent)
    told = refused("report", "--preset", "smoke", "--data", str(prices), "--root", root)
    assert str(path) in told
    assert "run again" in told


@pytest.mark.parametrize("name", TABLES)
def test_a_report_of_a_damaged_table_is_one_line(
    kept: Path, prices: Path, refused: Callable[..., str], name: str
) -> None:
    damage(kept / f"{name}.parquet", "torn")
    root = str(kept.parent.parent)
    told = refused("report", "--preset", "smoke", "--data", str(prices), "--root", root)
    assert f"{name}.parquet" in told


def test_a_report_of_another_preset_names_the_one_that_is_finished(
    kept: Path, prices: Path, refused: Callable[..., str]
) -> None:
    spec = json.loads((kept / "tables.json").read_text())["spec"]
    stamp(kept, {**spec, "dataset": {**spec["dataset"], "reference": str(prices)}})
    root = kept.parent.parent
    told = refused("report", "--data", str(prices), "--root", str(root))
    assert f"Finished there is only {kept.name}; its" in told
    assert f"report --preset smoke --data {prices} --root {root}" in told
    assert f"first: python {shown(TINY)} run --preset quick --data {prices} --root {root}" in told


def test_a_report_of_another_preset_names_all_that_are_finished(
    kept: Path, prices: Path, refused: Callable[..., str], make_study: MakeStudy
) -> None:
    spec, other = make_study(
        kept.parent / "longer-prices", schemes=("pre_norm", "post_norm"), folds=2, days=20
    )
    stamp(other, {**spec, "preset": "longer", "changes": {"training.steps": 3}})
    (kept.parent / "torn").mkdir()
    (kept.parent / "torn" / "tables.json").touch()
    told = refused("report", "--data", str(prices), "--root", str(kept.parent.parent))
    assert f"Finished there are longer-prices, {kept.name}; their" in told
    assert "--preset longer --data made-up --set training.steps=3 --root" in told


@pytest.mark.parametrize("place", ["/dev/null/x", "a file", "/proc/x"])
@pytest.mark.parametrize("given", ["--root", "FINTS_HOME"])
def test_a_root_that_cannot_hold_results_is_one_line(
    tmp_path: Path,
    prices: Path,
    refused: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    place: str,
    given: str,
) -> None:
    if place == "a file":
        place = str(tmp_path / "file")
        Path(place).write_text("mine")
    words = ["run", "--preset", "smoke", "--data", str(prices)]
    if given == "--root":
        words += ["--root", place]
    else:
        monkeypatch.setenv("FINTS_HOME", place)
    told = refused(*words)
    assert place in told
    assert "choose another one with --root or FINTS_HOME" in told
    if Path(place).is_file():
        assert Path(place).read_text() == "mine"


def test_a_root_that_is_read_only_is_one_line(
    tmp_path: Path, prices: Path, refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", str(tmp_path))

    # A superuser may write to a read-only folder, so a mode would prove nothing.
    monkeypatch.setattr(command_line.tempfile, "TemporaryFile", refuse)
    told = refused("run", "--preset", "smoke", "--data", str(prices), "--root", str(tmp_path))
    assert "Permission denied" in told


def test_an_error_of_the_file_system_that_nobody_expects_is_one_line(
    refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device", "/somewhere/fits")

    monkeypatch.setitem(cli._VERBS, "plan", full)
    assert refused("plan") == "error: /somewhere/fits cannot be used: No space left on device.\n"


def test_the_command_that_goes_on_has_every_option_and_can_be_pasted(tmp_path: Path) -> None:
    words = ["run", "--preset", "smoke", "--data", "my prices.csv", "--set", "data.target=log_return"]
    words += ["--root", str(tmp_path / "my root"), "--workers", "2"]
    words += ["--storage", "sqlite:///a b.db", "--tracking-uri", "http://127.0.0.1:5000?x=1&y"]
    arguments = study_parser(TINY, STUDY).parse_args(words)
    again = shlex.split(resume_command(TINY, arguments))
    assert again[:2] == ["python", shown(TINY)]
    assert study_parser(TINY, STUDY).parse_args(again[2:]) == arguments
    assert "--root" not in run_command(TINY, arguments)


@pytest.mark.parametrize("name", ["a?b", "a#b", "100%"])
def test_a_root_that_no_database_can_be_addressed_in_is_refused(
    tmp_path: Path, prices: Path, refused: Callable[..., str], name: str
) -> None:
    root = tmp_path / name
    told = refused("run", "--preset", "smoke", "--data", str(prices), "--root", str(root))
    assert str(root) in told
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["mlflow.db", "optuna.db"])
def test_a_run_on_a_damaged_database_is_one_line(
    kept: Path, prices: Path, refused: Callable[..., str], name: str
) -> None:
    root = kept.parent.parent
    path = (root if name == "mlflow.db" else kept) / name
    path.write_bytes(b"not a database" * 100)
    told = refused("run", "--preset", "smoke", "--data", str(prices), "--root", str(root))
    assert f"{path} must be a whole SQLite database" in told
    assert path.read_bytes() == b"not a database" * 100


def test_a_run_without_its_tracker_fits_nothing(
    tmp_path: Path, prices: Path, refused: Callable[..., str]
) -> None:
    words = ["run", "--preset", "smoke", "--data", str(prices), "--root", str(tmp_path)]
    assert "that answers, and does not" in refused(*words, "--tracking-uri", "http://127.0.0.1:1")
    assert not list(tmp_path.rglob("fits/*"))

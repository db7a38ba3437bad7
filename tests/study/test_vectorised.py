"""A study whose fits are made several at once is the study, whatever disturbs it."""

from __future__ import annotations

import io
import json
import runpy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from rich.console import Console

from fints.data import simulate
from fints.study import Preset, fits, runner
from fints.study.fits import Cell
from fints.study.grouping import jobs_of
from fints.study.plan import make_plan
from fints.study.pool import Pool
from fints.study.progress import Report
from fints.study.store import StudyFolder

TINY = runpy.run_path(str(Path(__file__).parent / "tiny.py"))["STUDY"]
SIX = {"training.vectorise": 6}
# Two arms; of each, two design points on one fold, then two folds and three seeds.
STUDY = replace(
    TINY,
    presets={"smoke": Preset(levels={"depth": ("1",)}, seeds=(10, 11, 12), claim="none")},
    baselines=("zero", "prevailing_mean"),
)


@pytest.fixture(scope="module")
def prices(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "prices.parquet"
    simulate(num_assets=4, num_days=160, seed=3).panel.frame.write_parquet(path)
    return path


@pytest.fixture(scope="module")
def run(run_study: Any, prices: Path) -> Callable[..., Any]:
    """Run the study in this process."""

    def here(patch: pytest.MonkeyPatch, root: Path, **more: Any) -> Any:
        return run_study(patch, root, prices, study=STUDY, **more)

    return here


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, run: Callable[..., Any]) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        return run(patch, tmp_path_factory.mktemp("undisturbed"), changes=SIX)


def tables(one: Any) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(one.folder.path.glob("*.parquet"))}


def of_fits(one: Any) -> dict[str, bytes]:
    """Return what each fit wrote, but how long it took and what the networks' weights are packed in."""
    return {
        f"{path.parent.name}/{path.name}": path.read_bytes()
        for path in sorted(one.folder.fits.glob("*/*"))
        if path.is_file() and path.name not in ("timing.json", "files.json")
    }


def times(one: Any) -> dict[str, bytes]:
    return {path.parent.name: path.read_bytes() for path in one.folder.fits.glob("*/timing.json")}


@pytest.mark.slow
def test_fits_that_are_made_at_once_say_what_they_say_one_by_one(
    undisturbed: Any, run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    alone = run(monkeypatch, tmp_path)
    assert undisturbed.outcome.finished == alone.outcome.finished == 16
    assert set(tables(undisturbed)) == set(tables(alone))
    for name in ("forecasts", "profiles", "mixing"):
        found, expected = (
            pl.read_parquet(one.folder.path / f"{name}.parquet") for one in (undisturbed, alone)
        )
        numbers = [column for column, kind in expected.schema.items() if kind.is_float()]
        assert found.drop(numbers).equals(expected.drop(numbers))
        for column in numbers:
            own, other = found[column], expected[column]
            assert own.is_null().equals(other.is_null())
            # An update over a weight that has no gradient is rounding: keys' biases under AdamW.
            spread = 1e-2 if column == "update_to_weight" else 1e-4
            worst = ((own - other).abs() / (other.abs() + 1e-2)).max()
            assert worst is None or worst < spread, column


@pytest.mark.slow
def test_a_group_that_is_killed_half_written_is_made_again_to_the_same_bytes(
    undisturbed: Any, run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    written: list[str] = []
    usual = fits.finish_folder

    def dying(fresh: Path, final: Path) -> None:
        if len(written) == 7:
            raise KeyboardInterrupt
        usual(fresh, final)
        written.append(final.name)

    monkeypatch.setattr(fits, "finish_folder", dying)
    with pytest.raises(KeyboardInterrupt):
        run(monkeypatch, tmp_path, changes=SIX)
    monkeypatch.setattr(fits, "finish_folder", usual)
    folders = tmp_path / "tiny" / undisturbed.folder.label / "fits"
    before = {path.parent.name: path.read_bytes() for path in folders.glob("*/timing.json")}
    again = run(monkeypatch, tmp_path, changes=SIX)
    # Those that were there stay as they were, and each counts once.
    assert set(written) == set(before)
    assert {key: times(again)[key] for key in before} == before
    assert again.outcome.finished == 16
    assert of_fits(again) == of_fits(undisturbed)
    assert tables(again).keys() == tables(undisturbed).keys()
    for name, content in tables(undisturbed).items():
        if name != "timing.parquet":
            assert tables(again)[name] == content, name


@pytest.mark.slow
def test_a_failing_group_is_tried_again_and_then_left_out_whole(
    run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fault(cell: Cell) -> str:
        return "no luck" if cell.role == "final" and cell.arm.startswith("post_norm") else ""

    found = run(monkeypatch, tmp_path, changes=SIX, fault=fault)
    assert len(found.outcome.failures) == 1
    assert found.outcome.failures[0].startswith("6 fits at once, post_norm")
    assert "it will be tried again" in found.said
    assert found.outcome.finished == 10


@pytest.mark.slow
def test_a_shared_study_is_the_same_to_the_last_byte(
    undisturbed: Any, run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path / 'shared.db'}"
    shared = run(monkeypatch, tmp_path, changes=SIX, storage=url)
    assert shared.outcome.finished == 16
    assert of_fits(shared) == of_fits(undisturbed)


@pytest.mark.slow
def test_one_worker_process_or_two_give_the_same_bytes_as_none(
    undisturbed: Any, run_study: Any, prices: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run_study.replace(monkeypatch, lambda cell: "")
    monkeypatch.setattr(runner, "Pool", Pool)
    plan = make_plan(STUDY, name="tiny", docstring="Words.", preset="smoke", data=str(prices), changes=SIX)
    for workers in (1, 2):
        folder = StudyFolder(tmp_path / str(workers), "tiny", plan.label)
        console = Console(file=io.StringIO())
        with Report(console, total=16, work=1.0, workers=workers) as report:
            outcome = runner.run(plan, folder, report, workers=workers)
        assert (outcome.finished, outcome.failures) == (16, [])
        made = type("Made", (), {"folder": folder})
        assert of_fits(made) == of_fits(undisturbed)


@pytest.fixture
def cells() -> Callable[..., list[Cell]]:
    def make(*trainings: dict[str, Any], **more: Any) -> list[Cell]:
        experiment = TINY.base.to_dict()
        return [
            Cell(
                key=str(place),
                arm="a",
                role="final",
                fold=0,
                seed=place,
                point={},
                dates={},
                experiment={**experiment, "training": {**experiment["training"], "vectorise": 2, **own}},
                seconds=1.0,
                **more,
            )
            for place, own in enumerate(trainings)
        ]

    return make


def test_groups_follow_from_the_plan_and_hold_fits_of_one_structure(
    cells: Callable[..., list[Cell]],
) -> None:
    def keys(*trainings: dict[str, Any]) -> list[list[str]]:
        return [[cell.key for cell in job.cells()] for job in jobs_of(cells(*trainings))]

    assert keys({}, {}, {}, {}, {}) == [["0", "1"], ["2", "3"], ["4"]]
    # Rates may differ within a group, batches may not.
    rates = [{"learning_rate": rate} for rate in (1e-3, 1e-2)]
    assert keys(*rates) == [["0", "1"]]
    assert keys({}, {"batch_size": 4}, {}, {"batch_size": 4}) == [["0", "2"], ["1", "3"]]
    # What cannot be stacked goes by itself, and so does every fit of a study that does not ask.
    assert keys({"interventions": {"token_pull": {"dose": 0.1}}}, {}, {}) == [["0"], ["1", "2"]]
    assert keys({"vectorise": 1}, {"vectorise": 1}) == [["0"], ["1"]]
    job = jobs_of(cells({}, {}))[0]
    assert Cell(**json.loads(json.dumps(job.to_dict()))).cells() == job.cells() == cells({}, {})
    assert job.seconds == 2.0
    assert str(job) == "2 fits at once, a final fold 0 seed 0 to a final fold 0 seed 1"

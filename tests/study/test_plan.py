"""A plan is the same whenever it is made, and never sees a sealed date."""

from __future__ import annotations

import dataclasses
import datetime as dt
import importlib.util
import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from fints.config import Experiment
from fints.data import Panel, card, load, simulate
from fints.study import Study
from fints.study.dataset import open_dataset
from fints.study.design import Contrast
from fints.study.fits import Cell, run_cell
from fints.study.plan import Plan, make_plan
from fints.study.shared import other_plan


def declared(path: Path) -> Study:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.STUDY


TINY = declared(Path(__file__).parent / "tiny.py")
SEALED = dt.date(2018, 1, 1)


@pytest.fixture
def panel_file(tmp_path: Path) -> Path:
    path = tmp_path / "prices.parquet"
    simulate(num_assets=3, num_days=160, seed=1).panel.frame.write_parquet(path)
    return path


def plan(panel_file: Path, preset: str = "quick", **more: Any) -> Plan:
    return make_plan(TINY, name="tiny", docstring="Words.", preset=preset, data=str(panel_file), **more)


def test_the_spec_of_a_plan_is_json_and_the_same_each_time(panel_file: Path) -> None:
    first, second = plan(panel_file).spec(), plan(panel_file).spec()
    assert json.dumps(first, sort_keys=True, allow_nan=False) == json.dumps(second, sort_keys=True)
    assert [Experiment.from_dict(arm["experiment"]).model.depth for arm in first["arms"]] == [1, 2, 1, 2]


def test_the_spec_names_the_command_of_the_full_size_where_there_is_one_and_is_no_other_plan_for_it() -> None:
    study = declared(Path(__file__).parents[2] / "studies" / "residual_by_depth.py")
    made = {
        preset: make_plan(study, name="depths", docstring="", preset=preset) for preset in ("quick", "full")
    }
    assert made["quick"].spec()["larger"] == "python studies/depths.py run --preset full"
    assert "larger" not in made["full"].spec()
    spec = made["quick"].spec()
    assert other_plan({name: value for name, value in spec.items() if name != "larger"}, spec) == []


def test_all_arms_get_the_same_budget(panel_file: Path) -> None:
    made = plan(panel_file)
    by_arm = [[(cell.point, cell.fold, cell.seed) for cell in made.tuning_cells(arm)] for arm in made.arms]
    assert all(cells == by_arm[0] for cells in by_arm)
    assert made.num_fits() == {"tuning": 8, "final": 8}
    assert sum(len(cells) for cells in by_arm) == 8


def test_every_cell_of_a_plan_has_a_key_of_its_own(panel_file: Path) -> None:
    made = plan(panel_file)
    cells = [cell for arm in made.arms for cell in made.tuning_cells(arm)]
    cells += [cell for arm in made.arms for cell in made.final_cells(arm, TINY.tuning.points()[0])]
    cells += made.baseline_cells()
    assert len({cell.key for cell in cells}) == len(cells)


def test_the_lowest_mean_validation_loss_wins_and_ties_go_to_the_first(panel_file: Path) -> None:
    made = plan(panel_file)
    arm = made.arms[0]
    keys = [cell.key for cell in made.tuning_cells(arm)]
    assert made.choose(arm, dict(zip(keys, [0.2, 0.1], strict=True))) == {"training.learning_rate": 1e-2}
    assert made.choose(arm, dict(zip(keys, [0.1, 0.1], strict=True))) == {"training.learning_rate": 1e-3}
    assert made.choose(arm, dict(zip(keys, [float("inf"), 0.9], strict=True))) == {
        "training.learning_rate": 1e-2
    }


def test_changes_get_a_folder_of_their_own(panel_file: Path) -> None:
    plain, changed = plan(panel_file), plan(panel_file, changes={"training.steps": 9})
    assert plain.label == f"quick-prices-{plain.dataset.checksum[:8]}"
    assert changed.label.startswith(f"{plain.label}-set-")
    assert {arm.experiment.training.steps for arm in changed.arms} == {9}


def test_panel_files_of_one_name_get_folders_of_their_own(tmp_path: Path) -> None:
    """Also a file that is called like a dataset."""
    for number, name in enumerate(("a/prices.csv", "b/prices.csv", "sp500-20.csv")):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        simulate(num_assets=3, num_days=160, seed=number).panel.frame.write_csv(path)
    first, second = plan(tmp_path / "a/prices.csv"), plan(tmp_path / "b/prices.csv")
    assert first.label != second.label
    bundled = open_dataset("sp500-20", opens_seal=False).label
    assert bundled == "sp500-20"
    assert plan(tmp_path / "sp500-20.csv").dataset.label != bundled


def test_tuning_on_dates_that_are_judged_is_refused(panel_file: Path) -> None:
    """Every fold but the first is validated on the test dates of the one before."""
    tuning = dataclasses.replace(TINY.tuning, folds=2)
    study = dataclasses.replace(TINY, tuning=tuning)
    with pytest.raises(ValueError, match=r"tuning.folds = 2 cannot be used: the validation dates of fold 1"):
        make_plan(study, name="tiny", docstring="", preset="quick", data=str(panel_file))


@pytest.mark.parametrize(
    ("level", "message"),
    [
        (
            {"model.residual_options": {"num_streams": 2}},
            "arm pre_norm-depth_1: unknown option 'num_streams' of pre_norm. pre_norm has no options",
        ),
        (
            {"data.features": ["return_1", "retrun_5"]},
            "arm pre_norm-depth_1: unknown feature 'retrun_5'. Did you mean return_5?",
        ),
    ],
)
def test_an_arm_that_no_fit_could_build_is_refused_before_anything_runs(
    panel_file: Path, level: dict[str, Any], message: str
) -> None:
    factors = {**TINY.factors, "residual": dict(TINY.factors["residual"])}
    factors["residual"]["pre_norm"] = {"model.residual": "pre_norm", **level}
    study = dataclasses.replace(TINY, factors=factors)
    with pytest.raises(ValueError, match=message.replace("?", r"\?")):
        make_plan(study, name="tiny", docstring="", preset="quick", data=str(panel_file))


@pytest.mark.parametrize("role", ["tuning", "final"])
def test_a_fit_without_memory_leaves_no_folder_and_another_try_succeeds(
    panel_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, role: str
) -> None:
    import fints.fitting

    made = plan(panel_file, preset="smoke")
    cells = made.tuning_cells(made.arms[0])
    if role == "final":
        cells = made.final_cells(made.arms[0], TINY.tuning.points()[0])
    fits = _made(tmp_path / "fits")
    with monkeypatch.context() as patched:
        patched.setattr(fints.fitting, "free_bytes", lambda device: 2**10)
        with pytest.raises(MemoryError, match=r"the fit needs about .* lower training.batch_size"):
            run_cell(cells[0], made.dataset.panel, tmp=tmp_path / "tmp", fits=fits)
    assert list(fits.iterdir()) == []
    folder = run_cell(cells[0], made.dataset.panel, tmp=tmp_path / "tmp", fits=fits)
    assert json.loads((folder / "result.json").read_text())["outcome"] == "finished"


def test_no_sealed_date_reaches_a_study() -> None:
    assert card("sp500-20").sealed_from == SEALED
    assert load("sp500-20").dates[-1] > SEALED
    opened = open_dataset("sp500-20", opens_seal=False)
    assert opened.panel.dates[-1] < SEALED
    assert opened.until == SEALED
    assert open_dataset("sp500-20", opens_seal=True).panel.dates[-1] > SEALED


@pytest.mark.parametrize("kept", ["all", "three assets and a new name"])
def test_the_seal_is_on_the_prices_whatever_their_file_is_called(tmp_path: Path, kept: str) -> None:
    frame = load("sp500-20").frame
    if kept != "all":
        frame = frame.filter(pl.col("asset").is_in(frame["asset"].unique().sort()[:3].to_list()))
    path = tmp_path / "mine.parquet"
    frame.write_parquet(path)
    opened = open_dataset(str(path), opens_seal=False)
    assert opened.panel.dates[-1] < SEALED
    assert opened.until == SEALED
    own = frame.with_columns(pl.col("close") * 1.5)
    own.write_parquet(tmp_path / "own.parquet")
    assert open_dataset(str(tmp_path / "own.parquet"), opens_seal=False).until is None


def test_the_folds_of_the_bundled_panel_end_before_the_seal() -> None:
    features = {"data.features": ["return_1"]}
    made = make_plan(TINY, name="tiny", docstring="", preset="smoke", data="sp500-20", changes=features)
    assert max(fold["test"][1] for fold in made.folds) < SEALED.isoformat()
    assert made.spec()["sealed_from"] == SEALED.isoformat()


def test_no_row_from_the_test_period_on_reaches_a_fit(
    panel_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fints.forecaster

    seen: list[Panel] = []
    fit = fints.forecaster.Forecaster.fit

    def spy(self: Any, panel: Panel, **more: Any) -> Any:
        seen.append(panel)
        return fit(self, panel, **more)

    monkeypatch.setattr(fints.forecaster.Forecaster, "fit", spy)
    made = plan(panel_file, preset="smoke")
    cell = made.final_cells(made.arms[0], TINY.tuning.points()[0])[0]
    folder = run_cell(cell, made.dataset.panel, tmp=tmp_path / "tmp", fits=_made(tmp_path / "fits"))
    assert len(seen) == 1
    assert seen[0].dates[-1] < dt.date.fromisoformat(cell.dates["test"][0])
    forecasts = pl.read_parquet(folder / "forecasts.parquet")
    first, last = (dt.date.fromisoformat(day) for day in cell.dates["test"])
    assert forecasts["date"].is_between(first, last).all()
    assert forecasts["date"].n_unique() == 20


def test_a_tuning_fit_forecasts_no_test_date(panel_file: Path, tmp_path: Path) -> None:
    made = plan(panel_file, preset="smoke")
    cell = made.tuning_cells(made.arms[0])[0]
    folder = run_cell(cell, made.dataset.panel, tmp=tmp_path / "tmp", fits=_made(tmp_path / "fits"))
    assert not (folder / "forecasts.parquet").exists()
    assert json.loads((folder / "metrics.json").read_text()) == {}


def test_a_fit_whose_folder_exists_is_not_made_again(panel_file: Path, tmp_path: Path) -> None:
    made = plan(panel_file, preset="smoke")
    cell = made.tuning_cells(made.arms[0])[0]
    folder = tmp_path / "fits" / cell.key
    folder.mkdir(parents=True)
    assert run_cell(cell, made.dataset.panel, tmp=tmp_path / "tmp", fits=tmp_path / "fits") == folder
    assert list(folder.iterdir()) == []


def test_a_diverged_fit_is_an_outcome_without_a_number_that_is_not_finite(
    panel_file: Path, tmp_path: Path
) -> None:
    made = plan(panel_file, preset="smoke")
    tree = made.final_cells(made.arms[1], {"training.learning_rate": 1e9})[0].to_dict()
    tree["experiment"]["training"]["clip_norm"] = 1e9
    cell = Cell(**tree)
    folder = run_cell(cell, made.dataset.panel, tmp=tmp_path / "tmp", fits=_made(tmp_path / "fits"))
    result = json.loads((folder / "result.json").read_text())
    assert result["outcome"] == "diverged"
    assert result["reason"]
    forecasts = pl.read_parquet(folder / "forecasts.parquet")["forecast"]
    assert (forecasts.is_null() | forecasts.is_finite()).all()


def test_a_contrast_names_levels_in_the_spec(panel_file: Path) -> None:
    spec = plan(panel_file).spec()
    assert spec["primary"] == {
        "compare": ["residual", "post_norm"],
        "against": "pre_norm",
        "within": {"depth": "1"},
    }
    assert isinstance(TINY.primary, Contrast)


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder

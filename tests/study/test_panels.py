"""Panels at the edge of what a study can use: it works, or says in one line why it cannot."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from fints.data import simulate
from fints.study.estimates import fit_bytes, memory_shortage
from fints.study.plan import Plan, make_plan

TINY = runpy.run_path(str(Path(__file__).parent / "tiny.py"))["STUDY"]


def stored(folder: Path, frame: pl.DataFrame) -> Path:
    path = folder / "prices.parquet"
    frame.write_parquet(path)
    return path


def prices(num_assets: int = 3) -> pl.DataFrame:
    return simulate(num_assets=num_assets, num_days=160, seed=3).panel.frame


def plan(panel: Path, **changes: object) -> Plan:
    return make_plan(TINY, name="tiny", docstring="", preset="smoke", data=str(panel), changes={**changes})


def test_an_asset_without_prices_takes_no_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_study: Callable[..., Any]
) -> None:
    frame = prices()
    dead = frame["asset"][0]
    frame = frame.with_columns(pl.when(pl.col("asset") != dead).then(pl.exclude("date", "asset")))
    run = run_study(monkeypatch, tmp_path, stored(tmp_path, frame))
    assert run.outcome.failures == []
    assert run.outcome.finished == run.outcome.total == 8
    forecasts = pl.read_parquet(run.folder.path / "forecasts.parquet")
    assert set(forecasts.drop_nulls("realised")["asset"]) == set(frame["asset"]) - {dead}
    assert "2 assets" in run.report()


def test_one_asset_is_a_panel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_study: Callable[..., Any]
) -> None:
    run = run_study(monkeypatch, tmp_path, stored(tmp_path, prices(num_assets=1)))
    assert run.outcome.failures == []
    assert run.outcome.finished == run.outcome.total == 8
    assert "1 asset" in run.report()
    assert run.analysis().cells["r2_zero"].null_count() == 0


@pytest.mark.parametrize(
    ("target", "fault"),
    [
        ("volatility_scaled", "hold no outcome of target 'volatility_scaled'"),
        ("log_return", "hold one outcome of target 'log_return' only, 0;"),
    ],
)
def test_prices_that_never_move_are_refused(tmp_path: Path, target: str, fault: str) -> None:
    panel = stored(tmp_path, prices().with_columns(close=pl.lit(100.0)))
    with pytest.raises(
        ValueError, match=f"no fit can learn from panel 'prices': the training dates .*{fault}"
    ):
        plan(panel, **{"data.target": target})


def test_a_fold_without_outcomes_in_its_test_dates_is_refused(tmp_path: Path) -> None:
    frame = prices()
    first, last = plan(stored(tmp_path, frame)).folds[1]["test"]
    within = pl.col("date").is_between(pl.lit(first).str.to_date(), pl.lit(last).str.to_date())
    panel = stored(tmp_path, frame.with_columns(close=pl.when(~within).then("close")))
    with pytest.raises(ValueError, match=f"the test dates of fold 1, {first} to {last}, hold no outcome"):
        plan(panel)


def test_a_cross_section_of_one_asset_is_refused(tmp_path: Path) -> None:
    panel = stored(tmp_path, prices(num_assets=1))
    with pytest.raises(ValueError, match="hold no outcome of target 'cross_sectional'"):
        plan(panel, **{"data.target": "cross_sectional"})


def test_fits_that_memory_cannot_hold_are_refused_unless_they_are_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fints.training

    made = plan(stored(tmp_path, prices()), **{"model.width": 64})
    assert memory_shortage(made, workers=2) == ""
    dearest = max(fit_bytes(arm.experiment) for arm in made.arms)
    monkeypatch.setattr(fints.training, "free_bytes", lambda device: 2 * dearest)
    assert memory_shortage(made, workers=1) == ""
    assert "or give fewer --workers" in memory_shortage(made, workers=8)
    monkeypatch.setattr(fints.training, "free_bytes", lambda device: 4_000)
    told = memory_shortage(made, workers=1)
    assert told.startswith("a fit of arm pre_norm-depth_1 needs about ")
    assert "is free on cpu; lower model.width or training.batch_size." in told
    every = {cell.key for arm in made.arms for cell in made.tuning_cells(arm)}
    assert memory_shortage(made, workers=1, done=every) == told
    for arm in made.arms:
        every |= {cell.key for cell in made.final_cells(arm, TINY.tuning.points()[1])}
    assert memory_shortage(made, workers=1, done=every) == ""
    monkeypatch.setattr(fints.training, "free_bytes", lambda device: None)
    assert memory_shortage(made, workers=1) == ""


def test_features_of_a_longer_history_than_the_training_dates_are_refused(tmp_path: Path) -> None:
    panel = stored(tmp_path, prices())
    with pytest.raises(ValueError, match="no window of 6 days with features and an outcome ends"):
        plan(panel, **{"data.features": ["return_120"]})

"""A study's design names its baselines; each is fitted once a fold on the data of the arms."""

from __future__ import annotations

import dataclasses
import datetime as dt
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from fints.config import override
from fints.data import Panel, features, simulate, targets
from fints.deep_baselines import DEEP_BASELINES
from fints.evaluation import BASELINES, Fold, baseline_forecasts
from fints.study.baselines import KNOWN, NETWORKS, forecast_baseline
from fints.study.design import DEFAULT_BASELINES
from fints.study.plan import make_plan

TINY = runpy.run_path(str(Path(__file__).parent / "tiny.py"))["STUDY"]


def with_baselines(*names: str) -> Any:
    return dataclasses.replace(TINY, baselines=names)


@pytest.fixture(scope="module")
def prices(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("panel") / "prices.parquet"
    simulate(num_assets=3, num_days=640, r2=0.3, seed=3).panel.frame.write_parquet(path)
    return path


def plan(study: Any, prices: Path) -> Any:
    return make_plan(study, name="tiny", docstring="Words.", preset="smoke", data=str(prices))


def test_every_baseline_of_the_package_can_be_named():
    assert set(KNOWN) == {*BASELINES, *DEEP_BASELINES}
    assert set(NETWORKS) == set(DEEP_BASELINES)


def test_each_baseline_is_one_cell_a_fold_and_a_choice_moves_no_other_key(prices: Path):
    few, more = plan(TINY, prices), plan(with_baselines(*DEFAULT_BASELINES, "mlp", "elastic_net"), prices)
    folds = len(few.folds)
    assert len(few.baseline_cells()) == 4 * folds
    assert len(more.baseline_cells()) == 6 * folds
    keys = {cell.key for cell in more.baseline_cells()}
    assert len(keys) == 6 * folds
    assert {cell.key for cell in few.baseline_cells()} < keys
    arm, same = few.arms[0], more.arms[0]
    assert [cell.key for cell in few.tuning_cells(arm)] == [cell.key for cell in more.tuning_cells(same)]


def test_a_study_that_leaves_the_choice_has_the_spec_it_had_before_there_was_one(prices: Path):
    assert "baselines" not in plan(TINY, prices).spec()
    chosen = ("prevailing_mean", "mlp")
    assert plan(with_baselines(*chosen), prices).spec()["baselines"] == list(chosen)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("prevailing_mean", "rigde"), "unknown baseline 'rigde'. Did you mean 'ridge'"),
        (("prevailing_mean", "ridge", "ridge"), "must be distinct"),
        (("ridge",), "must hold prevailing_mean"),
    ],
)
def test_a_baseline_that_cannot_be_is_refused_when_the_study_is_declared(names, message):
    with pytest.raises(ValueError, match=message):
        with_baselines(*names)


def test_returns_are_not_forecast_for_a_target_that_is_none(prices: Path):
    study = with_baselines("prevailing_mean", "arma_garch")
    with pytest.raises(ValueError, match=r"which data\.target = 'cross_sectional' is not"):
        make_plan(
            study,
            name="tiny",
            docstring="",
            preset="smoke",
            data=str(prices),
            changes={"data.target": "cross_sectional"},
        )


def forecasts(name: str, made: Any, panel: Panel, fold: int = 0) -> pl.DataFrame:
    cell = next(c for c in made.baseline_cells() if c.point["baseline"] == name and c.fold == fold)
    return forecast_baseline(
        name,
        panel,
        experiment=override(made.study.base, {"training.device": "cpu"}),
        fold=cell.fold,
        dates=cell.dates,
        seed=cell.seed,
        signal=None,
    )


@pytest.mark.parametrize("name", ["prevailing_mean", "ar1", "ridge"])
def test_a_baseline_of_a_study_is_the_baseline_on_its_fold_and_features(prices: Path, name: str):
    made = plan(TINY, prices)
    data, panel = made.study.base.data, made.dataset.panel
    expected = baseline_forecasts(
        name,
        targets=targets(panel, data.target, data.horizon),
        fold=Fold.from_dict(made.folds[0]),
        features=features(panel, data.features),
        feature_names=list(data.features),
        context=data.context,
    )
    found = forecasts(name, made, panel)
    assert set(found["baseline"]) == {name}
    assert_frame_equal(found.drop("baseline"), expected, check_exact=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", KNOWN)
def test_no_baseline_of_a_study_sees_a_price_after_the_day_it_forecasts(prices: Path, name: str):
    made = plan(with_baselines(*dict.fromkeys(("prevailing_mean", name))), prices)
    panel = made.dataset.panel
    first, last = (dt.date.fromisoformat(day) for day in made.folds[0]["test"])
    cut = panel.dates.filter(panel.dates.is_between(first, last))[10]
    late = pl.col("date") > cut
    shocked = Panel(panel.frame.with_columns(pl.when(late).then(pl.col("close") * 1000).otherwise("close")))
    one, two = (forecasts(name, made, p).filter(pl.col("date") <= cut) for p in (panel, shocked))
    assert one.height == 33
    assert_frame_equal(
        one.select("date", "asset", "forecast"), two.select("date", "asset", "forecast"), check_exact=True
    )


@pytest.mark.slow
def test_every_baseline_stands_in_the_report_in_the_order_declared(
    prices: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_study: Callable[..., Any]
):
    names = ("prevailing_mean", "ridge", *sorted(set(KNOWN) - {"zero", "prevailing_mean", "ridge"}))
    run = run_study(monkeypatch, tmp_path, prices, study=with_baselines(*names))
    assert run.outcome.failures == []
    assert run.analysis().baselines["baseline"].to_list() == ["zero", *names]
    table = run.report().split("## Baselines")[1].split("##")[0]
    for name in names:
        assert f"| {name.replace('_', ' ')} " in table
    stored = pl.read_parquet(run.folder.path / "baselines.parquet")
    assert stored.group_by("baseline", "fold").len().height == len(names) * len(run.plan.folds)

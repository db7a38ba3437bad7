"""Baselines see training rows only, and each is the regression it says it is."""

from __future__ import annotations

import datetime as dt

import numpy as np
import polars as pl
import pytest
from sklearn.linear_model import LinearRegression

from fints.data import simulate
from fints.data import targets as make_targets
from fints.evaluation import BASELINES, WalkForward, baseline_forecasts, oracle_forecasts, r2_zero

DAYS, ASSETS, HORIZON = 400, 4, 5
DATES = [dt.date(2010, 1, 1) + dt.timedelta(days=day) for day in range(DAYS)]
FOLD = WalkForward(num_folds=1, test_days=100, validation_days=60, purge=HORIZON).split(DATES)[0]
NAMES = ["x", "noise", "constant"]


def tables(seed: int = 0) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Targets over five days that a feature three days back explains in part."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((DAYS, ASSETS))
    target = 0.5 * rng.standard_normal((DAYS, ASSETS))
    target[3:] += 0.5 * x[:-3]
    keys = {"date": np.repeat(np.array(DATES, dtype="datetime64[D]"), ASSETS), "asset": list("abcd") * DAYS}
    keyed = pl.DataFrame(keys).with_columns(pl.col("date").cast(pl.Date))
    targets = (
        keyed.with_columns(target=pl.Series(target.ravel()), scale=pl.lit(0.02))
        .sort("asset", "date")
        .with_columns(label_end=pl.col("date").shift(-HORIZON).over("asset"))
        .with_columns(target=pl.when(pl.col("label_end").is_not_null()).then(pl.col("target")))
    )
    features = keyed.with_columns(
        x=pl.Series(x.ravel()), noise=pl.Series(rng.standard_normal(DAYS * ASSETS)), constant=pl.lit(3.0)
    )
    return targets, features


def forecast(name: str, targets: pl.DataFrame, features: pl.DataFrame) -> pl.DataFrame:
    return baseline_forecasts(
        name, targets=targets, fold=FOLD, features=features, feature_names=NAMES, context=6
    )


@pytest.mark.parametrize("name", BASELINES)
def test_a_baseline_forecasts_exactly_the_test_rows_with_an_outcome(name: str):
    targets, features = tables()
    found = forecast(name, targets, features)
    expected = FOLD.select(targets, "test").drop_nulls("target").sort("date", "asset")
    assert found.columns == ["date", "asset", "forecast", "realised", "unit_scale"]
    assert found.select("date", "asset").equals(expected.select("date", "asset"))
    assert found["realised"].to_list() == expected["target"].to_list()
    assert found["forecast"].is_finite().all()
    assert found["unit_scale"].unique().to_list() == [0.02]


@pytest.mark.parametrize("name", BASELINES)
def test_what_is_not_known_by_a_date_changes_no_forecast_up_to_it(name: str):
    targets, features = tables()
    cut = DATES[-50]
    late = pl.col("label_end") > cut
    shocked = targets.with_columns(pl.when(late).then(1e6).otherwise(pl.col("target")).alias("target"))
    future = features.with_columns(pl.when(pl.col("date") > cut).then(1e6).otherwise(pl.col("x")).alias("x"))
    before = pl.col("date") <= cut
    plain = forecast(name, targets, features).filter(before)
    assert plain.height > 100
    assert plain["forecast"].equals(forecast(name, shocked, future).filter(before)["forecast"])


@pytest.mark.parametrize("name", ["ar1", "ar1_by_asset", "ridge"])
def test_test_outcomes_never_enter_the_fit(name: str):
    targets, features = tables()
    flipped = targets.with_columns(
        pl.when(pl.col("date") >= FOLD.test[0])
        .then(-pl.col("target"))
        .otherwise(pl.col("target"))
        .alias("target")
    )
    # Before the first test outcome is known, no input can differ either.
    early = pl.col("date") < FOLD.test[0] + dt.timedelta(days=HORIZON)
    one, other = (forecast(name, table, features).filter(early) for table in (targets, flipped))
    assert one["forecast"].equals(other["forecast"])


def test_ar1_is_the_regression_on_the_latest_outcome_that_has_ended():
    targets, features = tables()
    rows = targets.sort("asset", "date").with_columns(
        latest=pl.col("target").shift(HORIZON).over("asset").fill_null(0.0)
    )
    train, test = (
        FOLD.select(rows, part).drop_nulls("target").sort("date", "asset") for part in ("train", "test")
    )
    fit = LinearRegression().fit(train.select("latest").to_numpy(), train["target"].to_numpy())
    expected = fit.predict(test.select("latest").to_numpy())
    assert forecast("ar1", targets, features)["forecast"].to_numpy() == pytest.approx(expected, abs=1e-12)
    by_asset = forecast("ar1_by_asset", targets, features)
    for asset in "abcd":
        own, asked = (frame.filter(pl.col("asset") == asset) for frame in (train, test))
        fit = LinearRegression().fit(own.select("latest").to_numpy(), own["target"].to_numpy())
        expected = fit.predict(asked.select("latest").to_numpy())
        found = by_asset.filter(pl.col("asset") == asset)["forecast"].to_numpy()
        assert found == pytest.approx(expected, abs=1e-12)


def test_ridge_finds_a_signal_inside_its_window_and_none_outside():
    targets, features = tables()
    assert r2_zero(forecast("ridge", targets, features)) > 0.35
    short = baseline_forecasts(
        "ridge", targets=targets, fold=FOLD, features=features, feature_names=NAMES, context=3
    )
    assert r2_zero(short) < 0.02


def test_ridge_shrinks_to_the_mean_when_there_is_nothing_to_find():
    targets, features = tables()
    found = baseline_forecasts(
        "ridge", targets=targets, fold=FOLD, features=features, feature_names=["noise"], context=6
    )
    assert found["forecast"].std() < 0.05 * found["realised"].std()


def test_missing_features_are_average_ones():
    targets, features = tables()
    holed = features.with_columns(
        pl.when(pl.col("asset") == "a").then(None).otherwise(pl.col("x")).alias("x")
    )
    found = forecast("ridge", targets, holed)
    assert found["forecast"].is_finite().all()
    assert found.filter(pl.col("asset") == "a")["forecast"].std() < 0.1 * found["forecast"].std()


def test_an_asset_that_lists_in_the_test_period_is_forecast_all_the_same():
    targets, features = tables()
    listed = (pl.col("asset") != "d") | (pl.col("date") >= FOLD.test[0])
    for name in BASELINES:
        found = forecast(name, targets.filter(listed), features.filter(listed))
        assert found.filter(pl.col("asset") == "d")["forecast"].is_finite().all()
        assert found["asset"].n_unique() == 4


def test_what_cannot_be_forecast_is_said():
    targets, features = tables()
    with pytest.raises(ValueError, match="Known baselines"):
        forecast("ar2", targets, features)
    with pytest.raises(ValueError, match="needs the feature frame"):
        baseline_forecasts("ridge", targets=targets, fold=FOLD)
    with pytest.raises(ValueError, match="lack label_end"):
        forecast("zero", targets.drop("label_end"), features)
    with pytest.raises(ValueError, match="no test row"):
        forecast("zero", targets.filter(pl.col("date") < FOLD.test[0]), features)
    with pytest.raises(ValueError, match="no train row"):
        forecast("ar1", targets.filter(pl.col("date") > FOLD.train[1]), features)


@pytest.mark.parametrize("target", ["log_return", "volatility_scaled"])
def test_the_oracle_is_the_planted_signal_in_units_of_the_target(target: str):
    simulation = simulate(num_assets=8, num_days=700, r2=0.2, seed=5)
    labels = make_targets(simulation.panel, target, 1)
    fold = WalkForward(num_folds=1, test_days=500, validation_days=50, purge=1).split(
        simulation.panel.dates.to_list()
    )[0]
    found = oracle_forecasts(simulation.signal, targets=labels, fold=fold)
    assert found.height == 499 * 8
    planted = found.join(simulation.signal, on=["date", "asset"])
    in_returns = planted["forecast"] * planted["unit_scale"]
    assert in_returns.to_numpy() == pytest.approx(planted["signal"].to_numpy(), rel=1e-12)
    assert r2_zero(found) == pytest.approx(0.2, abs=0.03)


def test_the_oracle_of_a_target_without_a_scale_is_not_known():
    simulation = simulate(num_assets=4, num_days=60)
    labels = make_targets(simulation.panel, "cross_sectional", 1)
    fold = WalkForward(num_folds=1, test_days=20, validation_days=10, purge=1).split(
        simulation.panel.dates.to_list()
    )[0]
    with pytest.raises(ValueError, match="log_return, volatility_scaled"):
        oracle_forecasts(simulation.signal, targets=labels, fold=fold)

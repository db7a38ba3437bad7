"""Baselines see training rows only, and each is the regression it says it is."""

from __future__ import annotations

import datetime as dt

import numpy as np
import polars as pl
import pytest
from arch.univariate import GARCH, StudentsT, ZeroMean
from sklearn.linear_model import ElasticNet, LinearRegression
from statsmodels.tsa.arima.model import ARIMA

from fints.data import simulate
from fints.data import targets as make_targets
from fints.evaluation import (
    BASELINES,
    WalkForward,
    baseline_forecasts,
    coverage,
    oracle_forecasts,
    r2_zero,
)
from fints.evaluation.arma_garch import ArmaGarch, fit_arma_garch
from fints.evaluation.baselines import Design
from fints.evaluation.regressions import elastic_net

DAYS, ASSETS, HORIZON = 400, 4, 5
DATES = [dt.date(2010, 1, 1) + dt.timedelta(days=day) for day in range(DAYS)]
FOLD = WalkForward(num_folds=1, test_days=100, validation_days=60, purge=HORIZON).split(DATES)[0]
NAMES = ["x", "noise", "constant"]
# The two that search longest are tried in the slow suite.
EACH = [
    pytest.param(name, marks=pytest.mark.slow) if name in ("arma_garch", "gradient_boosting") else name
    for name in BASELINES
]


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
        name,
        targets=targets,
        fold=FOLD,
        features=features,
        feature_names=NAMES,
        context=6,
        returns=features.select("date", "asset", pl.col("noise").alias("return") * 0.01),
        horizon=HORIZON,
    )


@pytest.mark.parametrize("name", EACH)
def test_a_baseline_forecasts_exactly_the_test_rows_with_an_outcome(name: str):
    targets, features = tables()
    found = forecast(name, targets, features)
    expected = FOLD.select(targets, "test").drop_nulls("target").sort("date", "asset")
    more = ["log_scale", "degrees"] if name == "arma_garch" else []
    assert found.columns == ["date", "asset", "forecast", "realised", "unit_scale", *more]
    assert found.select("date", "asset").equals(expected.select("date", "asset"))
    assert found["realised"].to_list() == expected["target"].to_list()
    assert found["forecast"].is_finite().all()
    assert found["unit_scale"].unique().to_list() == [0.02]


@pytest.mark.parametrize("name", EACH)
def test_what_is_not_known_by_a_date_changes_no_forecast_up_to_it(name: str):
    targets, features = tables()
    cut = DATES[-50]
    late = pl.col("label_end") > cut
    shocked = targets.with_columns(pl.when(late).then(1e6).otherwise(pl.col("target")).alias("target"))
    later = pl.col("date") > cut
    future = features.with_columns(
        pl.when(later).then(1e6).otherwise(pl.col(name)).alias(name) for name in ("x", "noise")
    )
    before = pl.col("date") <= cut
    plain = forecast(name, targets, features).filter(before)
    assert plain.height > 100
    assert plain["forecast"].equals(forecast(name, shocked, future).filter(before)["forecast"])


@pytest.mark.parametrize("name", EACH[2:])
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


@pytest.mark.parametrize("name", EACH)
def test_an_asset_that_lists_in_the_test_period_is_forecast_all_the_same(name: str):
    targets, features = tables()
    listed = (pl.col("asset") != "d") | (pl.col("date") >= FOLD.test[0])
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


@pytest.mark.parametrize("name", EACH[-2:])
def test_a_tuned_regression_finds_its_signal_and_falls_back_to_the_mean_without_one(name: str):
    targets, features = tables()
    assert r2_zero(forecast(name, targets, features)) > 0.25
    nothing = baseline_forecasts(
        name, targets=targets, fold=FOLD, features=features, feature_names=["noise"], context=6
    )
    assert nothing["forecast"].std() < 0.2 * nothing["realised"].std()


def test_the_elastic_net_is_sklearn_s_at_the_penalty_of_least_validation_error():
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((900, 8)), np.array([0.5, -0.3, 0, 0, 0, 0, 0, 0])
    y = 1.0 + x @ w + rng.standard_normal(900)
    keys = pl.DataFrame({"date": [DATES[0]] * 300, "asset": [str(i) for i in range(300)]})
    design = Design(
        x=x[:300], y=y[:300], validation_x=x[300:600], validation_y=y[300:600], test_x=x[600:], test=keys
    )
    found = elastic_net(design)["forecast"].to_numpy()
    losses = {}
    largest = np.abs((x[:300] - x[:300].mean(0)).T @ (y[:300] - y[:300].mean())).max() / 300
    for share in (0.1, 0.5, 0.9):
        for alpha in largest / share * np.geomspace(1, 0.01, 10):
            model = ElasticNet(alpha=alpha, l1_ratio=share).fit(x[:300], y[:300])
            losses[float(np.mean((y[300:600] - model.predict(x[300:600])) ** 2))] = model
    assert found == pytest.approx(losses[min(losses)].predict(x[600:]), abs=2e-3)


def test_arma_forecasts_are_those_of_statsmodels_and_variances_those_of_arch():
    model = ArmaGarch(mu=0.05, phi=0.3, theta=-0.4, omega=0.05, alpha=0.1, beta=0.85, degrees=6.0)
    rng = np.random.default_rng(1)
    r = rng.standard_t(6, 400)
    mean, variance = model.filter(r, 5)
    theirs = ARIMA(r, order=(1, 0, 1), trend="c").filter([0.05, 0.3, -0.4, 1.0])
    assert mean[-1] == pytest.approx(theirs.forecast(5).sum(), abs=1e-9)
    shocks = theirs.resid
    garch = ZeroMean(shocks, volatility=GARCH(), distribution=StudentsT(), rescale=False).fix(
        [0.05, 0.1, 0.85, 6.0]
    )
    ahead = garch.forecast(horizon=5, reindex=False).variance.to_numpy()[-1]
    assert variance[-1] == pytest.approx(ahead.sum(), rel=1e-6)
    one, _ = model.filter(r, 1)
    assert one[-1] == pytest.approx(theirs.forecast(1)[0], abs=1e-9)


@pytest.mark.slow
def test_arma_garch_recovers_its_own_simulation_and_gives_a_calibrated_distribution():
    rng = np.random.default_rng(2)
    days, assets = 1500, 3
    z = rng.standard_t(6, (days, assets)) / np.sqrt(1.5)
    r, e, variance = np.zeros((days, assets)), np.zeros(assets), np.ones(assets)
    for day in range(days):
        variance = 0.05 + 0.1 * e**2 + 0.85 * variance
        before, e = e, np.sqrt(variance) * z[day]
        r[day] = 0.5 * (r[day - 1] if day else 0) + e + 0.2 * before
    fitted = fit_arma_garch(0.01 * r[:, 0])
    assert (fitted.phi, fitted.theta) == pytest.approx((0.5, 0.2), abs=0.12)
    assert (fitted.alpha, fitted.beta) == pytest.approx((0.1, 0.85), abs=0.09)
    dates = [dt.date(2000, 1, 1) + dt.timedelta(days=day) for day in range(days)]
    returns = pl.DataFrame(
        {"date": [d for d in dates for _ in "abc"], "asset": list("abc") * days, "return": 0.01 * r.ravel()}
    )
    targets = (
        returns.sort("asset", "date")
        .with_columns(
            target=pl.col("return").shift(-1).over("asset"), label_end=pl.col("date").shift(-1).over("asset")
        )
        .with_columns(scale=pl.lit(1.0))
    )
    fold = WalkForward(num_folds=1, test_days=500, validation_days=200, purge=1).split(dates)[0]
    found = baseline_forecasts("arma_garch", targets=targets, fold=fold)
    assert r2_zero(found) == pytest.approx(1 - 1 / (1 + 0.7**2 / 0.75), abs=0.05)
    assert coverage(found, 0.9) == pytest.approx(0.9, abs=0.03)
    # Outcomes of one day are the returns themselves, from the second on.
    later = returns.filter(pl.col("date") > dates[0])
    assert baseline_forecasts("arma_garch", targets=targets, fold=fold, returns=later).equals(found)
    with pytest.raises(ValueError, match="needs one-day returns"):
        baseline_forecasts("arma_garch", targets=targets, fold=fold, horizon=5)
    with pytest.raises(ValueError, match="not cross_sectional"):
        baseline_forecasts("arma_garch", targets=targets.drop("scale"), fold=fold)

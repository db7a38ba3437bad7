"""skfolio earns on our forecasts what the convention says."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.base import clone

from fints.backtest import wide
from fints.backtest.skfolio import forecast_mu, inputs

pytestmark = pytest.mark.slow
skfolio = pytest.importorskip("skfolio")

EXECUTIONS = ("next_open", "next_close", "same_close")
TRAIN = 8


def simulate(market, forecasts, execution: str) -> tuple[list[int], np.ndarray]:
    """Return the rows decided on and what was earned: all money in the asset with the highest forecast."""
    from skfolio import MultiPeriodPortfolio
    from skfolio.model_selection import WalkForward, cross_val_predict
    from skfolio.optimization import MeanRisk, ObjectiveFunction
    from skfolio.prior import EmpiricalPrior

    panel = market.long()
    given = inputs(wide(panel, "close"), open=wide(panel, "open"), execution=execution)
    # With no aversion to risk the whole portfolio is the best asset, so its return is known by hand.
    model = MeanRisk(
        objective_function=ObjectiveFunction.MAXIMIZE_UTILITY,
        risk_aversion=0.0,
        prior_estimator=EmpiricalPrior(mu_estimator=forecast_mu(forecasts)),
    )
    splitter = WalkForward(train_size=TRAIN, test_size=1, purged_size=given.purged_size)
    result = cross_val_predict(model, given.returns, cv=splitter)
    assert isinstance(result, MultiPeriodPortfolio)
    decided = [
        market.dates.index(given.returns.index[train[-1]].date())
        for train, _ in splitter.split(given.returns)
    ]
    return decided, np.asarray(result.returns)


def stated(market, unit: np.ndarray, decided: list[int]) -> np.ndarray:
    best = market.signal().argmax(axis=1)
    return np.array([unit[t, best[t]] for t in decided])


@pytest.mark.parametrize("execution", EXECUTIONS)
def test_the_forecasts_earn_exactly_what_the_execution_says(market, earned, execution: str) -> None:
    decided, found = simulate(market, market.forecasts, execution)
    unit = earned(market, execution)
    assert decided == list(range(TRAIN, len(unit)))
    # The optimiser's weights are right to its tolerance, not to the last bit.
    np.testing.assert_allclose(found, stated(market, unit, decided), rtol=0, atol=1e-8)


@pytest.mark.parametrize("days", [1, -1])
def test_a_shift_by_one_day_is_caught(market, earned, shift_by_a_day, days: int) -> None:
    shift_by_a_day(days)
    decided, found = simulate(market, market.forecasts, "next_close")
    unit = earned(market, "next_close")
    kept = [k for k, t in enumerate(decided) if t < len(unit)]
    truth = stated(market, unit, [decided[k] for k in kept])
    assert np.abs(found[kept] - truth).max() > 1e-3


def test_expected_returns_are_the_forecasts_of_the_last_date_a_date_of_horizon(market) -> None:
    panel = market.long()
    returns = inputs(wide(panel, "close"), execution="same_close").returns
    mu = clone(forecast_mu(market.forecasts, horizon=5, unit_return=3.0))
    found = mu.fit(returns.iloc[:10]).mu_
    np.testing.assert_allclose(found, market.signal()[10] * 3.0 / 5, rtol=1e-12)
    assert list(mu.feature_names_in_) == market.assets


def test_later_forecasts_change_nothing(market) -> None:
    panel = market.long()
    returns = inputs(wide(panel, "close"), execution="same_close").returns.iloc[:10]
    values = market.signal()
    values[11:] = 1e6
    found = [
        forecast_mu(table).fit(returns).mu_ for table in (market.forecasts, market.with_forecasts(values))
    ]
    np.testing.assert_array_equal(*found)


def test_dates_and_assets_without_a_forecast_are_refused_or_named(market) -> None:
    returns = inputs(wide(market.long(), "close"), execution="same_close").returns
    values = market.signal()
    values[10, 2] = np.nan
    values[20] = np.nan
    table = market.with_forecasts(values)
    with pytest.raises(ValueError, match=r"no forecast dated .* for A2; .*missing=0.0"):
        forecast_mu(table).fit(returns.iloc[:10])
    assert forecast_mu(table, missing=0.0).fit(returns.iloc[:10]).mu_[2] == 0
    with pytest.raises(ValueError, match="the last date of X"):
        forecast_mu(table, missing=0.0).fit(returns.iloc[:20])
    with pytest.raises(ValueError, match="zone"):
        forecast_mu(table).fit(returns.tz_localize("UTC"))
    with pytest.raises(ValueError, match="must be a pandas DataFrame"):
        forecast_mu(table).fit(returns.to_numpy())

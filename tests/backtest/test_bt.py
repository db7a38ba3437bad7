"""bt earns on our forecasts what the convention says."""

from __future__ import annotations

import numpy as np
import pytest

from fints.backtest import wide
from fints.backtest.bt import inputs
from fints.evaluation import backtest, target_weights

# ffn 1.4.1, which bt reports with, asks pandas 3 for a frequency as text.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:A future version of pandas will return")]
bt = pytest.importorskip("bt")

LAG = {"next_open": 1, "next_close": 1, "same_close": 0}


def simulate(market, forecasts, execution: str, **choices) -> np.ndarray:
    """Return what the account earned from each decision, from the trade to the next date's same price."""
    panel = market.long()
    made = inputs(forecasts, wide(panel, "close"), open=wide(panel, "open"), execution=execution, **choices)
    test = bt.Backtest(
        made.strategy(), made.prices, integer_positions=False, progress_bar=False, initial_capital=1e6
    )
    value = bt.run(test).backtests["fints"].strategy.values
    return value.loc[made.prices.index].pct_change().to_numpy()[1 + LAG[execution] :]


def stated(market, unit: np.ndarray) -> np.ndarray:
    weights = np.array([target_weights(row, "long_short") for row in market.signal()])
    return (weights[: len(unit)] * unit).sum(axis=1)


@pytest.mark.parametrize("execution", LAG)
def test_the_forecasts_earn_exactly_what_the_execution_says(market, earned, execution: str) -> None:
    found = simulate(market, market.forecasts, execution)
    np.testing.assert_allclose(found, stated(market, earned(market, execution)), rtol=0, atol=1e-12)


@pytest.mark.parametrize("days", [1, -1])
@pytest.mark.parametrize("execution", ["next_open", "next_close"])
def test_a_shift_by_one_day_is_caught(market, earned, shift_by_a_day, execution: str, days: int) -> None:
    shift_by_a_day(days)
    found, truth = simulate(market, market.forecasts, execution), stated(market, earned(market, execution))
    with pytest.raises(AssertionError):
        np.testing.assert_allclose(found, truth, rtol=0, atol=1e-12)
    assert np.abs(found - truth).max() > 1e-3


@pytest.mark.parametrize(("every", "horizon"), [(1, 3), (3, 3), (2, 5)])
def test_overlapping_and_rare_forecasts_are_held_as_fints_evaluate_holds_them(
    market, every: int, horizon: int
) -> None:
    values = market.signal()
    values[np.arange(len(values)) % every > 0] = np.nan
    table = market.with_forecasts(values)
    ours = backtest(table, market.long(), "decile", execution="next_open", horizon=horizon).dates
    found = simulate(market, table, "next_open", kind="decile", horizon=horizon)
    np.testing.assert_allclose(found[: len(ours)], ours["gross"].to_numpy(), rtol=0, atol=1e-12)


def test_an_asset_without_a_price_is_refused_by_bt_itself(market) -> None:
    market.open[20, 2] = np.nan
    with pytest.raises(Exception, match=r"(?i)price|nan"):
        simulate(market, market.forecasts, "next_open")


def test_an_asset_listed_late_takes_no_history_from_the_others(market, earned) -> None:
    values = market.signal()
    values[:12, 3] = np.nan
    market.open[:12, 3], market.close[:12, 3] = np.nan, np.nan
    weights = np.array([target_weights(row, "long_short") for row in values])
    unit = np.nan_to_num(earned(market, "next_close"))
    found = simulate(market, market.with_forecasts(values), "next_close")
    np.testing.assert_allclose(found, (weights[: len(unit)] * unit).sum(axis=1), rtol=0, atol=1e-12)

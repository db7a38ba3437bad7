"""vectorbt earns on our forecasts what the convention says."""

from __future__ import annotations

import numpy as np
import pytest

from fints.backtest import wide
from fints.backtest.vectorbt import orders
from fints.evaluation import backtest, target_weights

pytestmark = pytest.mark.slow
vbt = pytest.importorskip("vectorbt")

LAG = {"next_open": 1, "next_close": 1, "same_close": 0}


def simulate(market, forecasts, execution: str, *, fees: float = 0.0, **choices):
    panel = market.long()
    made = orders(forecasts, wide(panel, "close"), open=wide(panel, "open"), execution=execution, **choices)
    return vbt.Portfolio.from_orders(**made.arguments, fees=fees, init_cash=1e6, freq="1D")


def growth(portfolio, market, execution: str) -> np.ndarray:
    """Return what the account earned from each decision, from the trade to the next date's same price."""
    shares, cash = portfolio.assets().to_numpy(), portfolio.cash().to_numpy()
    price = market.open if execution == "next_open" else market.close
    after = cash[:-1] + (shares[:-1] * price[:-1]).sum(axis=1)
    before_next = cash[:-1] + (shares[:-1] * price[1:]).sum(axis=1)
    return (before_next / after - 1)[LAG[execution] :]


def stated(market, unit: np.ndarray) -> np.ndarray:
    weights = np.array([target_weights(row, "long_short") for row in market.signal()])
    return (weights[: len(unit)] * unit).sum(axis=1)


@pytest.mark.parametrize("execution", LAG)
def test_the_forecasts_earn_exactly_what_the_execution_says(market, earned, execution: str) -> None:
    found = growth(simulate(market, market.forecasts, execution), market, execution)
    np.testing.assert_allclose(found, stated(market, earned(market, execution)), rtol=0, atol=1e-13)


@pytest.mark.parametrize("days", [1, -1])
@pytest.mark.parametrize("execution", ["next_open", "next_close"])
def test_a_shift_by_one_day_is_caught(market, earned, shift_by_a_day, execution: str, days: int) -> None:
    shift_by_a_day(days)
    found = growth(simulate(market, market.forecasts, execution), market, execution)
    truth = stated(market, earned(market, execution))
    with pytest.raises(AssertionError):
        np.testing.assert_allclose(found, truth, rtol=0, atol=1e-13)
    assert np.abs(found - truth).max() > 1e-3


@pytest.mark.parametrize(("every", "horizon"), [(1, 1), (1, 3), (3, 3), (2, 5)])
def test_overlapping_and_rare_forecasts_are_held_as_fints_evaluate_holds_them(
    market, every: int, horizon: int
) -> None:
    values = market.signal()
    values[np.arange(len(values)) % every > 0] = np.nan
    values[:4], values[10, 1] = np.nan, np.nan
    table = market.with_forecasts(values)
    ours = backtest(table, market.long(), "decile", execution="next_open", horizon=horizon).dates
    portfolio = simulate(market, table, "next_open", kind="decile", horizon=horizon)
    found = growth(portfolio, market, "next_open")
    first = market.dates.index(ours["date"][0])
    np.testing.assert_allclose(found[first : first + len(ours)], ours["gross"].to_numpy(), rtol=0, atol=1e-12)


def test_costs_are_those_of_the_turnover(market) -> None:
    ours = backtest(market.forecasts, market.long(), "long_short", execution="same_close", cost_bps=10).dates
    portfolio = simulate(market, market.forecasts, "same_close", fees=10e-4)
    # The engine pays costs out of what it trades, fints out of equity: the same to first order.
    net = portfolio.value().pct_change().to_numpy()[1:]
    assert ours["turnover"].mean() > 0.5
    np.testing.assert_allclose(net.sum(), ours["net"].sum(), rtol=0.02)


def test_an_asset_without_a_price_is_held_and_one_without_a_forecast_is_sold(market) -> None:
    market.open[20, 2] = np.nan
    values = market.signal()
    values[25:, 3] = np.nan
    portfolio = simulate(market, market.with_forecasts(values), "next_open")
    shares = portfolio.assets().to_numpy()
    assert shares[20, 2] == shares[19, 2] != shares[21, 2]
    assert (np.diff(shares[:24, 2])[[18, 20]] != 0).all()
    np.testing.assert_allclose(shares[26:, 3], 0, atol=1e-9)


def test_weights_that_would_need_a_loan_are_refused(market) -> None:
    values = np.abs(market.signal()) + 0.3
    with pytest.raises(ValueError, match=r"at most 1, .* those of 2021-03-01 sum to 1\.\d+"):
        orders(
            market.with_forecasts(values),
            wide(market.long(), "close"),
            execution="next_close",
            kind="as_given",
        )
    shares = values / values.sum(axis=1, keepdims=True)
    portfolio = simulate(market, market.with_forecasts(shares), "next_close", kind="as_given")
    held = (portfolio.assets().to_numpy() * market.close)[1:]
    np.testing.assert_allclose(held / held.sum(axis=1, keepdims=True), shares[:-1], atol=1e-9)


def test_the_long_side_is_wholly_invested_and_never_short(market) -> None:
    portfolio = simulate(market, market.forecasts, "next_close", side="long")
    assert (portfolio.assets().to_numpy() >= 0).all()
    np.testing.assert_allclose(portfolio.cash().to_numpy()[1:] / 1e6, 0, atol=1e-9)

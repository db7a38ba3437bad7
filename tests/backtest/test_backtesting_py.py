"""backtesting.py earns on our forecasts what the convention says."""

from __future__ import annotations

import numpy as np
import pandas as pd
import polars as pl
import pytest

from fints.backtest.backtesting_py import signal

# The last trade is left open on purpose (finalised, it would run for another number of bars), and
# backtesting 0.6.6 calls what pandas 3 deprecates.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:Some trades remain open", "ignore::DeprecationWarning"),
]
backtesting = pytest.importorskip("backtesting")

EXECUTIONS = ("next_open", "next_close", "same_close")


def bars(market, asset: int = 1) -> pd.DataFrame:
    o, c = market.open[:, asset], market.close[:, asset]
    return pd.DataFrame(
        {"Open": o, "High": np.maximum(o, c), "Low": np.minimum(o, c), "Close": c},
        index=pd.DatetimeIndex(market.dates),
    )


class ByTheSign(backtesting.Strategy):
    """All the money long where the forecast is above 0, short where it is below, anew on every bar."""

    values: np.ndarray = None

    def init(self) -> None:
        self.forecast = self.I(lambda: self.values, name="forecast")

    def next(self) -> None:
        self.position.close()
        if self.forecast[-1] > 0:
            self.buy()
        elif self.forecast[-1] < 0:
            self.sell()


def simulate(market, execution: str) -> dict[int, float]:
    """Return bar of the entry -> return of the trade (of one bar), signed by its side."""
    made = signal(market.forecasts, bars(market), asset="A1", execution=execution)
    test = backtesting.Backtest(
        bars(market), ByTheSign, cash=1e12, trade_on_close=made.trade_on_close, finalize_trades=False
    )
    trades = test.run(values=made.values)["_trades"]
    assert (trades["ExitBar"] - trades["EntryBar"] == 1).all()
    return dict(zip(trades["EntryBar"], trades["ReturnPct"], strict=True))


def stated(market, unit: np.ndarray, execution: str) -> dict[int, float]:
    side = np.sign(market.signal()[:, 1])
    lag = 0 if execution == "same_close" else 1
    return {t + lag: side[t] * unit[t, 1] for t in range(len(unit))}


@pytest.mark.parametrize("execution", EXECUTIONS)
def test_the_forecasts_earn_exactly_what_the_execution_says(market, earned, execution: str) -> None:
    found, truth = simulate(market, execution), stated(market, earned(market, execution), execution)
    # The engine looks at its second bar first, and leaves what is open at the end.
    assert set(found) >= {bar for bar in truth if bar >= 2} - {max(truth)}
    for bar, value in found.items():
        assert value == pytest.approx(truth[bar], abs=1e-12)


@pytest.mark.parametrize("days", [1, -1])
@pytest.mark.parametrize("execution", ["next_close"])
def test_a_shift_by_one_day_is_caught(market, earned, shift_by_a_day, execution: str, days: int) -> None:
    shift_by_a_day(days)
    found, truth = simulate(market, execution), stated(market, earned(market, execution), execution)
    assert max(abs(found[bar] - truth[bar]) for bar in found if bar in truth) > 1e-3


def test_filling_at_the_close_on_signals_for_the_open_is_caught(market, earned) -> None:
    made = signal(market.forecasts, bars(market), asset="A1", execution="next_open")
    test = backtesting.Backtest(bars(market), ByTheSign, cash=1e12, trade_on_close=not made.trade_on_close)
    trades = test.run(values=made.values)["_trades"]
    truth = stated(market, earned(market, "next_open"), "next_open")
    found = dict(zip(trades["EntryBar"], trades["ReturnPct"], strict=True))
    assert max(abs(found[bar] - truth[bar]) for bar in found if bar in truth) > 1e-3


def test_the_values_are_as_long_as_the_bars_and_stand_on_the_bar_of_the_order(market) -> None:
    for execution, wait in (("next_open", 0), ("next_close", 1), ("same_close", 0)):
        made = signal(market.forecasts, bars(market), asset="A1", execution=execution)
        assert len(made.values) == len(market.dates)
        np.testing.assert_array_equal(made.values[wait:], market.signal()[: len(market.dates) - wait, 1])
        assert np.isnan(made.values[:wait]).all()


def test_bars_without_opens_and_unknown_assets_are_refused(market) -> None:
    flat = bars(market).assign(Open=lambda frame: frame["Close"])
    with pytest.raises(ValueError, match="every Open of these bars is the Close"):
        signal(market.forecasts, flat, asset="A1")
    with pytest.raises(ValueError, match="these bars lack Open"):
        signal(market.forecasts, bars(market).drop(columns="Open"), asset="A1")
    with pytest.raises(ValueError, match="no forecast of 'AAPL'; the table's assets are A0, A1"):
        signal(market.forecasts, bars(market), asset="AAPL")
    with pytest.raises(ValueError, match="zone"):
        signal(market.forecasts, bars(market).tz_localize("UTC"), asset="A1")
    late = market.forecasts.with_columns(available_at=pl.col("date").dt.offset_by("1d"))
    with pytest.raises(ValueError, match="available_at"):
        signal(late.head(5).vstack(late.tail(5)), bars(market), asset="A1")

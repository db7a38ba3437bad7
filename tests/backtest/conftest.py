"""A market whose overnight and intraday returns all differ, and what a forecast of them earned, by hand."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
import polars as pl
import pytest

# These engines cannot stand beside the lock: run_in_environments.py gives each an environment of its own.
APART = {"test_qlib.py": "qlib", "test_zipline.py": "zipline"}
collect_ignore = [file for file, library in APART.items() if find_spec(library) is None]


@dataclass(frozen=True, kw_only=True)
class Market:
    """Opens and closes (D, A) on weekdays, and forecasts of them."""

    dates: list[dt.date]
    assets: list[str]
    open: np.ndarray
    close: np.ndarray
    forecasts: pl.DataFrame

    def long(self) -> pl.DataFrame:
        """Return prices as a long frame."""
        columns = {"open": self.open, "close": self.close}
        return pl.DataFrame(
            [
                {"date": date, "asset": asset, **{name: grid[d, a] for name, grid in columns.items()}}
                for d, date in enumerate(self.dates)
                for a, asset in enumerate(self.assets)
            ]
        )

    def signal(self) -> np.ndarray:
        """Return the forecasts (D, A)."""
        return self.forecasts.sort("date", "asset")["forecast"].to_numpy().reshape(self.open.shape).copy()

    def with_forecasts(self, values: np.ndarray) -> pl.DataFrame:
        """Return a table of other forecasts (D, A); NaN cells have no row."""
        return table(self.dates, self.assets, values)


def table(dates: list[dt.date], assets: list[str], values: np.ndarray) -> pl.DataFrame:
    rows = [
        {"date": date, "asset": asset, "forecast": float(values[d, a])}
        for d, date in enumerate(dates)
        for a, asset in enumerate(assets)
        if np.isfinite(values[d, a])
    ]
    return pl.DataFrame(rows, schema={"date": pl.Date, "asset": pl.String, "forecast": pl.Float64})


def weekdays(first: dt.date, count: int) -> list[dt.date]:
    days = (first + dt.timedelta(days=k) for k in range(2 * count + 7))
    return [day for day in days if day.weekday() < 5][:count]


def make_market(num_dates: int, num_assets: int, seed: int) -> Market:
    rng = np.random.default_rng(seed)
    overnight = rng.normal(0, 0.01, (num_dates, num_assets))
    intraday = rng.normal(0, 0.015, (num_dates, num_assets))
    assert len({*overnight.ravel(), *intraday.ravel()}) == 2 * num_dates * num_assets
    close = 100 * np.exp(np.cumsum(overnight + intraday, axis=0))
    open = close / np.exp(intraday)
    dates = weekdays(dt.date(2021, 3, 1), num_dates)
    assets = [f"A{k}" for k in range(num_assets)]
    forecasts = table(dates, assets, rng.normal(0, 0.002, (num_dates, num_assets)))
    return Market(dates=dates, assets=assets, open=open, close=close, forecasts=forecasts)


@pytest.fixture
def market() -> Market:
    return make_market(40, 4, seed=11)


@pytest.fixture
def new_market() -> Callable[..., Market]:
    return make_market


@pytest.fixture
def earned() -> Callable[..., np.ndarray]:
    """Return what is earned by forecasts, from the prices, by hand: the one oracle of every engine.

    Row t, asset i: the return of one unit of i that was decided at the close of t.
    """

    def by_hand(market: Any, execution: str) -> np.ndarray:
        opens, closes = market.open, market.close
        rows = []
        for t in range(len(opens)):
            try:
                row = {
                    "next_open": lambda t=t: opens[t + 2] / opens[t + 1] - 1,
                    "next_close": lambda t=t: closes[t + 2] / closes[t + 1] - 1,
                    "same_close": lambda t=t: closes[t + 1] / closes[t] - 1,
                }[execution]()
            except IndexError:
                break
            rows.append(row)
        return np.array(rows)

    return by_hand


@pytest.fixture
def shift_by_a_day(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Plant the mistake that these tests are for: every execution a day late, or a day early."""

    def plant(days: int) -> None:
        import fints.backtest.execution as execution

        for name, (column, delay) in list(execution.CONVENTIONS.items()):
            monkeypatch.setitem(execution.CONVENTIONS, name, (column, delay + days))

    return plant

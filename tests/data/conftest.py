"""Small panels whose every number a test can recompute."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable

import numpy as np
import polars as pl
import pytest

from fints.data import Panel


@pytest.fixture(scope="session")
def ragged() -> Callable[..., Panel]:
    """A panel of random walks: asset B is listed late, C delisted early, D halted in the middle."""

    def make(num_days: int = 120, seed: int = 0, **columns: np.ndarray) -> Panel:
        generator = np.random.default_rng(seed)
        dates = [dt.date(2001, 1, 1) + dt.timedelta(days=day) for day in range(num_days)]
        rows = {"A": range(num_days), "B": range(num_days // 3, num_days), "C": range(num_days // 2)}
        rows["D"] = [*range(num_days // 4), *range(num_days // 2, num_days)]
        frames = []
        for asset, days in rows.items():
            days = list(days)
            walk = 100 * np.exp(np.cumsum(0.02 * generator.standard_normal(len(days))))
            volume = generator.uniform(1, 2, len(days))
            frames.append(
                pl.DataFrame(
                    {
                        "date": [dates[day] for day in days],
                        "asset": [asset] * len(days),
                        "close": walk,
                        "volume": volume,
                    }
                )
            )
        return Panel(pl.concat(frames), name="ragged")

    return make


@pytest.fixture(scope="session")
def one_asset() -> Callable[..., Panel]:
    """A panel of one asset from its prices, a calendar day apart."""

    def make(prices: list[float | None] | np.ndarray) -> Panel:
        dates = [dt.date(2001, 1, 1) + dt.timedelta(days=day) for day in range(len(prices))]
        return Panel(pl.DataFrame({"date": dates, "asset": ["A"] * len(prices), "close": list(prices)}))

    return make


@pytest.fixture(scope="session")
def random_panel() -> Callable[[int], Panel]:
    """Panels of 1 to 11 assets over 80 to 200 days: late listings, delistings, holidays, halts, gaps."""

    def make(seed: int) -> Panel:
        draw = np.random.default_rng(seed)
        days, assets = int(draw.integers(80, 200)), int(draw.integers(1, 12))
        holidays = draw.random(days) < 0.03
        rows = []
        for asset in range(assets):
            price = np.exp(np.cumsum(0.02 * draw.standard_normal(days)))
            listed = int(draw.integers(0, days // 2))
            delisted = int(draw.integers(listed + days // 3, days + 1))
            for day in range(listed, delisted):
                if holidays[day] or draw.random() < 0.05:
                    continue
                traded, told = draw.random(2) > 0.05
                key = (dt.date(2001, 1, 1) + dt.timedelta(days=day), f"S{asset:02d}")
                rows.append(
                    (*key, float(price[day]) if traded else None, float(draw.random()) if told else None)
                )
        schema = {"date": pl.Date, "asset": pl.String, "close": pl.Float64, "volume": pl.Float64}
        return Panel(pl.DataFrame(rows, schema=schema, orient="row"), name=f"random {seed}")

    return make

"""The recent rows of a panel give the forecasts of a day what the whole panel gives them."""

from __future__ import annotations

import datetime as dt

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal

from fints.data import Panel, features, targets
from fints.data.features import longest_lag
from fints.data.history import recent
from fints.data.targets import VOLATILITY_WINDOW

NAMES = ("return_1", "momentum_40_5", "volatility_10", "log_volatility_21", "rank_return_21", "rank_x", "x")


@pytest.fixture(scope="module")
def panel() -> Panel:
    """Six assets, 400 days: one listed late, one delisted, one that rests for 60 days, one rarely traded."""
    draw = np.random.default_rng(0)
    days = [dt.date(2001, 1, 1) + dt.timedelta(days=k) for k in range(400)]
    rows = []
    for name in "ABCDEF":
        price = 100 * np.exp(np.cumsum(0.01 * draw.standard_normal(400)))
        for k, day in enumerate(days):
            absent = (name == "B" and k < 300) or (name == "C" and k > 350)
            if not absent:
                halted = (name == "D" and 250 <= k < 310) or (name == "E" and k % 5 != 0)
                rows.append((day, name, None if halted else float(price[k]), draw.standard_normal()))
    return Panel(pl.DataFrame(rows, schema=["date", "asset", "close", "x"], orient="row"))


def test_the_longest_lag_is_that_of_the_recipe_that_looks_back_furthest(panel: Panel) -> None:
    assert [longest_lag(panel, [name]) for name in NAMES] == [1, 40, 10, 21, 21, 0, 0]
    assert longest_lag(panel, NAMES) == 40
    with pytest.raises(ValueError, match="unknown feature 'retrun_1'"):
        longest_lag(panel, ["retrun_1"])


@pytest.mark.parametrize("place", [0, 3, 5, 200, 262, 320, 380, 399])
def test_features_and_scales_of_the_kept_windows_are_the_same_bits(panel: Panel, place: int) -> None:
    start, context = panel.dates[place], 4
    since = panel.dates[max(0, place - context + 1)]
    kept = recent(panel, start, NAMES, context=context)
    if place >= 200:
        assert len(kept) < len(panel)
    for whole, part in (
        (features(panel, NAMES), features(kept, NAMES)),
        (targets(panel, "volatility_scaled", 2), targets(kept, "volatility_scaled", 2)),
    ):
        late = pl.col("date") >= since
        assert part.filter(late).height > 0
        assert_frame_equal(whole.filter(late), part.filter(late), check_exact=True)


@pytest.mark.parametrize("place", [3, 200, 262, 320, 399])
@pytest.mark.parametrize("days", [0, 7])
def test_what_is_kept_is_each_asset_s_own_last_trading_days_and_the_dates_asked_for(
    panel: Panel, place: int, days: int
) -> None:
    start, end = panel.dates[place], panel.dates[min(place + days, 399)]
    since = panel.dates[place - 3]
    kept = recent(panel, start, NAMES, context=4, end=end)
    traded = panel.frame.filter(pl.col("date") < since, pl.col("close").is_not_null())
    last = traded.sort("date").group_by("asset").tail(VOLATILITY_WINDOW).select(panel.frame.columns)
    later = panel.frame.filter(pl.col("date").is_between(since, end))
    assert_frame_equal(kept.frame, pl.concat([last, later]).sort("date", "asset"), check_exact=True)
    assert kept.dates.to_list() == sorted({*last["date"], *later["date"]})


@pytest.mark.parametrize("place", [0, 7, 262, 399])
def test_features_since_a_day_are_the_last_rows_of_all(panel: Panel, place: int) -> None:
    since = panel.dates[place]
    whole = features(panel, NAMES).filter(pl.col("date") >= since)
    assert_frame_equal(features(panel, NAMES, since=since), whole, check_exact=True)


def test_nothing_is_left_out_where_no_day_was_asked_for_or_none_is_there(panel: Panel) -> None:
    assert recent(panel, None, NAMES, context=4) is panel
    assert recent(panel, panel.dates[-1] + dt.timedelta(days=1), NAMES, context=4) is panel

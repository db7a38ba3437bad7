"""Targets: the only look ahead, and nothing further ahead than they say."""

from __future__ import annotations

import datetime as dt
import math

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fints.data import TARGETS, Panel, targets


def outcome(panel: Panel, name: str, horizon: int) -> dict[tuple, tuple]:
    return {row[:2]: row[2:] for row in targets(panel, name, horizon).iter_rows()}


@pytest.mark.parametrize("horizon", [1, 5])
def test_the_log_return_is_that_to_the_assets_hth_next_own_day(ragged, horizon):
    panel = ragged()
    found = outcome(panel, "log_return", horizon)
    assert len(found) == len(panel)
    for (asset,), own in panel.frame.group_by("asset"):
        own = own.sort("date")
        days, prices = own["date"].to_list(), own["close"].to_list()
        for i, day in enumerate(days):
            target, scale, end = found[day, asset]
            assert scale == 1.0
            if i + horizon < len(days):
                assert target == pytest.approx(math.log(prices[i + horizon] / prices[i]), abs=1e-13)
                assert end == days[i + horizon]
            else:
                assert (target, end) == (None, None)


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("horizon", [1, 3])
def test_the_last_h_days_of_each_asset_have_no_target_never_zero(ragged, name, horizon):
    last = targets(ragged(), name, horizon).sort("date").group_by("asset").tail(horizon)
    assert last.height == 4 * horizon
    assert last["target"].null_count() == last.height
    assert last["label_end"].null_count() == last.height


def test_the_scaled_target_times_its_scale_is_the_log_return(ragged):
    panel = ragged(num_days=200)
    plain, scaled = targets(panel, "log_return", 5), targets(panel, "volatility_scaled", 5)
    known = scaled["target"].is_not_null()
    assert known.sum() > 200
    back = (scaled["target"] * scaled["scale"]).filter(known).to_numpy()
    np.testing.assert_allclose(back, plain["target"].filter(known).to_numpy(), rtol=1e-12)


def test_the_scale_is_the_weighted_volatility_of_the_last_63_returns_and_root_h(one_asset):
    moves = 0.02 * np.random.default_rng(1).standard_normal(99)
    panel = one_asset(np.exp(np.cumsum(np.r_[0.0, moves])))
    scale = targets(panel, "volatility_scaled", 4)["scale"]
    assert scale.is_null().to_list() == [True] * 63 + [False] * 37
    for t in (63, 80, 99):
        weights = [2 ** (-k / 21) for k in range(63)]
        variance = sum(w * moves[t - 1 - k] ** 2 for k, w in enumerate(weights)) / sum(weights)
        assert scale[t] == pytest.approx(math.sqrt(4 * variance), rel=1e-12)


def test_the_scale_is_known_where_the_target_is_not_yet(ragged):
    last = targets(ragged(num_days=200), "volatility_scaled", 5).filter(pl.col("asset") == "A").tail(5)
    assert last["target"].null_count() == 5
    assert last["scale"].null_count() == 0


def test_a_constant_price_has_no_scaled_target_and_never_an_infinite_one(one_asset):
    found = targets(one_asset([50.0] * 150), "volatility_scaled", 1)
    assert found["target"].null_count() == 150
    assert found["scale"].null_count() == 150
    plain = targets(one_asset([50.0] * 150), "log_return", 1)["target"]
    assert plain.drop_nulls().to_list() == [0.0] * 149


def test_a_price_that_comes_to_rest_loses_its_target_when_63_days_are_still(one_asset):
    walk = np.exp(np.cumsum(0.02 * np.random.default_rng(2).standard_normal(100)))
    prices = np.r_[walk, np.full(80, walk[-1])]
    found = targets(one_asset(prices), "volatility_scaled", 1)
    assert found["target"].drop_nulls().is_finite().all()
    assert found["scale"].is_null().to_list()[63:] == [False] * 99 + [True] * 18


def test_the_cross_sectional_target_has_mean_0_and_deviation_1_on_each_date(ragged):
    found = targets(ragged(), "cross_sectional", 2).filter(pl.col("target").is_not_null())
    moments = found.group_by("date").agg(
        pl.col("target").mean().alias("mean"), pl.col("target").std(ddof=0).alias("deviation"), pl.len()
    )
    assert moments["len"].min() >= 2
    np.testing.assert_allclose(moments["mean"], 0, atol=1e-12)
    np.testing.assert_allclose(moments["deviation"], 1, rtol=1e-12)
    assert found["scale"].null_count() == found.height


def test_one_asset_or_equal_returns_have_no_cross_section():
    days = [dt.date(2001, 1, day) for day in (1, 2, 3)]
    prices = {"A": [1.0, 1.1, 1.3], "B": [2.0, 2.2, 2.0], "C": [None, 3.0, 3.9]}
    frame = pl.DataFrame(
        {
            "date": days * 3,
            "asset": [name for name in prices for _ in days],
            "close": [price for values in prices.values() for price in values],
        }
    )
    found = targets(Panel(frame), "cross_sectional", 1)
    # On the first day A and B both rise by 10 %, up to rounding; on the second B falls and C rises.
    assert found.filter(pl.col("date") == days[0])["target"].null_count() == 3
    assert found.filter(pl.col("date") == days[1])["target"].null_count() == 0
    alone = targets(Panel(frame.filter(pl.col("asset") == "A")), "cross_sectional", 1)
    assert alone["target"].null_count() == 3


def test_a_cross_sectional_target_is_known_when_the_last_of_its_assets_is():
    days = [dt.date(2001, 1, day) for day in (1, 2, 3, 4)]
    frame = pl.DataFrame(
        {
            "date": [*days, days[0], days[3]],
            "asset": [*"AAAA", *"HH"],
            "close": [1.0, 2.0, 3.0, 4.0, 5.0, 7.0],
        }
    )
    found = targets(Panel(frame), "cross_sectional", 1).filter(pl.col("date") == days[0])
    assert found["label_end"].to_list() == [days[3], days[3]]
    assert found["target"].null_count() == 0


@settings(max_examples=20, deadline=None)
@given(cut=st.integers(80, 198), horizon=st.integers(1, 7), name=st.sampled_from(TARGETS))
def test_nothing_after_the_end_of_a_label_changes_it(ragged, cut, horizon, name):
    panel = ragged(num_days=200)
    day = panel.dates[cut]
    later = pl.when(pl.col("date") > day).then(1000.0).otherwise(1.0)
    shocked = Panel(panel.frame.with_columns(pl.col("close") * later), name="shocked")
    before, after = targets(panel, name, horizon), targets(shocked, name, horizon)
    ended = (before["label_end"] <= day).fill_null(False)
    assert ended.sum() > 10
    assert after.filter(ended).equals(before.filter(ended), null_equal=True)


@settings(max_examples=20, deadline=None)
@given(cut=st.integers(80, 198), horizon=st.integers(1, 7))
def test_the_scale_knows_nothing_after_its_date(ragged, cut, horizon):
    panel = ragged(num_days=200)
    day = panel.dates[cut]
    whole = targets(panel, "volatility_scaled", horizon).filter(pl.col("date") <= day)["scale"]
    assert targets(panel[:day], "volatility_scaled", horizon)["scale"].equals(whole, null_equal=True)


@pytest.mark.parametrize(
    ("name", "horizon", "said"),
    [
        ("log_retrun", 1, "unknown target 'log_retrun'. Did you mean 'log_return'"),
        ("log_return", 0, "at least 1; got 0"),
        ("log_return", 1.5, "whole number"),
        ("log_return", True, "whole number"),
    ],
)
def test_impossible_targets_are_refused(ragged, name, horizon, said):
    with pytest.raises(ValueError, match=said):
        targets(ragged(), name, horizon)

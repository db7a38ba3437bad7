"""Features: right by their definition, causal to the bit, and forgetful beyond their window."""

from __future__ import annotations

import datetime as dt
import itertools
import math
import statistics

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fints.data import Panel, features, load

NAMES = [
    "return_1",
    "return_5",
    "volatility_7",
    "log_volatility_7",
    "momentum_20_5",
    "rank_return_1",
    "rank_volume",
    "volume",
]
# No name of the list looks further back than this many own trading days.
LONGEST = 20


def by_key(frame: pl.DataFrame) -> dict[tuple, tuple]:
    return {row[:2]: row[2:] for row in frame.iter_rows()}


def test_every_feature_is_its_definition_on_the_assets_own_days(ragged):
    panel = ragged()
    computed = by_key(features(panel, NAMES[:5]))
    assert len(computed) == len(panel)
    for (asset,), own in panel.frame.group_by("asset"):
        own = own.sort("date")
        log_price = [math.log(p) for p in own["close"]]
        moves = [b - a for a, b in itertools.pairwise(log_price)]
        for i, day in enumerate(own["date"]):
            deviation = statistics.stdev(moves[i - 7 : i]) if i >= 7 else None
            expected = (
                log_price[i] - log_price[i - 1] if i >= 1 else None,
                log_price[i] - log_price[i - 5] if i >= 5 else None,
                deviation,
                None if deviation is None else math.log(deviation),
                log_price[i - 5] - log_price[i - 20] if i >= 20 else None,
            )
            for value, wanted in zip(computed[day, asset], expected, strict=True):
                assert value == (wanted if wanted is None else pytest.approx(wanted, rel=1e-9, abs=1e-12))


def test_a_rank_runs_from_minus_a_half_to_a_half_with_ties_averaged():
    day = dt.date(2001, 1, 1)
    frame = pl.DataFrame(
        {
            "date": [day] * 5 + [day + dt.timedelta(days=1)],
            "asset": [*"ABCDE", "A"],
            "close": [1.0] * 6,
            "score": [3.0, 1.0, 3.0, 9.0, None, 7.0],
        }
    )
    ranks = features(Panel(frame), ["rank_score"])["rank_score"].to_list()
    assert ranks == [0.0, -0.5, 0.0, 0.5, None, 0.0]


def test_a_row_without_price_has_no_history_feature_and_takes_none_from_later_days(one_asset):
    with_gap = features(one_asset([1.0, 2.0, None, 8.0, 16.0]), ["return_1", "return_2"])
    assert with_gap["return_1"].to_list() == pytest.approx(
        [None, math.log(2), None, math.log(4), math.log(2)]
    )
    assert with_gap["return_2"].to_list() == pytest.approx([None, None, None, math.log(8), math.log(8)])


@settings(max_examples=25, deadline=None)
@given(cut=st.integers(2, 119), seed=st.integers(0, 99))
def test_the_future_never_reaches_the_past(ragged, cut, seed):
    panel = ragged(seed=seed)
    day = panel.dates[cut]
    whole = features(panel, NAMES).filter(pl.col("date") <= day)
    assert features(panel[:day], NAMES).equals(whole, null_equal=True)


@settings(max_examples=25, deadline=None)
@given(place=st.integers(0, 30), seed=st.integers(0, 99))
def test_a_shock_leaves_no_trace_beyond_its_window(ragged, place, seed):
    panel = ragged(seed=seed)
    shocked_day = panel.dates[place]
    shock = pl.when(pl.col("date") == shocked_day).then(1000.0).otherwise(1.0)
    shocked = Panel(
        panel.frame.with_columns(pl.col("close") * shock, pl.col("volume") * shock), name="shocked"
    )
    # Own trading days since the shock. A rank sees other assets' windows: a date is clear when all are.
    hit = pl.col("date") == shocked_day
    aged = panel.frame.with_columns(age=pl.int_range(pl.len()).over("asset"), hit=hit.any().over("asset"))
    aged = aged.with_columns(since=pl.col("age") - pl.col("age").filter(hit).max().over("asset"))
    clear = aged.select(
        ((pl.col("date") < shocked_day) | ~pl.col("hit") | (pl.col("since") > LONGEST)).all().over("date")
    ).to_series()
    assert 100 < clear.sum() < len(panel)
    before, after = features(panel, NAMES), features(shocked, NAMES)
    assert after.filter(clear).equals(before.filter(clear), null_equal=True)
    assert not after.equals(before, null_equal=True)


def test_other_assets_change_nothing_but_ranks(ragged):
    panel = ragged()
    names = [name for name in NAMES if not name.startswith("rank_")]
    alone = Panel(panel.frame.filter(pl.col("asset") == "D"))
    together = features(panel, names).filter(pl.col("asset") == "D")
    assert features(alone, names).equals(together, null_equal=True)


def test_a_price_that_never_moves_has_no_log_volatility_and_nothing_is_infinite(one_asset):
    computed = features(one_asset([100.0] * 30), ["return_1", "volatility_5", "log_volatility_5"])
    assert computed["return_1"].drop_nulls().unique().to_list() == [0.0]
    assert computed["volatility_5"].drop_nulls().unique().to_list() == [0.0]
    assert computed["log_volatility_5"].is_null().all()


def test_rounding_is_not_volatility(one_asset):
    growth = features(one_asset(100 * 1.01 ** np.arange(40)), ["volatility_5", "log_volatility_5"])
    assert growth["volatility_5"].drop_nulls().unique().to_list() == [0.0]
    assert growth["log_volatility_5"].is_null().all()


def test_an_asset_without_a_price_has_no_features_and_the_others_keep_theirs():
    days = [dt.date(2001, 1, day) for day in (1, 2, 3)]
    frame = pl.DataFrame(
        {"date": days * 2, "asset": ["A"] * 3 + ["N"] * 3, "close": [1.0, 2.0, 4.0, None, None, None]}
    )
    computed = features(Panel(frame), ["return_1", "rank_return_1"])
    assert computed.filter(pl.col("asset") == "N").select("return_1", "rank_return_1").null_count().row(
        0
    ) == (3, 3)
    assert computed.filter(pl.col("asset") == "A")["rank_return_1"].to_list() == [None, 0.0, 0.0]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("retrun_5", r"unknown feature 'retrun_5'. Did you mean return_5\?"),
        ("volatility", r"Did you mean volatility_\{k\}\?"),
        ("volum", r"Did you mean volume\?"),
        ("momentum_21", r"Did you mean momentum_\{far\}_\{near\}\?"),
        ("rank_nothing", r"unknown feature 'nothing'"),
        ("xyz", r"Known recipes: return_\{k\}.*columns of ragged: close, volume"),
        ("return_0", "at least 1; got 0"),
        ("volatility_1", "at least 2; got 1"),
        ("momentum_5_21", "FAR above NEAR; got 5 and 21"),
        ("rank_rank_volume", "ranks a rank; use 'rank_volume'"),
    ],
)
def test_an_impossible_feature_is_answered_with_what_is_known(ragged, name, said):
    with pytest.raises(ValueError, match=said):
        features(ragged(), [name])


def test_a_column_named_like_a_recipe_is_not_guessed_about(ragged):
    panel = Panel(ragged().frame.rename({"volume": "return_1"}))
    with pytest.raises(ValueError, match="a recipe and a column"):
        features(panel, ["return_1"])


def test_the_bundled_panel_is_forecast_blind_at_any_cut():
    panel = load("sp500-20")["1995":"1997"]
    names = ["return_21", "log_volatility_21", "momentum_252_21", "rank_return_1"]
    whole = features(panel, names)
    for day in (dt.date(1996, 3, 14), dt.date(1997, 8, 29)):
        assert features(panel[:day], names).equals(whole.filter(pl.col("date") <= day), null_equal=True)

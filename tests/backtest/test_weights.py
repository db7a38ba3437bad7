"""The weights that engines trade to are those that `fints evaluate` holds."""

from __future__ import annotations

import numpy as np
import pytest

from fints.backtest import held_weights
from fints.evaluation import backtest, target_weights


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", ["long_short", "decile"])
def test_daily_forecasts_are_traded_daily_to_the_portfolios_of_evaluation(kind: str, seed: int) -> None:
    forecasts = np.random.default_rng(seed).normal(size=(12, 7))
    forecasts[3, 2] = np.nan
    truth = np.array([target_weights(row, kind, quantile=0.3) for row in forecasts])
    np.testing.assert_array_equal(held_weights(forecasts, kind, quantile=0.3), truth)


@pytest.mark.parametrize("horizon", [2, 3, 5])
def test_overlapping_forecasts_are_averaged_over_those_in_force(horizon: int) -> None:
    forecasts = np.random.default_rng(horizon).normal(size=(15, 6))
    single = held_weights(forecasts, "long_short")
    for day, row in enumerate(held_weights(forecasts, "long_short", horizon=horizon)):
        np.testing.assert_allclose(row, single[max(0, day - horizon + 1) : day + 1].mean(axis=0), atol=1e-15)


def test_rare_forecasts_are_traded_when_they_come_and_closed_when_they_end() -> None:
    forecasts = np.full((14, 4), np.nan)
    forecasts[[2, 5, 8]] = np.random.default_rng(3).normal(size=(3, 4))
    weights = held_weights(forecasts, "long_short", horizon=3)
    traded = np.isfinite(weights).all(axis=1)
    assert np.flatnonzero(traded).tolist() == [2, 5, 8, 11]
    assert np.isnan(weights[~traded]).all()
    np.testing.assert_array_equal(weights[11], 0)
    np.testing.assert_array_equal(weights[5], target_weights(forecasts[5], "long_short"))


@pytest.mark.parametrize("kind", ["long_short", "decile"])
def test_the_long_side_is_what_is_bought_scaled_to_one(kind: str) -> None:
    forecasts = np.random.default_rng(8).normal(size=(9, 10))
    both = held_weights(forecasts, kind, quantile=0.2)
    long = held_weights(forecasts, kind, side="long", quantile=0.2)
    np.testing.assert_allclose(long, 2 * np.maximum(both, 0), atol=1e-15)
    np.testing.assert_allclose(long.sum(axis=1), 1)


def test_weights_of_your_own_are_traded_as_they_are() -> None:
    given = np.random.default_rng(4).normal(size=(6, 3))
    given[2, 1] = np.nan
    np.testing.assert_array_equal(held_weights(given, "as_given"), np.nan_to_num(given))
    alone = given[:, :1]
    np.testing.assert_array_equal(held_weights(alone, "as_given"), np.nan_to_num(alone))


def test_equal_forecasts_have_no_position() -> None:
    for side in ("both", "long"):
        np.testing.assert_array_equal(held_weights(np.full((3, 4), 0.01), "long_short", side=side), 0)


def test_turnover_is_that_of_fints_evaluate(market) -> None:
    from fints.backtest import align

    aligned = align(market.forecasts, market.dates, market.assets)
    weights = held_weights(aligned.values, "long_short", horizon=4)
    ours = backtest(market.forecasts, market.long(), "long_short", execution="same_close", horizon=4).dates
    grown = weights[:-1] * market.close[1:] / market.close[:-1]
    equity = 1 + (weights[:-1] * (market.close[1:] / market.close[:-1] - 1)).sum(axis=1, keepdims=True)
    turnover = np.abs(weights[1:] - grown / equity).sum(axis=1)
    np.testing.assert_allclose(turnover[: len(ours) - 1], ours["turnover"].to_numpy()[1:], atol=1e-12)


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"kind": "volatility_targeted"}, "unknown portfolio"),
        ({"kind": "decile", "side": "short"}, "unknown side"),
        ({"kind": "as_given", "side": "long"}, "as they are"),
        ({"kind": "decile", "horizon": 0}, "horizon >= 1"),
        ({"kind": "decile", "quantile": 0.6}, "quantile"),
    ],
)
def test_choices_that_cannot_be_used_are_refused(choices: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        held_weights(np.random.default_rng(0).normal(size=(5, 4)), **choices)


def test_one_asset_has_no_rank_and_the_message_says_what_to_do() -> None:
    with pytest.raises(ValueError, match="as_given"):
        held_weights(np.ones((5, 1)), "long_short")

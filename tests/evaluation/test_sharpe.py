"""Sharpe ratios: literal formulas, the numbers of two libraries, and what the best of many noises shows."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from fints.evaluation import (
    annual_sharpe,
    deflated_sharpe,
    expected_best_sharpe,
    probabilistic_sharpe,
    probability_of_overfitting,
    sharpe,
    sharpe_interval,
)


def trials(seed: int, *, dates: int = 300, count: int = 11) -> np.ndarray:
    """Fat-tailed daily returns of strategies, the fourth better than the others."""
    returns = 0.01 * np.random.default_rng(seed).standard_t(5, (dates, count))
    returns[:, 3] += 0.0008
    return returns


# Printed on `trials(seed)` by skfolio 1.12.2 (probabilistic_sharpe_ratio at 0.02, deflated_sharpe_ratio over
# all trials) and purgedcv 0.1.11 (probability_of_backtest_overfitting, 8 blocks: pbo, slope, sum of logits).
PRINTED = {
    1: (0.9476067453724146, 0.7048677098186803, 0.44285714285714284, -0.6412937361665483, 6.352593841396093),
    2: (
        0.9976486335607762,
        0.8985321039466954,
        0.21428571428571427,
        -0.058802925063421996,
        86.59180046826393,
    ),
    3: (0.5934584010992936, 0.21276253850657678, 0.6857142857142857, -0.9908291680951882, -50.43663004741777),
}


@pytest.mark.parametrize("seed", PRINTED)
def test_sharpe_ratios_and_overfitting_are_those_of_the_libraries(seed: int):
    returns = trials(seed)
    ratios = returns.mean(axis=0) / returns.std(axis=0, ddof=1)
    best = returns[:, ratios.argmax()]
    probabilistic, deflated, overfitting, slope, logits = PRINTED[seed]
    assert probabilistic_sharpe(best, benchmark=0.02) == pytest.approx(probabilistic, rel=1e-12)
    variance = float(ratios.var(ddof=1))
    assert deflated_sharpe(best, trials=11, variance=variance) == pytest.approx(deflated, rel=1e-12)
    found = probability_of_overfitting(returns, blocks=8)
    assert found.probability == pytest.approx(overfitting, abs=1e-15)
    assert found.slope == pytest.approx(slope, rel=1e-9)
    assert found.logits.sum() == pytest.approx(logits, rel=1e-9)
    assert (found.splits, found.trials) == (70, 11)


def test_sixteen_blocks_of_unequal_length_give_the_library_s_probability():
    # purgedcv 0.1.11 on trials(1) of 307 dates and 10 strategies.
    found = probability_of_overfitting(trials(1, dates=307, count=10))
    assert found.probability == pytest.approx(0.3306138306138306, abs=1e-15)
    assert found.logits.sum() == pytest.approx(1294.3785348164708, rel=1e-9)
    assert found.splits == 12870


def test_the_best_of_a_hundred_noises_looks_certain_until_it_is_deflated():
    found = []
    for seed in range(40):
        noise = np.random.default_rng(seed).standard_normal((1260, 100))
        ratios = noise.mean(axis=0) / noise.std(axis=0, ddof=1)
        best = noise[:, ratios.argmax()]
        deflated = deflated_sharpe(best, trials=100, variance=float(ratios.var(ddof=1)))
        found.append(
            (annual_sharpe(best), probabilistic_sharpe(best), deflated, deflated_sharpe(best, trials=100))
        )
    ratio, probabilistic, deflated, counted = np.mean(found, axis=0)
    assert ratio == pytest.approx(expected_best_sharpe(100, 1 / 1259) * math.sqrt(252), abs=0.1)
    assert ratio > 1
    assert probabilistic > 0.98
    assert deflated == pytest.approx(0.5, abs=0.08)
    assert counted == pytest.approx(0.5, abs=0.08)


def test_the_expected_best_is_that_of_simulated_normals():
    draws = np.random.default_rng(0).standard_normal((20_000, 50)).max(axis=1)
    assert expected_best_sharpe(50, 4.0) == pytest.approx(2 * draws.mean(), rel=0.02)
    assert expected_best_sharpe(1, 4.0) == 0.0
    returns = trials(2)[:, 3]
    assert deflated_sharpe(returns, trials=1) == probabilistic_sharpe(returns)
    with pytest.raises(ValueError, match="a trial at least"):
        expected_best_sharpe(0, 1.0)


def test_the_interval_of_a_sharpe_ratio_is_lo_s_for_gaussian_returns_and_wider_for_negative_skew():
    rng = np.random.default_rng(1)
    x = 0.1 + rng.standard_normal(20_000)
    low, high = sharpe_interval(x)
    error = math.sqrt((1 + sharpe(x) ** 2 / 2) / len(x))
    assert (high - low) / 2 == pytest.approx(1.96 * error, rel=0.05)
    assert (low + high) / 2 == pytest.approx(sharpe(x), rel=1e-9)
    skewed = 1.0 - rng.exponential(size=20_000) + 0.3
    plain = math.sqrt((1 + sharpe(skewed) ** 2 / 2) / len(skewed))
    low, high = sharpe_interval(skewed)
    moments = 1 - stats.skew(skewed) * sharpe(skewed) + (stats.kurtosis(skewed) + 2) / 4 * sharpe(skewed) ** 2
    assert (high - low) / 2 == pytest.approx(1.96 * math.sqrt(moments / len(skewed)), rel=0.05)
    assert (high - low) / 2 > 1.1 * 1.96 * plain


def test_overfitting_is_a_coin_toss_for_noise_and_rare_for_a_true_winner():
    noise = np.mean(
        [
            probability_of_overfitting(
                np.random.default_rng(s).standard_normal((240, 20)), blocks=8
            ).probability
            for s in range(40)
        ]
    )
    assert noise == pytest.approx(0.5, abs=0.08)
    winner = np.random.default_rng(0).standard_normal((240, 20))
    winner[:, 5] += 0.5
    found = probability_of_overfitting(winner, blocks=8)
    assert found.probability == 0.0
    assert found.loss_probability == 0.0


def test_a_strategy_that_stands_still_has_no_ratio_and_is_never_chosen_over_a_gain():
    assert sharpe(np.full(50, 0.1)) is sharpe([0.1]) is sharpe_interval(np.zeros(50)) is None
    assert probabilistic_sharpe(np.zeros(50)) is deflated_sharpe(np.zeros(50), trials=3) is None
    returns = trials(4)
    still = np.column_stack([returns, np.full(300, 0.3), np.zeros(300)])
    found = probability_of_overfitting(still, blocks=8)
    assert np.isfinite(found.logits).all()
    assert found.trials == 13


def test_returns_that_cannot_be_judged_are_refused():
    with pytest.raises(ValueError, match="one finite number a date"):
        sharpe([0.1, math.nan])
    with pytest.raises(ValueError, match="two trials or more"):
        probability_of_overfitting(np.zeros((50, 1)))
    with pytest.raises(ValueError, match="blocks must be even"):
        probability_of_overfitting(np.zeros((50, 3)), blocks=5)
    with pytest.raises(ValueError, match="two dates each"):
        probability_of_overfitting(np.zeros((30, 3)))

"""A claim of others is held, failed or undecided by margins that were written before."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from fints.evaluation import holm, judge_claims
from fints.evaluation.claims import Interval

ABOVE: Interval = (0.5, None)


def numbers(mean: float, sd: float = 0.1, count: int = 8) -> list[float]:
    """As many numbers of exactly this mean and deviation."""
    x = np.linspace(-1, 1, count)
    return list(mean + sd * (x - x.mean()) / x.std(ddof=1))


def judged(values: list[float], held: Interval, failed: Interval | None = None):
    return judge_claims({"c": values}, {"c": held}, {"c": failed or held})["c"]


@pytest.mark.parametrize("mean", [0.3, 0.45, 0.5, 0.55, 0.7])
def test_with_one_margin_it_is_the_two_sided_t_test(mean: float) -> None:
    values = numbers(mean)
    found, plain = judged(values, ABOVE), stats.ttest_1samp(values, 0.5)
    assert found.p == pytest.approx(min(1.0, plain.pvalue), abs=1e-12)
    side = "held" if mean > 0.5 else "failed"
    assert found.decision == (side if plain.pvalue < 0.05 else "undecided")
    interval = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))


@pytest.mark.parametrize("value", [0.0, 0.5, 7.0])
def test_numbers_without_any_spread_decide_nothing(value: float) -> None:
    """No spike in any of eight short fits is no proof that spikes are rarer than one in a thousand steps."""
    found = judged([value] * 8, ABOVE)
    assert (found.decision, found.p, found.p_holm, found.more_clusters) == ("undecided", None, None, None)
    assert (found.low, found.high) == (value, value)


def test_inside_an_interval_both_ends_must_be_cleared_and_outside_either_is_enough() -> None:
    values = numbers(0.9, 0.02)
    found = judged(values, (0.85, 0.92), (0.8, 0.95))
    tails = [
        stats.ttest_1samp(values, 0.85, alternative="greater").pvalue,
        stats.ttest_1samp(values, 0.92, alternative="less").pvalue,
    ]
    assert found.p == pytest.approx(2 * max(tails), abs=1e-12)
    below = numbers(0.7, 0.02)
    found = judged(below, (0.85, 0.92), (0.8, 0.95))
    assert found.decision == "failed"
    # One of two ends, so Bonferroni over them.
    tail = stats.ttest_1samp(below, 0.8, alternative="less").pvalue
    assert found.p == pytest.approx(2 * 2 * tail, abs=1e-15)


def test_between_the_two_margins_nothing_is_ever_decided() -> None:
    found = judged(numbers(0.85, 1e-6), (None, 0.8), (None, 0.9))
    assert found.decision == "undecided"
    assert found.more_clusters is None


def test_claims_are_adjusted_after_holm_for_their_number() -> None:
    values = {str(place): numbers(0.5 + 0.03 * place) for place in range(1, 7)}
    found = judge_claims(values, dict.fromkeys(values, ABOVE), dict.fromkeys(values, ABOVE))
    plain = [stats.ttest_1samp(own, 0.5).pvalue for own in values.values()]
    assert [one.p_holm for one in found.values()] == pytest.approx(holm(plain))
    for one in found.values():
        assert one.decision == ("held" if one.p_holm is not None and one.p_holm < 0.05 else "undecided")
    assert len({one.decision for one in found.values()}) == 2


def test_the_level_holds_over_true_claims_at_their_margins() -> None:
    rng = np.random.default_rng(1)
    wrong = 0
    for _ in range(200):
        values = {str(place): list(0.5 + rng.standard_normal(8)) for place in range(5)}
        found = judge_claims(values, dict.fromkeys(values, ABOVE), dict.fromkeys(values, ABOVE))
        wrong += any(one.decision != "undecided" for one in found.values())
    # 5 % of 200 are 10, with a deviation of 3.1.
    assert wrong <= 19


def test_fewer_than_eight_clusters_decide_nothing_and_one_has_no_interval() -> None:
    found = judged(numbers(9.0, 0.01, count=7), ABOVE)
    assert found.decision == "undecided"
    assert found.p is not None
    assert found.p < 1e-6
    assert found.more_clusters == 1
    alone = judged([3.0], ABOVE)
    assert (alone.decision, alone.low, alone.p) == ("undecided", None, None)
    assert judge_claims({"c": []}, {"c": ABOVE}, {"c": ABOVE}) == {}


def test_what_would_decide_does_at_the_same_mean_and_deviation() -> None:
    found = judged(numbers(0.55), ABOVE)
    assert found.decision == "undecided"
    assert found.more_clusters is not None
    assert judged(numbers(0.55, count=8 + found.more_clusters), ABOVE).decision == "held"
    assert judged(numbers(0.55, count=7 + found.more_clusters), ABOVE).decision == "undecided"


@pytest.mark.parametrize(
    ("held", "failed"),
    [
        ((0.5, 0.9), (0.6, 1.0)),
        ((0.9, 0.5), (0.9, 0.5)),
        ((None, None), (None, None)),
        ((0.1, 0.2), (0.3, 0.4)),
    ],
)
def test_margins_that_contradict_each_other_are_refused(held: Interval, failed: Interval) -> None:
    with pytest.raises(ValueError, match="inside the one that it fails outside"):
        judge_claims({"c": numbers(1.0)}, {"c": held}, {"c": failed})

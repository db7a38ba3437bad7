"""All pairs at once: the signs of clusters are turned together, and the claims hold together."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy import stats

from fints.evaluation import pairwise_differences


def draws(seed: int, clusters: int = 8, levels: int = 4) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((clusters, 1)) + rng.standard_normal((clusters, levels)) * [0.2, 0.5, 1.0, 2.0]


def test_it_is_the_maximum_of_plain_t_statistics_over_all_signs() -> None:
    x = draws(1)
    found = pairwise_differences(x)
    largest = []
    for signs in itertools.product((1, -1), repeat=8):
        sizes = []
        for i, j in itertools.combinations(range(4), 2):
            sizes.append(abs(stats.ttest_1samp(np.array(signs) * (x[:, i] - x[:, j]), 0).statistic))
        largest.append(max(sizes))
    for i, j in itertools.permutations(range(4), 2):
        plain = stats.ttest_1samp(x[:, i] - x[:, j], 0)
        assert found.estimate[i, j] == pytest.approx((x[:, i] - x[:, j]).mean(), abs=1e-14)
        assert found.p[i, j] == np.mean(np.array(largest) >= abs(plain.statistic) - 1e-9)
    assert found.critical == pytest.approx(np.quantile(largest, 0.95, method="inverted_cdf"), rel=0.05)
    # The interval excludes 0 exactly where p is at most 5 %.
    assert (((found.low > 0) | (found.high < 0)) == (found.p <= 0.05)).all()


def test_two_levels_give_fishers_randomisation_test_of_one_difference() -> None:
    x = draws(2)[:, :2] + np.array([0.6, 0.0])
    d = x[:, 0] - x[:, 1]
    means = [abs(np.dot(signs, d)) for signs in itertools.product((1, -1), repeat=8)]
    # With one pair |t| and |mean| order the flips alike.
    assert pairwise_differences(x).p[0, 1] == np.mean(np.array(means) >= abs(d.sum()) - 1e-12)


def test_what_all_levels_share_changes_nothing() -> None:
    x = draws(3)
    shared = 100 * np.random.default_rng(4).standard_normal((8, 1))
    one, other = pairwise_differences(x), pairwise_differences(x + shared)
    np.testing.assert_allclose(one.low, other.low, atol=1e-10)
    np.testing.assert_array_equal(one.p, other.p)


@pytest.mark.parametrize(("clusters", "effect"), [(8, 0.0), (12, 3.0)])
def test_all_intervals_hold_together_as_often_as_they_say(clusters: int, effect: float) -> None:
    rng = np.random.default_rng(5)
    truth = np.array([effect, 0.0, 0.0, 0.0, -effect])
    held = 0
    for _ in range(300):
        x = rng.standard_t(5, (clusters, 1)) * rng.uniform(0.5, 1.5, 5)
        x = x + rng.standard_t(5, (clusters, 5)) * rng.uniform(0.2, 1.5, 5) + truth
        found = pairwise_differences(x)
        d = truth[:, None] - truth[None, :]
        held += bool(((found.low <= d) & (d <= found.high)).all())
    # 95 % of 300 is 285, with a deviation of 4.
    assert 270 <= held <= 297


def test_the_best_is_found_among_those_that_may_be_it_and_the_shortfall_is_bounded() -> None:
    # Two that win by turns, and a third that is behind by about a half throughout.
    turns = 0.1 * np.tile([1.0, -1.0], 5)
    x = np.column_stack([1 + turns, 1 - turns, 0.5 + 0.01 * np.arange(10)])
    found = pairwise_differences(x)
    assert found.may_be_best() == [0, 1]
    behind = found.behind_the_best()
    assert behind[0] == pytest.approx(found.critical * 0.2 * np.sqrt(10 / 9) / np.sqrt(10))
    assert behind[2] > x[:, 0].mean() - x[:, 2].mean()
    assert (behind < 1).all()


def test_levels_that_are_one_differ_by_nothing_and_do_not_spoil_the_others() -> None:
    x = draws(7)
    twice = np.column_stack([x, x[:, 0]])
    one, other = pairwise_differences(x), pairwise_differences(twice)
    assert (other.estimate[0, 4], other.se[0, 4], other.p[0, 4]) == (0.0, 0.0, 1.0)
    assert (other.low[0, 4], other.high[0, 4]) == (0.0, 0.0)
    np.testing.assert_array_equal(one.p, other.p[:4, :4])
    assert one.critical == other.critical


def test_too_few_clusters_decide_nothing_however_large_the_difference() -> None:
    found = pairwise_differences(draws(8, clusters=5) + np.array([0, 0, 0, 1000.0]))
    assert found.critical == np.inf
    assert found.p.min() >= 2**-4
    assert found.may_be_best() == [0, 1, 2, 3]
    assert np.isinf(found.behind_the_best()).all()


def test_many_clusters_draw_their_signs_and_give_the_same_twice() -> None:
    x = draws(9, clusters=20) + np.array([0, 0, 0, 4.0])
    one, other = pairwise_differences(x), pairwise_differences(x)
    np.testing.assert_array_equal(one.p, other.p)
    assert one.may_be_best() == [3]


@pytest.mark.parametrize("values", [np.ones((1, 3)), np.ones((3, 1)), np.array([[1.0, np.nan], [1.0, 2.0]])])
def test_what_cannot_be_compared_is_refused(values: np.ndarray) -> None:
    with pytest.raises(ValueError, match="two of each or more and all finite"):
        pairwise_differences(values)

"""The rule of the verdict: what it says of clusters whose causes are known."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from fints.evaluation.causes import clusters_needed, judge_causes

CAUSES = ("representation", "gradient", "noise", "amplification")


def clusters(number=10, *, mean=0.1, sd=0.02, seed=0):
    return np.random.default_rng(seed).normal(mean, sd, number)


def relieved(penalty, removed, *, noise=0.005, seed=1):
    """The penalty of each cluster with these shares of it removed, and noise of its own."""
    generator = np.random.default_rng(seed)
    return {
        cause: penalty * (1 - removed.get(cause, 0.0)) + generator.normal(0, noise, len(penalty))
        for cause in CAUSES
    }


@pytest.mark.parametrize("cause", CAUSES)
def test_the_cause_whose_relief_removes_the_penalty_dominates(cause):
    penalty = clusters()
    found = judge_causes(penalty, relieved(penalty, {cause: 0.9}), smallest=0.02)
    assert (found.decision, found.cause, found.more_clusters) == ("dominates", cause, 0)
    assert cause in found.sentence
    other = relieved(penalty, {cause: 0.9})[cause]
    assert found.shares[cause].value == pytest.approx(1 - other.sum() / penalty.sum())
    assert found.penalty == pytest.approx(penalty.mean())
    half = stats.t.ppf(0.975, 9) * penalty.std(ddof=1) / 10**0.5
    assert found.penalty_high - found.penalty_low == pytest.approx(2 * half)


def test_a_share_is_a_ratio_of_sums_and_blind_to_the_unit():
    penalty = clusters()
    relief = relieved(penalty, {"noise": 0.6, "gradient": 0.3})
    one = judge_causes(penalty, relief, smallest=0.02)
    other = judge_causes(1e3 * penalty, {c: 1e3 * v for c, v in relief.items()}, smallest=20.0)
    assert one.decision == other.decision
    for cause in CAUSES:
        assert one.shares[cause].low == pytest.approx(other.shares[cause].low)
        assert one.shares[cause].low < one.shares[cause].value < one.shares[cause].high


def test_two_reliefs_that_remove_the_same_are_several_causes():
    penalty = clusters()
    found = judge_causes(penalty, relieved(penalty, {"noise": 0.7, "gradient": 0.7}), smallest=0.02)
    assert (found.decision, found.cause) == ("several_causes", None)
    assert set(found.causes) == {"noise", "gradient"}


def test_reliefs_that_remove_nothing_are_none_of_these():
    penalty = clusters()
    found = judge_causes(penalty, relieved(penalty, {}), smallest=0.02)
    assert found.decision == "none_of_these"
    assert found.causes == ()


def test_a_relief_that_its_placebo_equals_names_no_cause():
    penalty = clusters()
    relief = relieved(penalty, {"gradient": 0.9})
    sham = {"gradient": relief["gradient"] + np.random.default_rng(5).normal(0, 0.005, 10)}
    found = judge_causes(penalty, relief, placebos=sham, smallest=0.02)
    assert found.decision != "dominates"
    assert "gradient" not in found.causes
    harmless = {"gradient": penalty + np.random.default_rng(5).normal(0, 0.005, 10)}
    assert judge_causes(penalty, relief, placebos=harmless, smallest=0.02).cause == "gradient"


def test_a_cause_whose_manipulation_failed_carries_no_verdict():
    penalty = clusters()
    relief = relieved(penalty, {"gradient": 0.9})
    found = judge_causes(penalty, relief, checked={"gradient": False}, smallest=0.02)
    assert found.decision == "none_of_these"
    assert found.untested == ("gradient",)
    assert "gradient" not in found.shares
    assert "Not tested, since the manipulation failed: gradient" in found.sentence


def test_what_was_seen_points_to_one_suspect_only_where_no_relief_could_tell():
    penalty = clusters()
    seen = {"representation": "present", "gradient": "absent", "noise": "unclear"}
    unchecked = {"representation": False, "noise": False}
    found = judge_causes(penalty, relieved(penalty, {}), checked=unchecked, present=seen, smallest=0.02)
    assert (found.decision, found.pointed, found.cause) == ("points_to", "representation", None)
    assert "points to representation: its mediators surely were worse" in found.sentence
    assert "(noise: unclear)" in found.sentence
    # What reliefs removed is told beside, and that it is not decided.
    assert "What reliefs removed: gradient" in found.sentence
    undecided = judge_causes(penalty, relieved(penalty, {}), checked=unchecked, smallest=0.02)
    assert found.shares == undecided.shares
    # Acquitted by its own relief, whatever was seen.
    acquitted = judge_causes(penalty, relieved(penalty, {}), present=seen, smallest=0.02)
    assert acquitted.decision == "none_of_these"
    # A relief that decides goes first.
    decided = judge_causes(
        penalty, relieved(penalty, {"gradient": 0.9}), checked=unchecked, present=seen, smallest=0.02
    )
    assert (decided.cause, decided.pointed) == ("gradient", None)
    two = {**seen, "noise": "present"}
    both = judge_causes(penalty, relieved(penalty, {}), checked=unchecked, present=two, smallest=0.02)
    assert both.pointed is None
    # A relief undecided around one half acquits nobody; one that surely removes less does.
    half = judge_causes(penalty, relieved(penalty, {"representation": 0.5}), present=seen, smallest=0.02)
    assert half.shares["representation"].low < 0.5 < half.shares["representation"].high
    assert half.pointed == "representation"
    assert half.more_clusters != 0
    generalised = {"noise": "present"}
    noise = judge_causes(
        penalty, relieved(penalty, {}), checked=unchecked, present=generalised, smallest=0.02
    )
    assert "points to noise: most of it is generalisation" in noise.sentence
    small = clusters(mean=0.0, sd=0.005)
    assert judge_causes(small, relieved(small, {}), present=seen, smallest=0.02).pointed is None


def test_no_penalty_needs_a_small_bound_and_not_a_wide_interval():
    small = clusters(mean=0.0, sd=0.005)
    assert judge_causes(small, relieved(small, {}), smallest=0.02).decision == "no_penalty"
    wide = clusters(mean=0.0, sd=0.2)
    found = judge_causes(wide, relieved(wide, {}), smallest=0.02)
    assert found.decision == "undecided_penalty"
    assert found.more_clusters > 0
    better = clusters(mean=-0.5, sd=0.05)
    assert judge_causes(better, relieved(better, {}), smallest=0.02).decision == "no_penalty"


def test_an_undecided_cause_says_how_many_more_clusters_and_those_decide():
    penalty = clusters(sd=0.01)
    relief = relieved(penalty, {"noise": 0.75}, noise=0.06)
    found = judge_causes(penalty, relief, smallest=0.02)
    assert found.decision == "undecided_cause"
    assert found.more_clusters > 0
    assert f"about {found.more_clusters} more clusters" in found.sentence
    more = clusters(10 + 2 * found.more_clusters, sd=0.01)
    assert judge_causes(more, relieved(more, {"noise": 0.75}, noise=0.06), smallest=0.02).cause == "noise"


def test_the_number_of_further_clusters_is_the_least_that_narrows_the_bound_enough():
    more = clusters_needed(0.01, 0.05, 10)
    for extra, enough in ((more, True), (more - 1, False)):
        total = 10 + extra
        assert (stats.t.ppf(0.975, total - 1) * 0.05 / total**0.5 < 0.01) == enough
    assert clusters_needed(0.0, 0.05, 10) is None


def test_the_verdict_is_the_same_twice_and_in_any_order_of_clusters_and_causes():
    penalty = clusters()
    relief = relieved(penalty, {"noise": 0.6, "gradient": 0.4})
    first = judge_causes(penalty, relief, smallest=0.02)
    assert first == judge_causes(penalty, relief, smallest=0.02)
    back = {cause: values[::-1] for cause, values in reversed(relief.items())}
    other = judge_causes(penalty[::-1], back, smallest=0.02)
    assert other.decision == first.decision
    assert other.shares["noise"].value == pytest.approx(first.shares["noise"].value)


@pytest.mark.parametrize(
    ("penalty", "relief", "smallest", "message"),
    [
        (np.ones(7), {}, 0.1, "at least 8 clusters; got 7"),
        (np.ones(8), {}, 0.0, "must be above 0"),
        (np.ones(8), {"noise": np.ones(7)}, 0.1, "for each of 8 clusters"),
        (np.array([1.0] * 7 + [np.nan]), {}, 0.1, "finite number"),
    ],
)
def test_what_carries_no_verdict_is_refused(penalty, relief, smallest, message):
    with pytest.raises(ValueError, match=message):
        judge_causes(penalty, relief, smallest=smallest)


@pytest.mark.slow
def test_without_a_cause_dominance_is_said_at_most_as_often_as_its_level():
    """Shares of a half exactly, on few clusters: the hardest case of the bound on a share."""
    said = 0
    for trial in range(300):
        penalty = clusters(8, seed=1000 + trial)
        relief = relieved(penalty, {"noise": 0.5}, noise=0.03, seed=5000 + trial)
        said += judge_causes(penalty, relief, smallest=0.02, seed=trial).decision == "dominates"
    # One-sided 2.5 % of 300 is 7.5; 15 lies three standard deviations above.
    assert said <= 15

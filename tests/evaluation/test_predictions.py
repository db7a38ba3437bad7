"""Predictions of a mechanism: held, failed or undecided, at the levels that are stated."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from fints.evaluation.predictions import (
    TOO_NARROW,
    equivalence_power,
    judge_gate,
    judge_prediction,
)

SMALLEST = 0.3


def values(mean: float, sd: float, number: int = 8, seed: int = 0) -> list[float]:
    """Numbers of exactly this mean and deviation."""
    drawn = np.random.default_rng(seed).normal(size=number)
    drawn = (drawn - drawn.mean()) / drawn.std(ddof=1)
    return list(mean + sd * drawn)


@pytest.mark.parametrize("seed", range(30))
def test_decisions_are_those_of_the_intervals_as_written(seed: int) -> None:
    generator = np.random.default_rng(seed)
    number, sd, mean = int(generator.integers(8, 15)), generator.uniform(0.02, 0.6), generator.normal(0, 0.5)
    own = values(mean, sd, number, seed)
    error = sd / math.sqrt(number)
    reach = {level: stats.t.ppf(level, number - 1) * error for level in (0.95, 0.975, 1 - 0.025 / 7)}
    above = judge_prediction(own, kind="above", smallest=SMALLEST, true=SMALLEST, predictions=7)
    failed = mean + reach[1 - 0.025 / 7] < SMALLEST
    held = mean - reach[0.975] > 0 and mean + reach[0.975] >= SMALLEST
    assert above.decision == ("failed" if failed else "held" if held else "undecided")
    zero = judge_prediction(own, kind="zero", smallest=SMALLEST, true=0.0, predictions=7)
    held = abs(mean) + reach[0.95] < SMALLEST
    failed = abs(mean) - reach[1 - 0.025 / 7] > SMALLEST
    assert zero.decision == ("failed" if failed else "held" if held else "undecided")
    assert (zero.low, zero.high) == pytest.approx((mean - reach[0.975], mean + reach[0.975]))
    assert not (held and failed)


def test_what_is_there_but_too_small_to_matter_is_no_support() -> None:
    found = judge_prediction(values(0.1, 0.02), kind="above", smallest=SMALLEST, true=SMALLEST)
    assert found.low > 0
    assert found.decision == "failed"


def test_failing_is_harder_the_more_predictions_are_made_and_holding_is_not() -> None:
    near = values(0.0, 0.3 * math.sqrt(8) / 2.8)
    assert judge_prediction(near, kind="above", smallest=SMALLEST, true=SMALLEST).decision == "failed"
    many = judge_prediction(near, kind="above", smallest=SMALLEST, true=SMALLEST, predictions=7)
    assert many.decision == "undecided"
    assert many.more_clusters is not None
    assert many.more_clusters > 0
    for number in (1, 7):
        own = judge_prediction(
            values(0.4, 0.4), kind="above", smallest=SMALLEST, true=SMALLEST, predictions=number
        )
        assert own.decision == "held"


def test_a_mechanism_that_is_not_there_is_called_supported_less_often_than_the_level() -> None:
    generator = np.random.default_rng(1)
    counts = {"above": 0, "zero": 0}
    for _ in range(400):
        # On the edge of what each says: no growth; a gap as large as the margin.
        own = {"above": generator.normal(0, 0.4, 8), "zero": generator.normal(SMALLEST, 0.1, 8)}
        for kind, drawn in own.items():
            found = judge_prediction(list(drawn), kind=kind, smallest=SMALLEST, true=SMALLEST)  # type: ignore[arg-type]
            counts[kind] += found.decision == "held"
    # Levels 2.5 % and 5 %; three standard errors above.
    assert counts["above"] / 400 < 0.025 + 3 * math.sqrt(0.025 * 0.975 / 400)
    assert counts["zero"] / 400 < 0.05 + 3 * math.sqrt(0.05 * 0.95 / 400)


def test_widths_that_are_only_bounds_say_nothing_that_the_truth_beyond_could_overturn() -> None:
    large, small = values(0.6, 0.2), values(0.02, 0.05)
    judged = {"kind": "above", "smallest": SMALLEST, "true": SMALLEST}
    # A lower bound of something large is large; an upper bound of it need not be.
    assert judge_prediction(large, **judged, at_least=True).decision == "held"  # type: ignore[arg-type]
    barred = judge_prediction(large, **judged, at_most=True)  # type: ignore[arg-type]
    assert (barred.decision, barred.reason, barred.more_clusters) == ("undecided", TOO_NARROW, None)
    assert judge_prediction(small, **judged, at_most=True).decision == "failed"  # type: ignore[arg-type]
    assert judge_prediction(small, **judged, at_least=True).reason == TOO_NARROW  # type: ignore[arg-type]
    for bound in ("at_least", "at_most"):
        own = judge_prediction(small, kind="zero", smallest=SMALLEST, true=0.0, **{bound: True})
        assert own.reason == TOO_NARROW
    assert judge_gate(large, smallest=SMALLEST, at_least=True).decision == "more"
    assert judge_gate(large, smallest=SMALLEST, at_most=True).reason == TOO_NARROW
    assert judge_gate([-one for one in large], smallest=SMALLEST, at_most=True).decision == "less"


@pytest.mark.parametrize(
    ("mean", "sd", "decision"),
    [(0.6, 0.3, "more"), (-0.6, 0.3, "less"), (0.05, 0.1, "same"), (0.2, 0.5, "undecided")],
)
def test_a_gate_says_more_less_same_or_undecided(mean: float, sd: float, decision: str) -> None:
    found = judge_gate(values(mean, sd), smallest=SMALLEST, gates=2)
    assert found.decision == decision
    assert (found.more_clusters == 0) == (decision != "undecided")


def test_a_significant_difference_within_the_margin_is_the_same() -> None:
    assert judge_gate(values(0.05, 0.01), smallest=SMALLEST).decision == "same"


def test_seven_clusters_decide_nothing() -> None:
    for found in (
        judge_gate(values(5.0, 0.1, 7), smallest=SMALLEST),
        judge_prediction(values(5.0, 0.1, 7), kind="above", smallest=SMALLEST, true=SMALLEST),
    ):
        assert (found.decision, found.more_clusters) == ("undecided", 1)
        assert "8 clusters" in found.reason


@pytest.mark.parametrize(("sd", "clusters"), [(0.15, 8), (0.3, 8), (0.3, 16)])
def test_the_power_of_equivalence_is_how_often_it_is_found(sd: float, clusters: int) -> None:
    drawn = np.random.default_rng(3).normal(0, sd, (20_000, clusters))
    error = drawn.std(axis=1, ddof=1) / math.sqrt(clusters)
    inside = np.abs(drawn.mean(axis=1)) + stats.t.ppf(0.95, clusters - 1) * error < SMALLEST
    assert equivalence_power(SMALLEST, sd=sd, clusters=clusters) == pytest.approx(inside.mean(), abs=0.012)


@pytest.mark.parametrize(
    ("given", "told"), [([], "one finite number"), ([1.0, math.nan], "one finite number")]
)
def test_what_cannot_be_judged_is_refused(given: list[float], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        judge_prediction(given, kind="above", smallest=SMALLEST, true=SMALLEST)
    with pytest.raises(ValueError, match="must be above 0; got 0"):
        judge_prediction([1.0, 2.0], kind="zero", smallest=0, true=0.0)
    with pytest.raises(ValueError, match="must be above 0; got 0"):
        judge_gate([1.0, 2.0], smallest=0)

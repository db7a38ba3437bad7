r"""Predictions of a mechanism, each with its margin written before the run: held, failed or undecided.

A mechanism is supported only if all of its predictions hold, so each may be tested at the full level (an
intersection-union test); it is refuted if one fails, so that is tested at the level over their number
(Bonferroni). Everything is of one number a cluster, with Student's t over clusters.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from fints.evaluation.causes import clusters_needed
from fints.evaluation.power import contrast_power

__all__ = ["LEAST_CLUSTERS", "Finding", "equivalence_power", "judge_gate", "judge_prediction"]

Kind = Literal["above", "zero"]
LEAST_CLUSTERS = 8
LEVEL = 0.05
TOO_NARROW = "the grid of rates ends before the ranges do in too many clusters"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What the clusters say of one number.

    Attributes
    ----------
    decision
        "held", "failed" or "undecided" of a prediction; "more", "less", "same" or "undecided" of a gate.
    reason
        Why it is undecided, where that is not for want of clusters; else "".
    estimate, low, high
        Mean over clusters and its 95 % interval (Student's t); without bounds for one cluster.
    sd
        Standard deviation over clusters; None for one.
    clusters, more_clusters
        How many there were, and how many more would decide at these estimates: 0 where it is decided, None
        where no number would.
    power
        Chance that the prediction is found to hold if it is true as written, at this spread and number.
    """

    decision: str
    reason: str
    estimate: float
    low: float
    high: float
    sd: float | None
    clusters: int
    more_clusters: int | None
    power: float


def judge_prediction(
    values: Sequence[float],
    *,
    kind: Kind,
    smallest: float,
    true: float,
    predictions: int = 1,
    at_least: bool = False,
    at_most: bool = False,
) -> Finding:
    r"""Judge a prediction on its value in each cluster.

    ========  =====================================================  =======================================
    kind      held                                                   failed
    ========  =====================================================  =======================================
    "above"   the 95 % interval lies above 0, and not below          the interval lies below `smallest`
              `smallest`: it is there, and may be as large as        surely: whatever is there is too small
              matters                                                to matter
    "zero"    the 90 % interval lies within +-`smallest` (two        the interval lies outside surely: it is
              one-sided tests)                                       there, and large enough to matter
    ========  =====================================================  =======================================

    "surely" is at level 5 % / `predictions`, two-sided. With `smallest` 0 the kind "above" is a plain
    comparison with 0.

    Parameters
    ----------
    values
        One number a cluster.
    kind
        As above.
    smallest
        The smallest size of interest; above 0 where the prediction is of zero.
    true
        What the number is if the mechanism is right, for the power of "above".
    predictions
        How many the mechanism makes.
    at_least, at_most
        Whether the values are only bounds of what they stand for: then nothing is said that the truth beyond
        the bound could overturn.

    Raises
    ------
    ValueError
        If there is no cluster, a value is not finite, or `smallest` cannot be used.
    """
    if not (smallest > 0 or (kind == "above" and smallest == 0)):
        raise ValueError(f"the smallest size of interest of a {kind!r} must be above 0; got {smallest!r}.")
    found, error = _described(values)
    number, mean = found.clusters, found.estimate
    if kind == "above":
        power = contrast_power(true, sd=found.sd, clusters=number) if found.sd else 0.0
    else:
        power = equivalence_power(smallest, sd=found.sd, clusters=number) if found.sd else 0.0
    found = replace(found, power=power)
    if number < LEAST_CLUSTERS:
        more = LEAST_CLUSTERS - number
        return replace(found, reason=f"a verdict needs {LEAST_CLUSTERS} clusters", more_clusters=more)
    sure = error * _t(1 - LEVEL / predictions / 2, number)
    inner = error * _t(1 - LEVEL, number)
    if kind == "above":
        held = found.low > 0 and found.high >= smallest and not at_most
        failed = mean + sure < smallest and not at_least
        barred = (found.low > 0 and at_most) or (mean + sure < smallest and at_least)
        # Where both are true, what is there is surely too small to matter.
        routes = [(mean, 2), (smallest - mean, 2)]
    else:
        inside = -smallest < mean - inner and mean + inner < smallest
        outside = (mean - sure > smallest, mean + sure < -smallest)
        held = inside and not (at_least or at_most)
        failed = (outside[0] and not at_most) or (outside[1] and not at_least)
        barred = inside or any(outside)
        routes = [(smallest - abs(mean), 1), (abs(mean) - smallest, 2)]
    if failed or held:
        return replace(found, decision="failed" if failed else "held", more_clusters=0)
    if barred:
        return replace(found, reason=TOO_NARROW, more_clusters=None)
    return replace(found, more_clusters=_needed(routes, found))


def judge_gate(
    values: Sequence[float],
    *,
    smallest: float,
    gates: int = 1,
    at_least: bool = False,
    at_most: bool = False,
) -> Finding:
    r"""Say whether a difference is there: "more", "less", "same" or "undecided".

    "same" if the interval of two one-sided tests at level 5 % / `gates` lies within +-`smallest`; else "more"
    ("less") if the two-sided interval at that level lies above (below) 0. `power` is the chance of "more" at
    a true difference of `smallest`.

    Parameters
    ----------
    values
        One difference a cluster.
    smallest
        The smallest difference of interest, above 0.
    gates
        How many gates the question has.
    at_least, at_most
        As of `judge_prediction`.

    Raises
    ------
    ValueError
        As `judge_prediction`.
    """
    if not smallest > 0:
        raise ValueError(f"the smallest difference of interest must be above 0; got {smallest!r}.")
    found, error = _described(values)
    number, mean, level = found.clusters, found.estimate, LEVEL / gates
    if found.sd:
        found = replace(found, power=contrast_power(smallest, sd=found.sd, clusters=number, alpha=level))
    if number < LEAST_CLUSTERS:
        more = LEAST_CLUSTERS - number
        return replace(found, reason=f"a verdict needs {LEAST_CLUSTERS} clusters", more_clusters=more)
    inner, outer = error * _t(1 - level, number), error * _t(1 - level / 2, number)
    same = -smallest < mean - inner and mean + inner < smallest
    more, less = mean - outer > 0, mean + outer < 0
    if same and not (at_least or at_most):
        return replace(found, decision="same", more_clusters=0)
    if more and not same and not at_most:
        return replace(found, decision="more", more_clusters=0)
    if less and not same and not at_least:
        return replace(found, decision="less", more_clusters=0)
    if same or more or less:
        return replace(found, reason=TOO_NARROW, more_clusters=None)
    return replace(found, more_clusters=_needed([(abs(mean), 2), (smallest - abs(mean), 1)], found))


def equivalence_power(margin: float, *, sd: float, clusters: int, alpha: float = LEVEL) -> float:
    r"""Return the chance that two one-sided tests find a true zero to be within +-`margin`.

    .. math:: \mathrm E_s\bigl[\max(0,\, 2\,\Phi(\sqrt K\, m / \sigma - t_{1-\alpha}\, s / \sigma) - 1)\bigr],
        \qquad (K - 1) s^2 / \sigma^2 \sim \chi^2_{K-1}

    over K clusters of standard deviation :math:`\sigma`, m the margin.
    """
    import numpy as np
    from scipy import stats

    if clusters < 2:
        return 0.0
    if sd == 0:
        return 1.0
    # Midpoints of a thousand slices of equal probability.
    middle = (np.arange(1000) + 0.5) / 1000
    ratio = np.sqrt(stats.chi2.ppf(middle, clusters - 1) / (clusters - 1))
    reach = math.sqrt(clusters) * margin / sd - _t(1 - alpha, clusters) * ratio
    return float(np.maximum(0.0, 2 * stats.norm.cdf(reach) - 1).mean())


def _described(values: Sequence[float]) -> tuple[Finding, float]:
    """Return mean, spread and interval of the clusters, undecided, and the mean's standard error."""
    number = len(values)
    if not number or not all(math.isfinite(value) for value in values):
        raise ValueError(f"a verdict needs one finite number a cluster; got {list(values)}.")
    mean = statistics.fmean(values)
    sd = statistics.stdev(values) if number > 1 else None
    error = math.inf if sd is None else sd / math.sqrt(number)
    half = math.inf if sd is None else _t(1 - LEVEL / 2, number) * error
    found = Finding(
        decision="undecided",
        reason="",
        estimate=mean,
        low=mean - half,
        high=mean + half,
        sd=sd,
        clusters=number,
        more_clusters=None,
        power=0.0,
    )
    return found, error


def _needed(routes: Sequence[tuple[float, int]], found: Finding) -> int | None:
    """Return how many more clusters the nearest decision needs; `routes` are distances and sides."""
    assert found.sd is not None
    needed = [
        clusters_needed(distance, found.sd, found.clusters, sides=sides)
        for distance, sides in routes
        if distance > 0
    ]
    return min((one for one in needed if one is not None), default=None)


def _t(level: float, number: int) -> float:
    from scipy import stats

    return float(stats.t.ppf(level, number - 1))

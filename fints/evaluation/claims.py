r"""Claims of others, each with the margins of held and failed written before the run.

A claim says that a number lies in an interval. It is *held* if the number surely lies inside the interval
`held`, *failed* if it surely lies outside the interval `failed`, which holds the first: what lies between is
neither. Everything is of one number a cluster, with Student's t over clusters.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fints.evaluation.contrasts import holm

__all__ = ["LEAST_CLUSTERS", "Interval", "Judged", "judge_claims"]

Interval = tuple[float | None, float | None]
LEAST_CLUSTERS = 8
LEVEL = 0.05
MOST_CLUSTERS = 10_000


@dataclass(frozen=True, kw_only=True)
class Judged:
    """What the clusters say of one claim.

    `decision` is "held", "failed" or "undecided"; the last with fewer than 8 clusters, whatever they say.
    `low` and `high` are the plain 95 % interval of `estimate`, None for one cluster. `p` is the smaller of
    those of held and failed, doubled; `p_holm` is adjusted over all claims. `more_clusters` would decide at
    these estimates: 0 where it is decided, None where it cannot be told.
    """

    decision: str
    estimate: float
    low: float | None
    high: float | None
    sd: float | None
    p: float | None
    p_holm: float | None
    clusters: int
    more_clusters: int | None


def judge_claims(
    values: Mapping[str, Sequence[float]],
    held: Mapping[str, Interval],
    failed: Mapping[str, Interval],
    *,
    level: float = LEVEL,
) -> dict[str, Judged]:
    r"""Judge every claim, adjusted after Holm for their number.

    With mean m and standard error s over K clusters, and :math:`[a, b]` the interval of held,
    :math:`[c, d]` that of failed (an end that is None is infinite),

    .. math::
        p_{held} = \max\{P(T_{K-1} > (m - a) / s),\ P(T_{K-1} > (b - m) / s)\}, \quad
        p_{failed} = n \min\{P(T_{K-1} > (c - m) / s),\ P(T_{K-1} > (m - d) / s)\}

    with n the number of finite ends of the second, and :math:`p = 2 \min(p_{held}, p_{failed})`. A claim is
    decided if its p, adjusted over all claims, is below `level`. Numbers that are the same in every cluster,
    as counts of rare events may be, have no spread to judge by: such a claim has no p and is undecided.

    Parameters
    ----------
    values
        Claim to one number a cluster; a claim without any is left out.
    held, failed
        Claim to its intervals.

    Raises
    ------
    ValueError
        If an interval of held is not inside that of failed.
    """
    found = {}
    for name, numbers in values.items():
        _check(name, held[name], failed[name])
        if numbers:
            found[name] = _one(numbers, held[name], failed[name])
    adjusted = holm([p for p, _ in found.values()])
    judged = {}
    for (name, (p, kind)), p_holm in zip(found.items(), adjusted, strict=True):
        numbers = list(values[name])
        decided = p_holm is not None and p_holm < level and len(numbers) >= LEAST_CLUSTERS
        judged[name] = _judged(
            numbers, p, p_holm, kind if decided else "undecided", held[name], failed[name], level
        )
    return judged


def _check(name: str, held: Interval, failed: Interval) -> None:
    (a, b), (c, d) = _finite(held), _finite(failed)
    if not (c <= a < b <= d) or (a, b) == (-math.inf, math.inf):
        raise ValueError(
            f"claim {name!r}: what it holds in must be an interval inside the one that it fails outside; got "
            f"{held} and {failed}."
        )


def _finite(interval: Interval) -> tuple[float, float]:
    low, high = interval
    return -math.inf if low is None else low, math.inf if high is None else high


def _one(numbers: Sequence[float], held: Interval, failed: Interval) -> tuple[float | None, str]:
    """Return p of a claim, and what it would be if it were decided."""
    if len(numbers) < 2 or statistics.stdev(numbers) == 0:
        return None, "undecided"
    (a, b), (c, d) = _finite(held), _finite(failed)
    mean, error = statistics.fmean(numbers), statistics.stdev(numbers) / math.sqrt(len(numbers))
    inside = max(_tail(mean - a, error, numbers), _tail(b - mean, error, numbers))
    ends = [end for end in (c - mean, mean - d) if math.isfinite(end)]
    outside = min(1.0, len(ends) * min(_tail(end, error, numbers) for end in ends)) if ends else 1.0
    return min(1.0, 2 * min(inside, outside)), "held" if inside <= outside else "failed"


def _tail(distance: float, error: float, numbers: Sequence[float]) -> float:
    """Return the probability that chance alone gives a mean this far on the right side of a margin."""
    from scipy import stats

    if math.isinf(distance):
        return 0.0 if distance > 0 else 1.0
    return float(stats.t.sf(distance / error, len(numbers) - 1))


def _judged(
    numbers: Sequence[float],
    p: float | None,
    p_holm: float | None,
    decision: str,
    held: Interval,
    failed: Interval,
    level: float,
) -> Judged:
    from scipy import stats

    mean = statistics.fmean(numbers)
    count = len(numbers)
    if count < 2:
        return Judged(
            decision=decision,
            estimate=mean,
            low=None,
            high=None,
            sd=None,
            p=p,
            p_holm=p_holm,
            clusters=count,
            more_clusters=None,
        )
    sd = statistics.stdev(numbers)
    half = float(stats.t.ppf(0.975, count - 1)) * sd / math.sqrt(count)
    more: int | None = 0
    if decision == "undecided":
        more = _more(mean, sd, count, held, failed, level * (1.0 if not p else p / max(p, p_holm or p)))
    return Judged(
        decision=decision,
        estimate=mean,
        low=mean - half,
        high=mean + half,
        sd=sd,
        p=p,
        p_holm=p_holm,
        clusters=count,
        more_clusters=more,
    )


def _more(mean: float, sd: float, count: int, held: Interval, failed: Interval, level: float) -> int | None:
    """Return how many more clusters decide at these estimates, at the level that Holm's step left."""
    from scipy import stats

    (a, b), (c, d) = _finite(held), _finite(failed)
    ends = math.isfinite(c) + math.isfinite(d)
    routes = [(min(mean - a, b - mean), level / 2), (max(c - mean, mean - d), level / (2 * max(ends, 1)))]
    routes = [(distance, alpha) for distance, alpha in routes if 0 < distance < math.inf]
    if sd == 0 or not routes:
        return None

    def enough(number: int) -> bool:
        return any(
            distance * math.sqrt(number) / sd > float(stats.t.isf(alpha, number - 1))
            for distance, alpha in routes
        )

    low, high = max(count, LEAST_CLUSTERS - 1), MOST_CLUSTERS
    if not enough(high):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high - count

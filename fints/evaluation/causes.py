"""What limits deep networks: the rule of the verdict, fixed before any run.

First the gate: is there a depth penalty at all? Then the share of it that each relief removes. A cause may
be named only if its relief removes more than half, and more than every rival and its own placebo.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

__all__ = ["CausesVerdict", "Share", "clusters_needed", "judge_causes", "share_removed"]

Decision = Literal[
    "no_penalty",
    "dominates",
    "several_causes",
    "points_to",
    "none_of_these",
    "undecided_penalty",
    "undecided_cause",
]

LEAST_CLUSTERS = 8
# A cause dominates if it surely removes more than half; it has a part if it surely removes a fifth.
HALF, PART = 0.5, 0.2
RESAMPLES = 4999


@dataclass(frozen=True, kw_only=True)
class Share:
    """The share of the penalty that a relief removes, with its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class CausesVerdict:
    """What the rule says of one cell.

    Attributes
    ----------
    decision
        "no_penalty" (none as large as the smallest effect of interest), "dominates" (one cause),
        "several_causes", "points_to" (one alone is there and was not acquitted: an observation, for want of
        an intervention), "none_of_these" (no relief removes half), "undecided_penalty" (the gate is open
        neither way), "undecided_cause".
    cause
        The one that dominates, else None.
    pointed
        The one that the observation points to, else None.
    causes
        Those that have a part: a fifth at least of the penalty, surely, and more than their placebo.
    sentence
        The verdict in words.
    clusters, more_clusters
        How many there were, and how many more would decide at these estimates: 0 where it is decided, None
        where no number would. What is only pointed to is not decided.
    penalty, penalty_low, penalty_high
        Mean over clusters with its 95 % interval (Student's t).
    shares, differences
        Of each tested cause; of a tested cause less each rival and less its placebo, by (cause, rival).
    untested
        Causes whose manipulation check failed: their cells carry no verdict.
    """

    decision: Decision
    cause: str | None
    pointed: str | None = None
    causes: tuple[str, ...]
    sentence: str
    clusters: int
    more_clusters: int | None
    penalty: float
    penalty_low: float
    penalty_high: float
    shares: dict[str, Share] = field(default_factory=dict)
    differences: dict[tuple[str, str], Share] = field(default_factory=dict)
    untested: tuple[str, ...] = ()


def judge_causes(
    penalty: Sequence[float],
    relieved: Mapping[str, Sequence[float]],
    *,
    smallest: float,
    placebos: Mapping[str, Sequence[float]] | None = None,
    checked: Mapping[str, bool] | None = None,
    present: Mapping[str, str] | None = None,
    seed: int = 0,
) -> CausesVerdict:
    r"""Apply the rule to the clusters of one cell (a scheme, a depth, a tier).

    The gate, on the mean penalty with Student's t over the K clusters:

    * a penalty, if its 95 % interval lies above `smallest`;
    * none, if its one-sided 95 % upper bound lies below `smallest`. This is the half of the equivalence
      test that the question asks: a deep network that is better has no penalty either;
    * else undecided.

    Then, with P the penalties and P_c those under the relief of cause c,

    .. math:: \mathrm{share}_c = 1 - \sum_k P_{ck} \Bigm/ \sum_k P_k

    bootstrapped over clusters, all causes on the same draws. c *dominates* if the lower bound of its share
    is above 1/2, and those of its difference to each rival's share and to its placebo's are above 0. If
    none does: "several causes" if the lower bounds of two at least are above 1/5 (and 0 against their
    placebos); "points to", if of the suspects that are present one alone is not acquitted by a relief whose
    upper bound is below 1/2: what was seen, where no relief decides; "none of these" if every upper bound is
    below 1/2; else undecided.

    Parameters
    ----------
    penalty
        (K,) loss of the deep network less that of the reference on the same cluster; above 0 is worse.
    relieved
        By cause, (K,) the penalty under its relief: deep and reference both relieved, so that a relief
        that helps any network does not count. At the dose chosen on validation, not on these.
    smallest
        The smallest penalty of interest, above 0.
    placebos
        By cause, (K,) the penalty under its relief's placebo.
    checked
        By cause, whether its manipulation check passed; True if not given.
    present
        By cause, "present" where its mediators were seen to be worse before the penalty shows
        (`fints.study.presence`); without it nothing is pointed to.
    seed
        Of the bootstrap.

    Raises
    ------
    ValueError
        If there are fewer than 8 clusters, lengths differ, a number is not finite, or `smallest` is not
        above 0.

    Notes
    -----
    Percentile intervals of so few clusters are too narrow; their levels are widened as Hesterberg (2015,
    The American Statistician 69) proposes: :math:`\alpha' = \Phi(-\sqrt{K/(K-1)}\; t_{1-\alpha/2, K-1})`.
    Intervals are not adjusted for the number of causes: dominance needs all of its comparisons at once.
    """
    from scipy import stats

    base = _array(penalty, "penalty")
    number = len(base)
    if number < LEAST_CLUSTERS:
        raise ValueError(f"a verdict needs at least {LEAST_CLUSTERS} clusters; got {number}. Add panels.")
    if not smallest > 0:
        raise ValueError(f"the smallest penalty of interest must be above 0; got {smallest!r}.")
    relief = {cause: _array(values, f"penalty under {cause}", number) for cause, values in relieved.items()}
    sham = {
        cause: _array(values, f"penalty under the placebo of {cause}", number)
        for cause, values in (placebos or {}).items()
    }
    passed = dict(checked or {})
    untested = tuple(cause for cause in relief if not passed.get(cause, True))
    tested = [cause for cause in relief if cause not in untested]

    mean, deviation = float(base.mean()), float(base.std(ddof=1))
    error = deviation / math.sqrt(number)
    half = float(stats.t.ppf(0.975, number - 1)) * error
    upper = mean + float(stats.t.ppf(0.95, number - 1)) * error
    said = f"{mean:.3g} [{mean - half:.3g}, {mean + half:.3g}] over {number} clusters"
    found = CausesVerdict(
        decision="undecided_penalty",
        cause=None,
        causes=(),
        sentence="",
        clusters=number,
        more_clusters=0,
        penalty=mean,
        penalty_low=mean - half,
        penalty_high=mean + half,
        untested=untested,
    )
    if mean - half <= smallest:
        if upper < smallest:
            sentence = f"No depth penalty of {smallest:.3g} or more: {said}."
            return replace(found, decision="no_penalty", sentence=sentence)
        more = clusters_needed(abs(mean - smallest), deviation, number, sides=2 if mean > smallest else 1)
        sentence = f"Undecided whether there is a depth penalty of {smallest:.3g}: {said}{_needs(more)}."
        return replace(found, sentence=sentence, more_clusters=more)

    shares, differences = _shares(base, {c: relief[c] for c in tested}, sham, seed=seed)
    above = {c: all(d.low > 0 for (one, _), d in differences.items() if one == c) for c in tested}
    beats_placebo = {c: c not in sham or differences[c, _placebo(c)].low > 0 for c in tested}
    parts = tuple(c for c in tested if shares[c].low > PART and beats_placebo[c])
    found = replace(found, shares=shares, differences=differences, causes=parts)
    note = f" Not tested, since the manipulation failed: {', '.join(untested)}." if untested else ""
    for cause in tested:
        if shares[cause].low > HALF and above[cause]:
            sentence = (
                f"The depth penalty ({said}) is mostly {cause}: its relief removes {_s(shares[cause])}."
            )
            return replace(found, decision="dominates", cause=cause, sentence=sentence + note)
    listed = "; ".join(f"{cause} {_s(shares[cause])}" for cause in tested)
    if len(parts) > 1:
        sentence = f"The depth penalty ({said}) has several causes: {listed}."
        return replace(found, decision="several_causes", sentence=sentence + note)
    # A relief that surely removes less than half acquits; for the rest there is what was seen.
    acquitted = [cause for cause in tested if shares[cause].high < HALF]
    states = {c: state for c, state in (present or {}).items() if c not in acquitted}
    seen = [c for c, state in states.items() if state == "present"]
    if len(seen) == 1:
        more = _more_for_causes(shares, differences, number)
        return replace(
            found,
            decision="points_to",
            pointed=seen[0],
            sentence=f"The depth penalty ({said}) points to {_pointed(seen[0], states)}{note}"
            f" What reliefs removed: {listed or 'none was tested'}{_needs(more) if tested else ''}.",
            more_clusters=more,
        )
    if tested and all(shares[cause].high < HALF for cause in tested):
        sentence = f"The depth penalty ({said}) is mostly none of the causes tested: {listed}."
        return replace(found, decision="none_of_these", sentence=sentence + note)
    more = _more_for_causes(shares, differences, number)
    sentence = (
        f"A depth penalty ({said}) of undecided cause: {listed or 'no relief was tested'}{_needs(more)}."
    )
    return replace(found, decision="undecided_cause", sentence=sentence + note, more_clusters=more)


def share_removed(penalty: Sequence[float], relieved: Sequence[float], *, seed: int = 0) -> Share:
    r"""Return the share of a penalty that a relief removes, :math:`1 - \sum_k P_{ck} / \sum_k P_k`.

    With the interval of `judge_causes`, on the same draws; whether the relief did what it is to do is not
    asked.

    Parameters
    ----------
    penalty, relieved
        (K,) without and with the relief, as there; their sum without it above 0.
    seed
        Of the bootstrap.

    Raises
    ------
    ValueError
        If there are fewer than two clusters, lengths differ, a number is not finite, or there is no penalty.
    """
    base = _array(penalty, "penalty")
    if len(base) < 2 or not base.sum() > 0:
        raise ValueError(
            f"a share needs two clusters at least and a penalty above 0 to remove; got {base.tolist()}."
        )
    shares, _ = _shares(base, {"": _array(relieved, "penalty under the relief", len(base))}, {}, seed=seed)
    return shares[""]


def clusters_needed(
    distance: float, deviation: float, number: int, *, sides: int = 2, most: int = 100_000
) -> int | None:
    r"""Return how many more clusters would put a bound of the interval of a mean at `distance` from it.

    The least K with :math:`t_{K-1}\, s / \sqrt K < \mathrm{distance}` (over a hundred, to a hundredth), less
    the `number` there are; None if that is over `most`. It takes estimate and spread for true, so it is a
    plan and no promise.
    """
    from scipy import stats

    level = 0.975 if sides == 2 else 0.95
    for total in _growing(number + 1, most):
        if float(stats.t.ppf(level, total - 1)) * deviation / math.sqrt(total) < distance:
            return total - number
    return None


def _growing(start: int, most: int) -> list[int]:
    """Return numbers from `start` on, each by a hundredth at least more than the last."""
    found, value = [], start
    while value <= most:
        found.append(value)
        value += max(1, value // 100)
    return found


def _shares(
    base: np.ndarray, relief: dict[str, np.ndarray], sham: dict[str, np.ndarray], *, seed: int
) -> tuple[dict[str, Share], dict[tuple[str, str], Share]]:
    """Return the share of each cause, and its differences to rivals and placebo, on common draws."""
    from scipy import stats

    number = len(base)
    sides = {**relief, **{_placebo(cause): values for cause, values in sham.items() if cause in relief}}
    tail = float(stats.norm.cdf(-math.sqrt(number / (number - 1)) * stats.t.ppf(0.975, number - 1)))
    generator = np.random.default_rng(seed)
    drawn = generator.multinomial(number, np.full(number, 1 / number), size=RESAMPLES).astype(np.float64)
    whole = drawn @ base
    # A draw without a penalty has no share of it; the gate makes such draws rare.
    usable = whole > 0
    estimates = {name: 1 - float(values.sum() / base.sum()) for name, values in sides.items()}
    draws = {name: 1 - (drawn[usable] @ values) / whole[usable] for name, values in sides.items()}

    def interval(estimate: float, values: np.ndarray) -> Share:
        low, high = np.quantile(values, [tail, 1 - tail])
        return Share(value=estimate, low=float(low), high=float(high))

    shares = {cause: interval(estimates[cause], draws[cause]) for cause in relief}
    pairs = [(cause, rival) for cause in relief for rival in relief if rival != cause]
    pairs += [(cause, _placebo(cause)) for cause in relief if cause in sham]
    differences = {
        (one, other): interval(estimates[one] - estimates[other], draws[one] - draws[other])
        for one, other in pairs
    }
    return shares, differences


def _more_for_causes(
    shares: dict[str, Share], differences: dict[tuple[str, str], Share], number: int
) -> int | None:
    """Return how many more clusters would make the leading cause dominate, or rule that out for all."""
    if not shares:
        return None
    leader = max(shares, key=lambda cause: shares[cause].value)
    gaps = [(shares[leader].value - HALF, shares[leader].value - shares[leader].low)]
    gaps += [(d.value, d.value - d.low) for (one, _), d in differences.items() if one == leader]
    if min(distance for distance, _ in gaps) <= 0:
        gaps = [(HALF - share.value, share.high - share.value) for share in shares.values()]
    if min(distance for distance, _ in gaps) <= 0:
        return None
    # An interval shrinks as the root of the number of clusters.
    total = max(number * (half / distance) ** 2 for distance, half in gaps)
    return max(1, math.ceil(total) - number)


def _pointed(cause: str, states: Mapping[str, str]) -> str:
    unclear = [one for one, state in states.items() if state == "unclear"]
    rest = f" ({', '.join(unclear)}: unclear)" if unclear else ""
    what = (
        "most of it is generalisation"
        if cause == "noise"
        else "its mediators surely were worse before the penalty shows"
    )
    alone = f"{cause}: {what}, and of no other suspect that stands can this be said{rest}"
    return f"{alone}. Seen, not brought about."


def _array(values: Sequence[float], name: str, number: int | None = None) -> np.ndarray:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or not np.isfinite(array).all() or number not in (None, len(array)):
        wanted = "" if number is None else f" for each of {number} clusters"
        raise ValueError(f"the {name} must be one finite number a cluster{wanted}; got {array.tolist()}.")
    return array


def _placebo(cause: str) -> str:
    return f"placebo of {cause}"


def _needs(more: int | None) -> str:
    if more is None:
        return "; at these estimates no number of clusters would decide"
    return f"; about {more} more clusters would decide at these estimates"


def _s(share: Share) -> str:
    return f"{share.value:.0%} [{share.low:.0%}, {share.high:.0%}]"

"""The verdict on a contrast by a rule fixed before any run, and the words and digits it is told in."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from fints.evaluation import ClusteredMean, contrast_power, equivalence, minimum_detectable_effect
from fints.words import counted

__all__ = ["MEASURES", "RULE", "Decision", "Measure", "decide", "describe", "p_text", "sentence"]

ALPHA = 0.05
POWER = 0.8
MOST_FOLDS = 10_000

RULE = (
    "The rule was fixed before the run. A difference is the mean of paired differences over (fold, seed), "
    "with errors clustered by fold and Student's t with folds − 1 degrees of freedom. In this order: "
    "(1) fewer than two folds, or no finished fit in either arm: no verdict. "
    "(2) The 90 % interval lies inside ± the smallest effect of interest (two one-sided tests at 5 %): "
    "no difference that matters, even if it is not zero. "
    "(3) The 95 % interval excludes zero: one arm beats the other. (4) Otherwise: undecided. "
    "A failed fit enters as the zero forecast, and a level with failed fits is never declared better or "
    "equivalent: where (2) or (3) would say so, there is no verdict. "
    "Secondary contrasts are judged by p values adjusted after Holm, the primary one by its own. "
    "A large p value alone never reads “no difference”."
)


@dataclass(frozen=True, kw_only=True)
class Measure:
    """How a metric is shown: its name in prose and in a table, the factor to shown units, their name."""

    label: str
    short: str
    factor: float = 1.0
    unit: str = ""
    difference_unit: str = ""

    def decimals(self, resolution: float) -> int:
        """Return the decimals that show one digit beyond `resolution` (in metric units)."""
        shown = abs(resolution) * self.factor
        return 3 if not shown else min(6, max(0, 1 - math.floor(math.log10(shown))))

    def text(self, value: float | None, decimals: int) -> str:
        """Return a value in shown units, without its unit; a dash for a missing one."""
        return "–" if value is None else number(value * self.factor, decimals)


def _share(label: str, short: str) -> Measure:
    return Measure(label=label, short=short, factor=100.0, unit="%", difference_unit="percentage points")


MEASURES: Mapping[str, Measure] = {
    "r2_zero": _share("R² against zero", "R² vs zero"),
    "r2_mean": _share("R² against the prevailing mean", "R² vs mean"),
    "share_of_oracle": _share("share of oracle", "share of oracle"),
    "ic": Measure(label="IC", short="IC"),
    "rank_ic": Measure(label="rank IC", short="rank IC"),
    "log_score": Measure(label="log score", short="log score", unit="nats"),
    "crps": Measure(label="CRPS", short="CRPS", unit="target units"),
    "coverage_50": _share("coverage of 50 % intervals", "in 50 % interval"),
    "coverage_90": _share("coverage of 90 % intervals", "in 90 % interval"),
}


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What the rule says of one contrast.

    `kind` is "void", "withheld" (for failed fits), "equivalent", "better", "worse" or "undecided".
    `power` is that of finding the smallest effect with the folds at hand and the spread observed,
    `detectable` the effect found with 80 % probability, `folds_needed` the folds in all that decide
    either way with 80 % (None: more than 10,000, or unknown).
    """

    kind: str
    equivalence_p: float | None
    equivalence_low: float | None
    equivalence_high: float | None
    power: float | None
    detectable: float | None
    folds_needed: int | None


def decide(
    contrast: ClusteredMean | None,
    smallest_effect: float,
    *,
    any_finished: bool = True,
    failed: tuple[int, int] = (0, 0),
    p: float | None = None,
    equivalence_p: float | None = None,
) -> Decision:
    """Apply `RULE` to one contrast (None: it had no pair).

    `failed` counts the failed fits of the two levels, the first-named first. `p` and `equivalence_p`
    stand in for the contrast's own where they were adjusted for a family.
    """
    if contrast is None or contrast.sd is None or contrast.p is None or not any_finished:
        return Decision(
            kind="void",
            equivalence_p=None,
            equivalence_low=None,
            equivalence_high=None,
            power=None,
            detectable=None,
            folds_needed=None,
        )
    same = equivalence(contrast, smallest_effect, alpha=ALPHA)
    assert same.p is not None
    if (same.p if equivalence_p is None else equivalence_p) < ALPHA:
        kind = "equivalent"
    elif (contrast.p if p is None else p) < ALPHA:
        kind = "better" if contrast.estimate > 0 else "worse"
    else:
        kind = "undecided"
    if any(failed[side] for side in _CREDITED.get(kind, ())):
        kind = "withheld"
    return Decision(
        kind=kind,
        equivalence_p=same.p,
        equivalence_low=same.low,
        equivalence_high=same.high,
        power=contrast_power(smallest_effect, sd=contrast.sd, clusters=contrast.clusters, alpha=ALPHA),
        detectable=minimum_detectable_effect(
            sd=contrast.sd, clusters=contrast.clusters, power=POWER, alpha=ALPHA
        ),
        folds_needed=folds_to_decide(contrast.sd, smallest_effect),
    )


# The sides (0: the first-named level) that a decision speaks well of.
_CREDITED = {"better": (0,), "worse": (1,), "equivalent": (0, 1)}


def folds_to_decide(sd: float, smallest_effect: float) -> int | None:
    r"""Return the fewest folds that find the smallest effect, or its absence, with 80 % probability.

    The difference test at the smallest effect needs `contrast_power` of 80 %; the equivalence test
    at a true difference of zero needs :math:`(t_{0.95} + t_{0.90})\, s / \sqrt{K} \le m`.
    """
    from scipy import stats

    def enough(folds: int) -> bool:
        found = contrast_power(smallest_effect, sd=sd, clusters=folds, alpha=ALPHA) >= POWER
        reach = float(stats.t.ppf(1 - ALPHA, folds - 1) + stats.t.ppf((1 + POWER) / 2, folds - 1))
        return found and reach * sd / math.sqrt(folds) <= smallest_effect

    if not enough(MOST_FOLDS):
        return None
    low, high = 1, MOST_FOLDS
    while high - low > 1:
        middle = (low + high) // 2
        if enough(middle):
            high = middle
        else:
            low = middle
    return high


def describe(compare: tuple[str, str], against: str, within: Mapping[str, str]) -> str:
    """Return a contrast in words, e.g. ``post_norm − pre_norm at depth 8``."""
    return f"{compare[1]} − {against}{_place(within)}"


def sentence(
    decision: Decision,
    contrast: ClusteredMean | None,
    *,
    compare: tuple[str, str],
    against: str,
    within: Mapping[str, str],
    measure: Measure,
    smallest_effect: float,
    num_seeds: int,
    claim: str,
) -> str:
    """Return the verdict in one sentence or two, its standing first."""
    if claim == "none":
        return "Claims nothing: a run this short only checks that the path works."
    place = _place(within)
    standing = "Exploratory: " if claim == "exploratory" else ""
    arms = f"{compare[1]} and {against}{place}"
    if decision.kind == "void" or contrast is None:
        if contrast is not None and contrast.clusters < 2:
            reason = "one fold gives no error to judge by"
        else:
            reason = "neither arm has finished fits to compare"
        return f"{standing}no verdict on {arms}: {reason}."
    digits = measure.decimals(smallest_effect)
    unit = f" {measure.difference_unit}" if measure.difference_unit else ""
    of = f" of {measure.label}" if unit else f" in {measure.label}"
    size = f"{measure.text(abs(contrast.estimate), digits)}{unit}{of}"
    margin = f"±{measure.text(smallest_effect, digits)}{unit}"
    interval = (
        f"95 % interval {measure.text(contrast.low, digits)} to {measure.text(contrast.high, digits)}, "
        f"{p_text(contrast.p)}, {counted(contrast.clusters, 'fold')} × {counted(num_seeds, 'seed')}"
    )
    if decision.kind in ("better", "worse"):
        winner, loser = (compare[1], against) if decision.kind == "better" else (against, compare[1])
        return f"{standing}{winner} beats {loser}{place} by {size} ({compare[1]} − {against}: {interval})."
    signed = f"{measure.text(contrast.estimate, digits)}{unit}{of}"
    if decision.kind == "withheld":
        return (
            f"{standing}no verdict on {arms}: a level with failed fits is declared neither better nor "
            f"equivalent, whatever the difference ({signed}; {interval})."
        )
    if decision.kind == "equivalent":
        small = ", not zero but too small to matter" if contrast.p is not None and contrast.p < ALPHA else ""
        return (
            f"{standing}no difference beyond {margin} between {arms}: "
            f"{compare[1]} − {against} is {signed}{small} "
            f"(90 % interval {measure.text(decision.equivalence_low, digits)} to "
            f"{measure.text(decision.equivalence_high, digits)}, "
            f"equivalence {p_text(decision.equivalence_p)}, "
            f"{counted(contrast.clusters, 'fold')} × {counted(num_seeds, 'seed')})."
        )
    if decision.folds_needed is None:
        need = f"more than {MOST_FOLDS:,} folds like these would be needed"
    else:
        more = max(1, decision.folds_needed - contrast.clusters)
        need = f"needs about {counted(more, 'more fold')} like these"
    return (
        f"{standing}undecided whether {compare[1]} differs from {against}{place}: the difference is {signed} "
        f"({interval}); {_not_excluded(decision, measure, smallest_effect, digits)}; {need}."
    )


def _not_excluded(decision: Decision, measure: Measure, smallest_effect: float, digits: int) -> str:
    """Say which differences that matter an undecided contrast leaves possible, each side at 5 %."""
    assert decision.equivalence_low is not None
    assert decision.equivalence_high is not None
    size = measure.text(smallest_effect, digits)
    above, below = f"above +{size}", f"below −{size}"
    low, high = decision.equivalence_low <= -smallest_effect, decision.equivalence_high >= smallest_effect
    if low and high:
        return f"neither zero nor a difference {above} or {below} can be excluded"
    possible, excluded = (above, below) if high else (below, above)
    return f"neither zero nor a difference {possible} can be excluded, one {excluded} can"


def number(value: float, decimals: int) -> str:
    """Return a number with fixed decimals and a true minus sign; never a negative zero."""
    text = f"{value:,.{decimals}f}"
    if text.startswith("-"):
        text = "−" + text[1:] if any(digit in text for digit in "123456789") else text[1:]
    return text


def p_text(p: float | None) -> str:
    """Return ``p = 0.023`` or ``p < 0.001``."""
    if p is None:
        return "p not defined"
    return "p < 0.001" if p < 0.001 else f"p = {p:#.2g}" if p < 0.1 else f"p = {p:.2f}"


def _place(within: Mapping[str, str]) -> str:
    return " at " + ", ".join(f"{factor} {level}" for factor, level in within.items()) if within else ""

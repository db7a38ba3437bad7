"""Whether any arm of a study forecast anything at all, by a rule fixed before any run, in plain words.

A verdict on a contrast is on a difference; two arms without any skill differ by nothing too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl

from fints.evaluation import detectable_r2, holm
from fints.evaluation.judge import LEAK_IC
from fints.study.verdict import ALPHA, number, p_text
from fints.words import counted

__all__ = ["FOUND_RULE", "Found", "found_by_arms"]

FOUND_RULE = (
    "An arm has found something if the mean forecast of its seeds beats both zero and the prevailing mean "
    "of each asset: Clark-West on dates, one-sided, the larger of the two p values counts, adjusted after "
    "Holm over the arms at 5 %."
)


@dataclass(frozen=True, kw_only=True)
class Found:
    """What the arms found: `kind` is "found", "suspected_leak", "nothing", "undecided" (no test) or "unsaid".

    `arms` names those that found something, `detectable` is the R2 that one of them would have found
    with a probability of 80 %.
    """

    kind: str
    arms: tuple[str, ...]
    detectable: float
    sentence: str


def found_by_arms(
    arms: pl.DataFrame, *, claim: str, scope: Mapping[str, Any], simulated: bool = False
) -> Found:
    """Apply `FOUND_RULE` to the arms of a study.

    Parameters
    ----------
    arms
        One row an arm with `arm`, `r2_zero`, `rank_ic`, `clark_west_p` and `clark_west_mean_p`.
    claim
        Of the size: a run that claims nothing says nothing here either.
    scope
        `outcomes` one after another, `assets`, `effective_assets`.
    simulated
        Whether the panel is: a planted signal may be as strong as it likes, a real one is not.
    """
    # The first step of Holm's: an arm that stands alone among arms without skill must pass it.
    smallest = detectable_r2(
        dates=int(scope["outcomes"]), assets=float(scope["effective_assets"]), alpha=ALPHA / arms.height
    )
    if claim == "none":
        return Found(kind="unsaid", arms=(), detectable=smallest, sentence="")
    names = arms["arm"].to_list()
    larger = [_larger(row["clark_west_p"], row["clark_west_mean_p"]) for row in arms.iter_rows(named=True)]
    adjusted = holm(larger)
    known = [p for p in adjusted if p is not None]
    if not known:
        sentence = "**No verdict on whether anything was found:** there are too few dates for a test."
        return Found(kind="undecided", arms=(), detectable=smallest, sentence=sentence)
    both = arms["clark_west_mean_p"].null_count() < arms.height
    benchmarks = "both zero and the prevailing mean" if both else "zero"
    over = f", Holm over {counted(arms.height, 'arm')}" if arms.height > 1 else ""
    power = (
        f"With {counted(int(scope['outcomes']), 'outcome')} one after another of "
        f"{counted(int(scope['assets']), 'asset')} that {'counts' if scope['assets'] == 1 else 'count'} as "
        f"{number(float(scope['effective_assets']), 1)} independent, an arm that knew a true R² of "
        f"{_percent(smallest)} % would be found four times in five"
    )
    found = tuple(name for name, p in zip(names, adjusted, strict=True) if p is not None and p < ALPHA)
    if not found:
        subject = "no arm forecasts" if arms.height > 1 else "the arm does not forecast"
        sentence = (
            f"**Nothing found:** {subject} better than {benchmarks} (Clark-West{over}: smallest "
            f"{p_text(min(known))}). {power}; a smaller one may be there."
        )
        return Found(kind="nothing", arms=(), detectable=smallest, sentence=sentence)
    ranks = [ic for ic in arms.filter(pl.col("arm").is_in(found))["rank_ic"] if ic is not None]
    if not simulated and max(ranks, default=0.0) > LEAK_IC:
        sentence = (
            f"**Suspected leak:** {len(found)} of {counted(arms.height, 'arm')} know more than is ever "
            "known, up "
            f"to a mean rank IC of {number(max(ranks), 2)} ({', '.join(found)}). Believe no number here "
            "before "
            "the leak is found."
        )
        return Found(kind="suspected_leak", arms=found, detectable=smallest, sentence=sentence)
    r2 = dict(arms.select("arm", "r2_zero").iter_rows())
    told = ", ".join(f"{name} (R² {_percent(r2[name])} %)" for name in found)
    lost = [name for name in found if r2[name] is not None and r2[name] <= 0]
    caution = (
        ""
        if not lost
        else (
            f" The R² of {', '.join(lost)} is not above zero all the same: information, in forecasts of the "
            "wrong size."
        )
    )
    sentence = (
        f"**Something found:** {len(found)} of {counted(arms.height, 'arm')} "
        f"{'forecasts' if len(found) == 1 else 'forecast'} better than {benchmarks} (Clark-West{over}): "
        f"{told}.{caution}"
    )
    return Found(kind="found", arms=found, detectable=smallest, sentence=sentence)


def _larger(one: float | None, other: float | None) -> float | None:
    """Return the larger of the known p values: the level holds without adjusting for the two."""
    known = [p for p in (one, other) if p is not None]
    return max(known) if known else None


def _percent(r2: float | None) -> str:
    if r2 is None:
        return "–"
    return number(100 * r2, 2 if abs(r2) >= 0.001 else 3)

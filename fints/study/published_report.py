"""The answer of a study of published claims: a row a claim, with its margins, its number and its verdict."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fints.evaluation.claims import LEAST_CLUSTERS, Interval, Judged, judge_claims
from fints.study.document import Block, Heading, Picture, Table, Text
from fints.study.panel_design import Answer, PanelStudy
from fints.study.panel_store import Fits
from fints.study.published import MEASURES, Cells, Key
from fints.study.published_exact import exact_checks
from fints.study.verdict import number, p_text
from fints.words import counted

__all__ = ["Claim", "answer_published", "claims_of", "judged_claims", "power_of_published"]

SOURCES = "P: a paper, with its arXiv number. S: a secondary text that gives no source: folklore."
RULE = (
    "The rule and every margin stand in the study's file, from which nothing runs before it is committed. A "
    "claim is held if its number surely lies in the interval that it holds in, failed if it surely lies "
    "outside the other one, else undecided; over panels as clusters, 8 at least, with Student's t, adjusted "
    "after Holm over all claims of this size, at 5 %. p is two-sided, doubled again where a margin has two "
    "ends, so an undecided number may have a plain 95 % interval, which is the one shown, beyond its margin. "
    "A number that is the same on all panels has no p and is undecided. Failed says that an effect is not as "
    "large as claimed, not that there is none. Where cells are compared, each is fitted at the same learning "
    "rates, and read at the rate whose validation loss is lowest on the other panels."
)


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One row: what is claimed by whom, what is measured in which cells, and the margins.

    `log` says that the measure is a ratio: its logarithm is what is averaged and held against the margins.
    """

    name: str
    claim: str
    source: str
    measure: str
    cells: tuple[Key, ...]
    held: Interval
    failed: Interval
    log: bool = False

    def scaled(self, values: Sequence[float]) -> list[float]:
        """Return values on the scale that they are averaged on."""
        return [math.log(value) for value in values] if self.log else list(values)

    def margins(self, interval: Interval) -> Interval:
        """Return an interval on that scale."""
        if not self.log:
            return interval
        low, high = (None if end is None else math.log(end) for end in interval)
        return low, high

    def shown(self, value: float | None) -> str:
        """Return a number as a person reads it, with three digits."""
        if value is None:
            return "–"
        value = math.exp(value) if self.log else value
        digits = 2 if value == 0 else min(4, max(0, 2 - math.floor(math.log10(abs(value)))))
        return number(value, digits)


def claims_of(study: PanelStudy) -> list[Claim]:
    """Return the claims that a study declares in its settings under "claims".

    Raises
    ------
    ValueError
        If a measure is unknown.
    """
    found = []
    for entry in study.settings["claims"]:
        if entry["measure"] not in MEASURES:
            raise ValueError(
                f"claim {entry['name']!r}: unknown measure {entry['measure']!r}. Choose one of "
                f"{', '.join(MEASURES)}."
            )
        intervals = {name: (entry[name][0], entry[name][1]) for name in ("held", "failed")}
        cells = tuple(tuple(cell) for cell in entry["cells"])
        found.append(Claim(**{**entry, **intervals, "cells": cells}))
    return found


def judged_claims(
    study: PanelStudy, cells: Cells
) -> tuple[list[Claim], dict[str, dict[int, float]], dict[str, Judged]]:
    """Return the claims that this size can ask, their numbers by panel, and what is made of them."""
    asked = [claim for claim in claims_of(study) if cells.has(*claim.cells)]
    values = {claim.name: MEASURES[claim.measure][1](cells, *claim.cells) for claim in asked}
    judged = judge_claims(
        {claim.name: claim.scaled([*values[claim.name].values()]) for claim in asked},
        {claim.name: claim.margins(claim.held) for claim in asked},
        {claim.name: claim.margins(claim.failed) for claim in asked},
    )
    return asked, values, judged


def answer_published(study: PanelStudy, fits: Fits, folder: Path) -> Answer:
    """Draw the figures of a study of published claims and return its answer."""
    from fints.study.published_figures import draw_published

    cells = Cells(study, fits)
    asked, values, judged = judged_claims(study, cells)
    exact = exact_checks(study.base)
    figures = {figure.name: figure for figure in draw_published(study, cells, asked, judged, folder)}

    def shown(*names: str) -> list[Block]:
        found = [figures[name] for name in names if name in figures]
        return [Picture(path=f"figures/{one.name}.svg", caption=one.caption, alt=one.alt) for one in found]

    blocks: list[Block] = [
        *shown("claims"),
        Heading(text="Claims"),
        _table(asked, judged),
        Text(text=RULE),
        Heading(text="What needs no panel"),
        Table(
            columns=("claim", "source", "check", "found", "verdict"),
            rows=tuple((one.claim, one.source, one.check, one.found, one.verdict) for one in exact),
            left=("claim", "source", "check", "verdict"),
            note="Identities and counts at this study's width, computed when this page was made.",
        ),
        Heading(text="Inside the networks"),
        *_inside(study, cells),
        *(shown("cosine", "skips", "stream", "curves") or [Text(text="No network was looked into.")]),
    ]
    rows = [
        {"claim": claim.name, "panel": panel, "value": value}
        for claim in asked
        for panel, value in values[claim.name].items()
    ]
    return Answer(
        sentence=_sentence(study, asked, judged),
        blocks=blocks,
        tables={"claims": rows},
        undecided={
            claim.claim: judged[claim.name].more_clusters
            for claim in asked
            if claim.name in judged and judged[claim.name].decision == "undecided"
        },
    )


def _inside(study: PanelStudy, cells: Cells) -> list[Block]:
    """Return how far networks have learned, what must stand beside a cosine, and the entropies found."""
    columns = (
        "share of oracle",
        "cosine",
        "centred",
        "null",
        "before training",
        "diversity",
        "read",
        "write",
        "carry",
    )
    rows = []
    for depth in study.factors["depth"]:
        for residual in study.factors["residual"]:
            cell = (residual, depth, "plain")
            if cells.has(cell):
                found = [cells.shares(cell), *(MEASURES[name][1](cells, cell) for name in BESIDE)]
                means = [statistics.fmean(values.values()) if values else None for values in found]
                told = ("–" if mean is None else number(mean, 3) for mean in means)
                rows.append((residual, depth, *told))
    if not rows:
        return []
    return [
        Table(
            columns=("scheme", "depth", *columns),
            rows=tuple(rows),
            left=("scheme", "depth"),
            note="Means over panels. Share of oracle: of what a forecaster would earn that knows the signal, "
            "at the rate that other panels choose; so far have these networks learned. Cosine of what "
            "neighbouring sublayers read, over the later half of the depth: raw, each less its mean token, "
            "of independent increments of equal length, and of the same network before training: a high one "
            "alone is no finding. Diversity: 1 less the mean cosine of two streams. Read, write, carry: "
            "entropy of the mixing weights in nats, over the whole depth, of at most ln n.",
        )
    ]


def power_of_published(study: PanelStudy) -> list[str]:
    """Return the lines of a plan on what a study of published claims can decide."""
    from scipy import stats

    panels = len(study.panels)
    arms = {tuple(arm.levels[factor] for factor in ("residual", "depth", "case")) for arm in study.arms()}
    asked = [claim for claim in claims_of(study) if all(cell in arms for cell in claim.cells)]
    head = f"power    {counted(len(asked), 'claim')} of {len(claims_of(study))} can be asked at this size; "
    if panels < LEAST_CLUSTERS or not asked:
        return [f"{head}none decided: that takes {LEAST_CLUSTERS} panels, there are {panels}"]

    def distance(level: float) -> float:
        """Return by how many deviations a number must be beyond its margin, found with 80 %."""
        critical, shift = float(stats.t.isf(level / 2, panels - 1)), 0.0
        while float(stats.nct.sf(critical, panels - 1, shift)) < 0.8:
            shift += 0.01
        return shift / math.sqrt(panels)

    return [
        head + "a claim is decided",
        f"         with 80 % if its number lies {distance(0.05):.1f} standard deviations (over panels) or "
        "more",
        f"         beyond its margin, alone; {distance(0.05 / len(asked)):.1f} as the first of all (Holm)",
    ]


def _table(asked: Sequence[Claim], judged: Mapping[str, Judged]) -> Table:
    rows = []
    for place, claim in enumerate(asked, start=1):
        one = judged.get(claim.name)
        more = "–" if one is None or one.more_clusters is None else str(one.more_clusters)
        rows.append(
            (
                str(place),
                claim.claim,
                claim.source,
                f"{MEASURES[claim.measure][0]}: {_cells(claim)}",
                _interval(claim.held),
                _interval(claim.failed),
                "–" if one is None else _found(claim, one),
                "–"
                if one is None or one.p_holm is None
                else p_text(one.p_holm).removeprefix("p = ").removeprefix("p "),
                "no number" if one is None else f"**{one.decision}**",
                more,
            )
        )
    return Table(
        columns=(
            "no.",
            "claim",
            "source",
            "measure",
            "holds in",
            "fails outside",
            "found",
            "p, Holm",
            "verdict",
            "panels to decide",
        ),
        rows=tuple(rows),
        left=("claim", "source", "measure", "verdict"),
        note=f"{SOURCES} Found: mean and 95 % interval over panels, of ratios the geometric mean. Distances "
        "are "
        "in units of the target's variance: 0.01 is one percentage point of R2. Panels to decide: how many "
        "more, "
        "at these estimates; a dash where none would.",
    )


def _cells(claim: Claim) -> str:
    told = []
    for residual, depth, case in claim.cells:
        rest = "" if case == "plain" else f", {case.replace('_', ' ')}"
        told.append(f"{residual} at depth {depth}{rest}")
    return " and ".join(told)


def _interval(interval: Interval) -> str:
    low, high = interval
    if low is None:
        told = f"< {high:g}"
    else:
        told = f"> {low:g}" if high is None else f"{low:g} to {high:g}"
    return told.replace("-", "−")


def _found(claim: Claim, one: Judged) -> str:
    if one.low is None:
        return claim.shown(one.estimate)
    return f"{claim.shown(one.estimate)} [{claim.shown(one.low)}, {claim.shown(one.high)}]"


def _sentence(study: PanelStudy, asked: Sequence[Claim], judged: Mapping[str, Judged]) -> str:
    claim = next(iter(study.presets.values())).claim
    if claim == "none":
        return "Claims nothing: a run this short only checks that the path works."
    standing = "Exploratory: " if claim == "exploratory" else ""
    by = {
        kind: [one for one in asked if one.name in judged and judged[one.name].decision == kind]
        for kind in _KINDS
    }
    number_of, width = counted(len(judged), "published claim"), study.base.model.width
    told = f"{standing}Of {number_of}, at D {width} on this data, "
    told += ", ".join(f"{len(found)} {kind}" for kind, found in by.items()) + "."
    if by["held"]:
        told += f" Held: {'; '.join(one.claim for one in by['held'])}."
    if by["failed"]:
        told += " Failed means surely short of the claim's own margin, not without any effect."
    return told


_KINDS = ("held", "failed", "undecided")
BESIDE = (
    "late_cosine",
    "late_cosine_centred",
    "late_cosine_null",
    "late_cosine_initial",
    "diversity",
    "entropy_read",
    "entropy_write",
    "entropy_carry",
)

"""The answer of a study of causes: a verdict a cell, with what it rests on."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

from fints.diagnostics import MEDIATORS, Move
from fints.evaluation.causes import CausesVerdict, Share
from fints.evaluation.power import contrast_power
from fints.study.cause_figures import draw_causes
from fints.study.causes import LEAST_CLUSTERS, CauseCell, cause_cells, plain_rows
from fints.study.document import Block, Heading, Picture, Table, Text
from fints.study.intervals import interval
from fints.study.panel_design import Answer, PanelStudy
from fints.study.panel_store import Fits
from fints.study.presence import ILL, SUSPECTS
from fints.words import counted

__all__ = ["answer_causes", "power_of_causes", "said"]

PERCENT = 100.0
# Of a logarithm that is shown as a ratio; the interval of one panel has no end.
MOST = 700.0
RULE = (
    "The rule; what was declared of it before the fits stands below. A cell has a penalty if the 95 % "
    "interval of its mean over panels lies above the smallest of interest, none if its one-sided 95 % bound"
    " lies below it. A cause dominates if its relief surely removes more than half of the penalty, more "
    "than every rival and more than its placebo; a cause whose manipulation check failed carries no "
    "verdict. A relief that surely removes less than half acquits its cause. Where no relief decides, a "
    "penalty points to a suspect if of those that are not acquitted it alone is there before the penalty "
    "shows: that was seen, and not brought about."
)


def answer_causes(study: PanelStudy, fits: Fits, folder: Path) -> Answer:
    """Draw the figures of a study of causes and return its answer."""
    cells = cause_cells(study, fits)
    if not cells:
        return Answer(sentence="No cell has a finished panel yet.", blocks=[], tables={})
    figures = {figure.name: figure for figure in draw_causes(study, fits, cells, folder)}

    def shown(*names: str) -> list[Block]:
        found = [figures[name] for name in names if name in figures]
        return [Picture(path=f"figures/{one.name}.svg", caption=one.caption, alt=one.alt) for one in found]

    blocks: list[Block] = [
        *shown("penalty", "by_depth"),
        Heading(text="Verdicts"),
        _verdicts(study, cells),
        Text(text=RULE),
        *_gained(cells),
        *(_reliefs(study, cells, shown) if any(cell.checks for cell in cells) else ()),
        Heading(text="Is a suspect there at all?"),
        *_present(study, cells),
        Heading(text="Inside the deep networks"),
        *shown("cosine", "gradients", "probes"),
    ]
    return Answer(
        sentence=" ".join(f"{cell.name}: {said(cell)}" for cell in cells),
        blocks=blocks,
        tables={"penalties": plain_rows(cells)},
        undecided={
            cell.name: None if cell.verdict is None else cell.verdict.more_clusters
            for cell in cells
            if cell.verdict is None or cell.verdict.decision.startswith(("undecided", "points_to"))
        },
    )


def _reliefs(study: PanelStudy, cells: Sequence[CauseCell], shown: Callable[..., list[Block]]) -> list[Block]:
    return [
        *shown("reliefs", "two_by_two"),
        Heading(text="Share of the penalty that each relief removes"),
        *_shares(study, cells),
        Heading(text="Did the manipulations do what they are to do?"),
        *_checks(study, cells),
    ]


def power_of_causes(study: PanelStudy) -> list[str]:
    """Return the lines of a plan on what a study of causes can find."""
    number = len(study.panels)
    lines = [
        "power    of the gate to tell a penalty of twice the smallest of interest from the smallest (5 %,"
    ]
    lines += ["         two-sided), at a standard deviation over panels that is assumed"]
    for tier in study.factors["tier"]:
        smallest, spread = study.settings["smallest"][tier], study.settings["pilot_spread"][tier]
        if number < LEAST_CLUSTERS:
            told = f"none: a verdict needs {LEAST_CLUSTERS} panels, there are {number}"
        else:
            told = (
                f"{contrast_power(smallest, sd=spread, clusters=number):.0%} with {counted(number, 'panel')}"
            )
        lines.append(f"         {tier}: smallest {smallest:g}, deviation {spread:g}: {told}")
    return lines


def said(cell: CauseCell) -> str:
    """Return the verdict of a cell in words."""
    if cell.verdict is None:
        return f"no verdict, {counted(len(cell.panels), 'panel')} of at least {LEAST_CLUSTERS}."
    sentence = cell.verdict.sentence
    other = cell.verdict_calibrated
    if cell.verdict.cause == "noise" and (other is None or other.cause != "noise"):
        sentence += (
            " After the best scalar calibration noise does not dominate: the relief shrinks forecasts."
        )
    return sentence


def _verdicts(study: PanelStudy, cells: Sequence[CauseCell]) -> Table:
    rows = []
    for cell in cells:
        verdict = cell.verdict
        smallest = study.settings["smallest"][cell.tier]
        more = (
            ""
            if verdict is None
            else "never"
            if verdict.more_clusters is None
            else str(verdict.more_clusters)
        )
        rows.append(
            (
                cell.name,
                *(_share(value) for value in cell.share.values()),
                _interval(cell.penalty),
                _interval(cell.optimisation),
                _interval(cell.generalisation),
                f"{PERCENT * smallest:g}",
                "too few panels" if verdict is None else _words(verdict),
                more,
                str(cell.diverged),
            )
        )
    depths = tuple(f"share of oracle, depth {depth}" for depth in cells[0].share)
    return Table(
        columns=(
            "cell",
            *depths,
            "penalty",
            "optimisation",
            "generalisation",
            "smallest",
            "verdict",
            "panels to decide",
            "diverged",
        ),
        rows=tuple(rows),
        left=("cell", "verdict"),
        note="Penalties in % of the target's variance (percentage points of R2), mean and 95 % interval over "
        "panels. Panels to decide: how many more at these estimates; 0 where it is decided.",
    )


def _gained(cells: Sequence[CauseCell]) -> list[Block]:
    """Return what each depth recovers more than the shallowest; nothing of two, which a penalty tells."""
    depths = list(cells[0].share)
    rows = [
        (cell.name, *(_interval(cell.gained[depth]) for depth in depths[1:]))
        for cell in cells
        if cell.gained and len(depths) > 2
    ]
    if not rows:
        return []
    return [
        Heading(text="What depth recovers"),
        Table(
            columns=("cell", *(f"depth {depth}" for depth in depths[1:])),
            rows=tuple(rows),
            left=("cell",),
            note=f"Share of the oracle less that at depth {depths[0]} on the same panel, in %: mean and 95 % "
            "interval over panels.",
        ),
    ]


def _shares(study: PanelStudy, cells: Sequence[CauseCell]) -> list[Block]:
    rows = []
    for cell in cells:
        for level, check in cell.checks.items():
            share = cell.removed.get(level)
            own = level in study.settings["causes"].values()
            rows.append(
                (
                    cell.name,
                    check.cause,
                    _name(level),
                    _interval(cell.relieved[level]),
                    _percent(share) if check.passed or share is None else f"({_percent(share)})",
                    _of(cell.verdict_calibrated, check.cause) if own else "–",
                    "passed" if check.passed else "failed",
                )
            )
        for cause, level in study.settings["placebos"].items():
            if level in cell.relieved:
                told = _percent(cell.removed.get(level))
                rows.append((cell.name, cause, _name(level), _interval(cell.relieved[level]), told, "–", ""))
    return [
        Table(
            columns=(
                "cell",
                "cause",
                "relief",
                "penalty left",
                "share removed",
                "share, calibrated",
                "check",
            ),
            rows=tuple(rows),
            left=("cell", "cause", "relief", "check"),
            note="Shares with 95 % bootstrap intervals over panels, where there is a penalty; in brackets "
            "where the check failed: it went, but what took it is not known. Calibrated: every forecast "
            "times its best scalar, chosen on validation dates.",
        )
    ]


def _checks(study: PanelStudy, cells: Sequence[CauseCell]) -> list[Block]:
    names = [name for names in MEDIATORS.values() for name in names]
    rows = []
    for cell in cells:
        if cell.direct is not None:
            at_once = [_move(cell.direct if name == "gradient_norm" else None) for name in names]
            equaliser = study.settings["causes"]["gradient"]
            rows.append(
                (cell.name, _name(equaliser), f"{study.settings['deep']}, same weights", *at_once, "")
            )
        for level, check in cell.checks.items():
            own = MEDIATORS[check.cause]
            told = "passed" if check.passed else "failed"
            for depth, moves in (("deep", check.deep), ("reference", check.reference)):
                judged = [(name in own) == (depth == "deep") for name in names]
                shown = [_move(moves.get(name), bold=bold) for name, bold in zip(names, judged, strict=True)]
                rows.append((cell.name, _name(level), study.settings[depth], *shown, told))
    return [
        Table(
            columns=("cell", "relief", "depth", *(name.replace("_", " ") for name in names), "check"),
            rows=tuple(rows),
            left=("cell", "relief", "depth", "check"),
            note="How far the relief moved each mediator, relative to what it is without"
            f"{_where_compared(study)}: typical size over sublayers, without what chance moves; in brackets "
            "the signed mean. In the deep network that is at the moment before the penalty shows (of the "
            "warm-up where it never does) at which it moved farthest the way that relieves, since one that "
            "has fallen ill differs in every mediator whatever the cause; in the reference it is over all "
            "moments (the gap is of the end in both). A check passes if in the deep network a mediator of "
            "its own moved by at least 50 %, the way that relieves, and in the reference, where there is "
            "little to cure, every other one by less than 10 % (those judged are bold). Same weights: what "
            "the relief itself does.",
        )
    ]


def _present(study: PanelStudy, cells: Sequence[CauseCell]) -> list[Block]:
    deep, reference = study.settings["deep"], study.settings["reference"]
    causes = list(dict.fromkeys(c for cell in cells for found in cell.suspects.values() for c in found))
    there = [
        (cell.name, _shows(cell), span, *(found.get(cause, "–") for cause in causes))
        for cell in cells
        for span, found in cell.suspects.items()
    ]
    rows = []
    for cell in cells:
        for span, logs in cell.present.items():
            told = [_times(logs[name], ill) if name in logs else "–" for name, ill in ILL.items()]
            rows.append((cell.name, span, *told))
        measured = cell.present["all of training"]
        onsets = [str(cell.worse_from.get(name, "never")) if name in measured else "–" for name in ILL]
        rows.append((cell.name, "worse from step", *onsets))
    judged = "; ".join(f"{cause}: {', '.join(names)}" for cause, names in SUSPECTS.items()).replace("_", " ")
    return [
        Table(
            columns=("cell", "penalty shows", "by then", *causes),
            rows=tuple(there),
            left=("cell", "penalty shows", "by then", *causes),
            note="A suspect is present if, in that time, the 95 % interval of one of its mediators "
            f"({judged}) lies wholly beyond a quarter worse in the network of depth {deep} than in "
            f"that of depth {reference}, without a relief; absent if the intervals of all lie wholly "
            "below; else unclear, as where one was not measured on every panel. Under AdamW, which "
            "divides by their size, the norms of gradients do not count. Noise is present if the "
            "generalisation part surely is above 0 and more than half of the penalty, absent if it "
            "surely is less than half; that is of the end. The penalty shows from the moment on at "
            "which the deep network is farther from the planted signal, on training windows, by at "
            "least half of what it is at the end: once the other one learns, so a network that learns"
            " nothing may have fallen ill earlier. A verdict rests on the time before the penalty; "
            "the warm-up stands beside it.",
        ),
        Table(
            columns=("cell", "moments", *(name.replace("_", " ") for name in ILL)),
            rows=tuple(rows),
            left=("cell", "moments"),
            note=f"Each mediator in the network of depth {deep} over that of depth {reference}, without a "
            "relief: geometric mean over moments, sublayers and panels, with the 95 % interval over "
            "panels. First gradient share: the gradient's norm in the first sublayer over the "
            "geometric mean of all. Bold: surely worse in the deep network (rank, shares, gradients "
            "and their signal lower, the others higher); worse from step: the first moment at which "
            "it surely is so by a quarter. What shows after the penalty does may be its effect.",
        ),
    ]


def _shows(cell: CauseCell) -> str:
    if not cell.watched:
        return "not watched"
    if cell.before is None or (cell.verdict is not None and cell.verdict.decision == "no_penalty"):
        return "never"
    return f"after step {cell.before}"


def _times(logs: Sequence[float], ill: int) -> str:
    mean, low, high = (math.exp(number) if number < MOST else math.inf for number in interval(logs))
    told = f"{mean:.2f}" if len(logs) < 2 else f"{mean:.2f} [{low:.2f}, {high:.2f}]"
    worse = low > 1 if ill > 0 else high < 1
    return f"**{told}**" if worse and len(logs) > 1 else told


def _words(verdict: CausesVerdict) -> str:
    words = verdict.decision.replace("_", " ")
    if verdict.cause:
        return f"{verdict.cause} dominates"
    return f"{words} {verdict.pointed}" if verdict.pointed else words


def _name(level: str) -> str:
    return level.replace("_", " ")


def _of(verdict: CausesVerdict | None, cause: str) -> str:
    return _percent(None if verdict is None else verdict.shares.get(cause))


def _percent(share: Share | None) -> str:
    return "–" if share is None else f"{share.value:.0%} [{share.low:.0%}, {share.high:.0%}]"


def _where_compared(study: PanelStudy) -> str:
    """Say at which design points networks with and without a relief are compared."""
    if not study.tuning.panels:
        return ""
    if study.yoked is None:
        return ", each at a rate of its own, so rates move mediators too"
    return ", at the relief's own rate (the plain network was fitted at that too)"


def _interval(values: Sequence[float]) -> str:
    mean, low, high = (PERCENT * number for number in interval(values))
    return f"{mean:.2f}" if len(values) < 2 else f"{mean:.2f} [{low:.2f}, {high:.2f}]"


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _move(found: Move | None, *, bold: bool = False) -> str:
    if found is None or math.isnan(found.size):
        return "–"
    told = f"{found.size:.0%} ({found.mean:+.0%})"
    return f"**{told}**" if bold else told

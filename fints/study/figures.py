"""The figures of a report: drawn at the width of a journal column, the same bytes every time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from fints.study.canvas import (
    COLOURS,
    GREY,
    Figure,
    capital,
    digits_of,
    facets_of,
    folds_text,
    line_style,
    new_canvas,
    put_legend,
    styled,
    write_figure,
)
from fints.study.mixing_figures import mixing
from fints.study.profile_figures import gradient, similarity, training, update
from fints.study.selection_report import selection_figure
from fints.study.verdict import number
from fints.words import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

    from fints.study.analysis import Analysis

__all__ = ["Figure", "draw"]


def draw(analysis: Analysis, folder: Path) -> list[Figure]:
    """Draw every figure that the study's data allow into `folder`; return them in reading order."""
    folder.mkdir(parents=True, exist_ok=True)
    makers: Sequence[Callable[[Analysis], tuple[Canvas, Figure] | None]] = (
        selection_figure,
        _outcome,
        _contrasts,
        _oracle,
        similarity,
        gradient,
        update,
        mixing,
        training,
        _tuning,
    )
    drawn = []
    with styled():
        for maker in makers:
            made = maker(analysis)
            if made is None:
                continue
            canvas, figure = made
            write_figure(canvas, folder / figure.name)
            drawn.append(figure)
    for stale in sorted(folder.glob("*.*")):
        if stale.stem not in {figure.name for figure in drawn} and stale.suffix in (".svg", ".png"):
            stale.unlink()
    return drawn


def _outcome(analysis: Analysis) -> tuple[Canvas, Figure]:
    """Draw the outcome by depth (or by arm, if no factor is a number) with intervals over folds."""
    measure, axis = analysis.measure, analysis.axis
    outcome = analysis.spec["outcome"]
    unit = f" ({measure.unit})" if measure.unit else ""
    rows = {row["arm"]: row for row in analysis.arms.iter_rows(named=True)}
    lines = _lines(analysis, axis)
    if axis is None:
        return _outcome_by_arm(analysis, rows, f"{measure.label}{unit}")
    levels = analysis.factors[axis]
    canvas, (axes,) = new_canvas(1, height=2.5)
    for number_of, (label, arms, style) in enumerate(lines):
        shift = 0.09 * (number_of - (len(lines) - 1) / 2)
        points = [(levels.index(level) + shift, rows[arm]) for level, arm in arms]
        points = [(x, row) for x, row in points if row[outcome] is not None]
        _error_bars(
            axes,
            [x for x, _ in points],
            [row[outcome] * measure.factor for _, row in points],
            [row[f"{outcome}_low"] for _, row in points],
            [row[f"{outcome}_high"] for _, row in points],
            measure.factor,
            style,
            label,
        )
    _reference_lines(axes, analysis)
    axes.set_xticks(range(len(levels)), levels)
    axes.set_xlim(-0.45, len(levels) - 0.55)
    axes.grid(axis="x", visible=False)
    axes.set_xlabel(f"{axis} (blocks)" if axis == "depth" else axis)
    axes.set_ylabel(f"{measure.label}{unit}")
    put_legend(canvas, [axes])
    digits = digits_of(analysis)
    told = []
    for label, arms, _ in lines:
        values = [(level, rows[arm][outcome]) for level, arm in arms if rows[arm][outcome] is not None]
        if values:
            told.append(
                f"{label} "
                + ", ".join(f"{measure.text(value, digits)} at {level}" for level, value in values)
            )
    lows = [row[f"{outcome}_low"] for row in rows.values()]
    above = sum(low is not None and low > 0 for low in lows)
    caption = (
        f"{above or 'None'} of {counted(len(lows), 'arm')} {'has' if above == 1 else 'have'} a 95 % interval "
        "above zero. "
        f"{capital(measure.label)}{unit} by {axis}: {'; '.join(told)}. "
        f"Bars: 95 % intervals over {folds_text(analysis)}, seeds clustered in their fold. The arms share "
        "their test days, so that a difference between two is known better than either: see the contrasts."
    )
    return canvas, Figure(
        name="outcome",
        caption=caption,
        alt=f"{measure.label} against {axis}, one line a level, with intervals",
    )


def _outcome_by_arm(analysis: Analysis, rows: dict[str, Any], label: str) -> tuple[Canvas, Figure]:
    outcome, measure = analysis.spec["outcome"], analysis.measure
    known = {arm: row for arm, row in rows.items() if row[outcome] is not None}
    canvas, (axes,) = new_canvas(1, height=0.9 + 0.28 * len(known))
    for place, (arm, row) in enumerate(known.items()):
        value = row[outcome] * measure.factor
        if row[f"{outcome}_low"] is not None:
            low, high = row[f"{outcome}_low"] * measure.factor, row[f"{outcome}_high"] * measure.factor
            axes.plot([low, high], [place, place], color=COLOURS[0])
        axes.plot([value], [place], marker="o", color=COLOURS[0], label=arm)
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_yticks(range(len(known)), list(known))
    axes.set_ylim(len(known) - 0.5, -0.5)
    axes.set_xlabel(label)
    digits = digits_of(analysis)
    best = max(known, key=lambda arm: known[arm][outcome], default=None)
    caption = f"{capital(measure.label)} by arm, 95 % intervals over {folds_text(analysis)}."
    if best is not None:
        size = measure.text(known[best][outcome], digits)
        caption = (
            f"{best} has the highest {measure.label}, {size}{measure.unit and ' ' + measure.unit}. {caption}"
        )
    return canvas, Figure(name="outcome", caption=caption, alt=f"{measure.label} by arm with intervals")


def _contrasts(analysis: Analysis) -> tuple[Canvas, Figure] | None:
    """Draw every contrast with its interval against zero and the smallest effect of interest."""
    measure = analysis.measure
    rows = [row for row in analysis.contrasts.iter_rows(named=True) if row["estimate"] is not None]
    if not rows:
        return None
    canvas, (axes,) = new_canvas(1, height=0.75 + 0.34 * len(rows))
    margin = analysis.spec["smallest_effect"] * measure.factor
    axes.axvspan(-margin, margin, color="#E4E4E4", linewidth=0, label=f"too small to matter (± {margin:g})")
    axes.axvline(0, color="black", linewidth=0.8)
    ends = [-margin, margin]
    for place, row in enumerate(rows):
        colour = COLOURS[1] if row["primary"] else COLOURS[0]
        drawn = [row[name] * measure.factor for name in ("low", "estimate", "high") if row[name] is not None]
        axes.plot(drawn, [place] * len(drawn), color=colour)
        axes.plot(
            [row["estimate"] * measure.factor],
            [place],
            linestyle="none",
            marker="D" if row["primary"] else "o",
            color=colour,
            label="primary contrast" if row["primary"] else None,
        )
        ends += drawn
    room = 0.06 * (max(ends) - min(ends))
    axes.set_xlim(min(ends) - room, max(ends) + room)
    axes.set_yticks(range(len(rows)), [_two_lines(row["contrast"]) for row in rows])
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.spines["left"].set_visible(False)
    axes.grid(axis="y", visible=False)
    # On two lines: the picture is as narrow as the names beside it are long.
    axes.set_xlabel(f"difference in {measure.label}\n{measure.difference_unit}".strip())
    put_legend(canvas, [axes])
    kinds = analysis.contrasts["decision"].to_list()
    words = (
        ("better", "better"),
        ("worse", "worse"),
        ("equivalent", "equivalent"),
        ("undecided", "undecided"),
        ("withheld", "without verdict for failed fits"),
    )
    counted = [
        f"{kinds.count(kind)} {word}" for kind, word in (*words, ("void", "without verdict")) if kind in kinds
    ]
    caption = (
        f"By the rule, the first-named level against the second: {', '.join(counted)}. "
        f"95 % intervals over {folds_text(analysis)}, not adjusted for their number; "
        "grey: differences too small to matter."
    )
    return canvas, Figure(
        name="contrasts",
        caption=caption,
        alt="Differences between arms with intervals, zero and smallest effect",
    )


def _oracle(analysis: Analysis) -> tuple[Canvas, Figure] | None:
    """Draw the mean forecast against the planted signal."""
    if not analysis.oracle.height:
        return None
    facets = facets_of(analysis, set(analysis.oracle["arm"]))
    canvas, panels = new_canvas(len(facets), height=0.9 + 1.55 * len(facets))
    for axes, facet in zip(panels, facets, strict=True):
        for arm, label, style in facet.arms:
            own = analysis.oracle.filter(pl.col("arm") == arm)
            axes.plot(own["oracle"], own["forecast"], label=label, **line_style(style), markevery=2)
        signal = analysis.oracle["oracle"].to_numpy()
        ends = [float(signal.min()), float(signal.max())]
        axes.plot(ends, ends, color="black", linestyle="--", linewidth=0.8, label="the signal itself")
        axes.axhline(0, color=GREY, linewidth=0.6)
        axes.set_title(facet.title)
        axes.set_ylabel("mean forecast")
    panels[-1].set_xlabel("planted signal, mean of each twentieth (target units)")
    put_legend(canvas, panels)
    told = [
        f"{row['arm']} {number(100 * row['share_of_oracle'], 0)} %"
        for row in analysis.arms.iter_rows(named=True)
        if row["share_of_oracle"] is not None
    ]
    caption = f"Share of the planted signal recovered, 1 − Σ(p − s)² / Σs²: {', '.join(told)}."
    return canvas, Figure(
        name="oracle",
        caption=caption,
        alt="Mean forecast against planted signal, with the diagonal of the oracle",
    )


def _tuning(analysis: Analysis) -> tuple[Canvas, Figure] | None:
    """Draw validation loss against the tuned field, if it is one number."""
    space = analysis.spec["tuning"]["space"]
    fields = [name for name, values in space.items() if len(values) > 1]
    if len(fields) != 1 or not all(isinstance(value, int | float) for value in space[fields[0]]):
        return None
    field = fields[0]
    tried = analysis.tried.drop_nulls("validation_loss") if analysis.tried.height else analysis.tried
    facets = facets_of(analysis, set(tried["arm"]) if tried.height else set())
    if not facets:
        return None
    canvas, panels = new_canvas(len(facets), height=0.9 + 1.4 * len(facets))
    name = field.rsplit(".", 1)[-1].replace("_", " ")
    for axes, facet in zip(panels, facets, strict=True):
        for arm, label, style in facet.arms:
            own = tried.filter(pl.col("arm") == arm).sort(field)
            axes.plot(own[field], own["validation_loss"], label=label, **line_style(style))
            chosen = own.filter("chosen")
            axes.plot(
                chosen[field],
                chosen["validation_loss"],
                linestyle="none",
                marker="o",
                markersize=8,
                markerfacecolor="none",
                markeredgecolor=COLOURS[style % len(COLOURS)],
            )
        if all(value > 0 for value in space[field]):
            axes.set_xscale("log")
        axes.set_xticks(sorted(space[field]), [f"{value:g}" for value in sorted(space[field])])
        axes.minorticks_off()
        axes.set_title(facet.title)
        axes.set_ylabel("validation loss")
    panels[-1].set_xlabel(name)
    put_legend(canvas, panels)
    edges = (min(space[field]), max(space[field]))
    at_edge = [row["arm"] for row in tried.iter_rows(named=True) if row["chosen"] and row[field] in edges]
    caption = (
        f"Every arm tried the same {counted(len(space[field]), 'value')} of {name}; rings mark the chosen "
        "one. "
        + (
            f"At the edge of the grid, where a better value may lie outside: {', '.join(at_edge)}."
            if at_edge
            else "No arm chose a value at the edge of the grid."
        )
    )
    return canvas, Figure(
        name="tuning", caption=caption, alt=f"Validation loss against {name}, one line an arm"
    )


def _lines(analysis: Analysis, axis: str | None) -> list[tuple[str, list[tuple[str, str]], int]]:
    """Group arms into lines along `axis`: label, (level, arm) pairs in order, style number."""
    lines: dict[str, list[tuple[str, str]]] = {}
    for arm in analysis.spec["arms"]:
        rest = [level for name, level in arm["levels"].items() if name != axis]
        lines.setdefault(", ".join(rest) or "all arms", []).append((arm["levels"].get(axis, ""), arm["name"]))
    return [(label, arms, style) for style, (label, arms) in enumerate(lines.items())]


def _reference_lines(axes: Axes, analysis: Analysis) -> None:
    outcome, factor = analysis.spec["outcome"], analysis.measure.factor
    axes.axhline(0, color="black", linewidth=0.8)
    known = {
        row["baseline"]: row[outcome]
        for row in analysis.baselines.iter_rows(named=True)
        if row.get(outcome) is not None and row["baseline"] != "zero"
    }
    oracle = known.pop("oracle", None)
    if known:
        best = max(sorted(known), key=lambda name: known[name])
        axes.axhline(
            known[best] * factor, color=GREY, linestyle="--", linewidth=0.9, label=f"best baseline: {best}"
        )
    if oracle is not None:
        axes.axhline(oracle * factor, color=GREY, linestyle=":", linewidth=1.1, label="oracle")


def _error_bars(
    axes: Axes,
    x: Sequence[float],
    y: Sequence[float],
    low: Sequence[float | None],
    high: Sequence[float | None],
    factor: float,
    style: int,
    label: str,
) -> None:
    axes.plot(x, y, label=label, **line_style(style))
    for place, first, last in zip(x, low, high, strict=True):
        if first is not None and last is not None:
            axes.plot([place, place], [first * factor, last * factor], color=COLOURS[style % len(COLOURS)])


def _two_lines(contrast: str) -> str:
    """Break a contrast at its minus, so that long names leave room for the picture."""
    first, minus, second = contrast.partition(" − ")
    return f"{first}\n− {second}" if minus else contrast

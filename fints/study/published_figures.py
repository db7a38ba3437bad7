"""The figures of a study of published claims, each at the width of a journal column."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fints.evaluation.claims import Judged
from fints.study.canvas import (
    COLOURS,
    GREY,
    Figure,
    capital,
    draw_all,
    line_style,
    log_axis,
    new_canvas,
    put_legend,
    whole_axis,
)
from fints.study.panel_design import PanelStudy
from fints.study.published import Cells, Key
from fints.words import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

    from fints.study.published_report import Claim

__all__ = ["draw_published"]

Made = tuple["Canvas", Figure] | None
# Beyond this many half-widths of its interval a claim is as clear as can be drawn.
CLEAR = 4.0
SHADES = {"held": COLOURS[2], "failed": COLOURS[1], "undecided": GREY}
MARKS = {"held": "o", "failed": "s", "undecided": "D"}


def draw_published(
    study: PanelStudy, cells: Cells, asked: Sequence[Claim], judged: Mapping[str, Judged], folder: Path
) -> list[Figure]:
    """Draw what the finished fits allow into `folder` as SVG and PNG; return the figures in reading order."""
    depth = _deepest(study, cells)
    makers: list[Callable[[], Made]] = [
        lambda: _claims(asked, judged),
        lambda: _by_layer(
            study,
            cells,
            depth,
            "adjacent_cosine",
            name="cosine",
            label="cos(input, input before)",
            beside=("adjacent_cosine_initial", "before training"),
            null="adjacent_cosine_null",
        ),
        lambda: _by_layer(
            study,
            cells,
            depth,
            "block_rise",
            name="skips",
            label="rise when skipped",
            sublayers=False,
        ),
        lambda: _by_layer(
            study, cells, depth, "trunk_size", name="stream", label="RMS of the stream", logarithmic=True
        ),
        lambda: _curves(study, cells, depth),
    ]
    return draw_all(makers, folder)


def _claims(asked: Sequence[Claim], judged: Mapping[str, Judged]) -> Made:
    """Draw how far each claim is from its margin, in half-widths of its interval."""
    rows = [(claim, judged[claim.name]) for claim in asked if claim.name in judged]
    if not rows:
        return None
    canvas, (axes,) = new_canvas(1, height=0.8 + 0.2 * len(rows))
    for place, (claim, one) in enumerate(rows):
        at = _distance(claim, one)
        if at is not None:
            colour = SHADES[one.decision]
            axes.plot([0, at], [place, place], color=colour, linewidth=0.8)
            axes.plot([at], [place], linestyle="none", marker=MARKS[one.decision], color=colour)
    axes.axvline(0, color="black", linewidth=0.8)
    axes.axvspan(-1, 1, color="#E4E4E4", linewidth=0)
    axes.set_xlim(-CLEAR - 0.3, CLEAR + 0.3)
    numbers = {claim.name: place for place, claim in enumerate(asked, start=1)}
    axes.set_yticks(
        range(len(rows)), [f"{claim.name.replace('_', ' ')}  {numbers[claim.name]}" for claim, _ in rows]
    )
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("distance to the margin, half-widths of the interval\n← as it fails      as it holds →")
    handles = {
        kind: axes.plot([], [], linestyle="none", marker=MARKS[kind], color=colour)[0]
        for kind, colour in SHADES.items()
    }
    put_legend(canvas, [], handles)
    counts = [sum(one.decision == kind for _, one in rows) for kind in SHADES]
    told = ", ".join(f"{count} {kind}" for count, kind in zip(counts, SHADES, strict=True))
    return canvas, Figure(
        name="claims",
        caption=f"Of {counted(len(rows), 'claim')}, {told}. Distance of the mean over panels to the margin "
        "of "
        "held (right) or of failed (left), over half of its 95 % interval: within the grey band the plain "
        "interval "
        f"holds the margin. Beyond {CLEAR:g} on either side the mark stands there; at 0 stands what lies "
        "between both margins, and no mark where a number is the same on all panels. Numbers of rows are "
        "those of the table.",
        alt="One row a claim: how far its number lies on the side of held or of failed",
    )


def _distance(claim: Claim, one: Judged) -> float | None:
    """Return the signed distance: above 0 inside what it holds in, below 0 outside what it fails outside."""
    if one.low is None or one.high is None or one.low == one.high:
        return None
    half = (one.high - one.low) / 2
    (a, b), (c, d) = claim.margins(claim.held), claim.margins(claim.failed)
    endless = float("inf")
    inside = min(
        endless if a is None else one.estimate - a,
        endless if b is None else b - one.estimate,
    )
    outside = max(
        -endless if c is None else c - one.estimate,
        -endless if d is None else one.estimate - d,
    )
    distance = inside if inside >= 0 else -outside if outside >= 0 else 0.0
    return max(-CLEAR, min(CLEAR, distance / half))


def _deepest(study: PanelStudy, cells: Cells) -> str | None:
    """Return the deepest depth at which schemes can be compared, of claims that are on depth."""
    schemes = {depth: len(_plain(study, cells, depth)) for depth in study.factors["depth"]}
    found = [depth for depth, number in schemes.items() if number]
    return max(found, key=lambda depth: (schemes[depth] > 1, float(depth)), default=None)


def _plain(study: PanelStudy, cells: Cells, depth: str) -> list[Key]:
    keys = [(residual, depth, "plain") for residual in study.factors["residual"]]
    return [key for key in keys if cells.has(key)]


def _by_layer(
    study: PanelStudy,
    cells: Cells,
    depth: str | None,
    measure: str,
    *,
    name: str,
    label: str,
    beside: tuple[str, str] | None = None,
    null: str | None = None,
    sublayers: bool = True,
    logarithmic: bool = False,
) -> Made:
    """Draw the mean over panels of a measure by depth, one line a scheme of the deepest networks."""
    lines = {}
    for key in _plain(study, cells, depth) if depth is not None else []:
        means = _means(cells, key, measure)
        if any(value is not None for value in means):
            lines[key] = means
    if not lines:
        return None
    canvas, (axes,) = new_canvas(1, height=2.3)
    for style, (key, means) in enumerate(lines.items()):
        _line(axes, means, label=key[0], **line_style(style))
        if beside is not None:
            before = _means(cells, key, beside[0])
            _line(
                axes, before, label=beside[1] if style == 0 else None, color=COLOURS[style % 7], linestyle=":"
            )
    if null is not None:
        nulls = {tuple(_means(cells, key, null)): key for key in lines}
        for place, values in enumerate(nulls):
            _line(axes, values, label="null" if place == 0 else None, color="black", linestyle="--")
    if logarithmic:
        log_axis(axes)
    whole_axis(axes)
    axes.set_xlabel(f"{'sublayer' if sublayers else 'block'} (from 0), depth {depth}")
    axes.set_ylabel(label)
    put_legend(canvas, [axes])
    ends = "; ".join(f"{key[0]} {_first(means)} to {_last(means)}" for key, means in lines.items())
    caption = f"{capital(label)} at depth {depth}, first and last: {ends}. Mean over panels."
    if null is not None:
        caption += " Dashed: independent increments of equal length; dotted: before training."
    return canvas, Figure(name=name, caption=caption, alt=f"{label} against depth, one line a scheme")


def _curves(study: PanelStudy, cells: Cells, depth: str | None) -> Made:
    """Draw the distance to the signal on validation dates by step."""
    lines = {}
    for key in _plain(study, cells, depth) if depth is not None else []:
        curves = [dict(cells.curve(row)) for (row,) in cells.chosen(key).values()]
        steps = sorted(set.intersection(*(set(curve) for curve in curves))) if curves else []
        if len(steps) > 1:
            lines[key[0]] = [(step, statistics.fmean(curve[step] for curve in curves)) for step in steps]
    if not lines:
        return None
    canvas, (axes,) = new_canvas(1, height=2.2)
    for style, (label, points) in enumerate(lines.items()):
        axes.plot(*zip(*points, strict=True), label=label, **line_style(style), markevery=4)
    axes.set_xlabel("optimiser step")
    axes.set_ylabel("distance to the signal")
    whole_axis(axes)
    put_legend(canvas, [axes])
    told = "; ".join(f"{label} {points[-1][1]:.3f}" for label, points in lines.items())
    return canvas, Figure(
        name="curves",
        caption=f"Mean squared distance to the planted signal on validation dates at depth {depth}, at the "
        "last "
        f"step: {told}. Mean over panels, each scheme at the rate that other panels choose.",
        alt="Distance to the signal against the optimiser step, one line a scheme",
    )


def _means(cells: Cells, key: Key, measure: str) -> list[float | None]:
    found = [cells.layers(row, measure) for (row,) in cells.chosen(key).values()]
    longest = max((len(values) for values in found), default=0)
    means: list[float | None] = []
    for layer in range(longest):
        known = [values[layer] for values in found if len(values) > layer]
        numbers = [value for value in known if value is not None]
        means.append(statistics.fmean(numbers) if numbers else None)
    return means


def _line(axes: Axes, values: Sequence[float | None], **style: Any) -> None:
    points = [(place, value) for place, value in enumerate(values) if value is not None]
    if points:
        axes.plot(*zip(*points, strict=True), **style)


def _first(means: Sequence[float | None]) -> str:
    return next((f"{value:.3g}" for value in means if value is not None), "–")


def _last(means: Sequence[float | None]) -> str:
    return next((f"{value:.3g}" for value in reversed(means) if value is not None), "–")

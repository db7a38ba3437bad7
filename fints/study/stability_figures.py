"""The figures of a study of stability, each at the width of a journal column."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fints.diagnostics import RateRange
from fints.study.canvas import (
    COLOURS,
    GREY,
    MARKERS,
    Figure,
    draw_all,
    line_style,
    new_canvas,
    proxy,
    put_legend,
)
from fints.study.intervals import interval
from fints.study.panel_design import PanelStudy
from fints.study.stability import Key, StableCell
from fints.study.stability_claims import Claim, Gate
from fints.words import counted

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

__all__ = ["draw_stability"]

Made = tuple["Canvas", Figure] | None
VERDICT_STYLES = {"held": 2, "failed": 1, "undecided": 0}


def draw_stability(
    study: PanelStudy,
    cells: Mapping[Key, StableCell],
    gates: Sequence[Gate],
    claims: Mapping[str, Sequence[Claim]],
    folder: Path,
) -> list[Figure]:
    """Draw what the finished fits allow into `folder` as SVG and PNG; return the figures in reading order."""
    makers: list[Callable[[], Made]] = [
        lambda: _rates(study, cells),
        lambda: _predictions(gates, claims),
        lambda: _dose(study, cells),
        lambda: _widths(study, cells),
    ]
    return draw_all(makers, folder)


def _rates(study: PanelStudy, cells: Mapping[Key, StableCell]) -> Made:
    """Draw the share of oracle by learning rate, one panel a depth of the centre, or of what there is."""
    centre = study.settings["centre"]
    shown = [cell for cell in cells.values() if cell.case == centre and cell.shares]
    depths = list(dict.fromkeys(cell.depth for cell in shown))
    if not shown:
        return None
    schemes = [scheme for scheme in study.factors["residual"] if any(c.scheme == scheme for c in shown)]
    lines = -(-len(depths) // 2)
    canvas, panels = new_canvas(lines, height=0.7 + 1.8 * lines, columns=min(2, len(depths)))
    for place, axes in enumerate(panels):
        if place >= len(depths):
            axes.set_visible(False)
            continue
        for cell in (one for one in shown if one.depth == depths[place]):
            style = schemes.index(cell.scheme)
            rates = list(next(iter(cell.shares.values())))
            found = [interval([own[rate] for own in cell.shares.values()]) for rate in rates]
            look = line_style(style)
            axes.plot(rates, [mean for mean, _, _ in found], label=_words(cell.scheme), **look)
            for rate, (_, low, high) in zip(rates, found, strict=True):
                if math.isfinite(low):
                    axes.plot([rate] * 2, [low, high], color=look["color"], linewidth=0.8)
        axes.axhline(0, color="black", linewidth=0.7)
        axes.set_xscale("log")
        ticks = [arm.experiment.training.learning_rate for arm in study.arms()]
        axes.set_xticks(sorted(set(ticks)), [f"{1e3 * rate:g}" for rate in sorted(set(ticks))])
        axes.minorticks_off()
        axes.set_title(f"{depths[place]} blocks")
        axes.set_xlabel("learning rate (1/1,000)")
        if place % 2 == 0:
            axes.set_ylabel("share of oracle")
    put_legend(canvas, panels[: len(depths)])
    return canvas, Figure(
        name="rates",
        caption=f"Share of oracle on later days by learning rate, at the centre ({_words(centre)}). Lines: "
        f"means over {_panels(shown)}; bars: 95 % intervals. The width that is compared is read off each "
        "panel's own curve: the rates within 10 % of its best. A diverged fit is the zero forecast.",
        alt="Share of oracle against the learning rate, one line a scheme, one panel a depth",
    )


def _predictions(gates: Sequence[Gate], claims: Mapping[str, Sequence[Claim]]) -> Made:
    """Draw what was found of each prediction over its margin."""
    depths = [depth for depth, own in claims.items() if own]
    if not depths:
        return None
    rows = sum(len(claims[depth]) for depth in depths)
    canvas, panels = new_canvas(len(depths), height=0.9 + 0.25 * rows + 0.3 * len(depths))
    seen: set[str] = set()
    for axes, depth in zip(panels, depths, strict=True):
        own = claims[depth]
        for place, claim in enumerate(own):
            found, unit = claim.finding, _unit(claim, own)
            style = VERDICT_STYLES[found.decision]
            ends = [value / unit for value in (found.low, found.high)]
            if math.isfinite(ends[0]):
                axes.plot(ends, [place, place], color=COLOURS[style], linewidth=1.1)
            axes.plot(
                [found.estimate / unit],
                [place],
                color=COLOURS[style],
                marker=MARKERS[style],
                linestyle="",
                label=None if found.decision in seen else found.decision,
            )
            seen.add(found.decision)
            margins = [-1.0, 1.0] if claim.kind == "zero" else [claim.smallest / unit]
            for margin in margins:
                axes.plot([margin] * 2, [place - 0.35, place + 0.35], color=GREY, linestyle="--")
        axes.set_yticks(range(len(own)), [claim.name for claim in own])
        axes.set_ylim(len(own) - 0.5, -0.5)
        axes.grid(visible=False, axis="y")
        axes.axvline(0, color="black", linewidth=0.7)
        gate = next((one.finding.decision for one in gates if one.depth == depth), None)
        void = ", void: nothing to explain" if gate in ("less", "same") else ""
        axes.set_title(f"{depth} blocks{void}")
    panels[-1].set_xlabel("found, in units of the smallest size of interest")
    put_legend(canvas, panels, {"margin": proxy("--")})
    return canvas, Figure(
        name="predictions",
        caption="What was found of each prediction, over its smallest size of interest, with 95 % intervals "
        "over panels. Predictions of nothing have two margins and hold within them; the others hold above 0, "
        "and fail below their margin. Widths and gaps are in decades of the learning rate.",
        alt="Estimate and interval of each prediction beside its margin",
    )


def _dose(study: PanelStudy, cells: Mapping[Key, StableCell]) -> Made:
    """Draw the gap by vol-of-vol, and where inputs are over their true volatility."""
    settings = study.settings
    depths = list(dict.fromkeys(cell.depth for cell in cells.values()))
    doses: Mapping[str, float] = settings["doses"]
    gaps = {depth: {case: _gap(study, cells, case, depth) for case in doses} for depth in depths}
    shown = [depth for depth in depths if sum(bool(values) for values in gaps[depth].values()) > 1]
    if not shown:
        return None
    canvas, (axes,) = new_canvas(1, height=2.3)
    margin = settings["smallest"]["width"]
    axes.axhspan(-margin, margin, color=GREY, alpha=0.1, linewidth=0)
    for style, depth in enumerate(shown):
        known = {doses[case]: interval(values) for case, values in gaps[depth].items() if values}
        look = line_style(style)
        label = f"{depth} blocks" if len(shown) > 1 else "inputs on the scale of returns"
        axes.plot(list(known), [mean for mean, _, _ in known.values()], label=label, **look)
        for dose, (_, low, high) in known.items():
            if math.isfinite(low):
                axes.plot([dose] * 2, [low, high], color=look["color"], linewidth=0.8)
        oracle = _gap(study, cells, settings["oracle"], depth)
        if oracle:
            mean, low, high = interval(oracle)
            where = doses[settings["centre"]] + 0.06
            if math.isfinite(low):
                axes.plot([where] * 2, [low, high], color="black", linewidth=0.8)
            axes.plot(
                [where],
                [mean],
                color="black",
                marker=MARKERS[4],
                linestyle="",
                label="over their true volatility" if style == 0 else None,
            )
    axes.axhline(0, color="black", linewidth=0.7)
    axes.set_xlabel("vol-of-vol of the noise and of the inputs")
    axes.set_ylabel("gap of widths (decades)")
    put_legend(canvas, [axes], {})
    return canvas, Figure(
        name="dose",
        caption="Post-Norm's width less Pre-Norm's by vol-of-vol, with 95 % intervals over panels; the band "
        "is the smallest size of interest on both sides of nothing. The mechanism has the line rise from the "
        "band, and the black marker lie in it.",
        alt="Gap of widths against vol-of-vol, and with inputs over their true volatility",
    )


def _widths(study: PanelStudy, cells: Mapping[Key, StableCell]) -> Made:
    """Draw the width of every cell, panel by panel."""
    shown = [cell for cell in cells.values() if cell.ranges]
    if not shown:
        return None
    canvas, (axes,) = new_canvas(1, height=0.8 + 0.19 * len(shown))
    schemes = list(study.factors["residual"])
    for place, cell in enumerate(shown):
        style = schemes.index(cell.scheme)
        colour, marker = COLOURS[style % len(COLOURS)], MARKERS[style % len(MARKERS)]
        values = list(cell.widths().values())
        whole = [v for v, found in zip(values, cell.ranges.values(), strict=True) if not _cut(found)]
        cut = [v for v, found in zip(values, cell.ranges.values(), strict=True) if _cut(found)]
        for own, face in ((whole, colour), (cut, "white")):
            axes.plot(
                own,
                [place] * len(own),
                color=colour,
                marker=marker,
                markerfacecolor=face,
                linestyle="",
                markersize=2.8,
            )
        axes.plot([statistics.fmean(values)] * 2, [place - 0.3, place + 0.3], color="black", linewidth=1.2)
    axes.set_yticks(range(len(shown)), [f"{_words(c.scheme)}, {_words(c.case)}, {c.depth}" for c in shown])
    axes.tick_params(axis="y", labelsize=5.5)
    axes.set_ylim(len(shown) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
    axes.set_xlim(-0.03, max(0.5, axes.get_xlim()[1]))
    axes.set_xlabel("width (decades)")
    return canvas, Figure(
        name="widths",
        caption="Width of the range of learning rates in every cell (scheme, case, blocks): a marker a "
        "panel, hollow where an end of the grid cuts the range off; the bar is the mean.",
        alt="Width of the range of learning rates by cell, one marker a panel",
    )


def _gap(study: PanelStudy, cells: Mapping[Key, StableCell], case: str, depth: str) -> list[float]:
    keys = [(study.settings[name], case, depth) for name in ("post", "pre")]
    if any(key not in cells for key in keys):
        return []
    post, pre = (cells[key].widths() for key in keys)
    return [post[panel] - pre[panel] for panel in post if panel in pre]


def _unit(claim: Claim, claims: Sequence[Claim]) -> float:
    """Return the smallest size of interest; of a comparison with half of the gap, that of widths."""
    if claim.smallest:
        return claim.smallest
    return max((one.smallest for one in claims if one.unit == claim.unit), default=0.0) or 1.0


def _cut(found: RateRange | None) -> bool:
    return found is not None and (found.low_open or found.high_open)


def _panels(cells: Sequence[StableCell]) -> str:
    numbers = sorted({len(cell.chosen) for cell in cells})
    return counted(numbers[0], "panel") if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]} panels"


def _words(name: str) -> str:
    return name.replace("_", " ")

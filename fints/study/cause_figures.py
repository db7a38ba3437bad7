"""The figures of a study of causes, each at the width of a journal column."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from fints.interventions import INTERVENTIONS
from fints.study.canvas import (
    COLOURS,
    GREY,
    MARKERS,
    Figure,
    draw_all,
    line_style,
    log_axis,
    new_canvas,
    proxy,
    put_legend,
    whole_axis,
)
from fints.study.causes import CauseCell
from fints.study.intervals import interval
from fints.study.panel_design import PanelStudy
from fints.study.panel_store import Fits
from fints.words import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

__all__ = ["draw_causes"]

UNIT = "% of the target's variance"
# Of a doubling of depth, between the bars of two schemes.
ASIDE = 0.18
PERCENT = 100.0
# What dotted lines are.
BEFORE = "before training"
Made = tuple["Canvas", Figure] | None


def draw_causes(study: PanelStudy, fits: Fits, cells: Sequence[CauseCell], folder: Path) -> list[Figure]:
    """Draw what the finished fits allow into `folder` as SVG and PNG; return the figures in reading order."""
    makers: list[Callable[[], Made]] = [
        lambda: _penalties(study, cells),
        lambda: _by_depth(cells),
        lambda: _shares(study, cells),
        lambda: _two_by_two(study, cells),
        lambda: _cosine(study, fits, cells),
        lambda: _gradients(study, fits, cells),
        lambda: _probes(study, fits, cells),
    ]
    return draw_all(makers, folder)


def _penalties(study: PanelStudy, cells: Sequence[CauseCell]) -> Made:
    """Draw the depth penalty of each cell beside its two parts, with intervals over panels."""
    canvas, (axes,) = new_canvas(1, height=0.9 + 0.42 * len(cells))
    parts = (
        ("penalty", "penalty"),
        ("optimisation", "of it optimisation"),
        ("generalisation", "generalisation"),
    )
    for style, (name, label) in enumerate(parts):
        for place, cell in enumerate(cells):
            _point(
                axes, getattr(cell, name), place + 0.22 * (style - 1), style, label if place == 0 else None
            )
    for place, cell in enumerate(cells):
        smallest = PERCENT * study.settings["smallest"][cell.tier]
        ends = [place - 0.4, place + 0.4]
        line = axes.plot([smallest] * 2, ends, color=GREY, linestyle="--")
        if place == 0:
            line[0].set_label("smallest of interest")
    _by_row(axes, [cell.name for cell in cells])
    axes.axvline(0, color="black", linewidth=0.7)
    axes.set_xlabel(f"depth penalty ({UNIT})")
    put_legend(canvas, [axes])
    told = "; ".join(f"{cell.name}: {_told(cell.penalty)}" for cell in cells)
    return canvas, Figure(
        name="penalty",
        caption=f"Test loss of the deep network less that of the reference, and its two parts: {told}. "
        f"Right is worse. Bars: 95 % intervals over {_panels(cells)} (Student's t). Optimisation: training "
        "loss, on the same windows.",
        alt="Depth penalty by scheme and tier, split into optimisation and generalisation",
    )


def _by_depth(cells: Sequence[CauseCell]) -> Made:
    """Draw the penalty by depth against the fixed reference."""
    if len(cells[0].by_depth) < 3:
        return None
    canvas, panels = new_canvas(1, height=2.2, columns=len({cell.tier for cell in cells}))
    tiers = list(dict.fromkeys(cell.tier for cell in cells))
    for axes, tier in zip(panels, tiers, strict=True):
        own = [one for one in cells if one.tier == tier]
        for style, cell in enumerate(own):
            found = {float(depth): interval(values) for depth, values in cell.by_depth.items()}
            means = [PERCENT * mean for mean, _, _ in found.values()]
            # Side by side, so that no bar hides another.
            aside = 2 ** (ASIDE * (style - (len(own) - 1) / 2))
            axes.plot([depth * aside for depth in found], means, label=cell.scheme, **line_style(style))
            for depth, (_, low, high) in found.items():
                ends = [PERCENT * low, PERCENT * high]
                axes.plot([depth * aside] * 2, ends, color=COLOURS[style], linewidth=0.8)
        axes.axhline(0, color="black", linewidth=0.7)
        axes.set_xscale("log", base=2)
        axes.set_xticks(list(found), [f"{depth:g}" for depth in found])
        axes.set_title(tier)
        axes.set_xlabel("blocks")
    panels[0].set_ylabel(f"penalty ({UNIT})")
    put_legend(canvas, panels[:1])
    return canvas, Figure(
        name="by_depth",
        caption="Test loss by depth less that of the fixed reference (zero), plain networks. Bars: 95 % "
        f"intervals over {_panels(cells)}.",
        alt="Penalty by depth against the fixed reference, one line a scheme",
    )


def _shares(study: PanelStudy, cells: Sequence[CauseCell]) -> Made:
    """Draw the penalty that is left under each relief and placebo."""
    levels = list(study.factors["relief"])
    if len(levels) < 2:
        return None
    canvas, panels = new_canvas(len(cells), height=0.5 + (0.35 + 0.14 * len(levels)) * len(cells))
    placebos = set(study.settings["placebos"].values())
    # One whose relief carries no verdict here is a placebo too.
    placebos |= {level for level in levels if getattr(INTERVENTIONS.get(level), "role", "") == "placebo"}
    for axes, cell in zip(panels, cells, strict=True):
        failed = {level for level, check in cell.checks.items() if not check.passed}
        for place, level in enumerate(levels):
            style = 0 if level == "none" else 1 if level in placebos else 2
            _point(axes, cell.relieved[level], place, style, None, hollow=level in failed)
        _by_row(axes, [level.replace("_", " ") for level in levels])
        axes.axvline(0, color="black", linewidth=0.7)
        axes.set_title(cell.name)
    # In two lines: the names of reliefs leave little room.
    panels[-1].set_xlabel(f"depth penalty left\n({UNIT})")
    return canvas, Figure(
        name="reliefs",
        caption="The depth penalty that is left under each relief (triangles), placebo (squares) and without "
        "any (circle): deep and reference both relieved. Hollow: the manipulation check failed, so it "
        "carries no verdict. Bars: 95 % intervals over panels.",
        alt="Depth penalty left under each relief and placebo, by scheme and tier",
    )


def _two_by_two(study: PanelStudy, cells: Sequence[CauseCell]) -> Made:
    """Draw the two by two of gradient and representation relief."""
    causes = study.settings["causes"]
    gradient, representation = causes.get("gradient"), causes.get("representation")
    both = study.settings.get("both")
    levels = ("none", gradient, representation, both)
    if not cells or any(level not in cells[0].relieved for level in levels):
        return None
    lines = -(-len(cells) // 2)
    canvas, panels = new_canvas(lines, height=0.8 + 1.5 * lines, columns=min(2, len(cells)))
    for place, axes in enumerate(panels):
        if place >= len(cells):
            axes.set_visible(False)
            continue
        cell = cells[place]
        for style, (label, pair) in enumerate(
            (("plain gradients", (levels[0], levels[2])), ("gradients equalised", (levels[1], levels[3])))
        ):
            found = [interval(cell.relieved[str(level)]) for level in pair]
            means = [PERCENT * mean for mean, _, _ in found]
            axes.plot((0, 1), means, label=label, **line_style(style))
            for end, (_, low, high) in enumerate(found):
                where = [end + 0.04 * (style - 0.5)] * 2
                axes.plot(where, [PERCENT * low, PERCENT * high], color=COLOURS[style], linewidth=0.8)
        axes.axhline(0, color="black", linewidth=0.7)
        axes.set_xticks((0, 1), ("plain", "decorrelated"))
        axes.set_xlim(-0.3, 1.3)
        axes.set_title(cell.name)
        if place % 2 == 0:
            axes.set_ylabel("depth penalty (%)")
        if place >= len(cells) - 2:
            axes.set_xlabel("tokens and increments")
    put_legend(canvas, panels[:1])
    return canvas, Figure(
        name="two_by_two",
        caption=f"The depth penalty ({UNIT}) with neither, one and both of the reliefs of gradients and of "
        "representations. Parallel lines: the two act apart. Bars: 95 % intervals over panels.",
        alt="Depth penalty with neither, one and both of two reliefs, by scheme and tier",
    )


def _cosine(study: PanelStudy, fits: Fits, cells: Sequence[CauseCell]) -> Made:
    def panel(axes: Axes, scheme: str, rows: pl.DataFrame) -> None:
        del scheme
        for style, (measure, label) in enumerate(
            (("adjacent_cosine", "raw"), ("adjacent_cosine_centred", "centred"))
        ):
            _band(axes, rows, measure, "last", style, label)
            _band(axes, rows, measure, "first", style, None, dotted=True)
        null = _by_layer(rows, "adjacent_cosine_null", "last")
        axes.plot(
            null["layer"], null["mean"], color="black", linestyle=(0, (4, 2)), linewidth=0.9, label="null"
        )

    return _by_sublayer(
        study,
        fits,
        cells,
        panel,
        name="cosine",
        measure="adjacent_cosine",
        ylabel="cos(input, input before)",
        caption="Cosine between neighbouring sublayer inputs of the deep plain networks, after training "
        "(lines) and before (dotted), beside the null of independent increments of equal length. High "
        "cosine alone is no finding. Bands: range over panels.",
        alt="Adjacent cosine by sublayer with null curve and values before training",
        legend={BEFORE: proxy(":")},
    )


def _gradients(study: PanelStudy, fits: Fits, cells: Sequence[CauseCell]) -> Made:
    tiers = list(dict.fromkeys(cell.tier for cell in cells))
    schemes = list(dict.fromkeys(cell.scheme for cell in cells))
    canvas, panels = new_canvas(len(tiers), height=0.9 + 1.5 * len(tiers), columns=2)
    for row, tier in enumerate(tiers):
        for column, (measure, label) in enumerate(
            (("gradient_norm", "gradient norm"), ("gradient_signal", "signal / noise, a window"))
        ):
            axes = panels[2 * row + column]
            for style, scheme in enumerate(schemes):
                rows = _deep_rows(study, fits, scheme, tier)
                _band(axes, rows, measure, "last", style, scheme)
                _band(axes, rows, measure, "first", style, None, dotted=True)
            if measure == "gradient_norm":
                log_axis(axes)
            else:
                axes.axhline(0, color="black", linewidth=0.7)
            whole_axis(axes)
            axes.set_title(f"{tier}\n{label}")
            if row == len(tiers) - 1:
                axes.set_xlabel("sublayer k")
    put_legend(canvas, panels[:1], {BEFORE: proxy(":")})
    return canvas, Figure(
        name="gradients",
        caption="Norm of the gradient by a branch's parameters, and its signal over its noise in one window "
        "(below 0 where a batch shows none), by sublayer of the deep plain networks: after training (lines) "
        "and before (dotted). Bands: range over panels.",
        alt="Gradient norm and gradient signal-to-noise ratio by sublayer",
    )


def _probes(study: PanelStudy, fits: Fits, cells: Sequence[CauseCell]) -> Made:
    def panel(axes: Axes, scheme: str, rows: pl.DataFrame) -> None:
        del scheme
        _band(axes, rows, "probe_share", "last", 0, "linear probe of the trunk")

    return _by_sublayer(
        study,
        fits,
        cells,
        panel,
        name="probes",
        measure="probe_share",
        ylabel="share of oracle",
        caption="What a ridge regression on the trunk of the last day finds of the planted signal on later "
        "days, by the depth at which the trunk is read; deep plain networks. Bands: range over panels.",
        alt="Linear probe's share of the oracle by sublayer",
    )


def _by_sublayer(
    study: PanelStudy,
    fits: Fits,
    cells: Sequence[CauseCell],
    panel: Callable[[Axes, str, pl.DataFrame], None],
    *,
    name: str,
    measure: str,
    ylabel: str,
    caption: str,
    alt: str,
    legend: Mapping[str, Any] | None = None,
) -> Made:
    """Draw one panel a cell, of the deep plain networks in which `measure` was watched."""
    shown = [(cell, _deep_rows(study, fits, cell.scheme, cell.tier)) for cell in cells]
    shown = [(cell, rows) for cell, rows in shown if (rows["measure"] == measure).any()]
    if not shown:
        return None
    lines = -(-len(shown) // 2)
    canvas, panels = new_canvas(lines, height=0.8 + 1.35 * lines, columns=min(2, len(shown)))
    for place, axes in enumerate(panels):
        if place >= len(shown):
            axes.set_visible(False)
            continue
        cell, rows = shown[place]
        panel(axes, cell.scheme, rows)
        whole_axis(axes)
        axes.set_title(cell.name)
        if place % 2 == 0:
            axes.set_ylabel(ylabel)
        if place >= len(shown) - 2:
            axes.set_xlabel("sublayer k")
    put_legend(canvas, panels[:1], legend)
    return canvas, Figure(name=name, caption=caption, alt=alt)


def _deep_rows(study: PanelStudy, fits: Fits, scheme: str, tier: str) -> pl.DataFrame:
    """Return the watched rows of the deep plain fits of a cell."""
    wanted = {"residual": scheme, "tier": tier, "depth": study.settings["deep"], "relief": "none"}
    name = next(arm.name for arm in study.arms() if arm.levels == wanted)
    return fits.rows.filter(pl.col("key").is_in(fits.of(name)["key"].to_list()))


def _by_layer(rows: pl.DataFrame, measure: str, moment: str) -> pl.DataFrame:
    """Return mean and range over panels by sublayer, at the first or last moment that was watched."""
    own = rows.filter(pl.col("measure") == measure).drop_nulls("value")
    if own["step"].drop_nulls().len():
        step = own["step"].min() if moment == "first" else own["step"].max()
        own = own.filter(pl.col("step") == step)
    value = pl.col("value")
    return own.group_by("layer").agg(mean=value.mean(), low=value.min(), high=value.max()).sort("layer")


def _band(
    axes: Axes,
    rows: pl.DataFrame,
    measure: str,
    moment: str,
    style: int,
    label: str | None,
    *,
    dotted: bool = False,
) -> None:
    own = _by_layer(rows, measure, moment)
    if not own.height:
        return
    colour = COLOURS[style]
    axes.fill_between(
        own["layer"], own["low"], own["high"], color=colour, alpha=0.08 if dotted else 0.18, linewidth=0
    )
    if dotted:
        axes.plot(own["layer"], own["mean"], color=colour, linestyle=":", linewidth=1.0)
    else:
        axes.plot(
            own["layer"],
            own["mean"],
            color=colour,
            marker=MARKERS[style],
            markersize=2.6,
            markevery=max(1, own.height // 8),
            label=label,
        )


def _point(
    axes: Axes, values: Sequence[float], place: float, style: int, label: str | None, *, hollow: bool = False
) -> None:
    mean, low, high = (PERCENT * number for number in interval(values))
    colour = COLOURS[style]
    if len(values) > 1:
        axes.plot([low, high], [place, place], color=colour, linewidth=1.1)
    axes.plot(
        [mean],
        [place],
        color=colour,
        marker=MARKERS[style],
        linestyle="",
        label=label,
        markerfacecolor="white" if hollow else colour,
    )


def _by_row(axes: Axes, names: Sequence[str]) -> None:
    axes.set_yticks(range(len(names)), list(names))
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")


def _told(values: Sequence[float]) -> str:
    mean, low, high = (PERCENT * number for number in interval(values))
    return f"{mean:.2f} [{low:.2f}, {high:.2f}]" if len(values) > 1 else f"{mean:.2f} on one panel"


def _panels(cells: Sequence[CauseCell]) -> str:
    numbers = sorted({len(cell.panels) for cell in cells})
    return counted(numbers[0], "panel") if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]} panels"

"""Figures of what happens inside the networks and while they train."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import polars as pl

from fints.study.canvas import (
    COLOURS,
    Facet,
    Figure,
    at,
    facets_of,
    line_style,
    log_axis,
    new_canvas,
    proxy,
    put_legend,
    told_of,
    whole_axis,
)
from fints.study.verdict import number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

    from fints.study.analysis import Analysis

__all__ = ["gradient", "similarity", "training", "update"]

SUMMED, NORMED = "null √(k/(k+1))", "null √½, normed trunk"
LAST_WEIGHTS = "Weights after the last step, where forecasts may come from an earlier one"


def similarity(analysis: Analysis) -> tuple[Canvas, Figure] | None:
    """Draw the adjacent cosine by sublayer beside its null curve and its value at random initialisation."""

    def panel(axes: Axes, facet: Facet) -> None:
        for arm, label, style in facet.arms:
            _profile_line(axes, analysis, arm, "adjacent_cosine", label, style)
            _profile_line(axes, analysis, arm, "adjacent_cosine_initial", None, style, dotted=True)
        for label, curve in nulls(analysis, facet).items():
            dashes = (0, (4, 2)) if label == SUMMED else (0, (1, 1.5, 4, 1.5))
            axes.plot(
                curve["layer"], curve["mean"], color="black", linestyle=dashes, linewidth=0.9, label=label
            )

    return _profile_figure(
        analysis,
        "similarity",
        "adjacent_cosine",
        panel,
        ylabel="cos(input, input before)",
        told=lambda arm: _end_text(analysis, arm, "adjacent_cosine", 3, initial=True),
        opening="Cosine between the inputs of the last sublayer and the one before",
        closing=(
            "Null: independent increments of equal length, on a trunk that sums them or is normed after "
            f"each, as the scheme has it. {LAST_WEIGHTS}; dotted: before training. High cosine alone is no "
            "finding. Bands: range over fits."
        ),
        alt="Cosine of neighbouring sublayer inputs by sublayer, with null curve and values before training",
    )


def gradient(analysis: Analysis) -> tuple[Canvas, Figure] | None:
    """Draw the gradient norm by sublayer on a logarithmic axis."""

    def panel(axes: Axes, facet: Facet) -> None:
        for arm, label, style in facet.arms:
            _profile_line(axes, analysis, arm, "gradient_norm", label, style)
            _profile_line(axes, analysis, arm, "gradient_norm_initial", None, style, dotted=True)
        log_axis(axes)

    return _profile_figure(
        analysis,
        "gradient",
        "gradient_norm",
        panel,
        ylabel="gradient norm",
        told=lambda arm: _ratio_text(analysis, arm, "gradient_norm"),
        opening="Gradient norm of the first sublayer as a multiple of the last one's",
        closing=(
            f"By the parameters of a branch. {LAST_WEIGHTS}; dotted: before training. Bands: range over fits."
        ),
        alt="Gradient norm by sublayer on a logarithmic axis",
    )


def update(analysis: Analysis) -> tuple[Canvas, Figure] | None:
    """Draw the relative update of the stream, and update-to-weight ratio, by sublayer."""
    arms = set(analysis.profiles.filter(pl.col("measure") == "relative_update")["arm"])
    facets = facets_of(analysis, arms)
    if not facets:
        return None
    canvas, panels = new_canvas(len(facets), height=0.9 + 1.4 * len(facets), columns=2)
    for row, facet in enumerate(facets):
        left, right = panels[2 * row], panels[2 * row + 1]
        for arm, label, style in facet.arms:
            _profile_line(left, analysis, arm, "relative_update", label, style)
            _profile_line(right, analysis, arm, "update_to_weight", None, style)
        for axes, title in ((left, "|output| / |stream|"), (right, "|Δ weights| / |weights|")):
            log_axis(axes)
            whole_axis(axes)
            axes.set_title(f"{facet.title}\n{title}" if facet.title else title)
        if row == len(facets) - 1:
            left.set_xlabel("sublayer")
            right.set_xlabel("sublayer")
    put_legend(canvas, panels)
    shown = told_of(facets)
    told = "; ".join(
        f"{label} {_ratio_text(analysis, arm, 'relative_update')}" for arm, label, _ in shown.arms
    )
    caption = (
        "What the first sublayer adds to the stream, relative to the stream, as a multiple of what the last "
        f"one adds{at(shown)}: {told}. {LAST_WEIGHTS}. "
        "Right: the last optimiser step relative to the weights. Bands: range over fits."
    )
    return canvas, Figure(
        name="update",
        caption=caption,
        alt="Relative update and update-to-weight ratio by sublayer, logarithmic axes",
    )


def training(analysis: Analysis) -> tuple[Canvas, Figure] | None:
    """Draw training and validation loss by step."""
    # One evaluation is a point, not a curve.
    if analysis.history["step"].n_unique() < 2:
        return None
    facets = facets_of(analysis, set(analysis.history["arm"]))
    canvas, panels = new_canvas(len(facets), height=0.9 + 1.5 * len(facets))
    for axes, facet in zip(panels, facets, strict=True):
        for arm, label, style in facet.arms:
            own = analysis.history.filter(pl.col("arm") == arm)
            every = max(1, own.height // 8)
            axes.plot(own["step"], own["train_loss"], label=label, markevery=every, **line_style(style))
            validation = own.drop_nulls("validation_loss")
            axes.plot(
                validation["step"],
                validation["validation_loss"],
                linestyle="--",
                markerfacecolor="white",
                markevery=max(1, validation.height // 8),
                **line_style(style),
            )
        axes.set_title(facet.title)
        axes.set_ylabel("loss")
        whole_axis(axes)
    panels[-1].set_xlabel("optimiser step")
    put_legend(canvas, panels, {"training": proxy("-"), "validation": proxy("--")})
    shown = told_of(facets)
    told = []
    for arm, label, _ in shown.arms:
        losses = analysis.history.filter(pl.col("arm") == arm).drop_nulls("validation_loss")
        if losses.height:
            best = losses.sort("validation_loss", "step").row(0, named=True)
            told.append(f"{label} {best['validation_loss']:#.4g} at step {best['step']}")
    caption = (
        f"Lowest mean validation loss{at(shown)}: {'; '.join(told)}." if told else "Training loss by step."
    ) + (
        " Mean over the finished final fits. Training loss is over every day of a window, validation loss "
        "over the decision day alone, on other dates: their levels do not compare."
    )
    return canvas, Figure(
        name="training", caption=caption, alt="Training and validation loss by optimiser step"
    )


def _profile_figure(
    analysis: Analysis,
    name: str,
    measure: str,
    panel: Callable[[Axes, Facet], None],
    *,
    ylabel: str,
    told: Callable[[str], str],
    opening: str,
    closing: str,
    alt: str,
) -> tuple[Canvas, Figure] | None:
    facets = facets_of(analysis, set(analysis.profiles.filter(pl.col("measure") == measure)["arm"]))
    if not facets:
        return None
    canvas, panels = new_canvas(len(facets), height=0.9 + 1.5 * len(facets))
    for axes, facet in zip(panels, facets, strict=True):
        panel(axes, facet)
        whole_axis(axes)
        axes.set_title(facet.title)
        axes.set_ylabel(ylabel)
    panels[-1].set_xlabel("sublayer k (even: attention, odd: feed-forward)")
    before = analysis.profiles.filter(pl.col("measure") == f"{measure}_initial").height
    put_legend(canvas, panels, {"before training": proxy(":")} if before else None)
    shown = told_of(facets)
    ends = "; ".join(f"{label} {told(arm)}" for arm, label, _ in shown.arms)
    return canvas, Figure(name=name, caption=f"{opening}{at(shown)}: {ends}. {closing}", alt=alt)


def nulls(analysis: Analysis, facet: Facet) -> dict[str, pl.DataFrame]:
    """Return the null curves of a facet's arms by label: a normed trunk has a flat one."""
    curves: dict[str, pl.DataFrame] = {}
    for arm, _, _ in facet.arms:
        curve = _measured(analysis, arm, "adjacent_cosine_null").filter(pl.col("layer") > 0)
        if curve.height:
            flat = curve.height > 1 and curve["mean"].max() == curve["mean"].min()
            curves.setdefault(NORMED if flat else SUMMED, curve)
    return curves


def _measured(analysis: Analysis, arm: str, measure: str) -> pl.DataFrame:
    return analysis.profiles.filter((pl.col("arm") == arm) & (pl.col("measure") == measure)).sort("layer")


def _profile_line(
    axes: Axes,
    analysis: Analysis,
    arm: str,
    measure: str,
    label: str | None,
    style: int,
    *,
    dotted: bool = False,
) -> None:
    own = _measured(analysis, arm, measure)
    if not own.height:
        return
    if dotted:
        axes.plot(
            own["layer"], own["mean"], color=COLOURS[style % len(COLOURS)], linestyle=":", linewidth=1.0
        )
        return
    axes.fill_between(
        own["layer"], own["low"], own["high"], color=COLOURS[style % len(COLOURS)], alpha=0.15, linewidth=0
    )
    axes.plot(own["layer"], own["mean"], label=label, markevery=max(1, own.height // 8), **line_style(style))


def _end_text(analysis: Analysis, arm: str, measure: str, digits: int, *, initial: bool) -> str:
    own = _measured(analysis, arm, measure)
    text = number(own["mean"][-1], digits)
    beside = []
    before = _measured(analysis, arm, f"{measure}_initial")
    null = _measured(analysis, arm, f"{measure}_null")
    if initial and before.height:
        beside.append(f"{number(before['mean'][-1], digits)} before training")
    if null.height:
        beside.append(f"null {number(null['mean'][-1], digits)}")
    return text + (f" ({', '.join(beside)})" if beside else "")


def _ratio_text(analysis: Analysis, arm: str, measure: str) -> str:
    own = _measured(analysis, arm, measure)["mean"]
    if len(own) < 2 or own[-1] <= 0:
        return "–"
    return f"{own[0] / own[-1]:#.2g}".rstrip(".") + " ×"

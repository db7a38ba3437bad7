"""The figures of a report: drawn at the width of a journal column, the same bytes every time.

Each figure is 89 mm wide with 7 pt type, so that it can be read in a column, on a page and on a
phone. Colours are those of Okabe and Ito, and no line is told from another by colour alone.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import polars as pl

from fints.study.verdict import number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

    from fints.study.analysis import Analysis

__all__ = ["Figure", "draw"]

WIDTH = 89 / 25.4
# Okabe, Ito (2008), without the yellow that vanishes on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
GREY = "#555555"
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
MOST_FACETS = 6
STYLE: dict[str, Any] = {
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.labelsize": 7,
    "axes.linewidth": 0.6,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 7,
    "axes.unicode_minus": True,
    "figure.dpi": 100,
    "font.family": ["DejaVu Sans"],
    "font.size": 7,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.4,
    "legend.fontsize": 6.5,
    "legend.frameon": False,
    "lines.linewidth": 1.1,
    "lines.markersize": 3.5,
    "savefig.dpi": 220,
    "svg.fonttype": "path",
    "svg.hashsalt": "fints",
    "xtick.labelsize": 6.5,
    "ytick.labelsize": 6.5,
}


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One drawn figure: files `name`.svg and `name`.png, its finding, and what it shows in words."""

    name: str
    caption: str
    alt: str


@dataclass(frozen=True, kw_only=True)
class Facet:
    """One panel: arms that differ in the compared factor only, each with its level and its style number."""

    title: str
    arms: tuple[tuple[str, str, int], ...]


def draw(analysis: Analysis, folder: Path) -> list[Figure]:
    """Draw every figure that the study's data allow into `folder`; return them in reading order."""
    import matplotlib

    folder.mkdir(parents=True, exist_ok=True)
    makers: Sequence[Callable[[Analysis], tuple[Canvas, Figure] | None]] = (
        _outcome,
        _contrasts,
        _oracle,
        _similarity,
        _gradient,
        _update,
        _training,
        _tuning,
    )
    drawn = []
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        for name, value in STYLE.items():
            matplotlib.rcParams[name] = value  # type: ignore[index]
        for maker in makers:
            made = maker(analysis)
            if made is None:
                continue
            canvas, figure = made
            canvas.savefig(
                folder / f"{figure.name}.svg", format="svg", metadata={"Date": None, "Creator": "fints"}
            )
            # One layout for both files, worked out for the first.
            canvas.set_layout_engine("none")
            canvas.savefig(folder / f"{figure.name}.png", format="png", metadata={"Software": None})
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
    canvas, (axes,) = _canvas(1, height=2.5)
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
    _legend(canvas, axes)
    digits = _digits(analysis)
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
        f"{above or 'None'} of {len(lows)} arms {'has' if above == 1 else 'have'} a 95 % interval "
        "above zero. "
        f"{_capital(measure.label)}{unit} by {axis}: {'; '.join(told)}. "
        f"Bars: 95 % intervals over {_folds(analysis)}, seeds clustered in their fold. The arms share their "
        "test days, so that a difference between two is known better than either: see the contrasts."
    )
    return canvas, Figure(
        name="outcome",
        caption=caption,
        alt=f"{measure.label} against {axis}, one line a level, with intervals",
    )


def _outcome_by_arm(analysis: Analysis, rows: dict[str, Any], label: str) -> tuple[Canvas, Figure]:
    outcome, measure = analysis.spec["outcome"], analysis.measure
    known = {arm: row for arm, row in rows.items() if row[outcome] is not None}
    canvas, (axes,) = _canvas(1, height=0.9 + 0.28 * len(known))
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
    digits = _digits(analysis)
    best = max(known, key=lambda arm: known[arm][outcome], default=None)
    caption = f"{_capital(measure.label)} by arm, 95 % intervals over {_folds(analysis)}."
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
    canvas, (axes,) = _canvas(1, height=0.75 + 0.34 * len(rows))
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
    _legend(canvas, axes)
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
        f"95 % intervals over {_folds(analysis)}, not adjusted for their number; "
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
    facets = _facets(analysis, set(analysis.oracle["arm"]))
    canvas, panels = _canvas(len(facets), height=0.9 + 1.55 * len(facets))
    for axes, facet in zip(panels, facets, strict=True):
        for arm, label, style in facet.arms:
            own = analysis.oracle.filter(pl.col("arm") == arm)
            axes.plot(own["oracle"], own["forecast"], label=label, **_line(style), markevery=2)
        signal = analysis.oracle["oracle"].to_numpy()
        ends = [float(signal.min()), float(signal.max())]
        axes.plot(ends, ends, color="black", linestyle="--", linewidth=0.8, label="the signal itself")
        axes.axhline(0, color=GREY, linewidth=0.6)
        axes.set_title(facet.title)
        axes.set_ylabel("mean forecast")
    panels[-1].set_xlabel("planted signal, mean of each twentieth (target units)")
    _legend(canvas, panels[0])
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


def _similarity(analysis: Analysis) -> tuple[Canvas, Figure] | None:
    """Draw the adjacent cosine by sublayer beside its null curve and its value at random initialisation."""

    def panel(axes: Axes, facet: Facet) -> None:
        for arm, label, style in facet.arms:
            _profile_line(axes, analysis, arm, "adjacent_cosine", label, style)
            _profile_line(axes, analysis, arm, "adjacent_cosine_initial", None, style, dotted=True)
        for label, curve in _nulls(analysis, facet).items():
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


def _gradient(analysis: Analysis) -> tuple[Canvas, Figure] | None:
    """Draw the gradient norm by sublayer on a logarithmic axis."""

    def panel(axes: Axes, facet: Facet) -> None:
        for arm, label, style in facet.arms:
            _profile_line(axes, analysis, arm, "gradient_norm", label, style)
            _profile_line(axes, analysis, arm, "gradient_norm_initial", None, style, dotted=True)
        _log_axis(axes)

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


def _update(analysis: Analysis) -> tuple[Canvas, Figure] | None:
    """Draw the relative update of the stream, and update-to-weight ratio, by sublayer."""
    arms = set(analysis.profiles.filter(pl.col("measure") == "relative_update")["arm"])
    facets = _facets(analysis, arms)
    if not facets:
        return None
    canvas, panels = _canvas(len(facets), height=0.9 + 1.4 * len(facets), columns=2)
    for row, facet in enumerate(facets):
        left, right = panels[2 * row], panels[2 * row + 1]
        for arm, label, style in facet.arms:
            _profile_line(left, analysis, arm, "relative_update", label, style)
            _profile_line(right, analysis, arm, "update_to_weight", None, style)
        for axes, title in ((left, "|output| / |stream|"), (right, "|Δ weights| / |weights|")):
            _log_axis(axes)
            _whole_axis(axes)
            axes.set_title(f"{facet.title}\n{title}" if facet.title else title)
        if row == len(facets) - 1:
            left.set_xlabel("sublayer")
            right.set_xlabel("sublayer")
    _legend(canvas, panels[0])
    deepest = facets[-1]
    told = "; ".join(
        f"{label} {_ratio_text(analysis, arm, 'relative_update')}" for arm, label, _ in deepest.arms
    )
    caption = (
        "What the first sublayer adds to the stream, relative to the stream, as a multiple of what the last "
        f"one adds{_at(deepest)}: {told}. {LAST_WEIGHTS}. "
        "Right: the last optimiser step relative to the weights. Bands: range over fits."
    )
    return canvas, Figure(
        name="update",
        caption=caption,
        alt="Relative update and update-to-weight ratio by sublayer, logarithmic axes",
    )


def _training(analysis: Analysis) -> tuple[Canvas, Figure] | None:
    """Draw training and validation loss by step."""
    # One evaluation is a point, not a curve.
    if analysis.history["step"].n_unique() < 2:
        return None
    facets = _facets(analysis, set(analysis.history["arm"]))
    canvas, panels = _canvas(len(facets), height=0.9 + 1.5 * len(facets))
    for axes, facet in zip(panels, facets, strict=True):
        for arm, label, style in facet.arms:
            own = analysis.history.filter(pl.col("arm") == arm)
            every = max(1, own.height // 8)
            axes.plot(own["step"], own["train_loss"], label=label, markevery=every, **_line(style))
            validation = own.drop_nulls("validation_loss")
            axes.plot(
                validation["step"],
                validation["validation_loss"],
                linestyle="--",
                markerfacecolor="white",
                markevery=max(1, validation.height // 8),
                **_line(style),
            )
        axes.set_title(facet.title)
        axes.set_ylabel("loss")
        _whole_axis(axes)
    panels[-1].set_xlabel("optimiser step")
    handles, labels = _handles(panels[0])
    handles += [_proxy("-"), _proxy("--")]
    _legend(canvas, panels[0], handles=handles, labels=[*labels, "training", "validation"])
    deepest = facets[-1]
    told = []
    for arm, label, _ in deepest.arms:
        losses = analysis.history.filter(pl.col("arm") == arm).drop_nulls("validation_loss")
        if losses.height:
            best = losses.sort("validation_loss", "step").row(0, named=True)
            told.append(f"{label} {best['validation_loss']:#.4g} at step {best['step']}")
    caption = (
        f"Lowest mean validation loss{_at(deepest)}: {'; '.join(told)}." if told else "Training loss by step."
    ) + (
        " Mean over the finished final fits. Training loss is over every day of a window, validation loss "
        "over the decision day alone, on other dates: their levels do not compare."
    )
    return canvas, Figure(
        name="training", caption=caption, alt="Training and validation loss by optimiser step"
    )


def _tuning(analysis: Analysis) -> tuple[Canvas, Figure] | None:
    """Draw validation loss against the tuned field, if it is one number."""
    space = analysis.spec.get("tuning", {}).get("space", {})
    fields = [name for name, values in space.items() if len(values) > 1]
    if len(fields) != 1 or not all(isinstance(value, int | float) for value in space[fields[0]]):
        return None
    field = fields[0]
    tried = analysis.tried.drop_nulls("validation_loss") if analysis.tried.height else analysis.tried
    facets = _facets(analysis, set(tried["arm"]) if tried.height else set())
    if not facets:
        return None
    canvas, panels = _canvas(len(facets), height=0.9 + 1.4 * len(facets))
    name = field.rsplit(".", 1)[-1].replace("_", " ")
    for axes, facet in zip(panels, facets, strict=True):
        for arm, label, style in facet.arms:
            own = tried.filter(pl.col("arm") == arm).sort(field)
            axes.plot(own[field], own["validation_loss"], label=label, **_line(style))
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
    _legend(canvas, panels[0])
    edges = (min(space[field]), max(space[field]))
    at_edge = [row["arm"] for row in tried.iter_rows(named=True) if row["chosen"] and row[field] in edges]
    caption = (
        f"Every arm tried the same {len(space[field])} values of {name}; rings mark the chosen one. "
        + (
            f"At the edge of the grid, where a better value may lie outside: {', '.join(at_edge)}."
            if at_edge
            else "No arm chose a value at the edge of the grid."
        )
    )
    return canvas, Figure(
        name="tuning", caption=caption, alt=f"Validation loss against {name}, one line an arm"
    )


SUMMED, NORMED = "null √(k/(k+1))", "null √½, normed trunk"
LAST_WEIGHTS = "Weights after the last step, where forecasts may come from an earlier one"


def _nulls(analysis: Analysis, facet: Facet) -> dict[str, pl.DataFrame]:
    """Return the null curves of a facet's arms by label: a normed trunk has a flat one."""
    curves: dict[str, pl.DataFrame] = {}
    for arm, _, _ in facet.arms:
        curve = _measured(analysis, arm, "adjacent_cosine_null").filter(pl.col("layer") > 0)
        if curve.height:
            flat = curve.height > 1 and curve["mean"].max() == curve["mean"].min()
            curves.setdefault(NORMED if flat else SUMMED, curve)
    return curves


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
    facets = _facets(analysis, set(analysis.profiles.filter(pl.col("measure") == measure)["arm"]))
    if not facets:
        return None
    canvas, panels = _canvas(len(facets), height=0.9 + 1.5 * len(facets))
    for axes, facet in zip(panels, facets, strict=True):
        panel(axes, facet)
        _whole_axis(axes)
        axes.set_title(facet.title)
        axes.set_ylabel(ylabel)
    panels[-1].set_xlabel("sublayer k (even: attention, odd: feed-forward)")
    handles, labels = _handles(panels[0])
    if analysis.profiles.filter(pl.col("measure") == f"{measure}_initial").height:
        handles, labels = [*handles, _proxy(":")], [*labels, "before training"]
    _legend(canvas, panels[0], handles=handles, labels=labels)
    deepest = facets[-1]
    ends = "; ".join(f"{label} {told(arm)}" for arm, label, _ in deepest.arms)
    return canvas, Figure(name=name, caption=f"{opening}{_at(deepest)}: {ends}. {closing}", alt=alt)


def _facets(analysis: Analysis, available: set[str]) -> list[Facet]:
    """Group arms into panels: one a combination of the factors other than the compared one."""
    compared = analysis.contrasts["factor"][0]
    others = [name for name in analysis.factors if name != compared]
    facets = []
    for combination in itertools.product(*(analysis.factors[name] for name in others)):
        levels = dict(zip(others, combination, strict=True))
        arms = tuple(
            (arm["name"], arm["levels"][compared], analysis.factors[compared].index(arm["levels"][compared]))
            for arm in analysis.spec["arms"]
            if arm["name"] in available
            and all(arm["levels"][name] == level for name, level in levels.items())
        )
        if arms:
            facets.append(
                Facet(title=", ".join(f"{name} {level}" for name, level in levels.items()), arms=arms)
            )
    return facets[-MOST_FACETS:]


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
    axes.plot(x, y, label=label, **_line(style))
    for place, first, last in zip(x, low, high, strict=True):
        if first is not None and last is not None:
            axes.plot([place, place], [first * factor, last * factor], color=COLOURS[style % len(COLOURS)])


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
    axes.plot(own["layer"], own["mean"], label=label, markevery=max(1, own.height // 8), **_line(style))


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


def _log_axis(axes: Axes) -> None:
    """Set a logarithmic y axis whose ticks are readable however few decades it spans."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.set_yscale("log")
    low, high = axes.get_ylim()
    decades = math.log10(high / low) if low > 0 else 1.0
    few = (1.0, 2.0, 5.0) if decades > 1.2 else (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0)
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0,) if decades > 2.5 else few))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _tick(value)))


def _tick(value: float) -> str:
    """Return a number as a person writes it, e.g. 0.02 or 3·10⁻⁸."""
    if 1e-3 <= value < 1e4:
        return f"{value:.3g}"
    mantissa, exponent = f"{value:.2e}".split("e")
    power = "10" + str(int(exponent)).translate(SUPERSCRIPTS)
    return power if float(mantissa) == 1 else f"{float(mantissa):g}·{power}"


def _whole_axis(axes: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8, steps=[1, 2, 5, 10]))


def _line(style: int) -> dict[str, Any]:
    """Return colour, marker and width; later lines are thinner, so that one on another hides none."""
    return {
        "color": COLOURS[style % len(COLOURS)],
        "marker": MARKERS[style % len(MARKERS)],
        "linewidth": max(0.8, 2.0 - 0.5 * style),
        "markersize": max(2.6, 4.6 - 0.8 * style),
    }


def _proxy(linestyle: Literal["-", "--", ":"]) -> Any:
    from matplotlib.lines import Line2D

    return Line2D([], [], color=GREY, linestyle=linestyle)


def _canvas(rows: int, *, height: float, columns: int = 1) -> tuple[Canvas, list[Axes]]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Canvas

    canvas = Canvas(figsize=(WIDTH, height), layout="constrained")
    FigureCanvasAgg(canvas)
    panels = canvas.subplots(rows, columns, squeeze=False)
    return canvas, [axes for row in panels for axes in row]


def _handles(axes: Axes) -> tuple[list[Any], list[str]]:
    handles, labels = axes.get_legend_handles_labels()
    return list(handles), list(labels)


def _legend(
    canvas: Canvas, axes: Axes, *, handles: list[Any] | None = None, labels: list[str] | None = None
) -> None:
    """Put the legend above the panels, in as many columns as the longest label allows."""
    if handles is None or labels is None:
        handles, labels = _handles(axes)
    longest = max(map(len, labels), default=1)
    columns = max(1, min(len(labels), 62 // (longest + 6)))
    canvas.legend(
        handles, labels, loc="outside upper left", ncols=columns, handlelength=2.2, columnspacing=1.2
    )


def _two_lines(contrast: str) -> str:
    """Break a contrast at its minus, so that long names leave room for the picture."""
    first, minus, second = contrast.partition(" − ")
    return f"{first}\n− {second}" if minus else contrast


def _at(facet: Facet) -> str:
    return f" at {facet.title}" if facet.title else ""


def _digits(analysis: Analysis) -> int:
    return analysis.measure.decimals(analysis.spec["smallest_effect"])


def _folds(analysis: Analysis) -> str:
    folds = len(analysis.spec["folds"])
    return f"{folds} fold" + ("" if folds == 1 else "s")


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]

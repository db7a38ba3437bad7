"""What the figures of a report share: style, panels, axes, legends and words.

Each figure is 89 mm wide with 7 pt type, so that it can be read in a column, on a page and on a
phone. Colours are those of Okabe and Ito, and no line is told from another by colour alone.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from fints.words import counted

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

    from fints.study.analysis import Analysis

__all__ = [
    "COLOURS",
    "GREY",
    "STYLE",
    "Facet",
    "Figure",
    "at",
    "capital",
    "digits_of",
    "draw_all",
    "facets_of",
    "folds_text",
    "line_style",
    "log_axis",
    "new_canvas",
    "proxy",
    "put_legend",
    "styled",
    "told_of",
    "whole_axis",
    "write_figure",
]

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
    """One panel: arms that differ in the compared factor only, each with its level and its style number.

    `primary` where the primary contrast lies.
    """

    title: str
    arms: tuple[tuple[str, str, int], ...]
    primary: bool = False


@contextmanager
def styled() -> Iterator[None]:
    """Draw with `STYLE` inside, whatever the settings outside."""
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        for name, value in STYLE.items():
            # matplotlib's stubs allow only literal names.
            matplotlib.rcParams[name] = value  # type: ignore[index]
        yield


def facets_of(analysis: Analysis, available: set[str]) -> list[Facet]:
    """Group arms into panels: one a combination of the factors other than the compared one.

    Of more than fit into a figure the last are left, and the one of the primary contrast.
    """
    compared = analysis.contrasts["factor"][0]
    within = analysis.spec["primary"]["within"]
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
            title = ", ".join(f"{name} {level}" for name, level in levels.items())
            primary = bool(within) and within.items() <= levels.items()
            facets.append(Facet(title=title, arms=arms, primary=primary))
    # Sorting keeps the order of what is alike.
    kept = sorted(facets, key=lambda facet: facet.primary)[-MOST_FACETS:]
    return [facet for facet in facets if facet in kept]


def told_of(facets: Sequence[Facet]) -> Facet:
    """Return the panel that a caption tells of: that of the primary contrast, or else the last."""
    return next((facet for facet in reversed(facets) if facet.primary), facets[-1])


def new_canvas(rows: int, *, height: float, columns: int = 1) -> tuple[Canvas, list[Axes]]:
    """Return an empty figure of one column's width and its panels, row by row."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Canvas

    canvas = Canvas(figsize=(WIDTH, height), layout="constrained")
    FigureCanvasAgg(canvas)
    panels = canvas.subplots(rows, columns, squeeze=False)
    return canvas, [axes for row in panels for axes in row]


def write_figure(canvas: Canvas, path: Path) -> None:
    """Write `path`.svg and `path`.png, the same bytes every time.

    Layout is worked out once, at the size of type of the SVG file, and each file is then drawn once:
    ``savefig`` draws everything twice for each.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    vector = FigureCanvasSVG(canvas)
    canvas.dpi = 72
    engine = canvas.get_layout_engine()
    if engine is not None:
        engine.execute(canvas)
    canvas.set_layout_engine("none")
    # Of an image inside the SVG file; writing it sets 72 again.
    canvas.dpi = STYLE["savefig.dpi"]
    vector.print_svg(path.with_name(f"{path.name}.svg"), metadata={"Date": None, "Creator": "fints"})
    canvas.dpi = STYLE["savefig.dpi"]
    FigureCanvasAgg(canvas).print_png(path.with_name(f"{path.name}.png"), metadata={"Software": None})


def draw_all(makers: Sequence[Callable[[], tuple[Canvas, Figure] | None]], folder: Path) -> list[Figure]:
    """Draw what each maker makes into `folder` as SVG and PNG; None is what the fits do not allow."""
    drawn = []
    with styled():
        for maker in makers:
            made = maker()
            if made is None:
                continue
            canvas, figure = made
            write_figure(canvas, folder / figure.name)
            drawn.append(figure)
    return drawn


def put_legend(canvas: Canvas, panels: Sequence[Axes], more: Mapping[str, Any] | None = None) -> None:
    """Put one legend above the panels, in as many columns as the longest label allows.

    A label that several panels have appears once; `more` adds handles by label.
    """
    entries: dict[str, Any] = {}
    for axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    entries |= more or {}
    longest = max(map(len, entries), default=1)
    canvas.legend(
        list(entries.values()),
        list(entries),
        loc="outside upper left",
        ncols=max(1, min(len(entries), 62 // (longest + 6))),
        handlelength=2.2,
        columnspacing=1.2,
    )


def proxy(linestyle: Literal["-", "--", ":"]) -> Any:
    """Return a grey line that stands for a line style in a legend."""
    from matplotlib.lines import Line2D

    return Line2D([], [], color=GREY, linestyle=linestyle)


def line_style(style: int) -> dict[str, Any]:
    """Return colour, marker and width; later lines are thinner, so that one on another hides none."""
    return {
        "color": COLOURS[style % len(COLOURS)],
        "marker": MARKERS[style % len(MARKERS)],
        "linewidth": max(0.8, 2.0 - 0.5 * style),
        "markersize": max(2.6, 4.6 - 0.8 * style),
    }


def whole_axis(axes: Axes) -> None:
    """Let the ticks of the x axis be whole numbers, few and round."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8, steps=[1, 2, 5, 10]))


def log_axis(axes: Axes) -> None:
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


def at(facet: Facet) -> str:
    """Return the words that say which panel a caption is about."""
    return f" at {facet.title}" if facet.title else ""


def capital(text: str) -> str:
    """Return the text with a capital first letter, the rest as it is."""
    return text[:1].upper() + text[1:]


def digits_of(analysis: Analysis) -> int:
    """Return the decimals that show one digit beyond the smallest effect."""
    return analysis.measure.decimals(analysis.spec["smallest_effect"])


def folds_text(analysis: Analysis) -> str:
    """Return how many folds there are, in words."""
    return counted(len(analysis.spec["folds"]), "fold")

"""One picture of a judged forecast: when it was right, how large it should be, what it would have earned."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from fints.evaluation.date_tests import date_means
from fints.evaluation.judge import Judgement
from fints.evaluation.metrics import ic_series
from fints.evaluation.rows import known_rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw"]

# Okabe, Ito (2008).
BLUE, RED, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#555555"
STYLE: dict[str, Any] = {
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.labelsize": 8,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 8.5,
    "font.family": ["DejaVu Sans"],
    "font.size": 8,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.4,
    "legend.fontsize": 7.5,
    "legend.frameon": False,
    "lines.linewidth": 1.1,
    "savefig.dpi": 200,
    "svg.fonttype": "path",
    "svg.hashsalt": "fints",
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
}
BINS = 10


def draw(judged: Judgement, frame: pl.DataFrame, path: Path) -> None:
    """Draw a judged frame to a .png or .svg file.

    Four panels: the gain in squared error over both benchmarks, summed over dates (rising where the forecast
    is better); the mean rank IC, summed; the mean outcome by tenths of the forecast, with 95 % intervals
    over dates; the equity of the portfolios after costs.

    Raises
    ------
    ValueError
        If the file has another ending.
    """
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    if path.suffix.lower() not in (".png", ".svg"):
        raise ValueError(f"a figure is .png or .svg; got {path.name}.")
    rows = known_rows(frame)
    # matplotlib's stubs allow only literal names.
    with mpl.rc_context(STYLE):  # type: ignore[arg-type]
        canvas = Figure(figsize=(7.2, 5.2), layout="constrained")
        FigureCanvasAgg(canvas)
        panels = canvas.subplots(2, 2)
        _gain(panels[0, 0], rows, in_units="r2_zero" in judged.estimates)
        _rank_ic(panels[0, 1], rows)
        _bins(panels[1, 0], rows, in_units="r2_zero" in judged.estimates)
        _equity(panels[1, 1], judged)
        canvas.savefig(path, metadata={"Date": None} if path.suffix.lower() == ".svg" else None)


def _gain(axes: Axes, rows: pl.DataFrame, *, in_units: bool) -> None:
    axes.set_title("Squared error saved (sum, % of all)")
    if not in_units:
        _say(axes, "not drawn: the forecast is a score,\nnot in units of the outcome")
        return
    dates = rows["date"].unique().sort().to_numpy()
    error = (pl.col("realised") - pl.col("forecast")) ** 2
    shapes = {"zero": (pl.lit(0.0), BLUE, "-")}
    if "prevailing_mean" in rows.columns:
        shapes["prevailing mean"] = (pl.col("prevailing_mean").fill_null(0.0), RED, "--")
    for name, (base, colour, line) in shapes.items():
        before = (pl.col("realised") - base) ** 2
        gain = date_means(rows, before - error)
        total = date_means(rows, before).sum()
        axes.plot(dates, 100 * np.cumsum(gain) / total, line, color=colour, label=f"against {name}")
    axes.axhline(0, color=GREY, linewidth=0.6)
    axes.legend(loc="best")
    _dated(axes)


def _rank_ic(axes: Axes, rows: pl.DataFrame) -> None:
    daily = ic_series(rows).drop_nulls("rank_ic")
    mean = f" (mean {daily['rank_ic'].to_numpy().mean():.3f})".replace("-", "−") if daily.height else ""
    axes.set_title(f"Rank IC, summed over dates{mean}")
    if not daily.height:
        _say(axes, "no date has an IC")
        return
    total = np.cumsum(daily["rank_ic"].to_numpy())
    axes.plot(daily["date"].to_numpy(), total, color=BLUE)
    axes.axhline(0, color=GREY, linewidth=0.6)
    _dated(axes)


def _bins(axes: Axes, rows: pl.DataFrame, *, in_units: bool) -> None:
    axes.set_title("Mean outcome by tenth of the forecast (%)")
    forecast = rows["forecast"].to_numpy()
    edges = np.quantile(forecast, np.linspace(0, 1, BINS + 1)[1:-1])
    binned = rows.with_columns(bin=pl.Series(np.searchsorted(edges, forecast, side="right")))
    x, y, half = [], [], []
    for (_,), part in sorted(binned.partition_by("bin", as_dict=True).items()):
        # Dates are the independent pieces, not rows: the error is of the ratio of sums over dates.
        sums = part.group_by("date").agg(pl.col("realised").sum(), pl.len()).sort("date")
        mean = float(part["realised"].to_numpy().mean())
        left = sums["realised"].to_numpy() - mean * sums["len"].to_numpy()
        x.append(float(part["forecast"].to_numpy().mean()))
        y.append(mean)
        half.append(1.96 * float(np.sqrt((left**2).sum())) / part.height)
    scale = 100 if in_units else 1
    axes.errorbar(
        scale * np.array(x), 100 * np.array(y), 100 * np.array(half), fmt="o", color=BLUE, markersize=3.5
    )
    if in_units and len(x) > 1:
        ends = scale * np.array([min(x), max(x)])
        axes.plot(ends, ends, "--", color=GREY, label="forecast = outcome")
        axes.legend(loc="upper left")
    axes.axhline(0, color=GREY, linewidth=0.6)
    axes.set_xlabel("mean forecast (%)" if in_units else "mean score")


def _equity(axes: Axes, judged: Judgement) -> None:
    if not judged.backtests:
        axes.set_title("Portfolios")
        _say(axes, "not drawn: no prices were given")
        return
    first = judged.backtests[0]
    axes.set_title(
        f"Equity, {first.execution.replace('_', ' ')} (net of {first.cost_bps:g} bp, dotted: gross)"
    )
    for one, colour in zip(judged.backtests, (BLUE, RED, GREEN), strict=False):
        dates = one.dates["date"].to_numpy()
        for name, line in (("net", "-"), ("gross", ":")):
            equity = np.cumprod(1 + one.dates[name].to_numpy())
            label = one.kind.replace("_", " ") if name == "net" else None
            axes.plot(dates, equity, line, color=colour, label=label)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("{x:g}")
    axes.axhline(1, color=GREY, linewidth=0.6)
    axes.legend(loc="best")
    _dated(axes)


def _dated(axes: Axes) -> None:
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    locator = AutoDateLocator(minticks=3, maxticks=6)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))


def _say(axes: Axes, text: str) -> None:
    axes.set_xticks([])
    axes.set_yticks([])
    axes.grid(visible=False)
    axes.text(0.5, 0.5, text, ha="center", va="center", color=GREY, transform=axes.transAxes)

"""The health report as a picture: who traded when, how far prices move, where they rest, what repeats.

Colours are those of Okabe and Ito, told apart in any kind of colour vision; marks differ in shape as well.
"""

from __future__ import annotations

import math
import os
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from fints.data.check import Report
from fints.data.findings import traded_moves
from fints.data.health import COARSE_TICK, HUNDREDFOLD, JUMP, decimals, split_suspects
from fints.data.health_dates import autocorrelation
from fints.data.panel import Panel
from fints.words import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw_health"]

BLUE, ORANGE, GREEN, RED, GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#666666"
# More assets than this are shown as counts, since their names could not be read.
SHOWN_ASSETS = 40
BINS = 120
LAGS = 10


def draw_health(report: Report, path: str | os.PathLike[str]) -> Path:
    """Draw a report on a panel and return the file.

    Four fields: (a) on which dates each asset has a price, with large moves marked; (b) the moves, on a
    logarithmic count; (c) the share of zero moves by asset, and of days on which the last decimal is coarse;
    (d) the pooled autocorrelation of moves with a band of two standard errors by dates.

    Raises
    ------
    ValueError
        If the report is not on a panel, or the path does not end in .png, .svg or .pdf.
    """
    if report.panel is None:
        raise ValueError(f"{report.subject}: is no panel, so nothing is drawn. Read the errors first.")
    path = Path(path)
    if path.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise ValueError(f"a figure's file must end in .png, .svg or .pdf; got {path.name!r}.")
    if not path.parent.is_dir():
        raise ValueError(f"{path.parent}: there is no such folder for the figure.")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panel, traded = report.panel, traded_moves(report.panel)
    warned = [finding.message for finding in report.findings if finding.level == "warning"]
    wrap = textwrap.TextWrapper(150, initial_indent="–  ", subsequent_indent="    ")
    lines = [line for text in warned for line in wrap.wrap(text)]
    shown = lines[:14] + (["..."] if len(lines) > 14 else [])
    below = 0.6 + 0.17 * len(shown)
    figure = Figure(figsize=(11, 6.4 + below), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    top, bottom = np.asarray(figure.subfigures(2, 1, height_ratios=(6.4, below))).tolist()
    axes = top.subplots(2, 2, width_ratios=(3, 2))
    _coverage(axes[0, 0], panel, traded)
    _moves(axes[0, 1], traded)
    _stillness(axes[1, 0], panel, traded)
    _memory(axes[1, 1], traded)
    for axis in axes.flat:
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(labelsize=8)
    summary = report.summary
    top.suptitle(
        f"{Path(report.subject).name}: {counted(summary['assets'], 'asset')}, "
        f"{counted(summary['dates'], 'date')}, "
        f"{summary['span']}",
        fontsize=12,
        x=0.01,
        ha="left",
    )
    head = f"{counted(len(warned), 'warning')}" + ("" if warned else ": nothing looks wrong")
    bottom.text(0.01, 1.0, head, fontsize=10, fontweight="bold", va="top", color=RED if warned else GREEN)
    bottom.text(0.01, 1 - 0.28 / below, "\n".join(shown), fontsize=8, va="top", linespacing=1.35)
    # No date or version inside: the same panel draws the same bytes.
    plain = {".png": {"Software": None}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
    figure.savefig(path, metadata=plain[path.suffix.lower()])
    return path


def _coverage(axis: Axes, panel: Panel, traded: pl.DataFrame) -> None:
    dates = panel.dates
    place = pl.DataFrame({"date": dates, "place": np.arange(len(dates))})
    days = dates.to_numpy()
    first = pl.DataFrame({"asset": panel.assets}).join(
        traded.group_by("asset").agg(pl.col("date").min()), on="asset", how="left"
    )
    order = first.sort("date", "asset", nulls_last=True)["asset"].to_list()
    large = traded.filter(pl.col("move").abs() > JUMP)
    splits = split_suspects(traded)
    axis.set_title("(a) prices by date", loc="left", fontsize=9)
    if len(order) > SHOWN_ASSETS:
        counts = place.join(traded.group_by("date").len(), on="date", how="left", maintain_order="left")
        number = counts["len"].fill_null(0).to_numpy()
        axis.fill_between(days, number, step="mid", color=BLUE, alpha=0.6, lw=0)
        axis.set_ylabel("assets with a price", fontsize=8)
        axis.set_ylim(0, len(order) * 1.05)
        if large.height:
            by_date = large.group_by("date").len().sort("date")
            axis.plot(by_date["date"].to_numpy(), by_date["len"].to_numpy(), "x", color=RED, ms=5)
    else:
        rows = pl.DataFrame({"asset": order, "row": np.arange(len(order))})
        spot = traded.join(place, on="date").join(rows, on="asset")
        runs = (
            spot.sort("asset", "date")
            .with_columns(run=(pl.col("place") - pl.int_range(pl.len()).over("asset")))
            .group_by("row", "run")
            .agg(pl.col("date").min().alias("start"), pl.col("date").max().alias("stop"))
            .sort("row", "start")
        )
        step = np.timedelta64(1, "D")
        widths = runs["stop"].to_numpy() - runs["start"].to_numpy() + step
        axis.barh(runs["row"].to_numpy(), widths, left=runs["start"].to_numpy(), height=0.7, color=BLUE, lw=0)
        for found, mark, colour in ((large, "x", RED), (splits, "D", ORANGE)):
            at = found.join(rows, on="asset")
            axis.plot(at["date"].to_numpy(), at["row"].to_numpy(), mark, color=colour, ms=6, mew=2)
        size = 7 if len(order) < 25 else 5
        axis.set_yticks(range(len(order)), [name[:14] for name in order], fontsize=size)
        axis.invert_yaxis()
    if large.height:
        axis.plot([], [], "x", color=RED, label="move beyond a factor of 5")
    if splits.height and len(order) <= SHOWN_ASSETS:
        axis.plot([], [], "D", color=ORANGE, label="ratio of a split")
    if axis.get_legend_handles_labels()[0]:
        axis.legend(fontsize=7, loc="lower right", bbox_to_anchor=(1, 0.98), ncols=2, frameon=False)


def _moves(axis: Axes, traded: pl.DataFrame) -> None:
    moves = traded["move"].drop_nulls().to_numpy()
    axis.set_title("(b) log moves between prices", loc="left", fontsize=9)
    if not len(moves):
        axis.text(0.5, 0.5, "no two prices of one asset", ha="center", fontsize=8, transform=axis.transAxes)
        return
    reach = max(float(np.abs(moves).max()), 0.01) * 1.05
    axis.hist(moves, bins=np.linspace(-reach, reach, BINS + 1).tolist(), color=BLUE, log=True)
    for size, colour, name, style in (
        (math.log(2), GREEN, "factor 2", ":"),
        (JUMP, ORANGE, "factor 5", "--"),
        (sum(HUNDREDFOLD) / 2, RED, "factor 100", "-."),
    ):
        if size < reach:
            axis.axvline(size, color=colour, ls=style, lw=1, label=name)
            axis.axvline(-size, color=colour, ls=style, lw=1)
    if axis.get_legend_handles_labels()[0]:
        axis.legend(fontsize=7)
    axis.set_ylabel("number", fontsize=8)


def _stillness(axis: Axes, panel: Panel, traded: pl.DataFrame) -> None:
    still = (
        traded.filter(pl.col("move").is_not_null())
        .group_by("asset")
        .agg((pl.col("move") == 0).mean().alias("zero"))
    )
    coarse = []
    for (asset,), prices in traded.group_by("asset"):
        places = decimals(prices["price"].to_numpy())
        tick = 0.0 if places is None else 10.0**-places
        share = float((tick / prices["price"] > COARSE_TICK).to_numpy().mean())
        coarse.append((str(asset), share))
    table = still.join(
        pl.DataFrame(coarse, schema={"asset": pl.String, "coarse": pl.Float64}, orient="row"), on="asset"
    )
    worst = table.sort(pl.max_horizontal("zero", "coarse"), "asset", descending=[True, False]).head(15)
    axis.set_title(
        "(c) days without a move, and with a coarse last decimal"
        + (f" (worst {worst.height} of {table.height})" if table.height > worst.height else ""),
        loc="left",
        fontsize=9,
    )
    at = np.arange(worst.height)
    axis.bar(at - 0.2, 100 * worst["zero"].to_numpy(), 0.4, color=BLUE, label="zero moves")
    axis.bar(
        at + 0.2,
        100 * worst["coarse"].to_numpy(),
        0.4,
        color=ORANGE,
        hatch="//",
        edgecolor="white",
        lw=0,
        label=f"last decimal above {COARSE_TICK * 1e4:.0f} bp",
    )
    axis.set_xticks(at, [name[:10] for name in worst["asset"]], rotation=45, ha="right", fontsize=7)
    axis.set_ylabel("% of days", fontsize=8)
    highest = max([*worst["zero"], *worst["coarse"], 0.0])
    axis.set_ylim(0, min(100.0, max(1.0, 125 * highest)))
    axis.legend(fontsize=7)


def _memory(axis: Axes, traded: pl.DataFrame) -> None:
    axis.set_title("(d) correlation of moves with earlier ones", loc="left", fontsize=9)
    found = [autocorrelation(traded, lag) for lag in range(1, LAGS + 1)]
    rho = np.array([one[0] for one in found])
    if not np.isfinite(rho).any():
        axis.text(0.5, 0.5, "fewer than 30 dates", ha="center", fontsize=8, transform=axis.transAxes)
        return
    lags = np.arange(1, LAGS + 1)
    error = np.array([one[1] for one in found])
    axis.fill_between(lags, -2 * error, 2 * error, color=GREY, alpha=0.25, lw=0, label="± 2 standard errors")
    axis.vlines(lags, 0, rho, color=BLUE, lw=2)
    outside = np.abs(rho) > 2 * error
    axis.plot(lags[~outside], rho[~outside], "o", color=BLUE, ms=4)
    axis.plot(lags[outside], rho[outside], "D", color=RED, ms=5, label="outside")
    axis.axhline(0, color="black", lw=0.8)
    axis.set_xticks(lags)
    axis.set_xlabel("lag in the asset's own days", fontsize=8)
    reach = float(np.nanmax(np.abs([*rho, *(2 * error)]))) * 1.3
    axis.set_ylim(-reach, reach)
    axis.legend(fontsize=7)

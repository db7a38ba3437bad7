"""Findings about dates: gaps, listings, survivors, filled-in holidays, and moves that follow moves."""

from __future__ import annotations

import datetime as dt
import math

import polars as pl

from fints.data.findings import Finding, names
from fints.data.panel import Panel
from fints.words import counted

__all__ = ["autocorrelation", "dependence", "filled_holidays", "future", "gaps", "shape", "survivorship"]

GAP_DAYS = 10
FILLED_ASSETS = 3
# rho^2 is the R2 of a forecast from the last move: 0.03 is 0.1 %, as much as honest daily forecasts reach.
AUTOCORRELATION = 0.03
OWN_AUTOCORRELATION = 0.1
SIGNIFICANT = 4.0
SURVIVORS = 5
SURVIVED_YEARS = 5


def autocorrelation(traded: pl.DataFrame, lag: int) -> tuple[float, float]:
    """Return the pooled autocorrelation of moves at `lag`, and its standard error by dates.

    With z a move over its asset's root mean square, clipped to 5, and d_t the mean over assets of z_t
    z_{t-lag}: rho = mean(d) / mean(z^2), its error sd(d) / sqrt(T) / mean(z^2). A date is one observation,
    since the assets of a date move together. NaN where there are fewer than 30 dates.
    """
    scaled = traded.with_columns(
        z=(pl.col("move") / pl.col("move").pow(2).mean().sqrt().over("asset")).clip(-5, 5)
    ).with_columns(product=pl.col("z") * pl.col("z").shift(lag).over("asset"))
    pairs = scaled.filter(pl.col("product").is_not_nan())
    by_date = pairs.group_by("date").agg(pl.col("product").mean(), square=pl.col("z").pow(2).mean())
    if by_date.height < 30:
        return math.nan, math.nan
    products, square = by_date.sort("date")["product"].to_numpy(), by_date["square"].mean()
    if not isinstance(square, float) or square == 0:
        return math.nan, math.nan
    return float(products.mean()) / square, float(products.std(ddof=1)) / math.sqrt(len(products)) / square


def dependence(traded: pl.DataFrame) -> list[Finding]:
    """Find a dependence of moves on the last move that any model would earn, honest or not."""
    findings = []
    rho, error = autocorrelation(traded, 1)
    if abs(rho) >= AUTOCORRELATION and abs(rho) >= SIGNIFICANT * error:
        findings.append(
            Finding(
                "warning",
                "autocorrelation",
                f"moves follow the move before them with correlation {rho:+.3f} "
                f"({abs(rho) / max(error, 1e-9):.1f} standard errors by dates): a forecast from the last "
                f"move alone has R2 of about {rho**2:.2%}. Stale, rounded or averaged prices do this; "
                "compare with AR(1) before you call it alpha.",
            )
        )
    single = (
        traded.with_columns(before=pl.col("move").shift(1).over("asset"))
        .group_by("asset")
        .agg(pl.corr("move", "before").alias("rho"), pl.col("before").count().alias("n"))
        .filter(
            pl.col("rho").abs() > pl.max_horizontal(OWN_AUTOCORRELATION, SIGNIFICANT / pl.col("n").sqrt())
        )
        .filter(pl.col("n") >= 250)
        .sort(pl.col("rho").abs(), "asset", descending=[True, False])
    )
    if single.height:
        shown = ", ".join(
            f"{asset} {rho:+.2f}" for asset, rho in single.select("asset", "rho").head(3).iter_rows()
        )
        findings.append(
            Finding(
                "warning",
                "own_autocorrelation",
                f"{counted(single.height, 'asset')} whose moves are correlated with their last beyond "
                f"{OWN_AUTOCORRELATION:g}, first {shown}: bid-ask bounce, rounding or stale prices?",
            )
        )
    return findings


def filled_holidays(traded: pl.DataFrame) -> list[Finding]:
    """Find dates on which all of several assets repeat their last price."""
    still = (
        traded.filter(pl.col("move").is_not_null())
        .group_by("date")
        .agg((pl.col("move") == 0).all().alias("still"), pl.len().alias("assets"))
        .filter(pl.col("still") & (pl.col("assets") >= FILLED_ASSETS))
        .sort("date")
    )
    if not still.height:
        return []
    shown = ", ".join(str(day) for day in still["date"].head(3))
    return [
        Finding(
            "warning",
            "filled_holidays",
            f"{counted(still.height, 'date')} on which every asset repeats its last price, first {shown}: "
            "filled-in holidays? Leave them out (drop_filled_holidays).",
        )
    ]


def future(panel: Panel, today: dt.date | None = None) -> list[Finding]:
    """Find dates that have not come yet; `today` is the machine's, unless given.

    The exchange may be a day ahead of the machine.
    """
    last = (today or dt.date.today()) + dt.timedelta(days=1)
    late = panel.dates.filter(panel.dates > last)
    if not len(late):
        return []
    return [
        Finding(
            "warning",
            "future",
            f"{counted(len(late), 'date')} still to come, first {late[0]}, last {late[-1]}: mistyped, or "
            "years "
            "of two digits read a century late (70 as 2070)? Prices of days to come are no history.",
        )
    ]


def survivorship(panel: Panel, traded: pl.DataFrame) -> list[Finding]:
    """Warn of a long panel of several assets of which none ends before the panel does."""
    days = (panel.dates[-1] - panel.dates[0]).days
    last = traded.group_by("asset").agg(pl.col("date").max())
    if last.height < SURVIVORS or days < 365 * SURVIVED_YEARS or (last["date"] != panel.dates[-1]).any():
        return []
    return [
        Finding(
            "warning",
            "survivorship",
            f"none of {counted(last.height, 'asset')} ends before the panel does, in {days / 365.25:.0f} "
            "years: chosen "
            "among survivors? Arms can be compared; the level of a return or of alpha means nothing.",
        )
    ]


def gaps(panel: Panel, traded: pl.DataFrame) -> list[Finding]:
    """Find days that an asset misses, and days that the calendar does."""
    calendar = pl.DataFrame({"date": panel.dates, "place": range(len(panel.dates))}).with_columns(
        pl.col("place").cast(pl.Int64)
    )
    placed = traded.join(calendar, on="date").sort("asset", "date")
    holes = placed.with_columns(lost=pl.col("place") - pl.col("place").shift(1).over("asset") - 1).filter(
        pl.col("lost") > 0
    )
    findings = []
    if holes.height:
        longest = holes.sort("lost", "asset", "date", descending=[True, False, False]).row(0, named=True)
        findings.append(
            Finding(
                "note",
                "missing_days",
                f"{counted(int(holes['lost'].sum()), 'asset-day')} missing inside listings, longest "
                f"{counted(longest['lost'], 'day')} of {longest['asset']} before {longest['date']}: kept as "
                "missing, "
                "never filled.",
            )
        )
    steps = panel.dates.diff().dt.total_days().drop_nulls()
    usual = steps.median()
    if isinstance(usual, float) and usual <= 3:
        wide = (steps > GAP_DAYS).arg_true()
        if len(wide):
            place = int(wide[0])
            findings.append(
                Finding(
                    "warning",
                    "calendar_gap",
                    f"{counted(len(wide), 'gap')} of more than {GAP_DAYS} days in the calendar, first "
                    f"{panel.dates[place]} to {panel.dates[place + 1]}: a missing part of the file?",
                )
            )
    elif isinstance(usual, float):
        findings.append(
            Finding(
                "note",
                "frequency",
                f"dates are {usual:g} days apart (median): one row is one period, not one day.",
            )
        )
    return findings


def shape(panel: Panel, traded: pl.DataFrame) -> list[Finding]:
    """Note what the panel is: one asset, late listings, delistings, weekends."""
    findings = []
    if len(panel.assets) == 1:
        findings.append(
            Finding(
                "note",
                "one_asset",
                "one asset: cross-sectional ranks are 0, cross-sectional targets do not exist.",
            )
        )
    late = traded.group_by("asset").agg(
        pl.col("date").min().alias("first"), pl.col("date").max().alias("last")
    )
    for kind, column, bound, word in (
        ("late_listing", "first", panel.dates[0], "start after the panel does"),
        ("delisted", "last", panel.dates[-1], "end before the panel does"),
    ):
        ended = sorted(late.filter(pl.col(column) != bound)["asset"])
        if ended:
            findings.append(Finding("note", kind, f"{names(ended)} {word}: the others keep their history."))
    weekend = panel.dates.filter(panel.dates.dt.weekday() > 5)
    if len(weekend):
        findings.append(
            Finding("note", "weekend", f"{counted(len(weekend), 'date')} on a weekend, first {weekend[0]}.")
        )
    return findings

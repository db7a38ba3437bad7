"""How far back forecasts look, so that one more day does not cost the whole past again."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

import polars as pl

from fints.data.features import longest_lag
from fints.data.panel import Panel
from fints.data.targets import VOLATILITY_WINDOW

__all__ = ["recent"]


def recent(
    panel: Panel,
    start: dt.date | None,
    names: Sequence[str],
    *,
    context: int,
    end: dt.date | None = None,
) -> Panel:
    """Return the rows of `panel` that forecasts dated in [start, end] can depend on.

    Kept are all rows of the `context` dates that end at the first decision date, all later ones until
    `end`, and of each asset as many own trading days before them as the longest lag of the features
    `names` (and the target's volatility) reaches back. A feature depends on its window alone, so on the
    kept decision dates features, scales and windows are the same bits as those of the whole panel.
    Targets look ahead: give no `end` where they are wanted.

    Returns
    -------
    Panel
        `panel` itself where there is nothing to leave out.
    """
    days = panel.frame["date"]
    stop = len(panel) if end is None else int(days.search_sorted(end, side="right"))
    decisions = 0 if start is None else int(panel.dates.search_sorted(start))
    first = max(0, decisions - (context - 1))
    if decisions == len(panel.dates) or stop == 0:
        return panel
    begin = int(days.search_sorted(panel.dates[first]))
    if (begin == 0 and stop == len(panel)) or begin >= stop:
        return panel
    later = panel.frame.slice(begin, stop - begin)
    if begin == 0:
        return panel.rows(later)
    lags = max(longest_lag(panel, names), VOLATILITY_WINDOW)
    since = int(days.search_sorted(panel.dates[max(0, first - lags)]))
    earlier = _last_traded(panel, since, begin, lags)
    return panel.rows(earlier.vstack(later).rechunk())


def _last_traded(panel: Panel, since: int, begin: int, lags: int) -> pl.DataFrame:
    """Return of each asset its last `lags` rows with a price before row `begin`.

    Most assets trade on every date: theirs are between the rows `since`, `lags` dates earlier, and
    `begin`. Only for the others is the whole past looked through.
    """
    traded = pl.col(panel.price).is_not_null()
    near = panel.frame.slice(since, begin - since).filter(traded)
    if since == 0:
        return near
    counts = near.group_by("asset").len("near")
    rested = (
        pl.DataFrame({"asset": panel.assets})
        .join(counts, on="asset", how="left")
        .select("asset", (lags - pl.col("near").fill_null(0)).alias("lacking"))
        .filter(pl.col("lacking") > 0)
    )
    if rested.is_empty():
        return near
    far = panel.frame.slice(0, since).filter(traded, pl.col("asset").is_in(rested["asset"].implode()))
    far = (
        far.join(rested, on="asset", how="left", maintain_order="left")
        .filter(pl.len().over("asset") - pl.int_range(pl.len()).over("asset") <= pl.col("lacking"))
        .drop("lacking")
    )
    return far.vstack(near)

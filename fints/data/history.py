"""How far back forecasts look, so that one more day does not cost the whole past again."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

import polars as pl

from fints.data.features import longest_lag
from fints.data.panel import Panel
from fints.data.targets import VOLATILITY_WINDOW

__all__ = ["recent"]


def recent(panel: Panel, start: dt.date | None, names: Sequence[str], *, context: int) -> Panel:
    """Return the rows of `panel` that forecasts dated `start` or later can depend on.

    Kept are all rows of the `context` dates that end at the first decision date, all later ones, and of
    each asset as many own trading days before them as the longest lag of the features `names` (and the
    target's volatility) reaches back. A feature depends on its window alone, so on the kept decision
    dates features, scales and windows are the same bits as those of the whole panel.

    Returns
    -------
    Panel
        `panel` itself where there is nothing to leave out.
    """
    if start is None:
        return panel
    decisions = panel.dates.search_sorted(start)
    first = max(0, decisions - (context - 1))
    if first == 0 or decisions == len(panel.dates):
        return panel
    since = panel.dates[first]
    lags = max(longest_lag(panel, names), VOLATILITY_WINDOW)
    traded_later = pl.col(panel.price).is_not_null().cum_sum(reverse=True).over("asset")
    kept = (
        panel.frame.filter(pl.col("date") < since, pl.col(panel.price).is_not_null())
        .filter(traded_later <= lags)
        .vstack(panel.frame.filter(pl.col("date") >= since))
    )
    return Panel(kept, price=panel.price, name=panel.name)

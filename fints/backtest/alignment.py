"""Forecasts put on an engine's own dates and assets, or refused."""

from __future__ import annotations

import datetime as dt
import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from fints.backtest.prices import check_above_zero, check_wide
from fints.evaluation.forecast_table import LATE, LEAST_OVERLAP, ForecastTable, forecast_table

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Aligned", "align", "align_prices", "place", "read_forecasts"]

# The least share of the engine's dates, from the first forecast to the last, with a forecast in force. Prices
# with weekends in them have 5 / 7, weekly forecasts of horizon 1 have 1 / 5; purged folds have more.
LEAST_COVERAGE = 0.8
SHOWN = 5


@dataclass(frozen=True, kw_only=True)
class Aligned:
    """Forecasts (D, A) on the engine's dates and assets, NaN where there is none.

    Row t holds what was forecast at the close of t, before any delay. `left_out` counts rows of the table
    by the reason for which they have no cell.
    """

    dates: list[dt.date]
    assets: list[str]
    values: np.ndarray
    horizon: int
    left_out: dict[str, int]


def align(
    forecasts: pl.DataFrame, dates: Sequence[dt.date], assets: Sequence[str], *, horizon: int | None = None
) -> Aligned:
    """Put a forecast table on the dates and assets of an engine.

    Parameters
    ----------
    forecasts
        What `Forecaster.predict` returns, or anyone's table that `fints.evaluation.forecast_table` reads: a
        row a (date, asset), dates without zone.
    dates, assets
        The engine's, each once; dates ascending.
    horizon
        Dates that a forecast is for; None: the table's own, else 1.

    Raises
    ------
    ValueError
        As `forecast_table`. If a forecast could not have been made on its date (`available_at`, else
        `model_as_of`, is later); if less than 95 % of the forecasts have their (date, asset) in the engine;
        or if between the first and the last forecast fewer than 80 % of the engine's dates have one at most
        `horizon` - 1 dates old.
    """
    return place(read_forecasts(forecasts, horizon=horizon), dates, assets)


def read_forecasts(forecasts: pl.DataFrame, *, horizon: int | None = None) -> ForecastTable:
    """Read a forecast table, and refuse what could not have been forecast on its date.

    Raises
    ------
    ValueError
        As `forecast_table`, and if `available_at`, else `model_as_of`, is later than the date.
    """
    if not isinstance(forecasts, pl.DataFrame):
        raise ValueError(
            f"forecasts must be a polars DataFrame; got {type(forecasts).__module__.partition('.')[0]} "
            f"{type(forecasts).__name__}. Convert it, for example by polars.from_pandas(frame)."
        )
    if "available_at" not in forecasts.columns and "model_as_of" in forecasts.columns:
        forecasts = forecasts.rename({"model_as_of": "available_at"})
    table = forecast_table(forecasts, horizon=horizon)
    if LATE in table.left_out:
        raise ValueError(
            f"{table.left_out[LATE]:,} forecasts could not have been made on their date (available_at is "
            "later): the model has seen outcomes after it. Predict from a later start on, or use "
            "WalkForwardForecaster."
        )
    return table


def place(table: ForecastTable, dates: Sequence[dt.date], assets: Sequence[str]) -> Aligned:
    """Put the rows of a table on dates and assets; see `align`."""
    days = table.horizon if table.horizon is not None else 1
    left_out = dict(table.left_out)
    keyed = table.frame.select("date", "asset", "forecast")
    keys = {
        "date": pl.DataFrame({"date": dates, "row": range(len(dates))}, schema_overrides={"date": pl.Date}),
        "asset": pl.DataFrame(
            {"asset": assets, "column": range(len(assets))}, schema_overrides={"asset": pl.String}
        ),
    }
    found = keyed.join(keys["date"], on="date", how="left").join(keys["asset"], on="asset", how="left")
    unmatched = found.filter(pl.col("row").is_null() | pl.col("column").is_null()).sort("date", "asset")
    if 1 - unmatched.height / found.height < LEAST_OVERLAP:
        raise ValueError(_poor_overlap(found, unmatched, dates, assets))
    if unmatched.height:
        left_out["not among the engine's dates and assets"] = unmatched.height
    found = found.drop_nulls(["row", "column"])
    values = np.full((len(dates), len(assets)), np.nan)
    values[found["row"].to_numpy(), found["column"].to_numpy()] = found["forecast"].to_numpy()
    _refuse_gaps(values, dates, days)
    return Aligned(dates=list(dates), assets=list(assets), values=values, horizon=days, left_out=left_out)


def align_prices(
    forecasts: pl.DataFrame, prices: pd.DataFrame, *, name: str = "close", horizon: int | None = None
) -> Aligned:
    """Put a forecast table on a wide pandas frame of prices: dates by assets.

    Raises
    ------
    ValueError
        As `align` and `check_wide`, and if a price is not above 0.
    """
    assets = check_wide(prices, name)
    check_above_zero(prices, name)
    return align(forecasts, prices.index.date.tolist(), assets, horizon=horizon)


def _poor_overlap(
    found: pl.DataFrame, unmatched: pl.DataFrame, dates: Sequence[dt.date], assets: Sequence[str]
) -> str:
    rows = unmatched.select("date", "asset").head(SHOWN).rows()
    first = ", ".join(f"{date} {asset}" for date, asset in rows)
    share = 100 * (1 - unmatched.height / found.height)
    strange = unmatched.filter(pl.col("column").is_null())["asset"].unique().sort().to_list()
    weekend = unmatched.filter(pl.col("row").is_null() & (pl.col("date").dt.weekday() > 5)).height
    if not dates or not assets:
        why = "The engine has no date or no asset."
    elif strange:
        lower = {asset.lower(): asset for asset in assets}
        near = difflib.get_close_matches(strange[0].lower(), lower, n=1)
        some = ", ".join(sorted(assets)[:3])
        hint = f"; did you mean {lower[near[0]]}?" if near else f"; its assets are {some} ..."
        why = f"The engine has no asset {strange[0]}{hint}"
    elif weekend:
        why = (
            f"{weekend:,} of them fall on a Saturday or Sunday: are the dates those of another time zone? "
            "They must be the exchange's local dates."
        )
    else:
        why = f"The engine's dates run from {dates[0]} to {dates[-1]}."
    return (
        f"only {share:.1f} % of the {found.height:,} forecasts have their (date, asset) in the engine; at "
        f"least {100 * LEAST_OVERLAP:.0f} % must. First without: {first}. {why}"
    )


def _refuse_gaps(values: np.ndarray, dates: Sequence[dt.date], horizon: int) -> None:
    made = np.flatnonzero(np.isfinite(values).any(axis=1))
    within = np.arange(made[0], made[-1] + 1)
    age = within - made[np.searchsorted(made, within, side="right") - 1]
    inside = float((age < horizon).mean())
    if inside < LEAST_COVERAGE:
        bare = dates[int(within[age >= horizon][0])]
        raise ValueError(
            f"from {dates[made[0]]} to {dates[made[-1]]} only {100 * inside:.0f} % of the engine's dates "
            f"have a forecast in force (horizon {horizon}); at least {100 * LEAST_COVERAGE:.0f} % must. "
            f"The first without is {bare}. For forecasts made less often, give horizon = the dates each is "
            "held; if the prices have rows for weekends or holidays, drop those."
        )

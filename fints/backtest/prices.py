"""The door of every adapter: prices as the engines take them, and libraries that only some users have."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["REQUIREMENTS", "check_above_zero", "check_index", "check_wide", "require", "wide"]

# Distribution and range of each library that an adapter imports; the extras of pyproject.toml say the same.
REQUIREMENTS = {
    "bt": "bt>=1.4",
    "pandas": "pandas>=2.2",
    "skfolio": "skfolio>=1.12",
    "zipline": "zipline-reloaded>=3.2.1",
}


def check_wide(frame: pd.DataFrame, name: str) -> list[str]:
    """Return the assets of a frame that has one row a date and one column an asset; refuse another.

    Raises
    ------
    ValueError
        As `check_index`, and if it is no pandas frame or its columns have levels or repeat an asset.
    """
    if not isinstance(frame, require("pandas").DataFrame):
        raise ValueError(
            f"{name} must be a pandas DataFrame, dates by assets; got {type(frame).__name__}. "
            "fints.backtest.wide makes one of a long polars frame."
        )
    check_index(frame.index, name)
    if frame.columns.nlevels > 1:
        raise ValueError(
            f"{name} must have one column an asset; got {frame.columns.nlevels} levels. Choose one field, "
            f'for example frame["{name.title()}"].'
        )
    assets = [str(label) for label in frame.columns]
    if len(set(assets)) < len(assets):
        repeated = next(asset for asset in assets if assets.count(asset) > 1)
        raise ValueError(f"{name} has the column {repeated} twice; keep one column an asset.")
    return assets


def check_index(index: pd.Index, name: str) -> None:
    """Refuse an index of prices that is not one plain date a row, ascending.

    Raises
    ------
    ValueError
        If it is no DatetimeIndex, carries a time zone or a time of day, is repeated or not ascending.
    """
    pandas = require("pandas")
    if not isinstance(index, pandas.DatetimeIndex):
        got = "an empty index" if len(index) == 0 else f"{type(index[0]).__name__} such as {index[0]!r}"
        raise ValueError(
            f"the index of {name} must be a DatetimeIndex; got {got}. Convert it: "
            "frame.index = pandas.to_datetime(frame.index)."
        )
    if index.tz is not None:
        raise ValueError(
            f"the index of {name} is in zone {index.tz} and forecasts have plain dates: a date in another "
            "zone is another date. Make it the exchange's local date: frame.index.tz_convert(exchange_zone)"
            ".tz_localize(None).normalize()."
        )
    if index.hasnans:
        raise ValueError(f"the index of {name} holds NaT; drop those rows.")
    timed = index[index != index.normalize()]
    if len(timed):
        raise ValueError(
            f"the index of {name} must hold dates; got the time {timed[0]}. fints trades daily (or slower) "
            "forecasts: give one row a date, or frame.index.normalize() if the time is the same on all rows."
        )
    if index.has_duplicates:
        raise ValueError(
            f"{name} has the date {index[index.duplicated()][0].date()} twice; keep one row a date."
        )
    if not index.is_monotonic_increasing:
        raise ValueError(f"the dates of {name} must ascend; sort them: frame.sort_index().")


def check_above_zero(prices: pd.DataFrame, name: str) -> None:
    """Refuse prices that are not above 0 and finite; NaN says that there was no trade."""
    numbers = prices.to_numpy(dtype=float)
    if np.isinf(numbers).any() or (numbers <= 0).any():
        raise ValueError(f"{name} must be above 0 and finite, or NaN where the asset did not trade.")


def wide(frame: pl.DataFrame, column: str) -> pd.DataFrame:
    """Return a column of a long frame (`date`, `asset`, ...) as pandas: dates by assets, NaN where no row is.

    ``wide(panel.frame, "close")`` is what the engines call prices.

    >>> from fints.data import load
    >>> wide(load("sp500-20")["2008-09-15":"2008-09-16"].frame, "close").iloc[:, :3]
                 AAPL   AMD     BAC
    date
    2008-09-15  4.261  5.18  21.366
    2008-09-16  ...

    Raises
    ------
    ValueError
        If the column is missing or a (date, asset) is repeated.
    """
    pandas = require("pandas")
    missing = [name for name in ("date", "asset", column) if name not in frame.columns]
    if missing:
        raise ValueError(f"the frame lacks {', '.join(missing)}; it has {', '.join(frame.columns)}.")
    if frame.select("date", "asset").is_duplicated().any():
        raise ValueError("the frame has a (date, asset) twice; keep one row each.")
    spread = frame.pivot(on="asset", index="date", values=column, sort_columns=True).sort("date")
    values = spread.drop("date").select(pl.all().cast(pl.Float64).fill_null(np.nan))
    return pandas.DataFrame(
        values.to_numpy(),
        index=pandas.DatetimeIndex(spread["date"].to_numpy().astype("datetime64[ns]"), name="date"),
        columns=values.columns,
    )


def require(library: str) -> Any:
    """Import a library that only some users have.

    Raises
    ------
    ModuleNotFoundError
        If it is not installed: one sentence with the command that installs it.
    """
    try:
        return import_module(library)
    except ModuleNotFoundError as error:
        name = library.partition(".")[0]
        if error.name != name:
            raise
        raise ModuleNotFoundError(
            f"this adapter needs {name}: pip install '{REQUIREMENTS[name]}'.", name=name
        ) from None

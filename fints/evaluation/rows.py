"""The door of every metric: which rows count, and what is refused."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from fints.words import counted

__all__ = ["columns", "group_starts", "known_rows", "refuse_infinite", "require_columns"]

NUMERIC = (
    "forecast",
    "realised",
    "prevailing_mean",
    "variance",
    "unit_scale",
    "log_scale",
    "degrees",
    "oracle",
)


def known_rows(frame: pl.DataFrame, *more: str) -> pl.DataFrame:
    """Check the door; return the rows that have a forecast and an outcome, by date and asset."""
    require_columns(frame, "date", "asset", "forecast", "realised", *more)
    numeric = [name for name in NUMERIC if name in frame.columns]
    rows = frame.with_columns(pl.col(numeric).cast(pl.Float64).fill_nan(None))
    rows = rows.drop_nulls(["forecast", "realised"])
    refuse_infinite(rows, numeric)
    if rows.height == 0:
        raise ValueError(
            f"no row has both a forecast and an outcome (of {counted(frame.height, 'row')}); "
            "check that the dates of forecasts and outcomes overlap."
        )
    if rows.select("date", "asset").is_duplicated().any():
        first = rows.filter(rows.select("date", "asset").is_duplicated()).row(0, named=True)
        raise ValueError(
            f"(date, asset) must be unique; ({first['date']}, {first['asset']}) is repeated. "
            "Select one arm, fold and seed first."
        )
    return rows.sort("date", "asset")


def refuse_infinite(rows: pl.DataFrame, names: Sequence[str]) -> None:
    """Refuse infinite numbers in the named columns."""
    for name in names:
        if rows[name].is_infinite().any():
            raise ValueError(f"{name} must be finite or null; got an infinity. Drop or repair those rows.")


def require_columns(frame: pl.DataFrame, *names: str) -> None:
    """Refuse a frame without the named columns."""
    missing = [name for name in names if name not in frame.columns]
    if missing:
        raise ValueError(f"the frame lacks {', '.join(missing)}; it has {', '.join(frame.columns)}.")


def group_starts(keys: pl.Series) -> np.ndarray:
    """Return the first row of each run of equal keys.

    Sums over runs of sorted rows give the same bits on every machine; a threaded group-by does not.
    """
    return np.flatnonzero((keys != keys.shift(1)).fill_null(True).to_numpy())


def columns(rows: pl.DataFrame, *names: str) -> list[np.ndarray]:
    """Return columns as arrays."""
    return [rows[name].to_numpy() for name in names]

"""Other shapes that prices come in, as the long frame of a panel: returns, and a column an asset."""

from __future__ import annotations

import polars as pl

from fints.data.panel_rules import KEYS

__all__ = ["growth_index", "unpivot"]


def growth_index(frame: pl.DataFrame, column: str, kind: str, price: str) -> pl.DataFrame:
    """Return the frame sorted by keys with the index that grows by `column`, null where that is null.

    The index is 1 before an asset's first return: ``exp(sum of log(1 + r))`` of "simple" returns r, ``exp(sum
    of r)`` of "log" ones.
    """
    growth = pl.col(column).log1p() if kind == "simple" else pl.col(column)
    index = growth.fill_null(0.0).cum_sum().over("asset").exp()
    return frame.sort(*KEYS).with_columns(pl.when(pl.col(column).is_not_null()).then(index).alias(price))


def unpivot(frame: pl.DataFrame, price: str) -> pl.DataFrame:
    """Return a wide frame as a long one: observed cells only, and all cells of a never observed asset."""
    prices = pl.col("*").exclude("date").cast(pl.Float64).fill_nan(None)
    # An asset may be called like a column of the result; no asset is called like these.
    names = {"\0asset": "asset", "\0price": price}
    long = frame.select("date", prices).unpivot(index="date", variable_name="\0asset", value_name="\0price")
    long = long.rename(names)
    observed = pl.col(price).is_not_null()
    return long.filter(observed | ~observed.any().over("asset"))

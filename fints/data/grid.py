"""A panel laid out by asset and day, in blocks of assets or of dates.

Shapes: N rows of the panel, A assets, D days of its union calendar. Cell (a, d) is number ``a D + d``.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl

from fints.data.panel import Panel
from fints.data.space import Space

__all__ = ["Grid"]

Array = np.ndarray

# Rows of a slice of dates and cells of a block of assets: both stay within the cache of a core.
ROWS_AT_ONCE = 1 << 18
CELLS_AT_ONCE = 1 << 17


class Grid:
    """The columns of a panel as (A, D) arrays.

    Attributes
    ----------
    dates : numpy.ndarray
        (D,) datetime64[D], ascending.
    assets : list of str
        (A,) sorted.
    cells : numpy.ndarray
        (N,) cell of each row of ``panel.frame``.
    """

    def __init__(self, panel: Panel, space: Space) -> None:
        self.panel = panel
        self.space = space
        self.dates: Array = panel.dates.to_numpy().astype("datetime64[D]")
        self.assets = panel.assets
        days = panel.frame["date"].to_physical().to_numpy()
        starts = np.searchsorted(days, panel.dates.to_physical().to_numpy())
        self._starts = np.append(starts, len(days))
        small = len(self.assets) * len(self.dates) <= np.iinfo(np.int32).max
        self.cells = space.array((len(days),), np.int32 if small else np.int64, 0)
        names = pl.Enum(self.assets)
        for first, last in self.slices():
            asset = panel.frame["asset"][first:last].cast(names).to_physical().to_numpy().astype(np.int64)
            day = np.searchsorted(self._starts, np.arange(first, last), side="right") - 1
            self.cells[first:last] = asset * len(self.dates) + day

    @property
    def shape(self) -> tuple[int, int]:
        """(A, D)."""
        return len(self.assets), len(self.dates)

    @cached_property
    def prices(self) -> Array:
        """(A, D) prices, NaN where there is none."""
        return self.column(self.panel.price)

    def column(self, name: str) -> Array:
        """Return a column of the panel (A, D), NaN where null or without a row."""
        values = self.array()
        for first, last in self.slices():
            self.put(values, first, last, self.panel.frame[name][first:last])
        return values

    def array(self, dtype: Any = np.float64, fill: float = np.nan) -> Array:
        """Return a new (A, D) array."""
        return self.space.array(self.shape, dtype, fill)

    def blocks(self) -> Iterator[tuple[int, int]]:
        """Yield first and end of each block of assets."""
        number, days = self.shape
        step = max(1, CELLS_AT_ONCE // days)
        for first in range(0, number, step):
            yield first, min(first + step, number)

    def slices(self) -> Iterator[tuple[int, int]]:
        """Yield first and end row of slices of whole dates."""
        place, last = 0, len(self._starts) - 1
        while place < last:
            row = int(self._starts[place])
            until = int(np.searchsorted(self._starts, row + ROWS_AT_ONCE, side="right")) - 1
            until = min(max(until, place + 1), last)
            yield row, int(self._starts[until])
            place = until

    def take(self, values: Array, first: int, last: int) -> pl.Series:
        """Return the values (A, D) of the rows [first, last) of the panel, null where NaN."""
        return pl.Series(values.reshape(-1)[self.cells[first:last]]).fill_nan(None)

    def put(self, values: Array, first: int, last: int, rows: pl.Series) -> None:
        """Write a column of the rows [first, last) of the panel into `values` (A, D), null as NaN."""
        values.reshape(-1)[self.cells[first:last]] = rows.fill_null(np.nan).to_numpy()

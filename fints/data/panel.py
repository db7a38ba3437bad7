"""The panel: one long polars frame of (date, asset, price, features), checked once at the door.

Everything behind this door may rely on what `Panel` says and checks nothing again.
"""

from __future__ import annotations

import datetime as dt
import hashlib
from collections.abc import Iterator
from functools import cached_property

import numpy as np
import polars as pl

from fints.data.panel_rules import (
    KEYS,
    PERCENT_MEDIAN,
    describe_fault,
    example_of,
    find_faults,
    in_order,
    keys_of,
    missing,
    normalise,
    not_polars,
)
from fints.data.panel_shapes import growth_index, unpivot
from fints.words import counted

__all__ = ["Panel"]

# Rows that are hashed at once.
ROWS_AT_ONCE = 1 << 18
# A frame of more pieces is put together: each operation visits every piece.
MOST_CHUNKS = 256


class Panel:
    """A long table with one row a (date, asset): a price and any number of numeric features.

    Parameters
    ----------
    frame
        Columns ``date`` (Date, or Datetime without zone at midnight), ``asset`` (text), `price`,
        and numeric features. Row order does not matter.
    price
        Name of the price column. Prices are above 0, or null where the asset did not trade.
    name
        What the panel is called in messages and results.

    Attributes
    ----------
    frame : polars.DataFrame
        Sorted by (date, asset), keys unique, numbers Float64 and finite or null. NaN becomes null.
    dates : polars.Series
        The distinct dates, ascending: the union calendar of all assets.
    assets : list of str
        Sorted. An asset whose price is always null is kept: it gets no feature and no forecast.
    feature_columns : list of str
        The numeric columns other than the price, in the order of the frame.

    Raises
    ------
    ValueError
        If a column is missing or of the wrong type, a key is null or repeated, a number infinite,
        a price not above 0, a date carries a time zone or a time of day, or there is no price at all.
    """

    def __init__(self, frame: pl.DataFrame, *, price: str = "close", name: str = "panel") -> None:
        frame = normalise(frame, price=price, name=name)
        faults = find_faults(frame, price)
        if faults:
            raise ValueError(describe_fault(frame, faults[0], price, name))
        if not in_order(frame):
            frame = frame.sort(*KEYS).rechunk()
        elif frame.n_chunks() > MOST_CHUNKS:
            frame = frame.rechunk()
        # Rows that stand in order stay where they are, so a file mapped into memory stays in the file.
        self._keep(frame.with_columns(pl.col("date").set_sorted()), price, name)

    def _keep(self, frame: pl.DataFrame, price: str, name: str) -> None:
        self.name = name
        self.price = price
        self.frame = frame
        self.dates: pl.Series = frame["date"].unique().sort()
        self.assets: list[str] = frame["asset"].unique().sort().to_list()
        self.feature_columns: list[str] = [c for c in frame.columns if c not in (*KEYS, price)]

    def rows(self, frame: pl.DataFrame) -> Panel:
        """Return a panel of `frame`, rows of this one's in their order, which are not checked again.

        Raises
        ------
        ValueError
            If no row has a price.
        """
        if not frame[self.price].is_not_null().any():
            # Its own words for what no panel can be.
            return Panel(frame, price=self.price, name=self.name)
        part = object.__new__(Panel)
        part._keep(frame, self.price, self.name)
        return part

    @cached_property
    def checksum(self) -> str:
        """16 hex digits of the SHA-256 of the content.

        Equal for any order of rows or columns, and for CSV and parquet; it depends on keys, values,
        column names and which column is the price, not on the panel's name.
        """
        digest = hashlib.sha256()
        digest.update(f"price={self.price}\0".encode())
        for rows in self._pieces():
            digest.update(rows["date"].to_physical().to_numpy().astype("<i4").tobytes())
        for place, rows in enumerate(self._pieces()):
            digest.update(("\0" * (place > 0) + "\0".join(rows["asset"].to_list())).encode())
        for column in sorted([self.price, *self.feature_columns]):
            digest.update(f"\0{column}\0".encode())
            for rows in self._pieces():
                digest.update(rows[column].is_null().to_numpy().astype(np.uint8).tobytes())
            for rows in self._pieces():
                # Adding 0.0 turns -0.0 into 0.0, so equal values have equal bytes.
                digest.update((rows[column].fill_null(0.0).to_numpy() + 0.0).astype("<f8").tobytes())
        return digest.hexdigest()[:16]

    def _pieces(self) -> Iterator[pl.DataFrame]:
        """Yield the rows in pieces whose copies are small."""
        return self.frame.iter_slices(ROWS_AT_ONCE)

    def __getitem__(self, item: slice) -> Panel:
        """Return the rows between two dates, both ends included: ``panel["2001":"2005-06-30"]``.

        A bound is a date or ISO text; a year or a month stands for its first day as a start and its
        last day as a stop.

        Raises
        ------
        ValueError
            If a bound is not a date or no row lies between the bounds.
        """
        if not isinstance(item, slice) or item.step is not None:
            raise ValueError(
                f"a panel is sliced by dates, as in panel['2001-01-01':'2005-12-31']; got {item!r}."
            )
        start = None if item.start is None else as_date(item.start, last=False)
        stop = None if item.stop is None else as_date(item.stop, last=True)
        # Rows stand by date, so dates are a slice of them and nothing is copied.
        days = self.frame["date"]
        first = 0 if start is None else int(days.search_sorted(start))
        until = len(self) if stop is None else int(days.search_sorted(stop, side="right"))
        kept = self.frame.slice(first, max(0, until - first))
        if kept.is_empty():
            raise ValueError(
                f"{self.name}: no row between {start or 'the start'} and {stop or 'the end'}; the panel "
                f"runs from {self.dates[0]} to {self.dates[-1]}. Choose dates inside it."
            )
        return self.rows(kept)

    def __len__(self) -> int:
        """Return the number of rows."""
        return self.frame.height

    def __repr__(self) -> str:
        """Return one line: name, span, counts, checksum."""
        return (
            f"Panel({self.name}: {counted(len(self.dates), 'date')} from {self.dates[0]} to "
            f"{self.dates[-1]}, {counted(len(self.assets), 'asset')}, {counted(len(self), 'row')}, price "
            f"{self.price!r}, features {self.feature_columns}, checksum {self.checksum})"
        )

    @classmethod
    def from_wide(cls, frame: pl.DataFrame, *, price: str = "close", name: str = "panel") -> Panel:
        """Read a wide frame: a ``date`` column and one column of prices an asset.

        Null or NaN cells become absent rows, so an asset listed late or delisted early takes nothing from the
        others. A column without any price keeps its null rows, so that the asset is not lost in silence.

        Raises
        ------
        ValueError
            As `Panel`, and if there is no asset column or a name occurs twice.
        """
        if not isinstance(frame, pl.DataFrame):
            raise ValueError(not_polars(frame))
        if "date" not in frame.columns:
            raise ValueError(missing(name, "date", frame.columns))
        if frame.width < 2:
            raise ValueError(
                f"{name}: a wide frame needs a column of prices for each asset beside 'date'; got none."
            )
        for column in frame.drop("date").iter_columns():
            if not (column.dtype.is_numeric() or column.dtype == pl.Null):
                raise ValueError(
                    f"{name}: column {column.name!r} of a wide frame must hold an asset's prices; got "
                    f"{column.dtype}{example_of(column)}. Drop it, or use Panel(frame) if the frame is long."
                )
        return cls(unpivot(frame, price), price=price, name=name)

    @classmethod
    def from_returns(
        cls,
        frame: pl.DataFrame,
        column: str = "return",
        kind: str = "simple",
        *,
        price: str = "close",
        name: str = "panel",
    ) -> Panel:
        """Build the price from a long frame of returns, as a growth index that starts at 1.

        Simple returns: ``price_t = price_{t-1} (1 + r_t)``; log returns: ``price_t = price_{t-1} exp(r_t)``.
        The index is 1 *before* an asset's first return, so the return of the first row is in the level but no
        feature can see it. Where the return is null the asset did not trade: price null, index unchanged.
        The column of returns is kept as a feature.

        Raises
        ------
        ValueError
            As `Panel`; if `kind` is unknown, a simple return is -1 or less, a return is infinite, or the
            median absolute return exceeds 0.2 (these are percent).
        """
        if not isinstance(frame, pl.DataFrame):
            raise ValueError(not_polars(frame))
        for needed in (*KEYS, column):
            if needed not in frame.columns:
                raise ValueError(missing(name, needed, frame.columns))
        if price in frame.columns:
            raise ValueError(
                f"{name}: column {price!r} exists already; drop it or give another name with price=."
            )
        if kind not in ("simple", "log"):
            raise ValueError(f"kind must be 'simple' or 'log'; got {kind!r}.")
        if not frame[column].dtype.is_numeric():
            raise ValueError(
                f"{name}: column {column!r} must be numeric; got {frame[column].dtype}. Cast it to Float64."
            )
        frame = frame.with_columns(pl.col(column).cast(pl.Float64).fill_nan(None))
        returns = frame[column]
        infinite = frame.filter(pl.col(column).is_infinite())
        if infinite.height:
            raise ValueError(
                f"{name}: {column} is infinite at {keys_of(infinite)}. Make it null or correct it."
            )
        median = returns.abs().median()
        if isinstance(median, float) and median > PERCENT_MEDIAN:
            raise ValueError(
                f"{name}: the median absolute {column} is {median:.3g}; these look like percent. Divide "
                "them by 100."
            )
        if kind == "simple":
            ruin = frame.filter(pl.col(column) <= -1)
            if ruin.height:
                raise ValueError(
                    f"{name}: a simple return must be above -1; got {ruin[column][0]:g} at {keys_of(ruin)}. "
                    "Codes such as -44 to -99 stand for missing: make them null."
                )
        return cls(growth_index(frame, column, kind, price), price=price, name=name)


def as_date(value: object, *, last: bool) -> dt.date:
    """Return a date from a date or ISO text; a bare year or month means its first or last day.

    Raises
    ------
    ValueError
        If `value` is neither.
    """
    if isinstance(value, dt.datetime):
        return value.date()
    if isinstance(value, dt.date):
        return value
    if isinstance(value, str):
        parts = value.split("-")
        try:
            if len(value) == 4:
                return dt.date(int(value), 12, 31) if last else dt.date(int(value), 1, 1)
            if len(value) == 7 and len(parts) == 2:
                year, month = int(parts[0]), int(parts[1])
                first = dt.date(year, month, 1)
                after = dt.date(year + month // 12, month % 12 + 1, 1)
                return after - dt.timedelta(days=1) if last else first
            return dt.date.fromisoformat(value)
        except ValueError:
            pass
    raise ValueError(f"a date must be a datetime.date or text like '2017-12-31'; got {value!r}.")

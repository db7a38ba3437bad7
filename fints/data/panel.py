"""The panel: one long polars frame of (date, asset, price, features), checked once at the door.

Everything behind this door may rely on what `Panel` says and checks nothing again.
"""

from __future__ import annotations

import datetime as dt
import difflib
import hashlib
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl

__all__ = ["Fault", "Panel", "find_faults"]

KEYS = ("date", "asset")
# Daily, weekly or monthly: no panel of decimal returns has a median move of 20 %; percent has.
PERCENT_MEDIAN = 0.2


@dataclass(frozen=True)
class Fault:
    """One broken rule: `kind`, what was found, what to do, and the rows (positions) that break it."""

    kind: str
    found: str
    remedy: str
    rows: tuple[int, ...]


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
            raise ValueError(_describe(frame, faults[0], price, name))
        self._keep(frame.sort(*KEYS).rechunk(), price, name)

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
        digest.update(self.frame["date"].to_physical().to_numpy().astype("<i4").tobytes())
        digest.update("\0".join(self.frame["asset"].to_list()).encode())
        for column in sorted([self.price, *self.feature_columns]):
            values = self.frame[column]
            digest.update(f"\0{column}\0".encode())
            digest.update(values.is_null().to_numpy().astype(np.uint8).tobytes())
            # Adding 0.0 turns -0.0 into 0.0, so equal values have equal bytes.
            digest.update((values.fill_null(0.0).to_numpy() + 0.0).astype("<f8").tobytes())
        return digest.hexdigest()[:16]

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
            f"Panel({self.name}: {len(self.dates)} dates from {self.dates[0]} to {self.dates[-1]}, "
            f"{len(self.assets)} assets, {len(self)} rows, price {self.price!r}, "
            f"features {self.feature_columns}, checksum {self.checksum})"
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
            raise ValueError(_not_polars(frame))
        if "date" not in frame.columns:
            raise ValueError(_missing(name, "date", frame.columns))
        if frame.width < 2:
            raise ValueError(
                f"{name}: a wide frame needs a column of prices for each asset beside 'date'; got none."
            )
        for column in frame.drop("date").iter_columns():
            if not (column.dtype.is_numeric() or column.dtype == pl.Null):
                raise ValueError(
                    f"{name}: column {column.name!r} of a wide frame must hold an asset's prices; got "
                    f"{column.dtype}{_example(column)}. Drop it, or use Panel(frame) if the frame is long."
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
            raise ValueError(_not_polars(frame))
        for needed in (*KEYS, column):
            if needed not in frame.columns:
                raise ValueError(_missing(name, needed, frame.columns))
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
                f"{name}: {column} is infinite at {_keys(infinite)}. Make it null or correct it."
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
                    f"{name}: a simple return must be above -1; got {ruin[column][0]:g} at {_keys(ruin)}. "
                    "Codes such as -44 to -99 stand for missing: make them null."
                )
        return cls(growth_index(frame, column, kind, price), price=price, name=name)


def normalise(frame: pl.DataFrame, *, price: str, name: str) -> pl.DataFrame:
    """Return the frame with the panel's types (Date, String, Float64; NaN to null), rows as they stand.

    Raises
    ------
    ValueError
        If a column is missing, of the wrong type or named twice, or the frame has no row.
    """
    if not isinstance(frame, pl.DataFrame):
        raise ValueError(_not_polars(frame))
    for column in (*KEYS, price):
        if column not in frame.columns:
            raise ValueError(_missing(name, column, frame.columns))
    if price in KEYS:
        raise ValueError(
            f"{name}: the price column cannot be {price!r}; name a column of prices with price=."
        )
    if frame.is_empty():
        raise ValueError(f"{name}: a panel needs at least one row; got none.")
    casts = [_cast_date(frame["date"], name), _cast_asset(frame["asset"], name)]
    for column in frame.columns:
        if column in KEYS:
            continue
        dtype = frame[column].dtype
        if not (dtype.is_numeric() or dtype in (pl.Boolean, pl.Null)):
            raise ValueError(
                f"{name}: column {column!r} must hold numbers; got {dtype}"
                f"{_example(frame[column])}. Cast it to Float64 or drop it."
            )
        values = frame[column].cast(pl.Float64)
        # A column without NaN is kept as it is: a copy of a large panel is large.
        casts.append(values.fill_nan(None) if values.is_nan().any() else values)
    return pl.DataFrame(casts)


def find_faults(frame: pl.DataFrame, price: str) -> list[Fault]:
    """Return every broken rule of a normalised frame, the most basic first; empty if it is a panel."""
    faults = []

    def add(kind: str, broken: pl.Expr, found: str, remedy: str) -> None:
        rows = frame.select(broken.fill_null(False).arg_true()).to_series().to_list()
        if rows:
            faults.append(Fault(kind, found, remedy, tuple(rows)))

    add(
        "null_key",
        pl.any_horizontal(pl.col(*KEYS).is_null()),
        "date or asset is missing",
        "Fill it in or drop the row",
    )
    add(
        "empty_asset",
        pl.col("asset").str.strip_chars() == "",
        "the asset's name is empty",
        "Name it or drop the row",
    )
    add(
        "duplicate",
        pl.struct(*KEYS).is_duplicated() & pl.all_horizontal(pl.col(*KEYS).is_not_null()),
        "the same (date, asset) occurs more than once",
        "Keep one row for each",
    )
    add(
        "bad_price",
        pl.col(price) <= 0,
        f"{price} is not above 0",
        "Make a missing price null; if a negative sign marks a bid/ask midpoint (CRSP), take the absolute "
        "value",
    )
    for column in frame.columns:
        if column not in KEYS:
            add(
                "infinite",
                pl.col(column).is_infinite(),
                f"{column} is infinite",
                "Make it null or correct it",
            )
    if not frame[price].is_not_null().any():
        faults.append(
            Fault("no_price", f"{price} is null in every row", "Name the column of prices with price=", (0,))
        )
    return faults


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


def _cast_date(dates: pl.Series, name: str) -> pl.Series:
    if dates.dtype == pl.Date:
        return dates
    if isinstance(dates.dtype, pl.Datetime):
        if dates.dtype.time_zone is not None:
            raise ValueError(
                f"{name}: dates must have no time zone; got {dates.dtype.time_zone}. Decide which day each "
                "stamp belongs to, e.g. pl.col('date').dt.convert_time_zone('America/New_York').dt.date()."
            )
        day = dates.cast(pl.Date)
        off = (day.cast(dates.dtype) != dates).fill_null(False)
        if off.any():
            raise ValueError(
                f"{name}: dates must be whole days; got {dates.filter(off)[0]}. A panel has one row a day: "
                "aggregate to days, then use pl.col('date').dt.date()."
            )
        return day
    raise ValueError(
        f"{name}: column 'date' must be of type Date; got {dates.dtype}{_example(dates)}. Parse it, e.g. "
        "pl.col('date').str.to_date('%Y-%m-%d'), or read the file with fints.data.read."
    )


def _cast_asset(assets: pl.Series, name: str) -> pl.Series:
    if assets.dtype in (pl.String, pl.Categorical, pl.Enum):
        return assets.cast(pl.String)
    raise ValueError(
        f"{name}: column 'asset' must be text; got {assets.dtype}{_example(assets)}. Cast it with "
        "pl.col('asset').cast(pl.String)."
    )


def _describe(frame: pl.DataFrame, fault: Fault, price: str, name: str) -> str:
    first = frame[list(fault.rows[:3])]
    shown = _keys(first, price if fault.kind == "bad_price" else None)
    count = f" in {len(fault.rows)} rows" if len(fault.rows) > 1 else ""
    return f"{name}: {fault.found}{count}, first {shown}. {fault.remedy}."


def _keys(rows: pl.DataFrame, value: str | None = None) -> str:
    """Return the first keys as text: (2001-02-03, AAPL), ..."""
    shown = []
    for row in rows.head(3).iter_rows(named=True):
        tail = f" = {row[value]:g}" if value else ""
        shown.append(f"({row['date']}, {row['asset']}){tail}")
    return ", ".join(shown)


def _missing(name: str, column: str, columns: list[str]) -> str:
    near = difflib.get_close_matches(column.casefold(), [c.casefold() for c in columns], n=1, cutoff=0.5)
    hint = ""
    if near:
        got = next(c for c in columns if c.casefold() == near[0])
        hint = f" Is it {got!r}? Rename it{', or say price=' + repr(got) if column not in KEYS else ''}."
    return f"{name}: a panel needs a column {column!r}; got {', '.join(map(repr, columns)) or 'none'}.{hint}"


def _example(values: pl.Series) -> str:
    known = values.drop_nulls().head(1).to_list()
    return f", e.g. {known[0]!r}" if known else ""


def _not_polars(frame: object) -> str:
    kind = f"{type(frame).__module__.split('.')[0]}.{type(frame).__name__}"
    remedy = (
        "Use pl.from_pandas(frame.reset_index())."
        if kind.startswith("pandas")
        else "Give a polars.DataFrame."
    )
    if isinstance(frame, pl.LazyFrame):
        remedy = "Call .collect() first."
    return f"a panel is made from a polars DataFrame; got {kind}. {remedy}"

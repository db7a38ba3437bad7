"""What makes a frame a panel: types, the rules of its values, and the words for what breaks them."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

import polars as pl

from fints.words import counted

__all__ = ["Fault", "describe_fault", "find_faults", "in_order", "normalise"]

KEYS = ("date", "asset")
# Daily, weekly or monthly: no panel of decimal returns has a median move of 20 %; percent has.
PERCENT_MEDIAN = 0.2
# Rows that are compared at once.
ROWS_AT_ONCE = 1 << 20


@dataclass(frozen=True)
class Fault:
    """One broken rule: `kind`, what was found, what to do, and the rows (positions) that break it."""

    kind: str
    found: str
    remedy: str
    rows: tuple[int, ...]


def normalise(frame: pl.DataFrame, *, price: str, name: str) -> pl.DataFrame:
    """Return the frame with the panel's types (Date, String, Float64; NaN to null), rows as they stand.

    Raises
    ------
    ValueError
        If a column is missing, of the wrong type or named twice, or the frame has no row.
    """
    if not isinstance(frame, pl.DataFrame):
        raise ValueError(not_polars(frame))
    for column in (*KEYS, price):
        if column not in frame.columns:
            raise ValueError(missing(name, column, frame.columns))
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
                f"{example_of(frame[column])}. Cast it to Float64 or drop it."
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
    if (frame["asset"].unique().str.strip_chars() == "").any():
        add(
            "empty_asset",
            pl.col("asset").str.strip_chars() == "",
            "the asset's name is empty",
            "Name it or drop the row",
        )
    if not in_order(frame):
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


def in_order(frame: pl.DataFrame) -> bool:
    """Tell whether rows stand by date, then asset, each key once; piece by piece, without a copy."""
    for first in range(0, frame.height - 1, ROWS_AT_ONCE):
        date, asset = (frame[key][first : first + ROWS_AT_ONCE + 1] for key in KEYS)
        ascends = (date[1:] > date[:-1]) | ((date[1:] == date[:-1]) & (asset[1:] > asset[:-1]))
        if not ascends.fill_null(value=False).all():
            return False
    return True


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
        f"{name}: column 'date' must be of type Date; got {dates.dtype}{example_of(dates)}. Parse it, e.g. "
        "pl.col('date').str.to_date('%Y-%m-%d'), or read the file with fints.data.read."
    )


def _cast_asset(assets: pl.Series, name: str) -> pl.Series:
    if assets.dtype in (pl.String, pl.Categorical, pl.Enum):
        return assets.cast(pl.String)
    raise ValueError(
        f"{name}: column 'asset' must be text; got {assets.dtype}{example_of(assets)}. Cast it with "
        "pl.col('asset').cast(pl.String)."
    )


def describe_fault(frame: pl.DataFrame, fault: Fault, price: str, name: str) -> str:
    """Return one line: what is wrong, the first keys, what to do."""
    first = frame[list(fault.rows[:3])]
    shown = keys_of(first, price if fault.kind == "bad_price" else None)
    count = f" in {counted(len(fault.rows), 'row')}" if len(fault.rows) > 1 else ""
    return f"{name}: {fault.found}{count}, first {shown}. {fault.remedy}."


def keys_of(rows: pl.DataFrame, value: str | None = None) -> str:
    """Return the first keys as text: (2001-02-03, AAPL), ..."""
    shown = []
    for row in rows.head(3).iter_rows(named=True):
        tail = f" = {row[value]:g}" if value else ""
        shown.append(f"({row['date']}, {row['asset']}){tail}")
    return ", ".join(shown)


def missing(name: str, column: str, columns: list[str]) -> str:
    near = difflib.get_close_matches(column.casefold(), [c.casefold() for c in columns], n=1, cutoff=0.5)
    hint = ""
    if near:
        got = next(c for c in columns if c.casefold() == near[0])
        hint = f" Is it {got!r}? Rename it{', or say price=' + repr(got) if column not in KEYS else ''}."
    return f"{name}: a panel needs a column {column!r}; got {', '.join(map(repr, columns)) or 'none'}.{hint}"


def example_of(values: pl.Series) -> str:
    known = values.drop_nulls().head(1).to_list()
    return f", e.g. {known[0]!r}" if known else ""


def not_polars(frame: object) -> str:
    kind = f"{type(frame).__module__.split('.')[0]}.{type(frame).__name__}"
    remedy = (
        "Use pl.from_pandas(frame.reset_index())."
        if kind.startswith("pandas")
        else "Give a polars.DataFrame."
    )
    if isinstance(frame, pl.LazyFrame):
        remedy = "Call .collect() first."
    return f"a panel is made from a polars DataFrame; got {kind}. {remedy}"

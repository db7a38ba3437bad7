"""Plain tables: long (date, asset, numbers), wide (date and a column an asset) and the bars of one asset."""

from __future__ import annotations

import difflib
import re
from pathlib import Path

import polars as pl

from fints.data.dates import parse_dates
from fints.data.panel_shapes import unpivot
from fints.data.readers.asking import Asking
from fints.data.readers.cells import keyed
from fints.data.readers.files import PLACE, Table, Text, collect
from fints.data.readers.reading import Reading
from fints.words import counted

__all__ = ["DATE_NAMES", "one_header", "read_plain", "stem"]

DATE_NAMES = ("date", "datetime", "timestamp", "time")
ASSET_NAMES = ("asset", "ticker", "symbol", "name", "instrument", "unique_id", "permno", "isin")
ADJUSTED = ("adj close", "adj_close", "adjclose", "adjusted close", "adjusted_close")
BAR_FIELDS = (
    "open",
    "high",
    "low",
    "close",
    "adj close",
    "adj_close",
    "adjclose",
    "volume",
    "vwap",
    "dividends",
    "stock splits",
)


def one_header(text: Text) -> Table:
    """Return a text whose first line names the columns as a table.

    Raises
    ------
    ValueError
        If the line is no header, names a column twice or not at all, or the rows do not fit it.
    """
    columns = text.cells(text.first)
    twice = sorted({column for column in columns if column and columns.count(column) > 1})
    if twice:
        raise ValueError(
            f"{text.path}: the header names {', '.join(map(repr, twice))} more than once. Keep one of each."
        )
    dated = any(column.casefold() in DATE_NAMES for column in columns)
    names = list(columns)
    unnamed = [place for place, column in enumerate(columns) if _pandas_index(column)]
    if unnamed and unnamed[0] == 0 and not dated and not _other_dates(columns):
        names[0] = "date"
    elif unnamed and unnamed[0] == 0:
        names[0] = ""  # The index that pandas writes.
    for place in unnamed:
        if place and names[place] == "":
            names[place] = f"\0unnamed{place + 1}"
    table = text.table(names, text.first + 1)
    spare = [name for name in table.columns if name.startswith("\0unnamed") or _pandas_index(name)]
    if spare:
        # A separator at the end of each line makes an empty column; a filled one is somebody's data.
        filled = collect(table.frame.select(pl.col(*spare).is_not_null().any()), table).row(0)
        for name, full in zip(spare, filled, strict=True):
            if full and name.startswith("\0unnamed"):
                raise ValueError(
                    f"{text.path}: column {name.removeprefix(chr(0) + 'unnamed')} has values but no name in "
                    "the header. Name it or delete it."
                )
        kept = tuple(name for name in table.columns if name not in spare)
        table = Table(table.path, table.frame.drop(spare), kept, table.unit, table.style, table.large)
    return table


def read_plain(table: Table, asking: Asking) -> Reading:
    """Find the columns, parse the cells, and lay the table out long.

    Raises
    ------
    ValueError
        With file, line, value and remedy.
    """
    path, price = table.path, asking.price or "close"
    date_column = _date_column(table)
    others = [column for column in table.columns if column != date_column]
    by_name = {column.casefold(): column for column in reversed(others)}
    asset_column = next((by_name[alias] for alias in ASSET_NAMES if alias in by_name), None)
    price_column = price if price in others else by_name.get(price.casefold())
    if asking.layout == "wide":
        kind = "wide"
    elif asset_column is not None:
        kind = "long"
    elif price_column is not None or asking.layout == "long":
        kind = "one asset"
    else:
        kind = "wide"
        bars = [by_name[field] for field in BAR_FIELDS if field in by_name]
        if bars:
            raise ValueError(
                f"{path}: looks like the bars of one asset ({', '.join(bars)}) without a price column "
                f"{price!r}. Name the price with price=, or say layout='wide' if these are assets."
            )
    if kind == "one asset":
        _check_for_asset(table, others, price_column)
    if kind != "wide" and price_column is None:
        near = difflib.get_close_matches(price.casefold(), list(by_name), n=1, cutoff=0.5)
        hint = f" Is it {by_name[near[0]]!r}? Rename it or say price={by_name[near[0]]!r}." if near else ""
        raise ValueError(f"{path}: needs a price column {price!r}; got {_listed(table.columns)}.{hint}")
    if kind == "wide" and not others:
        raise ValueError(f"{path}: needs a column of prices for each asset beside {date_column!r}; got none.")

    # What a long file calls its price is the panel's price; a wide file's returns need a name of their own.
    name = "return" if asking.returns and kind == "wide" and price == "close" else price
    if asking.returns and kind != "wide" and price == "close":
        raise ValueError(f"{path}: say which column holds the returns (price), such as price='ret'.")
    renamed = {column: name if kind != "wide" and column == price_column else column for column in others}
    if kind == "long" and asset_column is not None:
        renamed[asset_column] = "asset"
    clash = sorted({new for new in ("date", *renamed.values()) if [*renamed.values(), "date"].count(new) > 1})
    if clash:
        raise ValueError(
            f"{path}: two columns would be called {clash[0]!r}; rename one of {_listed(table.columns)}."
        )
    values = [column for column in others if renamed[column] != "asset" or kind != "long"]
    asset = asset_column if kind == "long" else None
    frame = keyed(table, date_column, asset, {column: renamed[column] for column in values})
    dates, date_format = parse_dates(
        path, frame["date"].alias(date_column), frame[PLACE], table.unit, asking.repairs.dates
    )
    frame = frame.with_columns(dates.alias("date"))
    if kind == "one asset":
        frame = frame.with_columns(asset=pl.lit(stem(path)))
    if kind == "wide":
        unpivoted = unpivot(
            frame.select(pl.struct("date", PLACE).alias("date"), pl.exclude("date", PLACE)), name
        )
        frame = unpivoted.with_columns(
            pl.col("date").struct.field("date"), pl.col("date").struct.field(PLACE)
        )
    held = "returns" if asking.returns else "prices"
    described = {
        "long": f"long, assets in {asset_column!r}, {held[:-1]} in {price_column!r}",
        "one asset": f"one asset's bars (no asset column): {stem(path)!r}, {held[:-1]} in {price_column!r}",
        "wide": f"wide, {counted(len(others), 'column')} of {held}",
    }[kind]
    adjusted = next((by_name[alias] for alias in ADJUSTED if alias in by_name), None)
    notes = []
    if kind != "wide" and asking.price is None and adjusted is not None:
        notes.append(f"the price is {price_column!r}, not {adjusted!r}: name that one (price) if it is meant")
    return Reading.of(
        path,
        frame,
        unit=table.unit,
        layout=kind,
        recognised=f"{table.style}: {described}, dates in {date_column!r} ({date_format})",
        price=name,
        returns=asking.returns,
        notes=notes,
    )


def stem(path: Path) -> str:
    """Return the file's name without its endings."""
    endings = r"(\.csv|\.parquet|\.pq|\.txt|\.arrow|\.feather|\.ipc|\.xlsx)?(\.gz)?$"
    return re.sub(endings, "", path.name, flags=re.IGNORECASE) or path.name


def _pandas_index(column: str) -> bool:
    """Tell whether pandas gave this name to a column that had none."""
    return column == "" or re.fullmatch(r"Unnamed: \d+(\.\d+)?", column) is not None


def _check_for_asset(table: Table, others: list[str], price_column: str | None) -> None:
    for column in others:
        near = difflib.get_close_matches(column.casefold(), ASSET_NAMES, n=1, cutoff=0.8)
        if near and column != price_column:
            raise ValueError(
                f"{table.path}: has no asset column; is it {column!r}? Rename it to {near[0]!r}. Columns: "
                f"{_listed(table.columns)}."
            )


def _other_dates(columns: list[str]) -> bool:
    """Tell whether a column other than the first is one of dates under a layout's own name."""
    return any(column.casefold() in ("dlycaldt", "mthcaldt", "caldt", "<date>") for column in columns)


def _date_column(table: Table) -> str:
    by_name = table.by_name
    for alias in (*DATE_NAMES, "__index_level_0__"):
        if alias in by_name:
            return by_name[alias]
    near = difflib.get_close_matches("date", list(by_name), n=1, cutoff=0.6)
    hint = f" Is it {by_name[near[0]]!r}? Rename it to 'date'." if near else ""
    raise ValueError(
        f"{table.path}: needs a date column ({', '.join(DATE_NAMES)}); got {_listed(table.columns)}.{hint}"
    )


def _listed(columns: tuple[str, ...]) -> str:
    shown = ", ".join(map(repr, columns[:12]))
    return shown + (f" and {len(columns) - 12} more" if len(columns) > 12 else "")

"""What ``yfinance.download(...).to_csv`` writes: columns by (field, ticker) in one to three header rows.

The levels stand in either order (``group_by``), named ("Price", "Ticker") or not; a row with the index's name
("Date", "Datetime") follows or not. Where pandas flattened the two levels (parquet has one header), each
column is the text of a pair, ``('Close', 'AAPL')``. Without ``multi_level_index``, and from
``Ticker.history``, there is one header row and one ticker, and the file's name is the asset. The price is
``Adj Close`` where it exists (``auto_adjust=False``), else ``Close``, which is adjusted since
``auto_adjust=True`` became the default.
"""

from __future__ import annotations

import re

import polars as pl

from fints.data.dates import DateRules, parse_dates
from fints.data.readers.asking import Asking
from fints.data.readers.cells import keyed
from fints.data.readers.files import PLACE, Table, Text
from fints.data.readers.plain import one_header, stem
from fints.data.readers.reading import Reading
from fints.words import counted

__all__ = ["read_yfinance", "recognises_yfinance", "recognises_yfinance_bars"]

# As yfinance writes them: a ticker "OPEN" is no field "Open".
FIELDS = {
    "Open": "open",
    "High": "high",
    "Low": "low",
    "Close": "close",
    "Adj Close": "adj_close",
    "Volume": "volume",
    "Dividends": "dividends",
    "Stock Splits": "stock_splits",
    "Capital Gains": "capital_gains",
    "Repaired?": "repaired",
}
INDEX_NAMES = ("Date", "Datetime", "")
LEVELS = ("Price", "Ticker", "")
# How pandas writes a column of two levels where only one is allowed.
PAIR = re.compile(r"""\(\s*(['"])(.+?)\1\s*,\s*(['"])(.*?)\3\s*\)""")
DATES = ("date", "datetime", "('date', '')", "('datetime', '')", "__index_level_0__")
CLOCK = r"[ T](\d{1,2}:\d{2}(?::\d{2}(?:\.\d+)?)?)"


def recognises_yfinance(text: Text) -> bool:
    """Tell whether a text starts with the header rows of several tickers."""
    place = text.first
    if place + 1 >= len(text.head):
        return False
    above, below = text.cells(place), text.cells(place + 1)
    if len(above) < 2 or len(above) != len(below) or above[0] not in LEVELS or below[0] not in LEVELS:
        return False
    if {above[0], below[0]} == {"Price", "Ticker"}:
        return True
    return any(set(cells[1:]) <= FIELDS.keys() for cells in (above, below))


def recognises_yfinance_bars(columns: tuple[str, ...]) -> bool:
    """Tell whether one header row is that of a single ticker, or of pairs that pandas flattened."""
    names = set(columns)
    bars = {"Close", "Open"} <= names <= {*FIELDS, "Date", "Datetime", "date"}
    if bars and names & {"Adj Close", "Stock Splits"}:
        return True
    return bool(_flattened([column for column in columns if column.casefold() not in DATES]))


def read_yfinance(source: Text | Table, asking: Asking) -> Reading:
    """Read the prices of one ticker or several.

    Raises
    ------
    ValueError
        With file, line, value and remedy.
    """
    path = source.path
    if isinstance(source, Text) and recognises_yfinance(source):
        table, date, pairs, header = _several(source)
    else:
        table = one_header(source) if isinstance(source, Text) else source
        date, pairs = _one(table)
        header = (
            "one header row of (field, ticker)"
            if PAIR.fullmatch(next(iter(pairs), ""))
            else "one header row, one ticker named by the file"
        )
    fields = list(dict.fromkeys(field for field, _ in pairs.values()))
    price = _price(table, asking.price, fields)
    frame = keyed(table, date, None, {column: column for column in pairs})
    frame, said = _without_live_stamp(table, frame, asking)
    rules = asking.repairs.dates
    rules = DateRules(
        order=rules.order,
        century=rules.century,
        excel=rules.excel,
        time_zone=rules.time_zone,
        exchange_days=True,
    )
    dates, date_format = parse_dates(path, frame["date"].alias(date), frame[PLACE], table.unit, rules)
    frame = frame.with_columns(dates.alias("date"))
    names = {field: _name(field, price, fields) for field in fields}
    tickers = list(dict.fromkeys(ticker for _, ticker in pairs.values()))
    long = pl.concat(
        [
            frame.select(
                PLACE,
                "date",
                pl.lit(ticker).alias("asset"),
                *(
                    pl.col(column).cast(pl.Float64).fill_nan(None).alias(names[field])
                    for column, (field, of) in pairs.items()
                    if of == ticker
                ),
            )
            for ticker in tickers
        ],
        how="diagonal",
    )
    values = pl.col(*names.values())
    traded = pl.any_horizontal(values.is_not_null())
    # An asset that never trades keeps its rows: it is not lost in silence.
    long = long.filter(traded | ~pl.col(names[price]).is_not_null().any().over("asset"))
    notes = []
    if price == "Adj Close" and {"Open", "High", "Low"} & set(fields):
        notes.append("open, high, low and raw_close are not adjusted for dividends; the price is")
    count = counted(len(tickers), "ticker")
    return Reading.of(
        path,
        long,
        unit=table.unit,
        layout="yfinance",
        recognised=f"{table.style}: yfinance, {header}, {count}, price in {price!r}, dates ({date_format})",
        price=names[price],
        notes=notes,
        repairs=said,
    )


def _several(text: Text) -> tuple[Table, str, dict[str, tuple[str, str]], str]:
    path, place = text.path, text.first
    above, below = text.cells(place), text.cells(place + 1)
    fields_above = _fields_above(text, above, below)
    fields, tickers = (above, below) if fields_above else (below, above)
    unknown = sorted(set(fields[1:]) - FIELDS.keys())
    if unknown:
        line = place + (1 if fields_above else 2)
        raise ValueError(
            f"{path}: line {line}: {unknown[0]!r} is no field of yfinance ({', '.join(FIELDS)}). Drop the "
            "column, or read the file as another layout."
        )
    rows = 2
    if place + 2 < len(text.head):
        third = text.cells(place + 2)
        if (
            third
            and third[0] in INDEX_NAMES
            and all(cell == "" or cell.startswith("Unnamed:") for cell in third[1:])
        ):
            rows = 3
    pairs: dict[str, tuple[str, str]] = {}
    columns = ["date"]
    for number, (field, ticker) in enumerate(zip(fields[1:], tickers[1:], strict=True), 2):
        if not ticker or ticker.startswith("Unnamed:"):
            raise ValueError(
                f"{path}: line {place + (2 if fields_above else 1)}, column {number} has no ticker."
            )
        if (field, ticker) in pairs.values():
            raise ValueError(
                f"{path}: column {number} is {field} of {ticker} for the second time. Keep one of each."
            )
        column = f"{field} of {ticker}"
        pairs[column] = (field, ticker)
        columns.append(column)
    order = "field above ticker" if fields_above else "ticker above field"
    table = text.table(columns, place + rows)
    return table, "date", pairs, f"{rows} header rows ({order})"


def _fields_above(text: Text, above: list[str], below: list[str]) -> bool:
    """Tell which header row holds the fields: by the names of the levels, else by what stands there."""
    if {above[0], below[0]} & {"Price", "Ticker"}:
        return above[0] == "Price" or below[0] == "Ticker"
    first, second = set(above[1:]) <= FIELDS.keys(), set(below[1:]) <= FIELDS.keys()
    if first and second:
        raise ValueError(
            f"{text.path}: both header rows hold names of fields ({above[1]!r}, {below[1]!r}), so tickers "
            "cannot be told from them. Name the levels 'Price' and 'Ticker' in the first column."
        )
    return first


def _one(table: Table) -> tuple[str, dict[str, tuple[str, str]]]:
    date = next((table.by_name[name] for name in DATES if name in table.by_name), None)
    if date is None:
        raise ValueError(
            f"{table.path}: needs a column 'Date' or 'Datetime'; got "
            f"{', '.join(map(repr, table.columns[:12]))}."
        )
    known = {field.casefold(): field for field in FIELDS}
    columns = [column for column in table.columns if column != date]
    if flattened := _flattened(columns):
        return date, flattened
    pairs = {}
    for column in columns:
        if column.casefold() not in known:
            raise ValueError(
                f"{table.path}: column {column!r} is no field of yfinance ({', '.join(FIELDS)}). Drop it "
                "(drop), or read the file as another layout."
            )
        pairs[column] = (known[column.casefold()], stem(table.path))
    return date, pairs


def _flattened(columns: list[str]) -> dict[str, tuple[str, str]]:
    """Return (field, ticker) of each column if all are pairs with one member a field, else nothing."""
    found = [PAIR.fullmatch(column) for column in columns]
    pairs = [(match[2], match[4]) for match in found if match is not None]
    if len(pairs) < len(columns):
        return {}
    for place in (0, 1):
        if pairs and all(pair[place] in FIELDS and pair[1 - place] for pair in pairs):
            return {
                column: (pair[place], pair[1 - place]) for column, pair in zip(columns, pairs, strict=True)
            }
    return {}


def _price(table: Table, wanted: str | None, fields: list[str]) -> str:
    known = {field.casefold(): field for field in fields}
    choices = ["adj close", "close"] if wanted is None else [wanted.casefold().replace("_", " ")]
    for choice in choices:
        if choice in known:
            return known[choice]
    raise ValueError(
        f"{table.path}: needs a price among the fields ({wanted or 'Adj Close or Close'}); got "
        f"{', '.join(fields)}. Download the prices too, or name the field with price=."
    )


def _name(field: str, price: str, fields: list[str]) -> str:
    if field == price == "Adj Close":
        return "close"
    if field == "Close" and price == "Adj Close":
        return "raw_close"
    return FIELDS[field]


def _without_live_stamp(
    table: Table, frame: pl.DataFrame, asking: Asking
) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """Leave out, if asked, a last row with a time of day under rows without: the bar of an unfinished day."""
    if frame["date"].dtype != pl.String or asking.repairs.time_zone is not None:
        return frame, ()
    clock = frame["date"].str.extract(CLOCK, 1).str.contains("[1-9]").fill_null(False)
    if not clock[-1] or clock.sum() != 1:
        return frame, ()
    place, stamp = frame[PLACE][-1], frame["date"][-1]
    if not asking.repairs.drop_live_bar:
        raise ValueError(
            f"{table.path}: {table.unit} {place}: the date {stamp!r} has a time of day, the others have "
            "none: the bar of an unfinished day? Leave it out (drop_live_bar)."
        )
    return frame.head(-1), (f"live bar left out: {table.unit} {place} ({stamp})",)

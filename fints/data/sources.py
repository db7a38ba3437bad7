"""Plain CSV and parquet files, long or wide, into a panel.

A long file has a date, an asset and a price column and any numeric features; a wide file has a date column
and one column of prices an asset; a file of one asset's bars has a date and a price column, and its name is
the asset. Every value either reads as what it is or is refused with file, line, value and remedy; nothing is
guessed in silence.
"""

from __future__ import annotations

import csv
import difflib
import gzip
import io
import os
import re
import zlib
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from fints.data.dates import parse_dates
from fints.data.panel import Fault, Panel, find_faults, normalise, unpivot

__all__ = ["Reading", "open_file", "read"]

DATE_NAMES = ("date", "datetime", "timestamp", "time")
ASSET_NAMES = ("asset", "ticker", "symbol", "name")
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
# In number cells only: NA and NAN are also tickers.
MISSING = ("na", "n/a", "nan", "null", "none", "#n/a")
LAYOUTS = ("auto", "long", "wide")


@dataclass(frozen=True, eq=False)
class Reading:
    """A file read but not yet judged.

    Attributes
    ----------
    path : Path
        The file.
    frame : polars.DataFrame
        Long, with the panel's column names and types; it may still break the panel's rules.
    places : polars.Series
        Where each row stands in the file: a line of a CSV (the header is line 1), a row of a parquet file.
    unit : str
        "line" or "row".
    layout : str
        "long", "wide" or "one asset".
    recognised : str
        What the file was taken for, in words.
    price : str
        Name of the price column in `frame`.
    """

    path: Path
    frame: pl.DataFrame
    places: pl.Series
    unit: str
    layout: str
    recognised: str
    price: str

    def explain(self, fault: Fault) -> str:
        """Return one line: file, first places with their values, what is wrong, what to do."""
        shown = []
        for row in fault.rows[:3]:
            key = self.frame.row(row, named=True)
            value = f" = {key[self.price]:g}" if fault.kind == "bad_price" else ""
            shown.append(f"{self.unit} {self.places[row]} ({key['date']}, {key['asset']}){value}")
        count = f" in {len(fault.rows)} rows" if len(fault.rows) > 1 else ""
        return f"{self.path}: {fault.found}{count}, first {', '.join(shown)}. {fault.remedy}."


def read(
    path: str | os.PathLike[str], *, layout: str = "auto", name: str | None = None, price: str = "close"
) -> Panel:
    """Read a CSV (plain or gzip) or parquet file as a panel.

    Parameters
    ----------
    path
        The file. Separator (comma, semicolon, tab, bar), byte-order mark and decimal comma (where commas do
        not separate) are recognised; headers match the names below in any case.
    layout
        "long": ``date``, ``asset`` (or ticker, symbol, name), `price` and numeric features; without an asset
        column the file is one asset's. "wide": ``date`` and a column of prices an asset. "auto" tells them
        apart by the asset and price columns; `fints.data.check` says which it was.
    name
        Name of the panel; by default the file's, without its ending.
    price
        The price column of a long file; the name a wide file's prices get.

    Raises
    ------
    ValueError
        If the file is absent, empty or no table, a column is missing, a value is no date or no number, or the
        rules of `Panel` are broken: with file, line, value and remedy. Dates must be whole days without zone,
        with years of four digits, in one format whose order of day and month is certain.
    """
    reading = open_file(path, layout=layout, price=price)
    faults = find_faults(reading.frame, reading.price)
    if faults:
        raise ValueError(reading.explain(faults[0]))
    return Panel(reading.frame, price=reading.price, name=name or _stem(reading.path))


def open_file(path: str | os.PathLike[str], *, layout: str = "auto", price: str = "close") -> Reading:
    """Read a file as `read` does, without applying the rules of `Panel` to its values.

    Raises
    ------
    ValueError
        If the file cannot be read as a table of dates, assets and numbers.
    """
    if layout not in LAYOUTS:
        raise ValueError(f"layout must be one of {', '.join(LAYOUTS)}; got {layout!r}.")
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"{path}: there is no such file{' (it is a folder)' if path.is_dir() else ''}.")
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror}).") from error
    if raw[:4] == b"PAR1" or path.suffix.lower() in (".parquet", ".pq"):
        unit, first, table, style = "row", 1, _parquet(path, raw), "parquet"
    else:
        unit = "line"
        table, style, first = _csv(path, raw)
    place = "\0place"
    table = table.with_row_index(place, offset=first)
    values = pl.col("*").exclude(place)
    table = table.filter(~pl.all_horizontal(values.is_null()))
    if table.is_empty():
        raise ValueError(f"{path}: the file has a header but no row of data. Give one row a date.")
    places = table[place].alias("place")
    return _interpret(path, table.drop(place), places, unit, style, layout, price)


def _parquet(path: Path, raw: bytes) -> pl.DataFrame:
    try:
        return pl.read_parquet(io.BytesIO(raw))
    except (pl.exceptions.PolarsError, OSError) as error:
        raise ValueError(
            f"{path}: is not a readable parquet file ({_first_line(str(error))}). Write it again."
        ) from error


def _csv(path: Path, raw: bytes) -> tuple[pl.DataFrame, str, int]:
    """Return the cells as text (empty ones null), what separates them, and the line of the first row."""
    text = _decode(path, raw)
    blank = len(text) - len(text.lstrip("\n"))
    header = _first_line(text)
    if header.lstrip().lower().startswith(("<!doctype", "<html", "<?xml")):
        raise ValueError(f"{path}: is a web page, not a CSV file. Download the file itself.")
    separator = max(",;\t|", key=header.count)
    if separator not in header:
        raise ValueError(
            f"{path}: the first line must be a header with a date column and at least one more, separated "
            f"by comma, semicolon, tab or bar; got {header[:80]!r}."
        )
    columns = [cell.strip() for cell in next(csv.reader([header], delimiter=separator))]
    if columns[0] == "Price" and _first_line(text[blank + len(header) :]).startswith("Ticker" + separator):
        raise ValueError(
            f"{path}: has yfinance's three header rows (Price, Ticker, Date). Save one row a (date, asset): "
            "data.stack(level='Ticker').reset_index().to_csv(...)."
        )
    twice = sorted({column for column in columns if column and columns.count(column) > 1})
    if twice:
        raise ValueError(
            f"{path}: the header names {', '.join(map(repr, twice))} more than once. Keep one of each."
        )
    _check_widths(path, text, separator, len(columns))
    try:
        table = pl.read_csv(
            text.encode(),
            separator=separator,
            has_header=False,
            skip_rows=blank + 1,
            new_columns=[f"\0{place}" for place in range(len(columns))],
            infer_schema=False,
            raise_if_empty=False,
        )
    except pl.exceptions.PolarsError as error:
        raise ValueError(
            f"{path}: is not a well-formed CSV file ({_first_line(str(error))}). Check its quotes."
        ) from error
    if table.width != len(columns):
        raise ValueError(f"{path}: the file has a header but no row of data. Give one row a date.")
    table = table.with_columns(pl.all().str.strip_chars().replace("", None))
    kept = {}
    for place, column in enumerate(columns):
        cells = table.to_series(place)
        unnamed = column == "" or re.fullmatch(r"Unnamed: \d+", column) is not None
        if unnamed and place == 0 and not _dates_elsewhere(columns):
            column = "date"
        elif unnamed and (place == 0 or cells.is_null().all()):
            continue  # The index that pandas writes, or a separator at the end of each line.
        elif column == "":
            raise ValueError(
                f"{path}: column {place + 1} has values but no name in the header. Name it or delete it."
            )
        kept[column] = cells
    names = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
    return pl.DataFrame(kept), f"CSV separated by {names[separator]}", blank + 2


def _decode(path: Path, raw: bytes) -> str:
    if raw[:2] == b"\x1f\x8b":
        try:
            raw = gzip.decompress(raw)
        except (OSError, EOFError, zlib.error) as error:
            raise ValueError(
                f"{path}: the gzip file is damaged or cut short ({error}). Download it again."
            ) from error
    if raw[:2] == b"PK" or raw[:4] == b"\xd0\xcf\x11\xe0":
        raise ValueError(f"{path}: is a zip or Excel file. Unpack it or export it as CSV.")
    encoding = "utf-16" if raw[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        text = raw.decode(encoding)
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise ValueError(f"{path}: line {line} is not UTF-8 text. Save the file as CSV in UTF-8.") from error
    if not text.strip():
        raise ValueError(f"{path}: is empty. Give a header line and one row a date.")
    # Old Mac and Windows ends of line; leading empty lines would put the header out of place.
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _check_widths(path: Path, text: str, separator: str, width: int) -> None:
    """Refuse a line with more or fewer cells than the header: a reader that pads it hides a cut-off file."""
    if '"' in text:
        counts = [
            (number, len(cells))
            for number, cells in enumerate(csv.reader(io.StringIO(text), delimiter=separator), 1)
        ]
        wrong = [(number, count) for number, count in counts if count not in (0, width)]
    else:
        lines = pl.Series(text.split("\n"))
        found = lines.str.count_matches(separator, literal=True) + 1
        odd = ((found != width) & (lines.str.strip_chars() != "")).arg_true()
        wrong = [(int(place) + 1, int(found[int(place)])) for place in odd.head(1)]
    if wrong:
        number, count = wrong[0]
        raise ValueError(
            f"{path}: line {number} has {count} cells, the header has {width}. Complete or delete it; if it "
            "is the last line, the file was cut short."
        )


def _interpret(
    path: Path, table: pl.DataFrame, places: pl.Series, unit: str, style: str, layout: str, price: str
) -> Reading:
    """Find the columns, parse the cells, and lay the table out long."""
    date_column = _date_column(path, table)
    others = [column for column in table.columns if column != date_column]
    by_name = {column.casefold(): column for column in reversed(others)}
    asset_column = next((by_name[alias] for alias in ASSET_NAMES if alias in by_name), None)
    price_column = price if price in others else by_name.get(price.casefold())
    if layout == "wide":
        kind = "wide"
    elif asset_column is not None:
        kind = "long"
    elif price_column is not None or layout == "long":
        kind = "one asset"
    else:
        kind = "wide"
        bars = [by_name[field] for field in BAR_FIELDS if field in by_name]
        if layout == "auto" and bars:
            raise ValueError(
                f"{path}: looks like the bars of one asset ({', '.join(bars)}) without a price column "
                f"{price!r}. Name the price with price=, or say layout='wide' if these are assets."
            )
    if kind == "one asset":
        for column in others:
            near = difflib.get_close_matches(column.casefold(), ASSET_NAMES, n=1, cutoff=0.8)
            if near and column != price_column:
                raise ValueError(
                    f"{path}: has no asset column; is it {column!r}? Rename it to {near[0]!r}. Columns: "
                    f"{_listed(table.columns)}."
                )
    if kind != "wide" and price_column is None:
        near = difflib.get_close_matches(price.casefold(), list(by_name), n=1, cutoff=0.5)
        hint = f" Is it {by_name[near[0]]!r}? Rename it or say price={by_name[near[0]]!r}." if near else ""
        raise ValueError(f"{path}: needs a price column {price!r}; got {_listed(table.columns)}.{hint}")
    if kind == "wide" and not others:
        raise ValueError(f"{path}: needs a column of prices for each asset beside {date_column!r}; got none.")

    dates, date_format = parse_dates(path, table[date_column], places, unit)
    typed = [dates.alias("date")]
    for column in others:
        cells = table[column]
        if kind == "long" and column == asset_column:
            typed.append(cells.cast(pl.String).alias("asset"))
        else:
            name = price if kind != "wide" and column == price_column else column
            typed.append(_numbers(path, cells, places, unit, style).alias(name))
    typed_names = [series.name for series in typed]
    clash = sorted({name for name in typed_names if typed_names.count(name) > 1})
    if clash:
        raise ValueError(
            f"{path}: two columns would be called {clash[0]!r}; rename one of {_listed(table.columns)}."
        )
    frame = pl.DataFrame(typed)
    if kind == "one asset":
        frame = frame.with_columns(asset=pl.lit(_stem(path)))
    if kind == "wide":
        keyed = unpivot(frame.with_columns(pl.struct("date", place=places).alias("date")), price)
        places = keyed["date"].struct.field("place")
        frame = keyed.with_columns(pl.col("date").struct.field("date"))
    described = {
        "long": f"long, assets in {asset_column!r}, price in {price_column!r}",
        "one asset": f"one asset's bars (no asset column): {_stem(path)!r}, price in {price_column!r}",
        "wide": f"wide, {len(others)} columns of prices",
    }[kind]
    return Reading(
        path=path,
        frame=normalise(frame, price=price, name=str(path)),
        places=places,
        unit=unit,
        layout=kind,
        recognised=f"{style}: {described}, dates in {date_column!r} ({date_format})",
        price=price,
    )


def _dates_elsewhere(columns: list[str]) -> bool:
    return any(column.casefold() in DATE_NAMES for column in columns)


def _date_column(path: Path, table: pl.DataFrame) -> str:
    by_name = {column.casefold(): column for column in reversed(table.columns)}
    for alias in (*DATE_NAMES, "__index_level_0__"):
        if alias in by_name:
            return by_name[alias]
    near = difflib.get_close_matches("date", list(by_name), n=1, cutoff=0.6)
    hint = f" Is it {by_name[near[0]]!r}? Rename it to 'date'." if near else ""
    raise ValueError(
        f"{path}: needs a date column ({', '.join(DATE_NAMES)}); got {_listed(table.columns)}.{hint}"
    )


def _numbers(path: Path, cells: pl.Series, places: pl.Series, unit: str, style: str) -> pl.Series:
    """Return Float64 from text; other types pass as they are, for the panel's rules to judge."""
    if cells.dtype != pl.String:
        return cells
    text = cells.set(cells.str.to_lowercase().is_in(MISSING).fill_null(False), None)
    comma = text.str.contains(r"^[+-]?\d+,\d+$").any()
    if comma and "commas" not in style and not text.str.contains(".", literal=True).any():
        text = text.str.replace(",", ".", literal=True)
    numbers = text.cast(pl.Float64, strict=False)
    broken = (numbers.is_null() & text.is_not_null()).arg_true()
    if len(broken) == 0:
        return numbers
    first = int(broken[0])
    value = cells[first]
    remedy = "Leave the cell empty if the value is missing; drop a column of text"
    if re.fullmatch(r"[+-]?[\d.,' ]+", value):
        remedy = "Write plain decimals such as 1234.5, with one decimal sign and no thousands separators"
    elif value.endswith("%"):
        remedy = "Write decimals, 0.01 for 1 %"
    elif re.fullmatch(r"[A-Z]", value):
        remedy = "Letters in CRSP's RET are codes for missing: leave the cell empty"
    raise ValueError(
        f"{path}: {unit} {places[first]}, column {cells.name!r}: {value!r} is not a number. {remedy}."
    )


def _stem(path: Path) -> str:
    return re.sub(r"(\.csv|\.parquet|\.pq|\.txt)?(\.gz)?$", "", path.name, flags=re.IGNORECASE) or path.name


def _first_line(text: str) -> str:
    return text.lstrip("\n").split("\n", 1)[0]


def _listed(columns: list[str]) -> str:
    shown = ", ".join(map(repr, columns[:12]))
    return shown + (f" and {len(columns) - 12} more" if len(columns) > 12 else "")

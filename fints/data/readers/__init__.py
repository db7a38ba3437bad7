"""Readers of foreign layouts, one file each: recognised and said, or named by the caller.

=============  ==========================================================================================
layout         what it is
=============  ==========================================================================================
long           a row a (date, asset); without an asset column the bars of the one asset that names the file
wide           a date column and one column of prices an asset
yfinance       header rows of fields and tickers, or one ticker's bars with an adjusted close
stooq          ``<TICKER>,<PER>,<DATE>,...``, or the bars of one symbol
kaggle         long, as uploaded there: ``Name`` for assets, a saved index, dates m/d/Y
crsp           PERMNO with RET (older) or DlyRet, MthRet (newer)
french         Kenneth French's stacked blocks
goyal_welch    ``yyyymm`` and predictors, as CSV or workbook
qlib           a folder of calendars, instruments and features
=============  ==========================================================================================

Any of these but `french` and `qlib` may be CSV (plain or gzip), parquet, Arrow (Feather) or a worksheet
(.xlsx).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from fints.data.readers.asking import Asking
from fints.data.readers.crsp import read_crsp, recognises_crsp
from fints.data.readers.files import Table, Text, open_container
from fints.data.readers.french import read_french, recognises_french
from fints.data.readers.goyal_welch import read_goyal_welch, recognises_goyal_welch
from fints.data.readers.plain import one_header, read_plain
from fints.data.readers.qlib import read_qlib, recognises_qlib
from fints.data.readers.reading import Reading
from fints.data.readers.repairs import Factor, Repairs, repair
from fints.data.readers.stooq import read_stooq, recognises_stooq
from fints.data.readers.yfinance import read_yfinance, recognises_yfinance, recognises_yfinance_bars

__all__ = ["LAYOUTS", "Asking", "Factor", "Reading", "Repairs", "open_reading"]

Columns = Callable[[tuple[str, ...]], bool]
# Layouts told by the names in one header; the first that knows them reads them.
BY_COLUMNS: dict[str, tuple[Columns, Callable[[Table, Asking], Reading]]] = {
    "stooq": (recognises_stooq, read_stooq),
    "crsp": (recognises_crsp, read_crsp),
    "goyal_welch": (recognises_goyal_welch, read_goyal_welch),
    "yfinance": (recognises_yfinance_bars, read_yfinance),
}
PLAIN = ("long", "wide", "kaggle")
LAYOUTS = ("auto", *PLAIN, *BY_COLUMNS, "french", "qlib")


def open_reading(path: Path, asking: Asking) -> Reading:
    """Read a file as the layout it is in, with the repairs asked for; the panel's rules are not yet applied.

    Raises
    ------
    ValueError
        If the file cannot be read as a table of dates, assets and numbers: with file, place, value and
        remedy.
    """
    for option in ("price", "block", "sheet", "returns"):
        if getattr(asking, option) == "":
            raise ValueError(f"{option} must not be empty: leave it out, or name one.")
    if asking.returns not in (None, "simple", "log"):
        raise ValueError(f"returns must be simple or log; got {asking.returns!r}.")
    if asking.layout not in LAYOUTS:
        raise ValueError(f"layout must be one of {', '.join(LAYOUTS)}; got {asking.layout!r}.")
    if path.is_dir():
        if asking.layout in ("auto", "qlib") and recognises_qlib(path):
            return repair(_whole(path, read_qlib(path, asking), asking), asking.repairs)
        tail = ", and none of qlib: it needs calendars/ and features/" if asking.layout == "qlib" else ""
        raise ValueError(f"{path}: there is no such file (it is a folder{tail}).")
    if asking.layout == "qlib":
        raise ValueError(
            f"{path}: qlib's store is a folder; name the one that holds calendars/ and features/."
        )
    return repair(_read(open_container(path, asking.sheet), asking), asking.repairs)


def _read(source: Text | Table, asking: Asking) -> Reading:
    if isinstance(source, Text):
        named = asking.layout
        if named == "french" or (named == "auto" and recognises_french(source)):
            return _whole(source.path, read_french(source, asking), asking)
        if named in ("auto", "yfinance") and recognises_yfinance(source):
            return _whole(source.path, read_yfinance(source, asking), asking)
        if asking.sheet is not None:
            raise ValueError(
                f"{source.path}: has one table and is no workbook, so there is no sheet {asking.sheet!r}."
            )
        source = one_header(source)
    elif asking.layout == "french":
        raise ValueError(
            f"{source.path}: the blocks of Kenneth French are read from text; this is {source.style}."
        )
    if asking.block is not None:
        raise ValueError(f"{source.path}: has one table, so there is no block {asking.block!r} to choose.")
    source = _without(source, asking.repairs.drop)
    for name, (knows, reader) in BY_COLUMNS.items():
        if asking.layout == name or (asking.layout == "auto" and knows(source.columns)):
            return _told(reader(source, asking), asking)
    return _told(read_plain(source, asking), asking)


def _without(table: Table, dropped: tuple[str, ...]) -> Table:
    unknown = [column for column in dropped if column not in table.columns]
    if unknown:
        raise ValueError(
            f"{table.path}: no column {unknown[0]!r} to drop; got {', '.join(table.columns[:12])}."
        )
    kept = tuple(column for column in table.columns if column not in dropped)
    return Table(table.path, table.frame.drop(dropped), kept, table.unit, table.style, table.large)


def _whole(path: Path, reading: Reading, asking: Asking) -> Reading:
    """Refuse to drop columns of a file that has no header of its own for them."""
    if asking.repairs.drop:
        raise ValueError(f"{path}: columns of the layout {reading.layout} cannot be dropped (drop).")
    return _told(reading, asking)


def _told(reading: Reading, asking: Asking) -> Reading:
    """Say what was decided about columns and dates, for which no later step speaks."""
    decided = asking.repairs
    said = []
    if decided.drop:
        said.append(f"columns left out: {', '.join(decided.drop)}")
    if decided.date_order is not None:
        said.append(f"dates read with the {decided.date_order} first")
    if decided.century is not None:
        said.append(f"years of two digits read as {decided.century} to {decided.century + 99}")
    if decided.excel_dates:
        said.append("numbers of five digits read as Excel's days")
    if decided.time_zone is not None:
        said.append(f"days of stamps counted in {decided.time_zone}")
    return replace(reading, repairs=(*reading.repairs, *said))

"""From a file that somebody brings to a panel: recognised, read, repaired where asked, judged."""

from __future__ import annotations

import os
from pathlib import Path

from fints.data.panel import Panel
from fints.data.readers import LAYOUTS, Asking, Factor, Reading, Repairs, open_reading
from fints.data.readers.plain import stem

__all__ = ["LAYOUTS", "Factor", "Reading", "Repairs", "open_file", "read"]

NO_REPAIRS = Repairs()


def read(
    path: str | os.PathLike[str],
    *,
    layout: str = "auto",
    name: str | None = None,
    price: str | None = None,
    block: str | int | None = None,
    sheet: str | None = None,
    returns: str | None = None,
    repairs: Repairs = NO_REPAIRS,
) -> Panel:
    """Read a file as a panel: CSV (plain or gzip), parquet, Arrow, a worksheet, or a folder of qlib.

    Parameters
    ----------
    path
        The file. Separator (comma, semicolon, tab, bar), byte-order mark and decimal comma (where commas do
        not separate) are recognised; headers match in any case.
    layout
        A name of `LAYOUTS` (see `fints.data.readers`). "auto" tells them apart by their headers;
        `fints.data.check` says which it was.
    name
        Name of the panel; by default the file's, without its ending.
    price
        The price column of a long file (default ``close``), the field of a yfinance file (default ``Adj
        Close``, else ``Close``); the name a wide file's prices get.
    block
        Of Kenneth French's stacked tables: a number from 1 or part of a title; by default the first of
        returns.
    sheet
        Of a workbook; by default "Monthly" where there is one, else the first.
    returns
        "simple" or "log" if the price column (or a wide file) holds returns: the price is built from them.
    repairs
        Decisions about what is broken or ambiguous. Nothing is repaired without.

    Raises
    ------
    ValueError
        If the file is absent, empty or no table, a column is missing, a value is no date or no number, or the
        rules of `Panel` are broken: with file, line, value and remedy. Dates must be whole days without zone,
        with years of four digits, in one format whose order of day and month is certain, or `repairs` must
        say how to read them.
    """
    reading = open_file(
        path, layout=layout, price=price, block=block, sheet=sheet, returns=returns, repairs=repairs
    )
    return reading.panel(name or stem(reading.path))


def open_file(
    path: str | os.PathLike[str],
    *,
    layout: str = "auto",
    price: str | None = None,
    block: str | int | None = None,
    sheet: str | None = None,
    returns: str | None = None,
    repairs: Repairs = NO_REPAIRS,
) -> Reading:
    """Read a file as `read` does, without applying the rules of `Panel` to its values.

    Raises
    ------
    ValueError
        If the file cannot be read as a table of dates, assets and numbers.
    """
    asking = Asking(
        layout=layout,
        price=price,
        block=None if block is None else str(block),
        sheet=sheet,
        returns=returns,
        repairs=repairs,
    )
    return open_reading(Path(path), asking)

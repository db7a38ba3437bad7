"""The predictors of Goyal and Welch: one asset, the S&P 500, by month, quarter or year.

Sheets "Monthly", "Quarterly", "Annual" of the workbook, or one of them as CSV. Dates are ``yyyymm``,
``yyyyq`` or ``yyyy``, here the last day of the period. The price grows by ``CRSP_SPvw`` (``ret`` in newer
files), the return with dividends; without it, ``Index`` (``price``) is the price.

Source: Welch and Goyal (2008), A Comprehensive Look at the Empirical Performance of Equity Premium
Prediction, and the workbooks beside it.
"""

from __future__ import annotations

import polars as pl

from fints.data.dates import parse_periods
from fints.data.readers.asking import Asking
from fints.data.readers.cells import keyed
from fints.data.readers.files import PLACE, Table, Text
from fints.data.readers.plain import one_header
from fints.data.readers.reading import Reading

__all__ = ["read_goyal_welch", "recognises_goyal_welch"]

DATES = ("yyyymm", "yyyyq", "yyyy")
RETURNS = ("crsp_spvw", "ret")
PRICES = ("index", "price")
ASSET = "SP500"
THOUSANDS = r"^[+-]?\d{1,3}(,\d{3})+(\.\d+)?$"
LAGS = (
    "numbers are dated at the end of the period they describe; inflation, earnings and dividends were "
    "published later, so lag them before you forecast with them"
)


def recognises_goyal_welch(columns: tuple[str, ...]) -> bool:
    """Tell whether a header has periods and one of the authors' returns or prices."""
    names = {column.casefold() for column in columns}
    return bool(names & {*DATES}) and bool(names & {*RETURNS, *PRICES})


def read_goyal_welch(source: Text | Table, asking: Asking) -> Reading:
    """Read one sheet.

    Raises
    ------
    ValueError
        With file, row, value and remedy.
    """
    table = one_header(source) if isinstance(source, Text) else source
    by_name = table.by_name
    date = next((by_name[name] for name in DATES if name in by_name), None)
    if date is None:
        raise ValueError(
            f"{table.path}: needs a column {', '.join(DATES)}; got {', '.join(table.columns[:12])}."
        )
    values = [column for column in table.columns if column != date]
    wanted = None if asking.price is None else by_name.get(asking.price.casefold())
    if asking.price is not None and wanted is None:
        raise ValueError(f"{table.path}: has no column {asking.price!r}; got {', '.join(values)}.")
    found = next((by_name[name] for name in RETURNS if name in by_name), None)
    level = next((by_name[name] for name in PRICES if name in by_name), None)
    column = wanted or found or level
    if column is None:
        raise ValueError(f"{table.path}: needs a column of {', '.join((*RETURNS, *PRICES))}.")
    returns = asking.returns or ("simple" if column == found else None)
    schema = table.frame.collect_schema()
    cleaned = {
        name: pl.when(pl.col(name).str.contains(THOUSANDS))
        .then(pl.col(name).str.replace_all(",", "", literal=True))
        .otherwise(pl.col(name))
        for name in values
        if schema[name] == pl.String
    }
    price = column if returns else "close"
    frame = keyed(table, date, None, {name: price if name == column else name for name in values}, cleaned)
    dates, date_format = parse_periods(table.path, frame["date"], frame[PLACE], table.unit)
    notes = [LAGS] if len(values) > 1 else []
    if not returns:
        notes.append(f"{column} is a price without dividends")
    return Reading.of(
        table.path,
        frame.with_columns(dates.alias("date"), asset=pl.lit(ASSET)),
        unit=table.unit,
        layout="goyal_welch",
        recognised=f"{table.style}: Goyal and Welch, {'returns' if returns else 'price'} in {column!r}, "
        f"dates in {date!r} ({date_format})",
        price=price,
        returns=returns,
        notes=notes,
    )

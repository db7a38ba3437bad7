"""Stooq's two layouts: the bars of one symbol under plain names, and its archive under names in angles.

The archive has ``<TICKER>,<PER>,<DATE>,<TIME>,<OPEN>,...``: a period ("D"), days as YYYYMMDD, symbols with
their market (``AAPL.US``), which are kept, since 4IG.HU and 4IG.DE are two assets.
"""

from __future__ import annotations

import polars as pl

from fints.data.dates import parse_dates
from fints.data.readers.asking import Asking
from fints.data.readers.cells import keyed
from fints.data.readers.files import PLACE, Table, Text, collect
from fints.data.readers.plain import one_header, read_plain
from fints.data.readers.reading import Reading
from fints.words import counted

__all__ = ["read_stooq", "recognises_stooq"]

VALUES = {
    "<open>": "open",
    "<high>": "high",
    "<low>": "low",
    "<close>": "close",
    "<vol>": "volume",
    "<openint>": "open_interest",
}
PERIODS = {"D": "daily", "W": "weekly", "M": "monthly", "Q": "quarterly", "Y": "yearly"}
POLISH = {
    "data": "date",
    "otwarcie": "open",
    "najwyzszy": "high",
    "najnizszy": "low",
    "zamkniecie": "close",
    "wolumen": "volume",
}


def recognises_stooq(columns: tuple[str, ...]) -> bool:
    """Tell whether a header is that of Stooq's archive, or in Polish."""
    names = {column.casefold() for column in columns}
    return {"<ticker>", "<date>", "<close>"} <= names or {"data", "zamkniecie"} <= names


def read_stooq(source: Text | Table, asking: Asking) -> Reading:
    """Read either layout.

    Raises
    ------
    ValueError
        With file, line, value and remedy; intraday bars are refused.
    """
    table = one_header(source) if isinstance(source, Text) else source
    by_name = table.by_name
    if "<ticker>" not in by_name:
        return _one_symbol(table, asking)
    for needed in ("<date>", "<close>"):
        if needed not in by_name:
            raise ValueError(
                f"{table.path}: Stooq's archive has a column {needed.upper()}; this file has none."
            )
    period = _check(table)
    values = {by_name[old]: new for old, new in VALUES.items() if old in by_name}
    price = (asking.price or "close").casefold().strip("<>")
    if price not in values.values():
        raise ValueError(
            f"{table.path}: has no price {asking.price!r}; there are {', '.join(values.values())}."
        )
    frame = keyed(table, by_name["<date>"], by_name["<ticker>"], values)
    dates, date_format = parse_dates(
        table.path, frame["date"], frame[PLACE], table.unit, asking.repairs.dates
    )
    count = frame["asset"].n_unique()
    return Reading.of(
        table.path,
        frame.with_columns(dates.alias("date")),
        unit=table.unit,
        layout="stooq",
        recognised=f"{table.style}: Stooq's archive, {period}, {counted(count, 'symbol')}, "
        f"price in {price!r}, dates ({date_format})",
        price=price,
    )


def _one_symbol(table: Table, asking: Asking) -> Reading:
    renamed = {column: POLISH[column.casefold()] for column in table.columns if column.casefold() in POLISH}
    names = tuple(renamed.get(column, column) for column in table.columns)
    renamed_table = Table(
        table.path, table.frame.rename(renamed), names, table.unit, table.style, table.large
    )
    return read_plain(renamed_table, asking)


def _check(table: Table) -> str:
    """Refuse bars within a day, and return the period of the file."""
    by_name = table.by_name
    period = "daily"
    if "<per>" in by_name:
        column = by_name["<per>"]
        text = pl.col(column).cast(pl.String)
        first, wrong = collect(
            table.frame.select(
                text.first().alias("first"),
                pl.struct(PLACE, text.alias("value"))
                .filter(~text.is_in(list(PERIODS)) | (text != text.first()) | text.is_null())
                .first()
                .alias("wrong"),
            ),
            table,
        ).row(0)
        if wrong is not None:
            raise ValueError(
                f"{table.path}: {table.unit} {wrong[PLACE]}: the period {wrong['value']!r} is not one of "
                f"whole days ({', '.join(PERIODS)}), the same in all rows. Download daily bars."
            )
        period = PERIODS[first]
    if "<time>" in by_name:
        text = pl.col(by_name["<time>"]).cast(pl.String)
        inside = collect(
            table.frame.filter(text.str.contains("[^0:]").fill_null(False))
            .select(PLACE, text.alias("t"))
            .head(1),
            table,
        )
        if inside.height:
            raise ValueError(
                f"{table.path}: {table.unit} {inside[PLACE][0]}: the time {inside['t'][0]!r} lies within a "
                "day. A panel has one row a day: download daily bars."
            )
    return period

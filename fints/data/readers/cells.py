"""Cells into numbers, a column at a time and by polars, or the first cell that is none."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import polars as pl

from fints.data.readers.files import PLACE, Table, collect

__all__ = ["MISSING", "keyed", "numbers"]

# In number cells only: NA and NAN are also tickers.
MISSING = ("na", "n/a", "nan", "null", "none", "#n/a")
DECIMAL_COMMA = r"^[+-]?\d+,\d+$"
DECIMAL_POINT = r"^[+-]?\d+\.\d+$"
# Numbers as they are typeset: (1.5), $1.5, 1.5 EUR, with narrow blanks or the minus of mathematics.
DRESSED = r"[(\[]?[+\-\u2212]?\s*([$€£¥]|[A-Z]{3})?\s*[+\-\u2212]?[\d.,'_\s]+\s*([$€£¥]|[A-Z]{3})?[)\]]?"


def numbers(
    table: Table, columns: Sequence[str], cleaned: Mapping[str, pl.Expr] | None = None
) -> dict[str, pl.Expr]:
    """Return, for each column, the expression that makes it Float64.

    A column of text is checked whole first. A decimal comma is read where commas do not separate and most
    cells of the column have one; a point among them is then no number. Columns of other types pass as they
    are, for the panel's rules to judge.

    Parameters
    ----------
    table
        The cells.
    columns
        Those that must be numbers.
    cleaned
        Text expressions to be read in place of the cells themselves, such as without codes for missing.

    Raises
    ------
    ValueError
        If a cell is no number: with file, line, column, value and remedy.
    """
    schema = table.frame.collect_schema()
    texts = {
        column: (cleaned or {}).get(column, pl.col(column))
        for column in columns
        if schema[column] == pl.String
    }
    if not texts:
        return {column: pl.col(column) for column in columns}
    commas = table.style.endswith("commas")
    found = []
    for place, text in enumerate(texts.values()):
        found.append(_broken(text).alias(f"broken{place}"))
        if not commas:
            found += [
                text.str.contains(DECIMAL_COMMA).sum().alias(f"comma{place}"),
                text.str.contains(DECIMAL_POINT).sum().alias(f"point{place}"),
                _broken(_with_point(text)).alias(f"broken_comma{place}"),
                pl.col(PLACE).filter(text.str.contains(DECIMAL_POINT)).min().alias(f"pointed{place}"),
            ]
    said = collect(table.frame.select(found), table).row(0, named=True)
    made = {column: pl.col(column) for column in columns}
    if not commas and any(said[f"comma{place}"] for place in range(len(texts))):
        # Beside decimal commas 1.000 may be a thousand.
        for place, column in enumerate(texts):
            if said[f"pointed{place}"] is not None and said[f"comma{place}"] <= said[f"point{place}"]:
                broken = said[f"broken{place}"]
                _refuse(table, column, said[f"pointed{place}"] if broken is None else broken)
    for place, (column, text) in enumerate(texts.items()):
        comma = not commas and said[f"comma{place}"] > said[f"point{place}"]
        broken = said[f"broken_comma{place}" if comma else f"broken{place}"]
        if broken is not None:
            _refuse(table, column, broken)
        text = _with_point(text) if comma else text
        # What stands for missing is no number either, and becomes null with the rest that was checked.
        made[column] = text.cast(pl.Float64, strict=False).fill_nan(None)
    return made


def keyed(
    table: Table,
    date: str,
    asset: str | None,
    values: Mapping[str, str],
    cleaned: Mapping[str, pl.Expr] | None = None,
) -> pl.DataFrame:
    """Return `PLACE`, the date as it stands, the asset as text, and numbers under their new names.

    Raises
    ------
    ValueError
        If a cell is no number, or there is no row.
    """
    parsed = numbers(table, list(values), cleaned)
    keys = [pl.col(date).alias("date")]
    if asset is not None:
        keys.append(pl.col(asset).cast(pl.String).alias("asset"))
    made = [expression.alias(values[column]) for column, expression in parsed.items()]
    frame = collect(table.frame.select(pl.col(PLACE), *keys, *made), table)
    if frame.is_empty():
        raise ValueError(f"{table.path}: the file has a header but no row of data. Give one row a date.")
    # The streaming engine promises no order, but mostly keeps it.
    return frame if frame[PLACE].is_sorted() else frame.sort(PLACE)


def _with_point(text: pl.Expr) -> pl.Expr:
    """Return decimal commas as points, and what has a point already as no number."""
    pointed = pl.when(text.str.contains(".", literal=True)).then(pl.lit("two decimal signs"))
    return pointed.otherwise(text.str.replace(",", ".", literal=True))


def _broken(text: pl.Expr) -> pl.Expr:
    """Return the first place of a cell that is neither empty nor missing nor a number."""
    unread = text.is_not_null() & text.cast(pl.Float64, strict=False).is_null()
    # Few cells are left to be compared with words.
    missing = text.filter(unread).str.to_lowercase().is_in(MISSING)
    return pl.col(PLACE).filter(unread).filter(~missing).min()


def _refuse(table: Table, column: str, place: int) -> None:
    value = str(collect(table.frame.filter(pl.col(PLACE) == place).select(column), table).item())
    remedy = "Leave the cell empty if the value is missing; drop a column of text"
    if re.fullmatch(r"[+-]?[\d.,' ]+", value):
        remedy = "Write plain decimals such as 1234.5, with one decimal sign and no thousands separators"
    elif re.search(r"\d", value) and re.fullmatch(DRESSED, value):
        remedy = "Write plain decimals such as -1234.5, without currency, brackets, blanks or a long minus"
    elif value.endswith("%"):
        remedy = "Write decimals, 0.01 for 1 %"
    elif re.fullmatch(r"[A-Z]", value):
        remedy = "Letters in CRSP's RET are codes for missing: leave the cell empty"
    raise ValueError(
        f"{table.path}: {table.unit} {place}, column {column!r}: {value!r} is not a number. {remedy}."
    )

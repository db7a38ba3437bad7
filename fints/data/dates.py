"""Dates as people write them in files, and those that are refused because they could be read in two ways."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable
from pathlib import Path

import polars as pl

__all__ = ["parse_dates"]

FORMS = {
    "YYYY-MM-DD": r"(?P<y>\d{4})-(?P<m>\d{1,2})-(?P<d>\d{1,2})",
    "YYYY-MM-DD with time": (
        r"(?P<y>\d{4})-(?P<m>\d{1,2})-(?P<d>\d{1,2})[ T](?P<time>\d{1,2}:\d{2}(?::\d{2}(?:\.\d+)?)?)"
    ),
    "YYYY/MM/DD": r"(?P<y>\d{4})/(?P<m>\d{1,2})/(?P<d>\d{1,2})",
    "YYYYMMDD": r"(?P<y>\d{4})(?P<m>\d{2})(?P<d>\d{2})",
    "DD.MM.YYYY": r"(?P<d>\d{1,2})\.(?P<m>\d{1,2})\.(?P<y>\d{4})",
    "DD-Mon-YYYY": r"(?P<d>\d{1,2})[- ](?P<mon>[A-Za-z]{3})[- ](?P<y>\d{4})",
    "MM/DD/YYYY or DD/MM/YYYY": r"(?P<one>\d{1,2})[/-](?P<two>\d{1,2})[/-](?P<y>\d{4})",
}
MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
REFUSED = {
    r".*\d{1,2}:\d{2}.*(Z|[+-]\d{2}:?\d{2}|UTC|GMT)": (
        "carries a time zone",
        "Decide which day each stamp belongs to and write plain days, YYYY-MM-DD",
    ),
    r"\d{1,2}([/.-])\d{1,2}\1\d{2}|\d{1,2}[- ][A-Za-z]{3}[- ]\d{2}": (
        "has a year of two digits (70 may be 1970 or 2070)",
        "Write YYYY-MM-DD",
    ),
    r"\d{5}(\.\d*)?": (
        "looks like an Excel serial number",
        "Format the column as YYYY-MM-DD and save again",
    ),
}

# Of a text, what was found and the remedy, the error that names its first line.
Refusal = Callable[[str, str, str], ValueError]


def parse_dates(path: Path, cells: pl.Series, places: pl.Series, unit: str) -> tuple[pl.Series, str]:
    """Return the days of a column of text or whole numbers, and the format they are written in.

    All cells must be in one format. Whether 03/04/2020 has the day or the month first is decided by the dates
    above 12 in the same column, or refused. Columns of other types pass as they are, for the panel to judge.

    Raises
    ------
    ValueError
        With file, first line, value and remedy.
    """
    if cells.is_null().any():
        place = places[int(cells.is_null().arg_true()[0])]
        raise ValueError(f"{path}: {unit} {place} has values but no date. Fill it in or delete the row.")
    if not (cells.dtype.is_integer() or cells.dtype == pl.String):
        return cells, str(cells.dtype)
    texts = cells.cast(pl.String)
    distinct = texts.unique(maintain_order=True).to_list()

    def refuse(text: str, found: str, remedy: str) -> ValueError:
        place = places[int((texts == text).arg_true()[0])]
        return ValueError(f"{path}: {unit} {place}: the date {text!r} {found}. {remedy}.")

    form = _form(distinct[0], refuse)
    matches = []
    for text in distinct:
        match = re.fullmatch(FORMS[form], text)
        if match is None:
            found = f"is in the format {_form(text, refuse)}, the first one ({distinct[0]!r}) in {form}"
            raise refuse(text, found, "Write all in one format")
        matches.append(match)
    if "one" in matches[0].groupdict():
        form = _order_of_day_and_month(matches, refuse)
    days = {match[0]: _day(match, form, refuse) for match in matches}
    return texts.replace_strict(days, return_dtype=pl.Date), form


def _form(text: str, refuse: Refusal) -> str:
    for pattern, (found, remedy) in REFUSED.items():
        if re.fullmatch(pattern, text, re.IGNORECASE):
            raise refuse(text, found, remedy)
    for form, pattern in FORMS.items():
        if re.fullmatch(pattern, text):
            return form
    raise refuse(text, "is not a date in any known format", "Write YYYY-MM-DD; delete notes and totals")


def _order_of_day_and_month(matches: list[re.Match[str]], refuse: Refusal) -> str:
    day_first = [match[0] for match in matches if int(match["one"]) > 12]
    month_first = [match[0] for match in matches if int(match["two"]) > 12]
    if day_first and month_first:
        found = f"has the month first, but {day_first[0]!r} has the day first"
        raise refuse(month_first[0], found, "Write YYYY-MM-DD")
    if not day_first and not month_first:
        found = "may have the day or the month first, and no date of the file decides it"
        raise refuse(matches[0][0], found, "Write YYYY-MM-DD")
    return "DD/MM/YYYY" if day_first else "MM/DD/YYYY"


def _day(match: re.Match[str], form: str, refuse: Refusal) -> dt.date:
    part = match.groupdict()
    if part.get("time") and set(part["time"]) - set("0:."):
        remedy = "A panel has one row a day: aggregate to days and write YYYY-MM-DD"
        raise refuse(match[0], "has a time of day", remedy)
    if "one" in part:
        month, day = ("two", "one") if form == "DD/MM/YYYY" else ("one", "two")
        part |= {"m": part[month], "d": part[day]}
    if "mon" in part:
        known = part["mon"].lower() in MONTHS
        part["m"] = str(MONTHS.index(part["mon"].lower()) + 1) if known else "0"
    try:
        return dt.date(int(part["y"]), int(part["m"]), int(part["d"]))
    except ValueError as error:
        raise refuse(match[0], "does not exist in the calendar", "Correct it; write YYYY-MM-DD") from error

"""Dates as people write them in files, and those that are refused because they could be read in two ways."""

from __future__ import annotations

import calendar
import datetime as dt
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from zoneinfo import ZoneInfo

import polars as pl

__all__ = ["DateRules", "parse_dates", "parse_periods"]

FORMS = {
    "YYYY-MM-DD": r"(?P<y>\d{4})-(?P<m>\d{1,2})-(?P<d>\d{1,2})",
    "YYYY-MM-DD with time": (
        r"(?P<y>\d{4})-(?P<m>\d{1,2})-(?P<d>\d{1,2})[ T](?P<time>\d{1,2}:\d{2}(?::\d{2}(?:\.\d+)?)?)"
    ),
    "YYYY/MM/DD": r"(?P<y>\d{4})/(?P<m>\d{1,2})/(?P<d>\d{1,2})",
    # A column of numbers with a gap is written with a point and a zero.
    "YYYYMMDD": r"(?P<y>\d{4})(?P<m>\d{2})(?P<d>\d{2})(?:\.0+)?",
    "DD.MM.YYYY": r"(?P<d>\d{1,2})\.(?P<m>\d{1,2})\.(?P<y>\d{4})",
    "DD-Mon-YYYY": r"(?P<d>\d{1,2})(?P<gap>[- ]?)(?P<mon>[A-Za-z]{3})(?P=gap)(?P<y>\d{4})",
    "MM/DD/YYYY or DD/MM/YYYY": r"(?P<one>\d{1,2})[/-](?P<two>\d{1,2})[/-](?P<y>\d{4})",
    # As Excel saves days that had a time of 0:00.
    "DD.MM.YYYY with time": (
        r"(?P<d>\d{1,2})\.(?P<m>\d{1,2})\.(?P<y>\d{4}) (?P<time>\d{1,2}:\d{2}(?::\d{2}(?:\.\d+)?)?)"
    ),
    "MM/DD/YYYY with time or DD/MM/YYYY with time": (
        r"(?P<one>\d{1,2})/(?P<two>\d{1,2})/(?P<y>\d{4}) (?P<time>\d{1,2}:\d{2}(?::\d{2}(?:\.\d+)?)?)"
    ),
}
# Read only where the caller has said how.
ON_REQUEST = {
    "zoned": (
        r"(?P<y>\d{4})-(?P<m>\d{1,2})-(?P<d>\d{1,2})[ T](?P<time>\d{1,2}:\d{2}(?::\d{2}(?:\.\d+)?)?) ?"
        r"(?P<zone>Z|UTC|GMT|[+-]\d{2}:?\d{2})"
    ),
    "Excel serial": r"(?P<serial>\d{5})(?:\.0*)?",
    "DD.MM.YY": r"(?P<d>\d{1,2})\.(?P<m>\d{1,2})\.(?P<yy>\d{2})",
    "DD-Mon-YY": r"(?P<d>\d{1,2})(?P<gap>[- ])(?P<mon>[A-Za-z]{3})(?P=gap)(?P<yy>\d{2})",
    "MM/DD/YY or DD/MM/YY": r"(?P<one>\d{1,2})[/-](?P<two>\d{1,2})[/-](?P<yy>\d{2})",
}
# No market is older, and 9999 stands for no date at all.
YEARS = (1700, 2200)
EXCEL_ZERO = dt.date(1899, 12, 30)
# Excel believes in 29 February 1900 (serial 60): only later serials are certain.
FIRST_CERTAIN_SERIAL = 61
MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
REFUSED = {
    r".*\d{1,2}:\d{2}.*(Z|[+-]\d{2}:?\d{2}|UTC|GMT)": (
        "carries a time zone",
        "Write plain days, YYYY-MM-DD, or say in which zone its day counts (time_zone)",
    ),
    r"\d{1,2}([/.-])\d{1,2}\1\d{2}|\d{1,2}[- ][A-Za-z]{3}[- ]\d{2}": (
        "has a year of two digits (70 may be 1970 or 2070)",
        "Write YYYY-MM-DD, or say the first year of the century meant (century)",
    ),
    r"\d{5}(\.\d*)?": (
        "looks like an Excel serial number",
        "Format the column as YYYY-MM-DD and save again, or say that it is one (excel_dates)",
    ),
}

# Of a text, what was found and the remedy, the error that names its first line.
Refusal = Callable[[str, str, str], ValueError]


@dataclass(frozen=True, kw_only=True)
class DateRules:
    """What the caller knows of dates that a file leaves open.

    Attributes
    ----------
    order : {"day", "month"} or None
        Which comes first in 03/04/2020 where the file does not tell.
    century : int or None
        First of the hundred years that years of two digits lie in: 1950 reads 70 as 1970 and 20 as 2020.
    excel : bool
        Five digits are Excel's serial days (of its 1900 system).
    time_zone : str or None
        The zone in which a stamp's day counts, such as "America/New_York".
    exchange_days : bool
        Stamps at midnight with an offset are days of the exchange, whose offset changes by an hour in summer.
    """

    order: str | None = None
    century: int | None = None
    excel: bool = False
    time_zone: str | None = None
    exchange_days: bool = False

    def __post_init__(self) -> None:
        """Refuse rules that mean nothing."""
        if self.order not in (None, "day", "month"):
            raise ValueError(f"the order of dates must be 'day' or 'month'; got {self.order!r}.")
        if self.century is not None and not 1700 <= self.century <= 2100:
            raise ValueError(f"century must be a year from 1700 to 2100, such as 1950; got {self.century}.")
        if self.time_zone is not None:
            try:
                ZoneInfo(self.time_zone)
            except (KeyError, ValueError, OSError) as error:
                raise ValueError(
                    f"there is no time zone {self.time_zone!r}; give one such as 'America/New_York'."
                ) from error

    @property
    def forms(self) -> dict[str, str]:
        """The formats these rules allow, the strict ones first."""
        allowed = dict(FORMS)
        if self.time_zone is not None or self.exchange_days:
            allowed["zoned"] = ON_REQUEST["zoned"]
        if self.excel:
            allowed["Excel serial"] = ON_REQUEST["Excel serial"]
        if self.century is not None:
            allowed |= {form: pattern for form, pattern in ON_REQUEST.items() if "yy" in pattern}
        return allowed


STRICT = DateRules()


def parse_dates(
    path: Path, cells: pl.Series, places: pl.Series, unit: str, rules: DateRules = STRICT
) -> tuple[pl.Series, str]:
    """Return the days of a column of text or whole numbers, and the format they are written in.

    All cells must be in one format. Whether 03/04/2020 has the day or the month first is decided by the dates
    above 12 in the same column, else by `rules`, or refused. Columns of other types pass as they are, for the
    panel to judge, but for stamps with a zone where `rules` say in which zone their day counts, or that they
    are midnights of the exchange.

    Raises
    ------
    ValueError
        With file, first line, value and remedy.
    """
    if cells.is_null().any():
        place = places[int(cells.is_null().arg_true()[0])]
        raise ValueError(f"{path}: {unit} {place} has values but no date. Fill it in or delete the row.")
    if isinstance(cells.dtype, pl.Datetime) and cells.dtype.time_zone is not None and rules.time_zone:
        days = cells.dt.convert_time_zone(rules.time_zone).dt.date()
        return days, f"stamps, days in {rules.time_zone}"
    if isinstance(cells.dtype, pl.Datetime) and cells.dtype.time_zone is not None and rules.exchange_days:
        zone = cells.dtype.time_zone
        timed = (cells.dt.time() != dt.time(0)).fill_null(False).arg_true()
        if len(timed):
            place = int(timed[0])
            raise ValueError(
                f"{path}: {unit} {places[place]}: the date {str(cells[place])!r} has a time of day in "
                f"{zone}. Say in which zone days count (time_zone), or aggregate to days."
            )
        return cells.dt.date(), f"stamps, days in {zone}"
    if cells.dtype.is_float() and (cells.is_finite() & (cells == cells.floor())).all():
        cells = cells.cast(pl.Int64)
    if not (cells.dtype.is_integer() or cells.dtype == pl.String):
        return cells, str(cells.dtype)
    texts = cells.cast(pl.String)
    distinct = texts.unique(maintain_order=True).to_list()

    def refuse(text: str, found: str, remedy: str) -> ValueError:
        place = places[int((texts == text).arg_true()[0])]
        return ValueError(f"{path}: {unit} {place}: the date {text!r} {found}. {remedy}.")

    form = _form(distinct[0], rules, refuse)
    matches = []
    for text in distinct:
        match = re.fullmatch(rules.forms[form], text)
        if match is None:
            found = (
                f"is in the format {_form(text, rules, refuse)}, the first one ({distinct[0]!r}) in {form}"
            )
            raise refuse(text, found, "Write all in one format")
        matches.append(match)
    if "one" in matches[0].groupdict():
        form = _order_of_day_and_month(matches, form, rules, refuse)
    if form == "zoned" and rules.time_zone is None:
        _check_exchange_days(matches, refuse)
    parsed = {match[0]: _day(match, form, rules, refuse) for match in matches}
    if form == "zoned":
        form = f"stamps, days in {rules.time_zone or 'the zone of the exchange'}"
    return texts.replace_strict(parsed, return_dtype=pl.Date), form


def parse_periods(path: Path, cells: pl.Series, places: pl.Series, unit: str) -> tuple[pl.Series, str]:
    """Return the last day of each period: of a day YYYYMMDD, month YYYYMM, quarter YYYYQ or year YYYY.

    A number of a period is known at its end at the earliest, so that is its date.

    Raises
    ------
    ValueError
        If a cell is none of these or the cells are of more than one kind, with file, line, value and remedy.
    """
    texts = cells.cast(pl.String).str.strip_chars().str.replace(r"\.0+$", "")
    kinds = {4: "YYYY", 5: "YYYYQ", 6: "YYYYMM", 8: "YYYYMMDD"}
    first = texts[0] or ""
    kind = kinds.get(len(first))
    days: dict[str, dt.date] = {}
    for text in texts.unique(maintain_order=True).to_list():
        place = places[int((texts == text).arg_true()[0])] if text is not None else None
        if text is None:
            place = places[int(texts.is_null().arg_true()[0])]
            raise ValueError(f"{path}: {unit} {place} has values but no date. Fill it in or delete the row.")
        day = _period_end(text) if kinds.get(len(text)) == kind else None
        if day is None:
            raise ValueError(
                f"{path}: {unit} {place}: the date {text!r} is no {kind or 'YYYYMM, YYYYQ or YYYY'} as the "
                "rows of this table are. Correct or delete the row."
            )
        days[text] = day
    return texts.replace_strict(days, return_dtype=pl.Date), f"{kind}, dated at the end of each period"


def _period_end(text: str) -> dt.date | None:
    if not (text.isascii() and text.isdigit()):
        return None
    year = int(text[:4])
    if not YEARS[0] <= year <= YEARS[1]:
        return None
    try:
        if len(text) == 8:
            return dt.date(year, int(text[4:6]), int(text[6:]))
        month = {4: 12, 5: 3 * int(text[4:] or 0), 6: int(text[4:] or 0)}[len(text)]
        return dt.date(year, month, calendar.monthrange(year, month)[1])
    except (ValueError, calendar.IllegalMonthError):
        return None


def _form(text: str, rules: DateRules, refuse: Refusal) -> str:
    for form, pattern in rules.forms.items():
        if re.fullmatch(pattern, text):
            return form
    for pattern, (found, remedy) in REFUSED.items():
        if re.fullmatch(pattern, text, re.IGNORECASE):
            raise refuse(text, found, remedy)
    raise refuse(text, "is not a date in any known format", "Write YYYY-MM-DD; delete notes and totals")


def _order_of_day_and_month(
    matches: list[re.Match[str]], form: str, rules: DateRules, refuse: Refusal
) -> str:
    day, month = form.split(" or ")[1], form.split(" or ")[0]
    day_first = [match[0] for match in matches if int(match["one"]) > 12]
    month_first = [match[0] for match in matches if int(match["two"]) > 12]
    if day_first and month_first:
        found = f"has the month first, but {day_first[0]!r} has the day first"
        raise refuse(month_first[0], found, "Write YYYY-MM-DD")
    if not day_first and not month_first:
        if rules.order is not None:
            return day if rules.order == "day" else month
        found = "may have the day or the month first, and no date of the file decides it"
        raise refuse(matches[0][0], found, "Write YYYY-MM-DD, or say which is first (date_order)")
    told = "day" if day_first else "month"
    if rules.order not in (None, told):
        found = f"has the {told} first, which is not the order you said ({rules.order})"
        raise refuse((day_first or month_first)[0], found, "Say the other order or none")
    return day if day_first else month


def _check_exchange_days(matches: list[re.Match[str]], refuse: Refusal) -> None:
    """Refuse zoned stamps that are not the midnights of one exchange."""
    first = _minutes(matches[0]["zone"])
    for match in matches:
        if abs(_minutes(match["zone"]) - first) > 60:
            found = f"is {match['zone']} from UTC, the first one {matches[0]['zone']}: more than summer time"
            raise refuse(match[0], found, "Say in which zone days count (time_zone), or split the file")


def _minutes(zone: str) -> int:
    if zone in ("Z", "UTC", "GMT"):
        return 0
    return int(zone[0] + "1") * (60 * int(zone[1:3]) + int(zone[-2:]))


def _day(match: re.Match[str], form: str, rules: DateRules, refuse: Refusal) -> dt.date:
    part = match.groupdict()
    if "serial" in part:
        if int(part["serial"]) < FIRST_CERTAIN_SERIAL:
            raise refuse(match[0], "is too small for an Excel serial number", "Write YYYY-MM-DD")
        return EXCEL_ZERO + dt.timedelta(days=int(part["serial"]))
    if "zone" in part and rules.time_zone is not None:
        return _day_in_zone(match, rules.time_zone, refuse)
    if part.get("time") and set(part["time"]) - set("0:."):
        remedy = "A panel has one row a day: aggregate to days and write YYYY-MM-DD"
        raise refuse(match[0], "has a time of day", remedy)
    if "yy" in part:
        assert rules.century is not None
        part["y"] = str(rules.century + (int(part["yy"]) - rules.century) % 100)
    if "one" in part:
        month, day = ("two", "one") if form.startswith("DD") else ("one", "two")
        part |= {"m": part[month], "d": part[day]}
    if "mon" in part:
        known = part["mon"].lower() in MONTHS
        part["m"] = str(MONTHS.index(part["mon"].lower()) + 1) if known else "0"
    if not YEARS[0] <= int(part["y"]) <= YEARS[1]:
        found = f"has the year {int(part['y'])}, none from {YEARS[0]} to {YEARS[1]}"
        raise refuse(match[0], found, "Write years in full, and leave out rows that stand for no date")
    try:
        return dt.date(int(part["y"]), int(part["m"]), int(part["d"]))
    except ValueError as error:
        raise refuse(match[0], "does not exist in the calendar", "Correct it; write YYYY-MM-DD") from error


def _day_in_zone(match: re.Match[str], zone: str, refuse: Refusal) -> dt.date:
    offset = dt.timezone(dt.timedelta(minutes=_minutes(match["zone"])))
    clock = [float(part) for part in match["time"].split(":")]
    try:
        day = dt.datetime(int(match["y"]), int(match["m"]), int(match["d"]), tzinfo=offset)
        hours, minutes, seconds = [*clock, 0.0][:3]
        if hours >= 24 or minutes >= 60 or seconds >= 60:
            raise ValueError("no time of day")
        stamp = day + dt.timedelta(hours=hours, minutes=minutes, seconds=seconds)
        return stamp.astimezone(ZoneInfo(zone)).date()
    except (ValueError, OverflowError) as error:
        raise refuse(match[0], "does not exist in the calendar", "Correct it; write YYYY-MM-DD") from error

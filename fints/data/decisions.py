"""Decision dates: what a user says of training and validation, as dates that do not overlap."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import date, datetime, timedelta

import polars as pl

from fints.words import counted

__all__ = ["DateRange", "Day", "as_date", "between", "decision_ranges", "show"]

Day = date | str
DateRange = tuple[date | None, date | None]


def as_date(value: date | str | None) -> date | None:
    """Return a date given as such, as a datetime or as ISO text."""
    try:
        if isinstance(value, str):
            return date.fromisoformat(value)
    except ValueError:
        pass
    else:
        if isinstance(value, datetime):
            return value.date()
        if value is None or isinstance(value, date):
            return value
    raise ValueError(f'a date must be a datetime.date or ISO text such as "2017-12-29"; got {value!r}.')


def decision_ranges(
    known_dates: Callable[[date | None, date | None], pl.Series],
    train: tuple[Day | None, Day | None] | None,
    validation: tuple[Day, Day] | float,
) -> tuple[DateRange, tuple[date, date] | None]:
    """Resolve training and validation to decision dates that do not overlap.

    `known_dates` returns the dates within two (None: open) that have an outcome, ascending.
    """
    start, end = (as_date(day) for day in train) if train is not None else (None, None)
    if not isinstance(validation, int | float):
        first, last = (as_date(day) for day in validation)
        if first is None or last is None:
            raise ValueError("validation needs a first and a last date, or a share; got None for one.")
        if end is None:
            end = first - timedelta(days=1)
        if end >= first:
            raise ValueError(
                f"training dates must end before validation starts; got training until {end} and validation "
                f"from {first}."
            )
        return (start, end), (first, last)
    if not 0 <= validation < 1:
        raise ValueError(f"validation must be a share in [0, 1) or two dates; got {validation}.")
    dates = known_dates(start, end)
    held = math.ceil(validation * len(dates))
    if held == 0:
        return (start, end), None
    if held >= len(dates):
        raise ValueError(
            f"validation = {validation} of {counted(len(dates), 'date')} with an outcome leaves nothing to "
            "learn from; give a longer panel or validation=0."
        )
    first = dates[len(dates) - held]
    return (start, first - timedelta(days=1)), (first, dates[-1])


def between(span: DateRange) -> pl.Expr:
    """Return the condition that `date` lies in a range, both ends included; None leaves an end open."""
    start, end = span
    inside = pl.lit(value=True)
    if start is not None:
        inside = inside & (pl.col("date") >= start)
    if end is not None:
        inside = inside & (pl.col("date") <= end)
    return inside


def show(span: DateRange | None) -> str:
    """Return a range in words, for a message."""
    start, end = span or (None, None)
    return f"{start or 'first'} to {end or 'last'}"

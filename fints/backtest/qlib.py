"""qlib: the forecasts as a signal that a strategy reads."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import polars as pl

from fints.backtest.alignment import align
from fints.backtest.execution import convention
from fints.backtest.prices import check_index, require

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Signal", "signal"]


@dataclass(frozen=True, kw_only=True)
class Signal:
    """What a qlib strategy and exchange need.

    `scores` is a Series on (instrument, datetime), for ``signal=``; `deal_price` goes into
    ``exchange_kwargs``; `left_out` counts forecasts by the reason for which they are not there.
    """

    scores: pd.Series
    deal_price: Literal["open", "close"]
    left_out: dict[str, int]


def signal(
    forecasts: pl.DataFrame,
    calendar: Sequence[pd.Timestamp],
    instruments: Sequence[str],
    *,
    execution: Literal["next_open", "next_close"] = "next_open",
    horizon: int | None = None,
) -> Signal:
    """Put the forecasts on qlib's calendar and instruments.

    A qlib strategy reads on each date the scores of the date before, so scores stay dated t and are traded on
    t + 1, at `deal_price`: the return is the one from there to the same price of t + 2.

    Parameters
    ----------
    forecasts
        A forecast table.
    calendar
        Trading dates: ``D.calendar(freq="day")``.
    instruments
        Their names as qlib has them, usually in capitals.
    execution
        qlib never trades on the date of the score, so ``same_close`` is refused.
    horizon
        Dates that a forecast is for; None: the table's own, else 1. How long to hold is the strategy's
        affair.

    Raises
    ------
    ValueError
        As `fints.backtest.align`, and if the execution is ``same_close`` or unknown.
    """
    pandas = require("pandas")
    column, delay = convention(execution)
    if delay == 0:
        raise ValueError(
            'qlib trades a date after the score, so execution "same_close" cannot be had; '
            'choose "next_open" or "next_close".'
        )
    days = pandas.DatetimeIndex(calendar)
    check_index(days, "the calendar")
    dates: list[dt.date] = days.date.tolist()
    aligned = align(forecasts, dates, list(instruments), horizon=horizon)
    asset, row = np.nonzero(np.isfinite(aligned.values.T))
    index = pandas.MultiIndex.from_arrays(
        [np.array(aligned.assets, dtype=object)[asset], days[row]], names=["instrument", "datetime"]
    )
    scores = pandas.Series(aligned.values[row, asset], index=index, name="score")
    return Signal(scores=scores, deal_price=column, left_out=aligned.left_out)

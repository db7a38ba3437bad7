"""zipline-reloaded: the forecasts as a Pipeline column, on the session at which an algorithm may see them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import polars as pl

from fints.backtest.alignment import align
from fints.backtest.execution import convention, delayed
from fints.backtest.prices import check_index, require

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Baseline", "baseline"]


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """Forecasts, sessions by sids, NaN where there is none, on the session whose pipeline shows them.

    `left_out` counts forecasts by the reason for which they are not there.
    """

    frame: pd.DataFrame
    left_out: dict[str, int]

    def loader(self, column: Any) -> Any:
        """Return a ``DataFrameLoader`` of a bound float column of your ``DataSet``.

        ``run_algorithm`` looks it up by the column of its domain:
        ``custom_loader={DATASET.value.specialize(US_EQUITIES): loader}``.

        Raises
        ------
        ModuleNotFoundError
            If zipline-reloaded is not installed.
        """
        frames = require("zipline.pipeline.loaders.frame")
        return frames.DataFrameLoader(column, self.frame)


def baseline(
    forecasts: pl.DataFrame,
    sessions: pd.DatetimeIndex,
    sids: Mapping[str, int],
    *,
    execution: Literal["next_open", "next_close"] = "next_open",
    horizon: int | None = None,
) -> Baseline:
    """Put the forecasts on zipline's sessions and sids.

    ==============  =========  ==================================================================
    execution       session    use it with
    ==============  =========  ==================================================================
    ``next_open``   t + 1      minute simulations: order at the open of the session
    ``next_close``  t          daily simulations: the algorithm runs at the close of its session,
                               and its orders are filled at the next session's close
    ==============  =========  ==================================================================

    A daily simulation with the rows of ``next_open`` is one session late: filled at the close of t + 2.
    zipline reads any session or sid that does not match as NaN, in silence; here it is refused.

    Parameters
    ----------
    forecasts
        A forecast table.
    sessions
        Of the trading calendar, without zone: ``get_calendar("XNYS").sessions_in_range(start, end)``.
    sids
        Asset of the table -> sid, for example from ``asset_finder.lookup_symbols``.
    execution
        zipline never fills at the bar that an order was given on, so ``same_close`` is refused.
    horizon
        Dates that a forecast is for; None: the table's own, else 1. How long to hold is the algorithm's
        affair.

    Raises
    ------
    ValueError
        As `fints.backtest.align`; if two assets share a sid; if the execution is ``same_close`` or unknown.
    """
    pandas = require("pandas")
    column, delay = convention(execution)
    if delay == 0:
        raise ValueError(
            'zipline fills no order on the bar it was given on, so execution "same_close" cannot be '
            'had; choose "next_open" or "next_close".'
        )
    if len(set(sids.values())) < len(sids):
        raise ValueError("two assets have the same sid; give each its own.")
    check_index(sessions, "the sessions")
    aligned = align(forecasts, sessions.date.tolist(), list(sids), horizon=horizon)
    # At the close of a daily bar zipline itself waits for the next one.
    wait = delay if column == "open" else delay - 1
    frame = pandas.DataFrame(
        delayed(aligned.values, wait),
        index=sessions,
        columns=pandas.Index(list(sids.values()), dtype="int64"),
    )
    return Baseline(frame=frame, left_out=aligned.left_out)

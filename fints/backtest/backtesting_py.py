"""backtesting.py: one asset's forecasts as an array as long as its bars, for ``Strategy.I``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from fints.backtest.alignment import align_prices
from fints.backtest.execution import Execution, convention, delayed
from fints.evaluation.rows import require_columns

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Signal", "signal"]


@dataclass(frozen=True, kw_only=True)
class Signal:
    """What the engine reads.

    `values` has one forecast a bar, NaN where there is none, on the bar at whose end the order is given;
    `trade_on_close` is what ``Backtest`` must be given with it; `left_out` counts forecasts by the reason
    for which they have no bar.
    """

    values: np.ndarray
    trade_on_close: bool
    left_out: dict[str, int]


def signal(
    forecasts: pl.DataFrame,
    data: pd.DataFrame,
    *,
    asset: str,
    execution: Execution = "next_open",
    horizon: int | None = None,
) -> Signal:
    """Put one asset's forecasts on its bars.

    ==============  ================  ==========================
    execution       `trade_on_close`  bar of a forecast dated t
    ==============  ================  ==========================
    ``next_open``   False             t (filled at the open of t + 1)
    ``next_close``  True              t + 1
    ``same_close``  True              t
    ==============  ================  ==========================

    The forecasts are given as they are: for how long your strategy holds one of h dates is its own affair.

    Parameters
    ----------
    forecasts
        A forecast table; other assets in it are not used.
    data
        The bars that ``Backtest`` receives: Open, High, Low, Close on plain dates.
    asset
        Whose bars they are.

    Raises
    ------
    ValueError
        As `fints.backtest.align_prices`; if the table has no forecast of `asset`, or a price is missing that
        `execution` trades at.
    """
    column, delay = convention(execution)
    missing = [name for name in ("Open", "High", "Low", "Close") if name not in data.columns]
    if missing:
        raise ValueError(
            f"backtesting.py needs the columns Open, High, Low, Close; these bars lack {', '.join(missing)}. "
            'With closes alone, set all four to the close and choose "next_close" or "same_close".'
        )
    if column == "open" and data["Open"].equals(data["Close"]):
        raise ValueError(
            'execution "next_open" trades at the open, and every Open of these bars is the Close. Choose '
            '"next_close", or bring real opens.'
        )
    table = _of_asset(forecasts, asset)
    prices = data[[column.title()]].rename(columns={column.title(): asset})
    aligned = align_prices(table, prices, name="the bars", horizon=horizon)
    # The engine itself waits for the next open; only the next close has to be waited for here.
    wait = 0 if column == "open" else delay
    return Signal(
        values=delayed(aligned.values[:, 0], wait),
        trade_on_close=column == "close",
        left_out=aligned.left_out,
    )


def _of_asset(forecasts: pl.DataFrame, asset: str) -> pl.DataFrame:
    require_columns(forecasts, "asset")
    mine = forecasts.filter(pl.col("asset").cast(pl.String) == asset)
    if mine.is_empty():
        some = ", ".join(forecasts["asset"].cast(pl.String).unique().sort().head(5).to_list())
        raise ValueError(f"there is no forecast of {asset!r}; the table's assets are {some or 'none'} ...")
    return mine

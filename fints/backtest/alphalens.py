"""alphalens: the forecasts as a factor, and prices at which it can be traded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from fints.backtest.alignment import align_prices
from fints.backtest.execution import Execution, traded
from fints.backtest.prices import require

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Inputs", "inputs"]


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """What ``alphalens.utils.get_clean_factor_and_forward_returns`` reads.

    `factor` is a Series on (date, asset); row t of `prices` is the price at which a factor dated t is
    traded, so the table looks one date ahead on purpose; `horizon` is the period that the forecasts are
    for; `left_out` counts forecasts by the reason for which they are not there.
    """

    factor: pd.Series
    prices: pd.DataFrame
    horizon: int
    left_out: dict[str, int]


def inputs(
    forecasts: pl.DataFrame,
    close: pd.DataFrame | None = None,
    *,
    open: pd.DataFrame | None = None,
    execution: Execution = "next_open",
    horizon: int | None = None,
) -> Inputs:
    r"""Return factor and prices with which a period of k earns :math:`P_{t+k} / P_t - 1`.

    P is `prices`: :math:`P_t = O_{t+1}`, :math:`C_{t+1}` or :math:`C_t` by `execution`. The last dates have
    no P and no row, and alphalens drops their factors, as it drops returns 20 deviations from their mean
    (`filter_zscore`, which looks ahead; None keeps them). It fills prices forward: after an asset's last
    price its return is 0.

    Parameters
    ----------
    forecasts
        A forecast table.
    close, open
        Wide prices, dates by assets: `fints.backtest.wide` makes them. Those that `execution` trades at are
        needed.
    horizon
        Dates that a forecast is for; None: the table's own, else 1. Give ``periods=(inputs.horizon,)``.

    Raises
    ------
    ValueError
        As `fints.backtest.align_prices`; or if the prices are not given.
    """
    prices, delay = traded(close, open, execution)
    aligned = align_prices(forecasts, prices, name="open" if prices is open else "close", horizon=horizon)
    pandas = require("pandas")
    row, column = np.nonzero(np.isfinite(aligned.values))
    index = pandas.MultiIndex.from_arrays(
        [prices.index[row], prices.columns[column]], names=["date", "asset"]
    )
    return Inputs(
        factor=pandas.Series(aligned.values[row, column], index=index, name="factor"),
        # alphalens fills prices forward, so a last row without a trade would pretend a return of 0.
        prices=prices.shift(-delay).iloc[: len(prices) - delay],
        horizon=aligned.horizon,
        left_out=aligned.left_out,
    )

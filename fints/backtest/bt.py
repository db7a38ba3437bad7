"""bt: a strategy that trades to the forecasts' weights, and the prices to run it on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl

from fints.backtest.alignment import align_prices
from fints.backtest.execution import Execution, delayed, traded
from fints.backtest.prices import require
from fints.backtest.weights import Kind, Side, held_weights

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Inputs", "inputs"]


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """What ``bt.Backtest`` needs.

    `weights` has a row for each date of a trade; `prices` are those traded at, and the ones to run on;
    `left_out` counts forecasts by the reason for which they are not traded.
    """

    weights: pd.DataFrame
    prices: pd.DataFrame
    left_out: dict[str, int]

    def strategy(self, name: str = "fints") -> Any:
        """Return a fresh ``bt.Strategy``: trade to the weights on their dates, hold in between.

        Raises
        ------
        ModuleNotFoundError
            If bt is not installed.
        """
        bt = require("bt")
        return bt.Strategy(name, [bt.algos.WeighTarget(self.weights), bt.algos.Rebalance()])


def inputs(
    forecasts: pl.DataFrame,
    close: pd.DataFrame | None = None,
    *,
    open: pd.DataFrame | None = None,
    execution: Execution = "next_open",
    kind: Kind = "long_short",
    side: Side = "both",
    horizon: int | None = None,
    quantile: float = 0.1,
) -> Inputs:
    """Turn forecasts into weights and prices: ``bt.Backtest(inputs.strategy(), inputs.prices, ...)``.

    bt trades and values at one price a date, so the prices are those that `execution` trades at, and its
    returns run from trade to trade. It buys whole shares unless given ``integer_positions=False``, and
    refuses by itself to trade or hold an asset whose price is NaN.

    Parameters
    ----------
    forecasts
        A forecast table.
    close, open
        Wide prices, dates by assets: `fints.backtest.wide` makes them. Those that `execution` trades at are
        needed.
    kind, side, horizon, quantile
        The portfolio: see `fints.backtest.held_weights`. `horizon` None: the table's, else 1.

    Raises
    ------
    ValueError
        As `fints.backtest.align_prices`, `fints.backtest.held_weights`; or if the prices are not given.
    """
    prices, delay = traded(close, open, execution)
    aligned = align_prices(forecasts, prices, name="open" if prices is open else "close", horizon=horizon)
    weights = held_weights(aligned.values, kind, side=side, horizon=aligned.horizon, quantile=quantile)
    frame = require("pandas").DataFrame(delayed(weights, delay), index=prices.index, columns=prices.columns)
    # bt holds on a date without a row, and sells what is NaN on a date that has one.
    return Inputs(weights=frame.dropna(how="all"), prices=prices, left_out=aligned.left_out)

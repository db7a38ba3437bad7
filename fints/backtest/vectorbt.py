"""vectorbt: target weights for ``Portfolio.from_orders``, with the arguments that they are right with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from fints.backtest.alignment import align_prices
from fints.backtest.execution import Execution, delayed, traded
from fints.backtest.prices import require
from fints.backtest.weights import Kind, Side, held_weights

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Orders", "orders"]


@dataclass(frozen=True, kw_only=True)
class Orders:
    """Arguments for ``vectorbt.Portfolio.from_orders``, and forecasts counted that have no order."""

    arguments: dict[str, Any]
    left_out: dict[str, int]

    @property
    def weights(self) -> pd.DataFrame:
        """Target weights on the date of the trade; NaN means hold."""
        return self.arguments["size"]


def orders(
    forecasts: pl.DataFrame,
    close: pd.DataFrame,
    *,
    open: pd.DataFrame | None = None,
    execution: Execution = "next_open",
    kind: Kind = "long_short",
    side: Side = "both",
    horizon: int | None = None,
    quantile: float = 0.1,
) -> Orders:
    """Turn forecasts into orders: ``vbt.Portfolio.from_orders(**orders.arguments, fees=..., freq="1D")``.

    One account for all assets, sales before purchases, sizes from the account's value at the prices that are
    traded. vectorbt reads a NaN weight as "hold": there is one where there is nothing to trade, and where
    the asset has no price at the time; an asset without a forecast has weight 0.

    vectorbt marks its account at closes. With ``next_open`` a day's return thus has the old position until
    the open and the new one after it; from open to open it is what `execution` earns.

    Parameters
    ----------
    forecasts
        A forecast table.
    close, open
        Wide prices, dates by assets: `fints.backtest.wide` makes them. Opens are needed for ``next_open``.
    kind, side, horizon, quantile
        The portfolio: see `fints.backtest.held_weights`. `horizon` None: the table's, else 1.

    Raises
    ------
    ValueError
        As `fints.backtest.align_prices`, `fints.backtest.held_weights`; if `execution` needs opens and
        there are none; or if the weights of a date sum to more than 1.
    """
    prices, delay = traded(close, open, execution)
    aligned = align_prices(forecasts, prices, name="open" if prices is open else "close", horizon=horizon)
    weights = held_weights(aligned.values, kind, side=side, horizon=aligned.horizon, quantile=quantile)
    borrowed = np.flatnonzero(np.nansum(weights, axis=1) > 1 + 1e-9)
    if len(borrowed):
        day = borrowed[0]
        raise ValueError(
            "weights must sum to at most 1, since vectorbt lends no money and would fill only a part; those "
            f"of {aligned.dates[day]} sum to {weights[day].sum():.3g}. Scale them down."
        )
    size = delayed(weights, delay)
    size[~np.isfinite(prices.to_numpy(dtype=float))] = np.nan
    return Orders(
        arguments={
            "close": close,
            "size": require("pandas").DataFrame(size, index=close.index, columns=close.columns),
            "size_type": "targetpercent",
            "price": prices,
            "val_price": np.inf,  # vectorbt's sign for "the price of the order"
            "group_by": True,
            "cash_sharing": True,
            "call_seq": "auto",
        },
        left_out=aligned.left_out,
    )

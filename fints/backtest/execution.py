r"""When a forecast is traded, and what its position then earns.

A forecast dated t has seen the close of t. The position decided on it earns, with C the close, O the
open and t + 1 the next date of the *engine's* prices:

==============  ====================================  ==============
execution       earns                                 traded at
==============  ====================================  ==============
``next_open``   :math:`O_{t+2} / O_{t+1} - 1`         open of t + 1
``next_close``  :math:`C_{t+2} / C_{t+1} - 1`         close of t + 1
``same_close``  :math:`C_{t+1} / C_t - 1`             close of t
==============  ====================================  ==============

``same_close`` trades at the price that the forecast has seen: out of reach unless forecasts are made
before the close. It is never a default.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from fints.backtest.prices import check_wide

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["CONVENTIONS", "Execution", "convention", "delayed", "traded"]

Execution = Literal["next_open", "next_close", "same_close"]
# The price that is traded, and how many dates after the decision.
CONVENTIONS: dict[Execution, tuple[Literal["open", "close"], int]] = {
    "next_open": ("open", 1),
    "next_close": ("close", 1),
    "same_close": ("close", 0),
}


def convention(execution: Execution) -> tuple[Literal["open", "close"], int]:
    """Return the price that `execution` trades at and how many dates after the decision.

    Raises
    ------
    ValueError
        If the execution is unknown.
    """
    if execution not in CONVENTIONS:
        raise ValueError(f"unknown execution {execution!r}. Known: {', '.join(get_args(Execution))}.")
    return CONVENTIONS[execution]


def traded(
    close: pd.DataFrame | None, open: pd.DataFrame | None, execution: Execution
) -> tuple[pd.DataFrame, int]:
    """Return the prices at which `execution` trades, and how many dates after the decision.

    Raises
    ------
    ValueError
        As `fints.backtest.prices.check_wide`; if the execution is unknown, its prices are not given, or opens
        and closes differ in dates or assets.
    """
    column, delay = convention(execution)
    for name, given in (("close", close), ("open", open)):
        if given is not None:
            check_wide(given, name)
    if close is not None and open is not None:
        for axis, label in ((0, "dates"), (1, "assets")):
            if not close.axes[axis].equals(open.axes[axis]):
                raise ValueError(
                    f"open and close must have the same {label} in the same order; reindex one: "
                    "open.reindex(index=close.index, columns=close.columns)."
                )
    prices = open if column == "open" else close
    if prices is None:
        remedy = (
            'Choose "next_close", or "same_close" if forecasts are made before the close.'
            if column == "open"
            else 'Give them, or choose "next_open".'
        )
        raise ValueError(f'execution "{execution}" trades at the {column} and {column} = None. {remedy}')
    return prices, delay


def delayed(values: np.ndarray, delay: int) -> np.ndarray:
    """Return rows (D, ...) moved `delay` dates later, NaN before the first."""
    later = np.full_like(values, np.nan)
    later[delay:] = values[: len(values) - delay]
    return later

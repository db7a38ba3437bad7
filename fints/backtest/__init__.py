"""A forecast table in an engine's own input: one small adapter a file, one convention for all.

``fints.backtest.backtesting_py``, ``vectorbt``, ``bt``, ``skfolio``, ``alphalens``, ``qlib`` and ``zipline``
each put forecasts on the dates and assets of an engine and say when they are traded; docs/backtest.md has
each in ten lines. An engine is imported by its own adapter alone, when it is used.
"""

from __future__ import annotations

from fints.backtest.alignment import Aligned, align, align_prices
from fints.backtest.execution import CONVENTIONS, Execution
from fints.backtest.prices import wide
from fints.backtest.weights import KINDS, SIDES, held_weights

__all__ = [
    "CONVENTIONS",
    "KINDS",
    "SIDES",
    "Aligned",
    "Execution",
    "align",
    "align_prices",
    "held_weights",
    "wide",
]

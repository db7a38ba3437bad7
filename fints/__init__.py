"""Residual connections for deep transformers that forecast noisy financial returns, compared and explained.

The public surface is small: `Forecaster` (fit and predict on polars frames),
`WalkForwardForecaster` (the same, refitted on a schedule), `load` (a forecaster from a folder or from
MLflow), `Panel` and `read` (a checked frame of dates, assets and numbers). Everything else is
imported from its own package, for example ``fints.data.load("sp500-20")`` or ``fints.residual.RESIDUALS``.

Names are resolved on first use (PEP 562), so ``import fints`` loads nothing heavy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fints.data import Panel, read
    from fints.forecaster import Forecaster
    from fints.registry import load
    from fints.walk_forward import WalkForwardForecaster

__all__ = ["Forecaster", "Panel", "WalkForwardForecaster", "__version__", "load", "read"]

__version__ = "0.1.0"

_HOME = {
    "Forecaster": "fints.forecaster",
    "Panel": "fints.data",
    "WalkForwardForecaster": "fints.walk_forward",
    "load": "fints.registry",
    "read": "fints.data",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"fints has no attribute {name!r}; its public names are {', '.join(__all__)}.")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

r"""What was planted, in the units of a target: the expectation of an outcome at each day of a panel.

.. math:: \mathrm E[y_{i,t} \mid t] = s_{i,t} / c_{i,t}

with s the signal and c the target's scale, known at t: exact for ``log_return`` and ``volatility_scaled``.
Of ``cross_sectional`` it is :math:`(s_{i,t} - \bar s_t) / \mathrm{sd}_t(y)`, with the deviation over assets
that the day turned out to have: the expectation to first order in the signal, since noise that is as likely
as its opposite moves the deviation alike.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from fints.data import Simulation, noise_free_targets, targets

__all__ = ["planted"]

Array = np.ndarray


def planted(made: Simulation, target: str) -> Array:
    """Return what was planted (days, assets) in units of `target` over one day, NaN where that is unknown."""
    if target == "log_return":
        # Also of the last day, whose outcome is not known.
        column = made.signal["signal"]
    elif target == "cross_sectional":
        column = _among_assets(made)
    else:
        column = noise_free_targets(made.panel, made.signal, target)["target"]
    days = len(made.panel.dates)
    return column.cast(pl.Float64).fill_null(float("nan")).to_numpy().reshape(days, -1)


def _among_assets(made: Simulation) -> pl.Series:
    outcome = targets(made.panel, "log_return", 1).join(made.signal, on=["date", "asset"], how="left")
    y, s = pl.col("target"), pl.col("signal")
    known = y.is_not_null()
    mean = s.filter(known).mean().over("date")
    deviation = y.std(ddof=0).over("date")
    return outcome.sort("date", "asset").select(pl.when(known).then((s - mean) / deviation)).to_series()

"""Resampling whole dates in blocks: all assets and all models of a date stay together."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

__all__ = ["block_length", "bootstrap_interval"]


def block_length(series: np.ndarray, *, horizon: int = 1) -> int:
    """Return the mean block length for the stationary bootstrap of dates.

    The largest over the columns of `series` (T,) or (T, K) of the automatic choice of Politis and White
    (2004, corrected 2009), at least ``2 horizon`` where outcomes overlap, at most a tenth of the dates.

    Source: ``arch.bootstrap.optimal_block_length``.
    """
    from arch.bootstrap import optimal_block_length

    values = np.asarray(series, dtype=np.float64).reshape(len(series), -1)
    moving = values[:, np.ptp(values, axis=0) > 0]
    chosen = 1.0
    if moving.shape[1] and len(moving) >= 8:
        found = optimal_block_length(moving)["stationary"].to_numpy()
        chosen = float(np.nanmax(found, initial=1.0))
    overlap = 1 if horizon == 1 else 2 * horizon
    return max(1, min(math.ceil(max(chosen, overlap)), len(values) // 10))


def bootstrap_interval(
    series: np.ndarray,
    statistic: Callable[[np.ndarray], float],
    *,
    horizon: int = 1,
    level: float = 0.95,
    reps: int = 999,
    seed: int = 0,
) -> tuple[float, float]:
    """Return the percentile interval of a statistic of dates under the stationary bootstrap.

    `series` is (T,) or (T, K), a row a date; `statistic` maps such an array to a number. Dates are drawn
    in blocks of random length with mean `block_length`, all K columns together.

    Raises
    ------
    ValueError
        If there are fewer than 20 dates, or the level is not between 0 and 1.

    Notes
    -----
    Source: Politis, Romano (1994); ``arch.bootstrap.StationaryBootstrap``.
    """
    from arch.bootstrap import StationaryBootstrap

    if len(series) < 20 or not 0 < level < 1:
        raise ValueError(f"need 20 dates and a level in (0, 1); got {len(series)} and {level!r}.")
    resample = StationaryBootstrap(block_length(series, horizon=horizon), series, seed=seed)
    low, high = resample.conf_int(
        lambda dates: np.array([statistic(dates)]), reps=reps, method="percentile", size=level
    )[:, 0]
    return float(low), float(high)

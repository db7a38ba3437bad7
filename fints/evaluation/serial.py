"""Errors of a mean over dates that are not independent."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

__all__ = ["long_run_variance", "newey_west_t"]


def newey_west_t(
    series: Sequence[float] | np.ndarray, *, horizon: int = 1, lags: int | None = None
) -> float | None:
    r"""Return the t statistic of the mean of a series with Newey-West errors.

    .. math:: t = \bar x \big/ \sqrt{S / T}, \quad
        S = \gamma_0 + 2 \sum_{j=1}^{L} (1 - j / (L + 1)) \gamma_j

    `lags` defaults to ``max(horizon - 1, floor(4 (T / 100)^(2/9)))``: overlapping outcomes need at
    least ``horizon - 1``. None with fewer than two values or a constant series.
    Source: Newey, West (1987, 1994).
    """
    values = np.asarray(series, dtype=np.float64)
    variance = long_run_variance(values, horizon=horizon, lags=lags)
    if variance is None or variance <= 0:
        return None
    return float(values.mean() / math.sqrt(variance / len(values)))


def long_run_variance(values: np.ndarray, *, horizon: int = 1, lags: int | None = None) -> float | None:
    """Return the Bartlett-weighted long-run variance of a series; see `newey_west_t`."""
    if horizon < 1:
        raise ValueError(f"horizon must be at least 1; got {horizon}.")
    count = len(values)
    if count < 2:
        return None
    centred = values - values.mean()
    # A constant series leaves rounding behind; its spread is not a variance.
    if np.abs(centred).max() <= 1e-14 * max(np.abs(values).max(), 1e-300):
        return None
    if lags is None:
        lags = max(horizon - 1, math.floor(4 * (count / 100) ** (2 / 9)))
    total = float(centred @ centred) / count
    for lag in range(1, min(lags, count - 1) + 1):
        total += 2 * (1 - lag / (lags + 1)) * float(centred[lag:] @ centred[:-lag]) / count
    return total

"""Errors of a mean over dates that are not independent."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

__all__ = ["MeanError", "cosine_variance", "long_run_variance", "mean_error", "mean_t", "newey_west_t"]


@dataclass(frozen=True, kw_only=True)
class MeanError:
    """The standard error of a mean and the degrees of freedom of its t statistic (infinite: normal)."""

    se: float
    degrees: float

    def quantile(self, probability: float) -> float:
        """Return the quantile of the reference distribution."""
        from scipy import stats

        return float(stats.t.ppf(probability, df=self.degrees))

    def upper_tail(self, statistic: float) -> float:
        """Return the probability of a larger statistic when the mean is 0."""
        from scipy import stats

        return float(stats.t.sf(statistic, df=self.degrees))

    def two_sided(self, statistic: float) -> float:
        """Return the probability of a statistic larger in size when the mean is 0."""
        return 2 * self.upper_tail(abs(statistic))


def mean_error(values: np.ndarray, *, horizon: int = 1) -> MeanError | None:
    r"""Return the error of the mean of a series of dates; None where it cannot be estimated.

    Outcomes over one date: Newey-West errors and the normal law. Outcomes over `horizon` > 1 dates
    overlap, and there kernel errors are too small: with forecasts that last, tests at 5 % reject 9 to
    12 % of true nulls at horizon 21. So they have the errors of `cosine_variance` and Student's t.
    ``python benchmarks/calibration.py`` prints the size of both.
    """
    if horizon < 1:
        raise ValueError(f"horizon must be at least 1; got {horizon}.")
    if horizon == 1:
        variance, degrees = long_run_variance(values), math.inf
    else:
        variance, degrees = cosine_variance(values, horizon=horizon)
    if not variance or variance <= 0:
        return None
    return MeanError(se=math.sqrt(variance / len(values)), degrees=degrees)


def mean_t(series: Sequence[float] | np.ndarray, *, horizon: int = 1) -> float | None:
    """Return the t statistic of a mean with the errors of `mean_error`."""
    values = np.asarray(series, dtype=np.float64)
    error = mean_error(values, horizon=horizon)
    return None if error is None else float(values.mean() / error.se)


def cosine_variance(values: np.ndarray, *, horizon: int) -> tuple[float | None, int]:
    r"""Return the long-run variance from the lowest frequencies, and its degrees of freedom B.

    .. math:: \hat S = \frac1B \sum_{j=1}^{B} \Lambda_j^2, \quad
        \Lambda_j = \sqrt{\tfrac2T} \sum_{t=1}^{T} x_t \cos\frac{\pi j (t - 1/2)}{T}, \quad
        B = \min\{\lfloor 0.4\, T^{2/3} \rfloor, \lfloor T / 4h \rfloor\}

    so that :math:`\bar x / \sqrt{\hat S / T}` is Student's t with B degrees of freedom. Outcomes over h
    dates are a moving sum: their spectrum falls like :math:`1 - (h \omega)^2 / 12` from frequency 0, and
    the second bound keeps the estimate within 2 % of its peak. None with fewer than ``8 h`` dates
    (B below 2) or a constant series.

    Source: Lazarus, Lewis, Stock, Watson (2018), the equally weighted cosine estimator with their rule. The
    second bound is ours.
    """
    count = len(values)
    terms = min(math.floor(0.4 * count ** (2 / 3)), count // (4 * horizon))
    if terms < 2 or _is_constant(values):
        return None, 0
    places = (np.arange(count) + 0.5) / count
    waves = np.cos(np.pi * np.outer(np.arange(1, terms + 1), places))
    # The waves have mean 0, so the mean of the series drops out; taking it off keeps digits.
    coefficients = math.sqrt(2 / count) * (waves @ (values - values.mean()))
    return float(np.mean(coefficients**2)), terms


def newey_west_t(
    series: Sequence[float] | np.ndarray, *, horizon: int = 1, lags: int | None = None
) -> float | None:
    r"""Return the t statistic of the mean of a series with Newey-West errors.

    .. math:: t = \bar x \big/ \sqrt{S / T}, \quad
        S = \gamma_0 + 2 \sum_{j=1}^{L} (1 - j / (L + 1)) \gamma_j

    `lags` defaults to ``max(horizon - 1, floor(4 (T / 100)^(2/9)))``: overlapping outcomes need at
    least ``horizon - 1``, and then this t is still too large (see `mean_error`). None with fewer than two
    values or a constant series.
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
    if _is_constant(values):
        return None
    centred = values - values.mean()
    if lags is None:
        lags = max(horizon - 1, math.floor(4 * (count / 100) ** (2 / 9)))
    total = float(centred @ centred) / count
    for lag in range(1, min(lags, count - 1) + 1):
        total += 2 * (1 - lag / (lags + 1)) * float(centred[lag:] @ centred[:-lag]) / count
    return total


def _is_constant(values: np.ndarray) -> bool:
    # A constant series leaves rounding behind; its spread is not a variance.
    return bool(np.abs(values - values.mean()).max() <= 1e-14 * max(np.abs(values).max(), 1e-300))

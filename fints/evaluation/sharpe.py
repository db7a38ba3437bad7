"""Whether a Sharpe ratio is more than luck, and more than the luck of the best of many trials.

Ratios here are per date, not annualised, unless a name says otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fints.evaluation.serial import mean_error

__all__ = [
    "annual_sharpe",
    "deflated_sharpe",
    "expected_best_sharpe",
    "probabilistic_sharpe",
    "sharpe",
    "sharpe_interval",
]


def sharpe(returns: Sequence[float] | np.ndarray) -> float | None:
    """Return mean over standard deviation, per date; None for fewer than two or constant returns."""
    values = _values(returns)
    if len(values) < 2 or float(np.ptp(values)) == 0.0:
        return None
    return float(values.mean() / values.std(ddof=1))


def annual_sharpe(returns: Sequence[float] | np.ndarray, *, days_a_year: float = 252.0) -> float | None:
    r"""Return the Sharpe ratio times :math:`\sqrt{\text{days a year}}`."""
    ratio = sharpe(returns)
    return None if ratio is None else ratio * math.sqrt(days_a_year)


def sharpe_interval(
    returns: Sequence[float] | np.ndarray, *, horizon: int = 1, level: float = 0.95
) -> tuple[float, float] | None:
    r"""Return the interval of the Sharpe ratio per date, by its influence function.

    .. math:: \psi_t = \frac{x_t - \bar x}{s} - \frac{SR}{2} \Big( \frac{(x_t - \bar x)^2}{s^2} - 1 \Big)

    has the mean's error of `fints.evaluation.mean_error`: skewness, fat tails and serial correlation
    count. Source: Lo (2002); Ledoit, Wolf (2008).
    """
    ratio, values = sharpe(returns), _values(returns)
    if ratio is None:
        return None
    z = (values - values.mean()) / values.std(ddof=1)
    error = mean_error(z - ratio / 2 * (z**2 - 1), horizon=horizon)
    if error is None:
        return None
    half = error.quantile(0.5 + level / 2) * error.se
    return ratio - half, ratio + half


def probabilistic_sharpe(returns: Sequence[float] | np.ndarray, *, benchmark: float = 0.0) -> float | None:
    r"""Return the probability that the true Sharpe ratio exceeds `benchmark` (both per date).

    .. math:: \Phi\!\left( \frac{(SR - SR_0) \sqrt{T - 1}}
        {\sqrt{1 - \gamma_3 SR + \frac{\gamma_4 - 1}{4} SR^2}} \right)

    with skewness :math:`\gamma_3` and kurtosis :math:`\gamma_4` (3 for a Gaussian). One minus it is the p
    value of the test against `benchmark`. Returns are taken as independent over dates. None for
    constant returns. Source: Bailey, Lopez de Prado (2012), equation 7.
    """
    from scipy import stats

    ratio, values = sharpe(returns), _values(returns)
    if ratio is None:
        return None
    skewness, kurtosis = float(stats.skew(values)), float(stats.kurtosis(values, fisher=False))
    # Positive for all moments that exist together: kurtosis >= 1 + skewness^2.
    spread = 1 - skewness * ratio + (kurtosis - 1) / 4 * ratio**2
    if spread <= 0:
        return None
    return float(stats.norm.cdf((ratio - benchmark) * math.sqrt((len(values) - 1) / spread)))


def expected_best_sharpe(trials: int, variance: float) -> float:
    r"""Return the Sharpe ratio that the best of `trials` worthless strategies is expected to show.

    .. math:: \sqrt V \, [(1 - \gamma)\, \Phi^{-1}(1 - 1/N) + \gamma\, \Phi^{-1}(1 - 1/(N e))]

    with Euler's :math:`\gamma` and V the variance of the ratios over trials. 0 for one trial.
    Source: Bailey, Lopez de Prado (2014), equation 1.
    """
    from scipy import stats

    if trials < 1 or not (math.isfinite(variance) and variance >= 0):
        raise ValueError(f"need a trial at least and a finite variance >= 0; got {trials!r}, {variance!r}.")
    if trials == 1:
        return 0.0
    far = float(stats.norm.ppf(1 - 1 / trials))
    farther = float(stats.norm.ppf(1 - 1 / (trials * math.e)))
    return math.sqrt(variance) * ((1 - np.euler_gamma) * far + np.euler_gamma * farther)


def deflated_sharpe(
    returns: Sequence[float] | np.ndarray, *, trials: int, variance: float | None = None
) -> float | None:
    """Return the probability that the true Sharpe ratio exceeds the best expected of `trials` worthless ones.

    Parameters
    ----------
    returns
        Of the strategy that was chosen, one a date.
    trials
        *All* strategies that were tried on these dates: those pruned, failed and forgotten too.
    variance
        Of the trials' Sharpe ratios per date. Default ``1 / (T - 1)``, that of independent worthless
        Gaussian strategies: right where only the number of trials is known.

    Notes
    -----
    Trials that resemble each other count in full here, so the result errs to the safe side. Source:
    Bailey, Lopez de Prado (2014), equation 2.
    """
    values = _values(returns)
    if len(values) < 2:
        return None
    spread = 1 / (len(values) - 1) if variance is None else variance
    return probabilistic_sharpe(values, benchmark=expected_best_sharpe(trials, spread))


def _values(returns: Sequence[float] | np.ndarray) -> np.ndarray:
    values = np.asarray(returns, dtype=np.float64)
    if values.ndim != 1 or not np.isfinite(values).all():
        raise ValueError(f"returns must be one finite number a date; got shape {values.shape}.")
    return values

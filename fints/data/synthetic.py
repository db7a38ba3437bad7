r"""Simulated panels whose best possible forecast is known.

.. math::

    r_{i,t+1} = s_{i,t} + B_i f_{t+1} + \sigma_{i,t+1} e_{i,t+1},
    \qquad s_{i,t} = k\, v_{i,t}\, g(x_{i,\le t})

========================  ===============================================================================
symbol                    meaning
========================  ===============================================================================
r                         log return from the close of t to that of t + 1
s                         the signal: the oracle's forecast, made at t
f, e                      common factor, own noise; independent, mean 0; the factor's share of the noise
                          variance is `common_share` on average, spread by half of it over assets
sigma                     own volatility, known at t
a, b                      two features, independent N(0, 1), in the panel
g                         "linear": :math:`a_t`; "interaction": :math:`a_t b_t`; "gated_filter": below;
                          each with mean 0 and variance 1
v                         1 daily volatility ("constant") or the asset's noise volatility of t + 1, which is
                          known at t ("proportional")
k                         :math:`\sqrt{R^2 / (1 - R^2)}`
========================  ===============================================================================

Since g is independent of the noise, :math:`\mathrm E s^2 / \mathrm E r^2 = R^2` under either scale: the
oracle's R2 is known by construction. With a constant scale and changing volatility it is lower where
volatility is high; with a proportional scale it is the same everywhere. "Matched signal-to-noise" can mean
either.

The gated filter needs composition over several steps, so that depth can matter at all: with z = a at first,
each stage with its lags (k, j, j') does

.. math::

    z_t \leftarrow \tanh\bigl(1.5\,(\tanh(2 b_{t-k})\, z_t
    + 0.8\, z_{t-j}\,\mathrm{sign}(z_{t-j'} + 0.3))\bigr) / 0.6,

and g is z standardised by its population mean and standard deviation.

Volatility ("garch") follows a GARCH(1,1) of persistence :math:`\alpha + \beta = 0.98`, for the factor and
each asset's own noise. The dial `vol_of_vol` is the standard deviation over the mean of the conditional
variance, c; with kurtosis K of the innovations

.. math:: \alpha^2 = \frac{c^2 (1 - 0.98^2)}{(K - 1)(1 + c^2)},

so 0 is homoskedastic, 1 (with Gaussian innovations) gives the textbook 0.10 and 0.88, and the unconditional
variance is the same at every dose.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
import polars as pl

from fints.data.panel import Panel

__all__ = ["Simulation", "gated_filter", "simulate"]

Array = np.ndarray

SIGNALS = ("linear", "interaction", "gated_filter")
NOISES = ("gaussian", "student_t", "garch")
SCALES = ("constant", "proportional")

PERSISTENCE = 0.98
# GARCH of persistence 0.98 forgets its start by exp(-10) in this many days; the lags of the filter are far
# shorter.
BURN_IN = 500
# (k, j, j') of each stage: small, different, and never all in reach of one step of another stage.
STAGE_LAGS = ((1, 1, 2), (2, 3, 1))


@dataclass(frozen=True, eq=False)
class Simulation:
    """A simulated panel and what an oracle would have forecast.

    Attributes
    ----------
    panel : Panel
        ``close`` and the features ``a`` and ``b``; the log return of `close` over (t, t+1] is the simulated
        one.
    signal : polars.DataFrame
        ``date, asset, signal``: the oracle's forecast at each date of the next day's log return.
    volatility : polars.DataFrame
        ``date, asset, volatility``: the noise's standard deviation of the next day, known at each date.
    oracle_r2 : float
        By construction.
    realised_oracle_r2 : float
        1 - sum (r - s)^2 / sum r^2 over the panel.
    """

    panel: Panel
    signal: pl.DataFrame
    volatility: pl.DataFrame
    oracle_r2: float
    realised_oracle_r2: float


def simulate(
    *,
    num_assets: int = 20,
    num_days: int = 1500,
    r2: float = 0.20,
    signal: str = "linear",
    noise: str = "gaussian",
    vol_of_vol: float | None = None,
    degrees: float | None = None,
    common_share: float = 0.3,
    signal_scale: str = "constant",
    volatility_daily: float = 0.01,
    seed: int = 0,
) -> Simulation:
    """Draw a panel of `num_days` business days from 2000-01-03.

    The seed fixes features, innovations and loadings separately: panels of the same seed and size share their
    features whatever the signal and noise, and their innovations whatever the signal and `r2`.

    Parameters
    ----------
    num_assets, num_days
        Size of the panel.
    r2
        The oracle's R2 against zero, in [0, 1).
    signal
        "linear", "interaction" or "gated_filter".
    noise
        "gaussian" and "student_t" (5 degrees) have constant volatility; "garch" has Gaussian innovations.
    vol_of_vol
        Coefficient of variation of the conditional variance under "garch" (1 by default); 0 is constant
        volatility.
    degrees
        Degrees of freedom of the innovations, scaled to variance 1, in place of the noise's own.
    common_share
        Average share of the factor in the noise variance, in [0, 1).
    signal_scale
        "constant" or "proportional" to the next day's noise volatility.
    volatility_daily
        Unconditional standard deviation of the noise.
    seed
        Whole number of at least 0.

    Raises
    ------
    ValueError
        If an argument is unknown or outside its range.
    """
    _one_of("signal", signal, SIGNALS)
    _one_of("noise", noise, NOISES)
    _one_of("signal_scale", signal_scale, SCALES)
    if noise != "garch" and vol_of_vol:
        raise ValueError(f'vol_of_vol = {vol_of_vol} needs noise = "garch"; got noise = {noise!r}.')
    dial = (1.0 if noise == "garch" else 0.0) if vol_of_vol is None else float(vol_of_vol)
    if degrees is None:
        degrees = 5.0 if noise == "student_t" else math.inf
    least = 4 if dial > 0 else 2
    for holds, text in (
        (num_assets >= 1 and num_days >= 2, f"at least 1 asset and 2 days; got {num_assets} and {num_days}"),
        (0 <= r2 < 1, f"r2 in [0, 1); got {r2}"),
        (0 <= common_share < 1, f"common_share in [0, 1); got {common_share}"),
        (dial >= 0, f"vol_of_vol of at least 0; got {vol_of_vol}"),
        (degrees > least, f"degrees above {least}, so that the moments in use exist; got {degrees}"),
        (volatility_daily > 0, f"volatility_daily above 0; got {volatility_daily}"),
        (seed >= 0, f"seed of at least 0; got {seed}"),
    ):
        if not holds:
            raise ValueError(f"simulate needs {text}.")

    features, common, own, loadings = (np.random.default_rng([seed, stream]) for stream in range(4))
    total = BURN_IN + num_days
    a, b = features.standard_normal((2, total, num_assets))
    share = common_share + min(common_share, 1 - common_share) / 2 * loadings.uniform(-1, 1, num_assets)
    alpha = (
        math.sqrt(dial**2 * (1 - PERSISTENCE**2) / ((_kurtosis(degrees) - 1) * (1 + dial**2)))
        if dial
        else 0.0
    )
    factor, factor_variance = _garch(_innovations(common, (total, 1), degrees), alpha)
    idiosyncratic, own_variance = _garch(_innovations(own, (total, num_assets), degrees), alpha)
    shocks = volatility_daily * (np.sqrt(share) * factor + np.sqrt(1 - share) * idiosyncratic)
    volatility = volatility_daily * np.sqrt(share * factor_variance + (1 - share) * own_variance)

    g = planted_g(signal, a, b)
    scale = volatility if signal_scale == "proportional" else np.full_like(volatility, volatility_daily)
    # Row t of `scale`, `shocks` and `volatility` belongs to the step from t to t + 1.
    planted = math.sqrt(r2 / (1 - r2)) * scale * g
    returns = planted + shocks
    a, b, planted, returns, volatility = (x[BURN_IN:] for x in (a, b, planted, returns, volatility))
    path = np.vstack([np.zeros((1, num_assets)), np.cumsum(returns[:-1], axis=0)])

    dates = _business_days(num_days)
    assets = [f"S{i:0{max(2, len(str(num_assets - 1)))}d}" for i in range(num_assets)]
    keys = pl.DataFrame({"date": np.repeat(dates, num_assets), "asset": assets * num_days}).with_columns(
        pl.col("date").cast(pl.Date)
    )
    panel = Panel(
        keys.with_columns(
            close=pl.Series((100.0 * np.exp(path)).ravel()), a=pl.Series(a.ravel()), b=pl.Series(b.ravel())
        ),
        name=f"simulated-{signal}-{noise}-{seed}",
    )
    error, outcome = ((returns - planted)[:-1] ** 2).sum(), (returns[:-1] ** 2).sum()
    return Simulation(
        panel=panel,
        signal=keys.with_columns(signal=pl.Series(planted.ravel())),
        volatility=keys.with_columns(volatility=pl.Series(volatility.ravel())),
        oracle_r2=float(r2),
        realised_oracle_r2=float(1 - error / outcome),
    )


def planted_g(signal: str, a: Array, b: Array) -> Array:
    """Return g (days, assets) of the module's text for a name of `SIGNALS`."""
    if signal == "gated_filter":
        return gated_filter(a, b)
    return a * b if signal == "interaction" else a


def gated_filter(a: Array, b: Array) -> Array:
    """Return the standardised gated filter g of the module's text for features (days, assets).

    The first days, whose lags reach before the start, use the features as if they were 0 there.
    """
    mean, deviation = _gated_filter_moments()
    return (_gated_filter_raw(a, b) - mean) / deviation


def _gated_filter_raw(a: Array, b: Array) -> Array:
    z = a
    for k, j, j2 in STAGE_LAGS:
        recalled = 0.8 * _back(z, j) * np.sign(_back(z, j2) + 0.3)
        z = np.tanh(1.5 * (np.tanh(2 * _back(b, k)) * z + recalled)) / 0.6
    return z


@functools.cache
def _gated_filter_moments() -> tuple[float, float]:
    """Return mean and standard deviation of the raw filter, from 2^20 draws (errors of about 0.001)."""
    a, b = np.random.default_rng(20000103).standard_normal((2, 2**10 + 16, 2**10))
    z = _gated_filter_raw(a, b)[16:]
    return float(z.mean()), float(z.std())


def _back(x: Array, k: int) -> Array:
    return np.vstack([np.zeros((k, x.shape[1])), x[:-k]])


def _innovations(generator: np.random.Generator, shape: tuple[int, int], degrees: float) -> Array:
    normal = generator.standard_normal(shape)
    if math.isinf(degrees):
        return normal
    return normal * np.sqrt((degrees - 2) / generator.chisquare(degrees, shape))


def _garch(innovations: Array, alpha: float) -> tuple[Array, Array]:
    """Return shocks of unconditional variance 1 and their conditional variances, from the stationary mean."""
    if alpha == 0:
        return innovations, np.ones_like(innovations)
    beta = PERSISTENCE - alpha
    if beta < 0:
        raise ValueError(
            f"vol_of_vol asks for alpha = {alpha:.3f} above the persistence {PERSISTENCE}; choose a smaller "
            "one."
        )
    variance = np.ones_like(innovations)
    for t in range(1, len(innovations)):
        variance[t] = (1 - PERSISTENCE) + variance[t - 1] * (alpha * innovations[t - 1] ** 2 + beta)
    return np.sqrt(variance) * innovations, variance


def _kurtosis(degrees: float) -> float:
    return 3.0 if math.isinf(degrees) else 3.0 + 6.0 / (degrees - 4.0)


def _business_days(count: int) -> Array:
    return np.busday_offset("2000-01-03", np.arange(count), roll="forward").astype("datetime64[D]")


def _one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ValueError(f"{name} = {value!r} is unknown. Choose one of {', '.join(known)}.")

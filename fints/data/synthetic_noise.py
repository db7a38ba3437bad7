r"""Noise of a simulated panel: changing volatility, fat tails, a common factor, regimes, jumps, a shock.

.. math::

    u_{i,t+1} = \bar\sigma\, q_t \Bigl(\sqrt{1 - J}\,\bigl(\sqrt{c_i}\, \sqrt{h_t}\, f_{t+1}
    + \sqrt{1 - c_i}\, \sqrt{h_{i,t}}\, e_{i,t+1}\bigr) + \sqrt{J}\, j_{i,t+1}\Bigr)

========================  ===============================================================================
symbol                    meaning
========================  ===============================================================================
f, e                      standardised Gaussian or Student t innovations, independent
h                         conditional variance of mean 1, known at t: below
c                         the factor's share of an asset's diffusive variance
J, j                      the jumps' share of the variance; j is 0 but on a day in 252 / `jumps_a_year`, then
                          Gaussian, of variance 1 over all days, independent over assets
q                         volatility of the regime, mean square 1, times `shock_factor` from the shock on
========================  ===============================================================================

With z the innovation, :math:`\alpha_t = \alpha (1 - \ell\,\mathrm{sign}(z_t))` (leverage :math:`\ell`; GJR),

.. math:: h_{t+1} = (1 - \rho) + h_t\,(\alpha_t\, w(z_t) + \rho - \alpha), \qquad \rho = 0.98

so h has mean 1 under every dial: w has mean 1 and is even. The *news* w is

=========  ==============================================================  ================================
"square"   :math:`z^2`, which is GARCH(1,1)                                :math:`K = 3 + 6 / (\nu - 4)`
"score"    :math:`(\nu + 1) z^2 / (\nu - 2 + z^2)`, the score of the       :math:`K = 3 (\nu + 1) / (\nu + 3)`
           Student t density (Beta-t-GARCH)
=========  ==============================================================  ================================

with :math:`K = \mathrm E w^2`. The dial `vol_of_vol`, c, is the standard deviation of h (over its mean, 1);
it fixes

.. math:: \alpha^2 = \frac{c^2 (1 - \rho^2)}{(K (1 + \ell^2) - 1)(1 + c^2)} .

At 4 degrees of freedom and fewer K is infinite under "square": no :math:`\alpha > 0` gives h a finite
variance, so there is no such dose. Under "score" w is bounded by :math:`\nu + 1` and every dose exists at
every :math:`\nu > 2`; with Gaussian innovations the two are the same. To compare doses over degrees of
freedom that include 4, use "score" for all of them.

The regime is a Markov chain of two states, common to all assets; it is turbulent on a quarter of the days,
for 50 days on average.

Source: Bollerslev 1986; Glosten, Jagannathan, Runkle 1993; Harvey, Chakravarty 2008 and Creal, Koopman, Lucas
2013 for the score. Departures: leverage is stated as a share of alpha, so that it moves neither persistence
nor mean.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

__all__ = ["NEWS", "Noise", "draw_noise"]

Array = np.ndarray

NEWS = ("square", "score")
PERSISTENCE = 0.98
TURBULENT_SHARE = 0.25
TURBULENT_DAYS = 50.0


@dataclass(frozen=True, kw_only=True)
class Noise:
    """The dials of the noise, as in `fints.data.synthetic.simulate`; checked when made."""

    vol_of_vol: float
    degrees: float
    news: str
    leverage: float
    common_share: float
    regime_ratio: float
    jump_share: float
    jumps_a_year: float
    volatility_daily: float

    def __post_init__(self) -> None:
        least = 4 if self.vol_of_vol > 0 and self.news == "square" else 2
        remedy = '; with news = "score" any degrees above 2 will do' if least == 4 else ""
        for holds, text in (
            (0 <= self.common_share < 1, f"common_share in [0, 1); got {self.common_share}"),
            (0 <= self.vol_of_vol < math.inf, f"vol_of_vol of at least 0; got {self.vol_of_vol}"),
            (
                self.degrees > least,
                f"degrees above {least}, so that the moments in use exist; got {self.degrees}{remedy}",
            ),
            (0 < self.volatility_daily < math.inf, f"volatility_daily above 0; got {self.volatility_daily}"),
            (0 <= self.leverage <= 1, f"leverage in [0, 1]; got {self.leverage}"),
            (1 <= self.regime_ratio < math.inf, f"regime_ratio of at least 1; got {self.regime_ratio}"),
            (0 <= self.jump_share < 1, f"jump_share in [0, 1); got {self.jump_share}"),
            (0 < self.jumps_a_year <= 252, f"jumps_a_year in (0, 252]; got {self.jumps_a_year}"),
        ):
            if not holds:
                raise ValueError(f"simulate needs {text}.")
        if self.alpha > PERSISTENCE:
            raise ValueError(
                f"vol_of_vol asks for alpha = {self.alpha:.3f} above the persistence {PERSISTENCE}; choose a "
                "smaller one."
            )

    @property
    def alpha(self) -> float:
        """The weight of the news, 0 where volatility is constant."""
        if self.vol_of_vol == 0:
            return 0.0
        spread = (_news_square(self.news, self.degrees) * (1 + self.leverage**2) - 1) * (
            1 + self.vol_of_vol**2
        )
        return math.sqrt(self.vol_of_vol**2 * (1 - PERSISTENCE**2) / spread)


def draw_noise(dials: Noise, shape: tuple[int, int], seed: int) -> tuple[Array, Array]:
    """Return shocks and their standard deviations (days, assets); row t belongs to the step to t + 1.

    The seed fixes innovations, loadings, regimes and jumps apart from each other.
    """
    days, assets = shape
    common, own, loadings, regimes, jumps = (np.random.default_rng([seed, k]) for k in (1, 2, 3, 4, 5))
    spread = min(dials.common_share, 1 - dials.common_share) / 2
    share = dials.common_share + spread * loadings.uniform(-1, 1, assets)
    factor, factor_variance = _garch(_innovations(common, (days, 1), dials.degrees), dials)
    idiosyncratic, own_variance = _garch(_innovations(own, shape, dials.degrees), dials)
    shocks = dials.volatility_daily * (np.sqrt(share) * factor + np.sqrt(1 - share) * idiosyncratic)
    variance = share * factor_variance + (1 - share) * own_variance
    if dials.jump_share:
        chance = dials.jumps_a_year / 252
        jumped = jumps.uniform(size=shape) < chance
        size = jumps.standard_normal(shape) / math.sqrt(chance)
        shocks = math.sqrt(1 - dials.jump_share) * shocks
        shocks += dials.volatility_daily * math.sqrt(dials.jump_share) * jumped * size
        variance = (1 - dials.jump_share) * variance + dials.jump_share
    volatility = dials.volatility_daily * np.sqrt(variance)
    if dials.regime_ratio > 1:
        level = _regime(regimes, days, dials.regime_ratio)[:, None]
        shocks, volatility = shocks * level, volatility * level
    return shocks, volatility


def _innovations(generator: np.random.Generator, shape: tuple[int, int], degrees: float) -> Array:
    normal = generator.standard_normal(shape)
    if math.isinf(degrees):
        return normal
    return normal * np.sqrt((degrees - 2) / generator.chisquare(degrees, shape))


def _news(innovations: Array, kind: str, degrees: float) -> Array:
    square = innovations**2
    if kind == "square" or math.isinf(degrees):
        return square
    return (degrees + 1) * square / (degrees - 2 + square)


def _news_square(kind: str, degrees: float) -> float:
    """Return K, the mean square of the news."""
    if math.isinf(degrees):
        return 3.0
    return 3.0 + 6.0 / (degrees - 4.0) if kind == "square" else 3.0 * (degrees + 1) / (degrees + 3)


def _garch(innovations: Array, dials: Noise) -> tuple[Array, Array]:
    """Return shocks of unconditional variance 1 and their conditional variances, from the stationary mean."""
    alpha = dials.alpha
    if alpha == 0:
        return innovations, np.ones_like(innovations)
    beta = PERSISTENCE - alpha
    weighted = alpha * _news(innovations, dials.news, dials.degrees)
    if dials.leverage:
        weighted = weighted * (1 - dials.leverage * np.sign(innovations))
    variance = np.ones_like(innovations)
    for t in range(1, len(innovations)):
        variance[t] = (1 - PERSISTENCE) + variance[t - 1] * (weighted[t - 1] + beta)
    return np.sqrt(variance) * innovations, variance


def _regime(generator: np.random.Generator, days: int, ratio: float) -> Array:
    """Return the volatility (days,) of a stationary chain of two regimes, mean square 1."""
    leave = 1 / TURBULENT_DAYS
    enter = leave * TURBULENT_SHARE / (1 - TURBULENT_SHARE)
    draws = generator.uniform(size=days)
    turbulent = np.empty(days, dtype=bool)
    state = bool(draws[0] < TURBULENT_SHARE)
    turbulent[0] = state
    for t in range(1, days):
        state = bool(draws[t] >= leave) if state else bool(draws[t] < enter)
        turbulent[t] = state
    calm = 1 / math.sqrt(1 - TURBULENT_SHARE + TURBULENT_SHARE * ratio**2)
    return np.where(turbulent, ratio * calm, calm)

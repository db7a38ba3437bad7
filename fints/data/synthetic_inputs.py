r"""How a simulated panel shows its features: on what scale, which real inputs take from volatility.

.. math:: x_{i,t} = \rho_{i,t}\, a_{i,t}, \qquad \rho_{i,t} \in
    \Bigl\{1,\ v_{i,t},\ \frac{v_{i,t}}{\hat v_{i,t}}\Bigr\}

under "constant", "proportional" and "ewma", with a the feature as it was drawn, v the noise's volatility of
t + 1, which is known at t, :math:`\bar v` its unconditional value, and

.. math:: \hat v^2_{i,t} = \lambda\, \hat v^2_{i,t-1} + (1 - \lambda)\, r^2_{i,t}, \qquad
    \lambda = 0.94,\quad \hat v_{i,0} = \bar v

from the returns r up to the close of t. "proportional" is an input in units of returns, such as yesterday's
return: large where volatility is. "constant" is what an oracle of volatility makes of it, "ewma" what anyone
could. Source of the constant: RiskMetrics (1996), for daily returns.
"""

from __future__ import annotations

import numpy as np

__all__ = ["FEATURE_SCALES", "known_volatility", "scale_of_features"]

Array = np.ndarray

FEATURE_SCALES = ("constant", "proportional", "ewma")
DECAY = 0.94


def scale_of_features(kind: str, volatility: Array, returns: Array, *, usual: float) -> Array:
    """Return what a drawn feature is multiplied by (days, assets).

    Parameters
    ----------
    kind : str
        One of `FEATURE_SCALES`.
    volatility, returns : ndarray
        (days, assets), of the step from t to t + 1 in row t.
    usual : float
        The unconditional volatility.
    """
    if kind == "constant":
        return np.ones_like(volatility)
    if kind == "proportional":
        return volatility
    return volatility / known_volatility(returns, usual=usual)


def known_volatility(returns: Array, *, usual: float) -> Array:
    """Return the moving average's volatility (days, assets) at each close, from returns up to it."""
    known = np.empty_like(returns)
    known[0] = usual**2
    for t in range(1, len(returns)):
        # Row t - 1 holds the return that ends at the close of t.
        known[t] = DECAY * known[t - 1] + (1 - DECAY) * returns[t - 1] ** 2
    return np.sqrt(known)

r"""Signals g(x) of a simulated panel: known functions of two features' past, mean 0 and variance 1.

a and b are independent N(0, 1), new each day; lags count the rows given.

================  =======================================================================================
name              g at t
================  =======================================================================================
"linear"          :math:`a_t`
"interaction"     :math:`a_t b_t`
"gated_filter"    sharp lags, below
"memory_chain"    soft memory, below; `depth_demand` K is the number of its links
================  =======================================================================================

**Gated filter.** With z = a at first, each of two stages with its lags (k, j, j') does

.. math::

    z_t \leftarrow \tanh\bigl(1.5\,(\tanh(2 b_{t-k})\, z_t
    + 0.8\, z_{t-j}\,\mathrm{sign}(z_{t-j'} + 0.3))\bigr) / 0.6,

and g is z standardised by its population mean and standard deviation. An attention whose position bias starts
at 0 must first learn each lag.

**Memory chain.** With :math:`h^{(0)} = a` and k = 1, ..., K

.. math::

    m_t = \sqrt{1 - \rho^2} \sum_{j \ge 1} \rho^{j-1} h^{(k-1)}_{t-j}, \qquad
    h^{(k)}_t = u_t\,(c + \tanh(2 m_t)) / \sqrt{\mathrm E (c + \tanh 2 m)^2}

where :math:`\rho` is `MEMORY`, c is `OFFSET`, and the carrier u is b at odd k and a at even k; g is the last
h, whose mean is 0 since u is new. A link is a product of today's feature with a squashed memory of the
*earlier* values of the link before it, of which a token knows nothing until a block has attended: d blocks
form d links. The offset gives a network whose memory is only approximate some of the signal, so that links
can be learnt one by one.

**Drift.** A factor m_t of mean square 1 over the panel multiplies g: "constant"; "slow", :math:`1 + x_t / 2`
with x a stationary Gaussian AR(1) of half-life 250 days; "broken", 1 until the break and `break_factor` from
it on; each divided by its root mean square. It is common to all assets and in no column: where it is not
constant, the oracle knows more than the panel's past tells.
"""

from __future__ import annotations

import functools
import math

import numpy as np

__all__ = ["DRIFTS", "SIGNALS", "draw_drift", "gated_filter", "memory_chain", "planted_g"]

Array = np.ndarray

SIGNALS = ("linear", "interaction", "gated_filter", "memory_chain")
DRIFTS = ("constant", "slow", "broken")

# (k, j, j') of each stage: small, different, and never all in reach of one step of another stage.
STAGE_LAGS = ((1, 1, 2), (2, 3, 1))
MEMORY = 0.7
OFFSET = 0.2
# Beyond this the chain is learnt by no network that trains in minutes, so its demand cannot be shown.
MOST_LINKS = 8
SLOW_HALF_LIFE = 250.0
SLOW_SPREAD = 0.5
# Population moments come from so many days and columns; their standard errors are about 0.001.
DRAWN = (2**10, 2**10)
FORGOTTEN = 256


def planted_g(signal: str, a: Array, b: Array, *, depth_demand: int = 2) -> Array:
    """Return g (days, assets) for a name of `SIGNALS`.

    The first days, whose lags reach before the start, use the features as if they were 0 there.
    """
    if signal == "memory_chain":
        return memory_chain(a, b, links=depth_demand)
    if signal == "gated_filter":
        return gated_filter(a, b)
    return a * b if signal == "interaction" else a


def gated_filter(a: Array, b: Array) -> Array:
    """Return the standardised gated filter of the module's text for features (days, assets)."""
    mean, deviation = _gated_filter_moments()
    return (_gated_filter_raw(a, b) - mean) / deviation


def memory_chain(a: Array, b: Array, *, links: int) -> Array:
    """Return the standardised memory chain of the module's text for features (days, assets)."""
    h = a
    for link in range(1, links + 1):
        h = _link(h, b if link % 2 else a) / _chain_deviations()[link - 1]
    return h


def draw_drift(
    generator: np.random.Generator, days: int, kind: str, *, break_at: float, factor: float
) -> Array:
    """Return the drift m (days,) of the module's text."""
    if kind == "slow":
        keep = 0.5 ** (1 / SLOW_HALF_LIFE)
        x = generator.standard_normal(days)
        for t in range(1, days):
            x[t] = keep * x[t - 1] + math.sqrt(1 - keep**2) * x[t]
        path = 1 + SLOW_SPREAD * x
    elif kind == "broken":
        path = np.where(np.arange(days) < math.floor(break_at * days), 1.0, factor)
    else:
        return np.ones(days)
    return path / math.sqrt((path**2).mean())


def _gated_filter_raw(a: Array, b: Array) -> Array:
    z = a
    for k, j, j2 in STAGE_LAGS:
        recalled = 0.8 * _back(z, j) * np.sign(_back(z, j2) + 0.3)
        z = np.tanh(1.5 * (np.tanh(2 * _back(b, k)) * z + recalled)) / 0.6
    return z


@functools.cache
def _gated_filter_moments() -> tuple[float, float]:
    """Return mean and standard deviation of the raw filter, from 2^20 draws (errors of about 0.001)."""
    a, b = np.random.default_rng(20000103).standard_normal((2, DRAWN[0] + 16, DRAWN[1]))
    z = _gated_filter_raw(a, b)[16:]
    return float(z.mean()), float(z.std())


def _link(h: Array, carrier: Array) -> Array:
    """Return the link after the standardised link `h`, not yet standardised."""
    memory = np.zeros_like(h)
    for t in range(1, len(h)):
        memory[t] = MEMORY * memory[t - 1] + h[t - 1]
    return carrier * (OFFSET + np.tanh(2 * math.sqrt(1 - MEMORY**2) * memory))


@functools.cache
def _chain_deviations() -> tuple[float, ...]:
    """Return the population's standard deviation of each link, from 2^20 draws (errors of about 0.001)."""
    h, b = np.random.default_rng(20000103).standard_normal((2, FORGOTTEN + DRAWN[0], DRAWN[1]))
    carriers, deviations = (h, b), []
    for link in range(1, MOST_LINKS + 1):
        h = _link(h, carriers[link % 2])
        deviations.append(float(np.sqrt((h[FORGOTTEN:] ** 2).mean())))
        h = h / deviations[-1]
    return tuple(deviations)


def _back(x: Array, k: int) -> Array:
    return np.vstack([np.zeros((k, x.shape[1])), x[:-k]])

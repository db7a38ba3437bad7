r"""Simulated panels whose best possible forecast is known.

.. math::

    r_{i,t+1} = s_{i,t} + u_{i,t+1}, \qquad s_{i,t} = k\, m_t\, v_{i,t}\, g(x_{i,\le t})

========================  ===============================================================================
symbol                    meaning
========================  ===============================================================================
r                         log return from the close of t to that of t + 1
s                         the signal: the oracle's forecast, made at t
u                         the noise: a common factor and own shocks of changing volatility
                          (`fints.data.synthetic_noise`)
a, b                      two features, independent N(0, 1); the panel shows them so, or on the scale of
                          returns (`fints.data.synthetic_inputs`)
g                         a known function of their past, mean 0, variance 1; m its drift, mean square 1
                          (`fints.data.synthetic_signals`)
v                         1 daily volatility ("constant") or the asset's noise volatility of t + 1, which is
                          known at t ("proportional")
k                         :math:`\sqrt{R^2 / (1 - R^2)}`
========================  ===============================================================================

Since g is independent of the noise, :math:`\mathrm E s^2 / \mathrm E r^2 = R^2` under either scale: the
oracle's R2 is known by construction. "Matched signal-to-noise" can mean two things. With a constant scale
arms are *matched pooled*: R2 is the same over all rows whatever the volatility does, but lower where
volatility is high. With a proportional one they are *matched conditional*: R2 is the same at every
volatility. `fints.data.oracle_by_volatility` shows which.

A shock multiplies the noise from a date on, and a proportional signal with it; k stays that of the days
before.
"""

from __future__ import annotations

import inspect
import math
from dataclasses import dataclass

import numpy as np
import polars as pl

from fints.data.panel import Panel
from fints.data.synthetic_inputs import FEATURE_SCALES, scale_of_features
from fints.data.synthetic_noise import NEWS, Noise, draw_noise
from fints.data.synthetic_signals import DRIFTS, MOST_LINKS, SIGNALS, draw_drift, planted_g

__all__ = ["Simulation", "simulate"]

Array = np.ndarray

NOISES = ("gaussian", "student_t", "garch")
SCALES = ("constant", "proportional")

# GARCH of persistence 0.98 forgets its start by exp(-10) in this many days; the memory of every signal is far
# shorter.
BURN_IN = 500


@dataclass(frozen=True, eq=False)
class Simulation:
    """A simulated panel and what an oracle would have forecast.

    Attributes
    ----------
    panel : Panel
        ``close`` and the features ``a`` and ``b``; the log return of `close` over (t, t+1] is the simulated
        one.
    signal : polars.DataFrame
        ``date, asset, signal``: the oracle's forecast at each date of the next day's log return: that return
        without its noise.
    volatility : polars.DataFrame
        ``date, asset, volatility``: the noise's standard deviation of the next day, known at each date.
    drift : polars.DataFrame
        ``date, drift``: m.
    oracle_r2 : float
        By construction, pooled over the panel.
    realised_oracle_r2 : float
        1 - sum (r - s)^2 / sum r^2 over the panel.
    recipe : str
        The call that makes it again.
    """

    panel: Panel
    signal: pl.DataFrame
    volatility: pl.DataFrame
    drift: pl.DataFrame
    oracle_r2: float
    realised_oracle_r2: float
    recipe: str


def simulate(
    *,
    num_assets: int = 20,
    num_days: int = 1500,
    r2: float = 0.20,
    signal: str = "linear",
    depth_demand: int = 2,
    signal_scale: str = "constant",
    drift: str = "constant",
    break_at: float = 0.5,
    break_factor: float = -1.0,
    noise: str = "gaussian",
    vol_of_vol: float | None = None,
    degrees: float | None = None,
    news: str = "square",
    leverage: float = 0.0,
    common_share: float = 0.3,
    regime_ratio: float = 1.0,
    jump_share: float = 0.0,
    jumps_a_year: float = 4.0,
    volatility_daily: float = 0.01,
    shock_at: float | None = None,
    shock_factor: float = 4.0,
    volatility_column: bool = False,
    log_volatility_column: bool = False,
    feature_scale: str = "constant",
    seed: int = 0,
) -> Simulation:
    """Draw a panel of `num_days` business days from 2000-01-03.

    The seed fixes features, innovations, loadings, regimes, jumps and drift separately: panels of the same
    seed and size share their features whatever the signal and noise, and their innovations whatever the
    signal and `r2`.

    Parameters
    ----------
    num_assets, num_days
        Size of the panel.
    r2
        The oracle's R2 against zero, pooled, in [0, 1); before the shock, where there is one.
    signal
        "linear", "interaction", "gated_filter" or "memory_chain".
    depth_demand
        Links of the memory chain, 1 to 8: a network of fewer blocks cannot form all of them. Of no effect on
        the other signals.
    signal_scale
        "constant" (matched pooled) or "proportional" to the next day's noise volatility (matched
        conditional).
    drift
        Of the signal's strength: "constant", "slow" or "broken".
    break_at, break_factor
        Where "broken": the share of days before the break, and what the strength is multiplied with after it
        (-1: the signal turns round, 0: it dies).
    noise
        "gaussian" and "student_t" (5 degrees) have constant volatility; "garch" has Gaussian innovations.
    vol_of_vol
        Coefficient of variation of the conditional variance under "garch" (1 by default); 0 is constant
        volatility.
    degrees
        Degrees of freedom of the innovations, scaled to variance 1, in place of the noise's own.
    news
        What moves the variance under "garch": "square" (GARCH; degrees above 4) or "score" (Beta-t-GARCH;
        degrees above 2).
    leverage
        Under "garch": share of alpha, in [0, 1], moved from gains to losses. 1: only losses raise volatility.
    common_share
        Average share of the factor in the variance of the diffusive noise, in [0, 1).
    regime_ratio
        Turbulent over calm volatility, at least 1 (no regimes).
    jump_share, jumps_a_year
        The jumps' share of the noise variance, in [0, 1), and how many an asset has a year on average.
    volatility_daily
        Unconditional standard deviation of the noise.
    shock_at, shock_factor
        After this share of the days, in (0, 1), volatility is `shock_factor` times what it was; None: no
        shock.
    volatility_column
        Whether the panel has the column ``volatility``, that of the next day, which no real panel shows.
    log_volatility_column
        Whether it has ``log_volatility``, the logarithm of that over `volatility_daily`.
    feature_scale
        On what scale the panel shows a and b: "constant" (as drawn), "proportional" to the next day's
        volatility, as inputs in units of returns are, or that over a moving average of past squared returns
        ("ewma"). The signal is made of them as drawn, whatever is shown.
    seed
        Whole number of at least 0.

    Raises
    ------
    ValueError
        If an argument is unknown or outside its range.

    Examples
    --------
    >>> made = simulate(num_assets=2, num_days=500, r2=0.05, signal="linear", seed=1)
    >>> made.panel.assets, len(made.panel), made.panel.frame.columns
    (['S00', 'S01'], 1000, ['date', 'asset', 'close', ...])
    """
    recipe = _recipe(locals())
    _one_of("signal", signal, SIGNALS)
    _one_of("noise", noise, NOISES)
    _one_of("signal_scale", signal_scale, SCALES)
    _one_of("news", news, NEWS)
    _one_of("drift", drift, DRIFTS)
    _one_of("feature_scale", feature_scale, FEATURE_SCALES)
    for name, value in (("vol_of_vol", vol_of_vol), ("leverage", leverage)):
        if noise != "garch" and value:
            raise ValueError(f'{name} = {value} needs noise = "garch"; got noise = {noise!r}.')
    for holds, text in (
        (num_assets >= 1 and num_days >= 2, f"at least 1 asset and 2 days; got {num_assets} and {num_days}"),
        (0 <= r2 < 1, f"r2 in [0, 1); got {r2}"),
        (1 <= depth_demand <= MOST_LINKS, f"depth_demand from 1 to {MOST_LINKS}; got {depth_demand}"),
        (0 < break_at < 1, f"break_at in (0, 1); got {break_at}"),
        (math.isfinite(break_factor), f"a finite break_factor; got {break_factor}"),
        (shock_at is None or 0 < shock_at < 1, f"shock_at in (0, 1) or None; got {shock_at}"),
        (0 < shock_factor < math.inf, f"shock_factor above 0; got {shock_factor}"),
        (seed >= 0, f"seed of at least 0; got {seed}"),
    ):
        if not holds:
            raise ValueError(f"simulate needs {text}.")
    if degrees is None:
        degrees = 5.0 if noise == "student_t" else math.inf
    dials = Noise(
        vol_of_vol=(1.0 if noise == "garch" else 0.0) if vol_of_vol is None else float(vol_of_vol),
        degrees=degrees,
        news=news,
        leverage=leverage,
        common_share=common_share,
        regime_ratio=regime_ratio,
        jump_share=jump_share,
        jumps_a_year=jumps_a_year,
        volatility_daily=volatility_daily,
    )

    total = BURN_IN + num_days
    a, b = np.random.default_rng([seed, 0]).standard_normal((2, total, num_assets))
    # Row t of `shocks`, `volatility` and `planted` belongs to the step from t to t + 1.
    shocks, volatility = draw_noise(dials, (total, num_assets), seed)
    g = planted_g(signal, a, b, depth_demand=depth_demand)
    a, b, g, shocks, volatility = (x[BURN_IN:] for x in (a, b, g, shocks, volatility))

    shock = np.ones(num_days)
    if shock_at is not None:
        shock[math.floor(shock_at * num_days) :] = shock_factor
        shocks, volatility = shocks * shock[:, None], volatility * shock[:, None]
    strength = draw_drift(
        np.random.default_rng([seed, 6]), num_days, drift, break_at=break_at, factor=break_factor
    )
    proportional = signal_scale == "proportional"
    scale = volatility if proportional else np.full_like(volatility, volatility_daily)
    odds = r2 / (1 - r2)
    planted = math.sqrt(odds) * scale * g
    if drift != "constant":
        planted = planted * strength[:, None]
    returns = planted + shocks
    path = np.vstack([np.zeros((1, num_assets)), np.cumsum(returns[:-1], axis=0)])

    dates = _business_days(num_days)
    assets = [f"S{i:0{max(2, len(str(num_assets - 1)))}d}" for i in range(num_assets)]
    keys = pl.DataFrame({"date": np.repeat(dates, num_assets), "asset": assets * num_days}).with_columns(
        pl.col("date").cast(pl.Date)
    )
    shown = scale_of_features(feature_scale, volatility, returns, usual=volatility_daily)
    columns = {"close": 100.0 * np.exp(path), "a": shown * a, "b": shown * b}
    if volatility_column:
        columns["volatility"] = volatility
    if log_volatility_column:
        columns["log_volatility"] = np.log(volatility / volatility_daily)
    panel = Panel(
        keys.with_columns(**{name: pl.Series(values.ravel()) for name, values in columns.items()}),
        name=f"simulated-{signal}-{noise}-{seed}",
    )
    error, outcome = ((returns - planted)[:-1] ** 2).sum(), (returns[:-1] ** 2).sum()
    signal_variance = odds * (strength**2 * (shock**2 if proportional else 1.0)).mean()
    return Simulation(
        panel=panel,
        signal=keys.with_columns(signal=pl.Series(planted.ravel())),
        volatility=keys.with_columns(volatility=pl.Series(volatility.ravel())),
        drift=pl.DataFrame({"date": dates, "drift": strength}).with_columns(pl.col("date").cast(pl.Date)),
        oracle_r2=float(r2 if shock_at is None else signal_variance / (signal_variance + (shock**2).mean())),
        realised_oracle_r2=float(1 - error / outcome),
        recipe=recipe,
    )


def _recipe(arguments: dict[str, object]) -> str:
    """Return the call with every argument that differs from its default, and the seed."""
    dials = inspect.signature(simulate).parameters
    told = [f"{k}={v!r}" for k, v in arguments.items() if k == "seed" or v != dials[k].default]
    return f"fints.data.simulate({', '.join(told)})"


def _business_days(count: int) -> Array:
    return np.busday_offset("2000-01-03", np.arange(count), roll="forward").astype("datetime64[D]")


def _one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ValueError(f"{name} = {value!r} is unknown. Choose one of {', '.join(known)}.")

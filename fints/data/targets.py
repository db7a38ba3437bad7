r"""Forward-return targets: the only file of fints that looks ahead.

With p the log price on the asset's own trading days (its rows with a price) and h the horizon,
:math:`y_t = p_{t+h} - p_t` and

=====================  ==================================================  ===============================
name                   target                                              scale (one target in log return)
=====================  ==================================================  ===============================
``log_return``         :math:`y_t`                                         1
``volatility_scaled``  :math:`y_t / (\sigma_t \sqrt h)`                    :math:`\sigma_t \sqrt h`
``cross_sectional``    :math:`(y_t - \bar y_t) / \mathrm{sd}(y_t)`         null (unit: deviations of the date)
=====================  ==================================================  ===============================

:math:`\sigma_t^2 = \sum_{k=0}^{62} w_k r_{t-k}^2`, :math:`w_k \propto 2^{-k/21}`, weights summing to 1: the
exponentially weighted daily variance about zero, half-life 21 own trading days, cut off after 63 so that it
is known from those days alone. It is null before 63 returns exist and where all of them are 0; then there is
no volatility-scaled target. Mean and deviation (divisor: the number of assets) of the cross-sectional target
are over the assets that have a forward return from that date.
"""

from __future__ import annotations

import difflib

import numpy as np
import polars as pl

from fints.data.features import NO_VOLATILITY, History
from fints.data.panel import Panel

__all__ = ["TARGETS", "targets"]

TARGETS = ("log_return", "volatility_scaled", "cross_sectional")

VOLATILITY_WINDOW = 63
VOLATILITY_HALF_LIFE = 21
NO_DATE = np.iinfo(np.int32).min


def targets(panel: Panel, name: str, horizon: int) -> pl.DataFrame:
    """Compute one target for every row of a panel.

    Returns
    -------
    polars.DataFrame
        Row for row those of ``panel.frame``: ``date, asset, target, scale, label_end``. `target` is null on
        each asset's last `horizon` own trading days, where it did not trade, and where it is undefined (no
        volatility; fewer than two assets or no dispersion on the date). `scale` is causal, so it is known
        where the target is not. `label_end` (Date) is when the target is known: that of the asset's h-th next
        own trading day, for ``cross_sectional`` the latest of its date.

    Raises
    ------
    ValueError
        If the name is unknown or the horizon is not a whole number of at least 1.
    """
    check_target(name, horizon)
    history = History.of(panel)
    forward, ahead = forward_returns(history, horizon)
    dates = panel.frame["date"].to_physical().to_numpy()[history.rows]
    label_end = np.full(panel.frame.height, NO_DATE, np.int32)
    known = history.left >= horizon
    label_end[history.rows[known]] = dates[ahead[known]]
    return in_units(
        panel.frame.select(
            "date",
            "asset",
            forward=history.on_rows(forward),
            sigma=history.on_rows(causal_volatility(history)),
            label_end=pl.Series(label_end),
        ).with_columns(pl.when(pl.col("label_end") != NO_DATE).then("label_end").cast(pl.Date)),
        name,
        horizon,
    )


def check_target(name: str, horizon: int) -> None:
    """Refuse a target that there is not, or a horizon that is none.

    Raises
    ------
    ValueError
        With what to choose.
    """
    if name not in TARGETS:
        near = difflib.get_close_matches(str(name), TARGETS, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"unknown target {name!r}.{hint} Choose one of {', '.join(TARGETS)}.")
    if isinstance(horizon, bool) or not isinstance(horizon, int) or horizon < 1:
        raise ValueError(f"horizon must be a whole number of trading days, at least 1; got {horizon!r}.")


def forward_returns(history: History, horizon: int) -> tuple[np.ndarray, np.ndarray]:
    """Return p_{t+h} - p_t (N,), NaN where unknown, and the place of t + h in the history (N,)."""
    known = history.left >= horizon
    ahead = np.minimum(np.arange(len(known)) + horizon, len(known) - 1)
    return np.where(known, history.log_price[ahead] - history.log_price, np.nan), ahead


def in_units(frame: pl.DataFrame, name: str, horizon: int) -> pl.DataFrame:
    """Return the frame of `targets` from ``date, asset, forward, sigma, label_end``, whole dates."""
    forward_return = pl.col("forward")
    if name == "log_return":
        frame = frame.with_columns(target=forward_return, scale=pl.lit(1.0))
    elif name == "volatility_scaled":
        scale = pl.col("sigma") * float(np.sqrt(horizon))
        frame = frame.with_columns(target=forward_return / scale, scale=scale)
    else:
        spread = (forward_return.max() - forward_return.min()).over("date")
        centred = forward_return - forward_return.mean().over("date")
        deviation = (centred**2).mean().over("date").sqrt()
        frame = frame.with_columns(
            target=pl.when(spread > NO_VOLATILITY).then(centred / deviation),
            scale=pl.lit(None, pl.Float64),
            label_end=pl.when(pl.col("label_end").is_not_null()).then(pl.col("label_end").max().over("date")),
        )
    return frame.select(
        "date",
        "asset",
        "target",
        "scale",
        pl.when(pl.col("target").is_not_null()).then("label_end").alias("label_end"),
    )


def causal_volatility(history: History) -> np.ndarray:
    """Return sigma_t of the module's text for each observation (N,), daily; NaN where unknown or zero."""
    weights = 0.5 ** (np.arange(VOLATILITY_WINDOW) / VOLATILITY_HALF_LIFE)
    weights = weights / weights.sum()
    squares = history.log_return**2
    number = len(squares)
    variance = np.zeros(number)
    for k, weight in enumerate(weights[:number]):
        variance[k:] += weight * squares[: number - k]
    sigma = np.sqrt(variance)
    return np.where((history.age >= VOLATILITY_WINDOW) & (sigma > NO_VOLATILITY), sigma, np.nan)

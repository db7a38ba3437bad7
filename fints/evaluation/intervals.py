"""Intervals of metrics that are ratios of sums over dates."""

from __future__ import annotations

import numpy as np
import polars as pl

from fints.evaluation.bootstrap import bootstrap_interval
from fints.evaluation.rows import columns, group_starts, known_rows, require_columns
from fints.evaluation.serial import mean_error

__all__ = ["Interval", "mean_interval", "median_r2_interval", "r2_interval"]

Interval = tuple[float, float]
# Beyond this many cells the bootstrap of the median takes minutes.
MOST_CELLS = 2_000_000


def mean_interval(values: np.ndarray, *, horizon: int = 1, level: float = 0.95) -> Interval | None:
    """Return the interval of the mean of a series of dates, with the errors of `mean_error`."""
    error = mean_error(values, horizon=horizon) if len(values) >= 8 * horizon else None
    if error is None:
        return None
    half = error.quantile(0.5 + level / 2) * error.se
    return float(values.mean()) - half, float(values.mean()) + half


def r2_interval(
    frame: pl.DataFrame,
    *,
    benchmark: str | None = None,
    variance: str | None = None,
    horizon: int = 1,
    level: float = 0.95,
) -> Interval | None:
    r"""Return the interval of a pooled R2: `r2_zero`, `r2_mean` (benchmark) or `r2_precision` (variance).

    With A_t and B_t the date's sums of squared errors of the forecast and the benchmark,
    :math:`R^2 = 1 - \sum A / \sum B` has the influence

    .. math:: \psi_t = -(A_t - (1 - R^2) B_t) / \bar B

    on each date, whose mean is 0 and whose error is that of `fints.evaluation.mean_error`. It is the
    interval of what these forecasts would reach on further dates like these: it knows nothing of the
    noise of training.
    """
    names = [name for name in (benchmark, variance) if name is not None]
    rows = known_rows(frame, *names).drop_nulls(names or None)
    if rows.height == 0:
        return None
    forecast, realised = columns(rows, "forecast", "realised")
    base = rows[benchmark].to_numpy() if benchmark else np.zeros(rows.height)
    weight = 1 / rows[variance].to_numpy() if variance else np.ones(rows.height)
    starts = group_starts(rows["date"])
    a = np.add.reduceat(weight * (realised - forecast) ** 2, starts)
    b = np.add.reduceat(weight * (realised - base) ** 2, starts)
    if not b.sum() > 0:
        return None
    ratio = float(a.sum() / b.sum())
    found = mean_interval(-(a - ratio * b) / b.mean(), horizon=horizon, level=level)
    return None if found is None else (1 - ratio + found[0], 1 - ratio + found[1])


def median_r2_interval(frame: pl.DataFrame, *, horizon: int = 1, seed: int = 0) -> Interval | None:
    """Return the 95 % interval of the median R2 over assets, by the bootstrap of dates.

    None with fewer than 20 dates, or for a panel so large that it would take minutes.
    """
    require_columns(frame, "date", "asset", "forecast", "realised")
    rows = known_rows(frame)
    size = rows["date"].n_unique() * rows["asset"].n_unique()
    if rows["date"].n_unique() < 20 or size > MOST_CELLS:
        return None
    error = rows.select(
        "date", "asset", a=(pl.col("realised") - pl.col("forecast")) ** 2, b=pl.col("realised") ** 2
    )
    sides = [
        error.pivot(on="asset", index="date", values=name, sort_columns=True)
        .sort("date")
        .drop("date")
        .fill_null(0.0)
        .to_numpy()
        for name in ("a", "b")
    ]
    assets = sides[0].shape[1]

    def median(values: np.ndarray) -> float:
        over, under = values[:, :assets].sum(axis=0), values[:, assets:].sum(axis=0)
        return float(np.median(1 - over[under > 0] / under[under > 0]))

    return bootstrap_interval(np.hstack(sides), median, horizon=horizon, reps=299, seed=seed)

"""Does one forecast beat another? Tests on the series of dates, blind to the noise of training."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import polars as pl

from fints.evaluation.rows import group_starts, known_rows
from fints.evaluation.serial import long_run_variance

__all__ = ["SeriesTest", "clark_west", "diebold_mariano"]


@dataclass(frozen=True, kw_only=True)
class SeriesTest:
    """A test on a series of dates: the mean it looks at, its statistic, p value and number of dates.

    `statistic` and `p` are None where no error can be estimated: fewer dates than the larger of 8
    and twice the horizon, or a series that is the same (but not 0) on every date.
    """

    estimate: float
    statistic: float | None
    p: float | None
    dates: int


def diebold_mariano(a: pl.DataFrame, b: pl.DataFrame, *, horizon: int = 1) -> SeriesTest:
    r"""Test equal squared loss of two non-nested forecasts of the same panel, two-sided.

    .. math:: d_t = \text{mean}_i [(r_{i,t} - a_{i,t})^2 - (r_{i,t} - b_{i,t})^2]

    The loss difference is averaged over assets a date, then the daily series is tested with HAC
    errors and the small-sample correction of Harvey, Leybourne and Newbold. Rows are matched on
    (date, asset); `estimate` is the mean of d, negative where `a` is better. Do not use it where
    one model nests the other (against zero or the mean): see `clark_west`.

    Source: Diebold, Mariano (1995); `statsmodels.tsa.stattools.diebold_mariano_test`.
    """
    from statsmodels.tsa.stattools import diebold_mariano_test

    keyed = _keyed(a).rename({"forecast": "forecast_a"})
    other = _keyed(b).rename({"forecast": "forecast_b", "realised": "realised_b"})
    both = keyed.join(other, on=["date", "asset"], how="inner").sort("date", "asset")
    if both.height == 0:
        raise ValueError("the two forecasts share no (date, asset); compare forecasts of the same test rows.")
    if not np.array_equal(both["realised"].to_numpy(), both["realised_b"].to_numpy()):
        raise ValueError(
            "the two forecasts have different outcomes on the same rows; use one target for both."
        )
    loss = (pl.col("realised") - pl.col("forecast_a")) ** 2 - (pl.col("realised") - pl.col("forecast_b")) ** 2
    series = _date_means(both, loss)
    if not series.any():
        return SeriesTest(estimate=0.0, statistic=0.0, p=1.0, dates=len(series))
    if _variance(series, horizon) is None:
        return SeriesTest(estimate=float(series.mean()), statistic=None, p=None, dates=len(series))
    zeros = np.zeros_like(series)
    # The library averages nothing over assets, so it is given the differential as a "loss".
    result = diebold_mariano_test(
        zeros, series, zeros, criterion=lambda _, loss: loss, harvey_adj=True, horizon=horizon
    )
    return SeriesTest(
        estimate=float(series.mean()),
        statistic=float(result.statistic),
        p=float(result.pvalue),
        dates=len(series),
    )


def clark_west(frame: pl.DataFrame, *, benchmark: str | None = None, horizon: int = 1) -> SeriesTest:
    r"""Test whether a forecast beats a nested benchmark, one-sided.

    .. math:: f_t = \text{mean}_i \{(r - p_0)^2 - [(r - p_1)^2 - (p_0 - p_1)^2]\}

    is regressed on a constant with HAC errors; p is the upper tail of the normal. The benchmark
    `p_0` is zero, or the column named by `benchmark` (e.g. ``"prevailing_mean"``). The added term
    removes the noise that a larger model must carry when the benchmark is true; without it
    (Diebold-Mariano, or R2 above 0) the test almost never rejects.

    Source: Clark, West (2007), equation 3.1.
    """
    from scipy import stats

    rows = _keyed(frame, *([benchmark] if benchmark else []))
    base = pl.col(benchmark) if benchmark else pl.lit(0.0)
    forecast, realised = pl.col("forecast"), pl.col("realised")
    adjusted = (realised - base) ** 2 - ((realised - forecast) ** 2 - (base - forecast) ** 2)
    series = _date_means(rows, adjusted)
    if not series.any():
        return SeriesTest(estimate=0.0, statistic=0.0, p=1.0, dates=len(series))
    estimate = float(series.mean())
    variance = _variance(series, horizon)
    if variance is None:
        return SeriesTest(estimate=estimate, statistic=None, p=None, dates=len(series))
    statistic = estimate / math.sqrt(variance / len(series))
    return SeriesTest(
        estimate=estimate, statistic=statistic, p=float(stats.norm.sf(statistic)), dates=len(series)
    )


def _keyed(frame: pl.DataFrame, *more: str) -> pl.DataFrame:
    rows = known_rows(frame, *more).select("date", "asset", "forecast", "realised", *more)
    return rows.drop_nulls(list(more)) if more else rows


def _date_means(rows: pl.DataFrame, loss: pl.Expr) -> np.ndarray:
    rows = rows.sort("date", "asset")
    starts = group_starts(rows["date"])
    counts = np.diff(np.append(starts, rows.height))
    return np.add.reduceat(rows.select(loss.alias("loss"))["loss"].to_numpy(), starts) / counts


def _variance(series: np.ndarray, horizon: int) -> float | None:
    """Return the long-run variance, None where a series is too short or too flat for one."""
    variance = long_run_variance(series, horizon=horizon)
    return variance if variance and len(series) >= max(8, 2 * horizon) else None

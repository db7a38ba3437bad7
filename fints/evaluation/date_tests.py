"""Does one forecast beat another? Tests on the series of dates, blind to the noise of training."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from fints.evaluation.rows import group_starts, known_rows
from fints.evaluation.serial import MeanError, mean_error

__all__ = ["SeriesTest", "clark_west", "date_means", "diebold_mariano", "loss_difference"]


@dataclass(frozen=True, kw_only=True)
class SeriesTest:
    """A test on a series of dates: the mean it looks at, its statistic, p value and number of dates.

    `statistic` and `p` are None where no error can be estimated: fewer than ``8 horizon`` dates, or a
    series that is the same (but not 0) on every date. `low` and `high` are the 95 % interval of the
    mean.
    """

    estimate: float
    statistic: float | None
    p: float | None
    dates: int
    low: float | None = None
    high: float | None = None


def diebold_mariano(a: pl.DataFrame, b: pl.DataFrame, *, horizon: int = 1) -> SeriesTest:
    r"""Test equal squared loss of two non-nested forecasts of the same panel, two-sided.

    .. math:: d_t = \text{mean}_i [(r_{i,t} - a_{i,t})^2 - (r_{i,t} - b_{i,t})^2]

    The loss difference is averaged over assets a date, then the daily series is tested. At horizon 1
    the errors are HAC with the small-sample correction of Harvey, Leybourne and Newbold; over longer
    horizons, where that test rejects too often, they are those of `fints.evaluation.mean_error`. Rows
    are matched on (date, asset); `estimate` is the mean of d, negative where `a` is better. Do not use
    it where one model nests the other (against zero or the mean): see `clark_west`.

    Source: Diebold, Mariano (1995); `statsmodels.tsa.stattools.diebold_mariano_test`.
    """
    from statsmodels.tsa.stattools import diebold_mariano_test

    series = loss_difference(a, b)["difference"].to_numpy()
    if not series.any():
        return SeriesTest(estimate=0.0, statistic=0.0, p=1.0, dates=len(series))
    estimate = float(series.mean())
    error = _error(series, horizon)
    if error is None:
        return SeriesTest(estimate=estimate, statistic=None, p=None, dates=len(series))
    if horizon > 1:
        statistic = estimate / error.se
        p = error.two_sided(statistic)
    else:
        zeros = np.zeros_like(series)
        # The library averages nothing over assets, so it is given the differential as a "loss".
        result = diebold_mariano_test(
            zeros, series, zeros, criterion=lambda _, loss: loss, harvey_adj=True, horizon=horizon
        )
        statistic, p = float(result.statistic), float(result.pvalue)
    half = error.quantile(0.975) * error.se
    return SeriesTest(
        estimate=estimate,
        statistic=statistic,
        p=p,
        dates=len(series),
        low=estimate - half,
        high=estimate + half,
    )


def loss_difference(a: pl.DataFrame, b: pl.DataFrame) -> pl.DataFrame:
    """Return the mean over assets of a's squared error less b's, by `date`, as column `difference`.

    Raises
    ------
    ValueError
        If the forecasts share no (date, asset) or have different outcomes there.
    """
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
    return pl.DataFrame({"date": both["date"].unique().sort(), "difference": date_means(both, loss)})


def clark_west(frame: pl.DataFrame, *, benchmark: str | None = None, horizon: int = 1) -> SeriesTest:
    r"""Test whether a forecast beats a nested benchmark, one-sided.

    .. math:: f_t = \text{mean}_i \{(r - p_0)^2 - [(r - p_1)^2 - (p_0 - p_1)^2]\}

    is regressed on a constant; p is the upper tail, with the errors of `fints.evaluation.mean_error`
    (horizon 1: HAC and the normal law). The benchmark `p_0` is zero, or the column named by
    `benchmark` (e.g. ``"prevailing_mean"``). The added term
    removes the noise that a larger model must carry when the benchmark is true; without it
    (Diebold-Mariano, or R2 above 0) the test almost never rejects. The null is that `p_0` is the best
    forecast: where `p_0` is an estimate (a prevailing mean), a forecast of zero may beat it too, so ask
    for both benchmarks.

    Source: Clark, West (2007), equation 3.1.
    """
    rows = _keyed(frame, *([benchmark] if benchmark else []))
    base = pl.col(benchmark) if benchmark else pl.lit(0.0)
    forecast, realised = pl.col("forecast"), pl.col("realised")
    adjusted = (realised - base) ** 2 - ((realised - forecast) ** 2 - (base - forecast) ** 2)
    series = date_means(rows, adjusted)
    if not series.any():
        return SeriesTest(estimate=0.0, statistic=0.0, p=1.0, dates=len(series))
    estimate = float(series.mean())
    error = _error(series, horizon)
    if error is None:
        return SeriesTest(estimate=estimate, statistic=None, p=None, dates=len(series))
    statistic, half = estimate / error.se, error.quantile(0.975) * error.se
    return SeriesTest(
        estimate=estimate,
        statistic=statistic,
        p=error.upper_tail(statistic),
        dates=len(series),
        low=estimate - half,
        high=estimate + half,
    )


def _keyed(frame: pl.DataFrame, *more: str) -> pl.DataFrame:
    rows = known_rows(frame, *more).select("date", "asset", "forecast", "realised", *more)
    return rows.drop_nulls(list(more)) if more else rows


def date_means(rows: pl.DataFrame, value: pl.Expr) -> np.ndarray:
    """Return the mean of an expression over the rows of each date, in the order of dates."""
    rows = rows.sort("date", "asset")
    starts = group_starts(rows["date"])
    counts = np.diff(np.append(starts, rows.height))
    return np.add.reduceat(rows.select(value.alias("value"))["value"].to_numpy(), starts) / counts


def _error(series: np.ndarray, horizon: int) -> MeanError | None:
    """Return the error of the mean, None where a series is too short or too flat for one."""
    return mean_error(series, horizon=horizon) if len(series) >= 8 * horizon else None

"""Who wins when? Tests of two forecasts given what was known when they were made."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from fints.evaluation.date_tests import SeriesTest, date_means, loss_difference
from fints.evaluation.rows import known_rows
from fints.evaluation.serial import mean_error

__all__ = ["ConditionalTest", "giacomini_white", "pesaran_timmermann"]

# Trading days over which the volatility instrument looks back.
VOLATILITY_DAYS = 21
# Three moments of products of losses: below this the chi-squared law is far from true. With 120 dates the
# test rejects a true null half as often as it should (`benchmarks/calibration.py`, h = 21).
FEWEST_DATES = 200


@dataclass(frozen=True, kw_only=True)
class ConditionalTest:
    """A test that nothing known on a date tells which forecast will lose more.

    `calm` and `wild` are the loss differences (first less second) that the regression on the
    instruments expects at the 10th and 90th percentile of volatility, the last difference at its
    mean; `first_preferred` is the share of dates on which it expects the first forecast to lose less.
    `statistic` and `p` are None where no error can be estimated.
    """

    statistic: float | None
    p: float | None
    dates: int
    calm: float | None = None
    wild: float | None = None
    first_preferred: float | None = None


def giacomini_white(
    a: pl.DataFrame, b: pl.DataFrame, *, volatility: pl.DataFrame | None = None, horizon: int = 1
) -> ConditionalTest:
    r"""Test equal conditional predictive ability of two forecasts on the same rows.

    .. math:: H_0: \mathrm E[h_t\, d_{t+h}] = 0, \quad h_t = (1, d_t, v_t), \quad
        W = n\, \bar z' \hat\Omega^{-1} \bar z \sim \chi^2_3, \quad z = h_t\, d_{t+h}

    d is the loss difference of `diebold_mariano`, :math:`v_t` the volatility. Over `horizon` h only
    every h-th date counts, from the first, so that outcomes do not overlap and :math:`\hat\Omega` needs
    no lags; d_t is then the difference that has become known on t.

    The null is about forecasts as they were made, estimation included, so it also holds for nested
    models; but only if the parameters come from windows of bounded length. Use it for forecasts refitted
    on **rolling** windows; with expanding windows the law of W is not known.

    Parameters
    ----------
    a, b
        Frames with `date`, `asset`, `forecast`, `realised`.
    volatility
        `date`, `volatility`, known on the date. Default: the root mean square, over assets and the last
        21 dates, of the outcomes known on the date.

    Raises
    ------
    ValueError
        As `diebold_mariano`, or if a date has no volatility.

    Notes
    -----
    Source: Giacomini, White (2006), theorem 1 and section 3.4 (the decision rule).
    """
    from scipy import stats

    if horizon < 1:
        raise ValueError(f"horizon must be at least 1; got {horizon}.")
    difference = loss_difference(a, b)
    known = _volatility(a, horizon) if volatility is None else volatility
    rows = difference.join(known, on="date", how="left").sort("date")[::horizon]
    # The default volatility does not exist before the first outcomes are known.
    if volatility is None:
        rows = rows.drop_nulls()
    elif rows["volatility"].null_count():
        missing = rows.filter(pl.col("volatility").is_null())["date"][0]
        raise ValueError(f"every date needs a volatility; {missing} has none.")
    d, v = (rows[name].to_numpy() for name in ("difference", "volatility"))
    dates = max(len(d) - 1, 0)
    if dates < FEWEST_DATES or not (d.std() > 0 and v.std() > 0):
        same = dates > 0 and not d.any()
        return ConditionalTest(statistic=0.0 if same else None, p=1.0 if same else None, dates=dates)
    # Each instrument at its own scale: W does not change, and the matrix is well conditioned.
    instruments = np.column_stack([np.ones(dates), d[:-1] / d.std(), v[:-1] / v.mean()])
    moments = instruments * (d[1:] / d.std())[:, None]
    mean = moments.mean(axis=0)
    statistic = float(dates * mean @ np.linalg.solve(moments.T @ moments / dates, mean))
    slope = np.linalg.lstsq(instruments, d[1:], rcond=None)[0]
    expected = instruments @ slope
    at = [
        float(slope @ (1.0, instruments[:, 1].mean(), np.quantile(instruments[:, 2], probability)))
        for probability in (0.1, 0.9)
    ]
    return ConditionalTest(
        statistic=statistic,
        p=float(stats.chi2.sf(statistic, 3)),
        dates=dates,
        calm=at[0],
        wild=at[1],
        first_preferred=float(np.mean(expected < 0)),
    )


def pesaran_timmermann(frame: pl.DataFrame, *, horizon: int = 1) -> SeriesTest:
    r"""Test whether the sign of a forecast tells the sign of the outcome, one-sided.

    .. math:: c_t = \text{mean}_i\, (y_{it} - \bar y_i)(z_{it} - \bar z_i), \quad
        y = 1\{r > 0\},\ z = 1\{p > 0\}

    with means by asset over all dates; the mean of c is tested with the errors of
    `fints.evaluation.mean_error`. So a forecast that is always up gets no credit for a market that
    mostly rises. `estimate` is twice the mean of c: the share of right signs above what independent
    signs of the same frequencies would have.

    Notes
    -----
    With one asset this is the test of Pesaran and Timmermann (1992), as in
    ``statsmodels.stats.api.pesaran_timmermann``, to first order: their standard error is of a binomial,
    this one of the series. A panel needs this form, since the assets of one date are not independent.
    """
    rows = known_rows(frame)
    signs = rows.select(
        "date",
        "asset",
        (pl.col("realised") > 0).cast(pl.Float64).alias("up"),
        (pl.col("forecast") > 0).cast(pl.Float64).alias("said"),
    )
    centred = (pl.col(name) - pl.col(name).mean().over("asset") for name in ("up", "said"))
    up, said = centred
    series = date_means(signs.with_columns(product=up * said), pl.col("product"))
    estimate = 2 * float(series.mean())
    error = mean_error(series, horizon=horizon) if len(series) >= 8 * horizon else None
    if error is None:
        return SeriesTest(estimate=estimate, statistic=None, p=None, dates=len(series))
    statistic, half = float(series.mean()) / error.se, 2 * error.quantile(0.975) * error.se
    return SeriesTest(
        estimate=estimate,
        statistic=statistic,
        p=error.upper_tail(statistic),
        dates=len(series),
        low=estimate - half,
        high=estimate + half,
    )


def _volatility(frame: pl.DataFrame, horizon: int) -> pl.DataFrame:
    """Return the root mean square outcome of the last 21 dates known on each date."""
    rows = known_rows(frame)
    square = date_means(rows, pl.col("realised") ** 2)
    return (
        pl.DataFrame({"date": rows["date"].unique().sort(), "square": square})
        .with_columns(
            volatility=pl.col("square").shift(horizon).rolling_mean(VOLATILITY_DAYS, min_samples=1).sqrt()
        )
        .select("date", "volatility")
    )

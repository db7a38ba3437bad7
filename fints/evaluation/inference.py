"""Is a difference real, absent, or undecided? Tests on dates and on (fold, seed) pairs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from fints.evaluation.metrics import group_starts, known_rows, long_run_variance

__all__ = [
    "Contrast",
    "Equivalence",
    "SeriesTest",
    "clark_west",
    "clustered_mean",
    "clusters_needed",
    "contrast_power",
    "diebold_mariano",
    "effective_assets",
    "equivalence",
    "holm",
    "minimum_detectable_effect",
    "paired_contrast",
    "paired_r2_sd",
    "r2_power",
    "r2_standard_error",
]


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


@dataclass(frozen=True, kw_only=True)
class Contrast:
    """A mean over (fold, seed) cells with errors clustered by fold.

    `sd` is the standard deviation of one cluster's mean, ``se * sqrt(clusters)``. With one cluster
    there is no error to estimate: `se`, `sd`, `low`, `high` and `p` are None.
    """

    estimate: float
    se: float | None
    low: float | None
    high: float | None
    p: float | None
    clusters: int
    cells: int
    level: float = 0.95

    @property
    def sd(self) -> float | None:
        """Standard deviation of one cluster's mean."""
        return None if self.se is None else self.se * math.sqrt(self.clusters)


@dataclass(frozen=True, kw_only=True)
class Equivalence:
    """Two one-sided tests against +-`margin`; `low` and `high` are the ``1 - 2 alpha`` interval."""

    p: float | None
    low: float | None
    high: float | None
    margin: float
    equivalent: bool


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


def clustered_mean(
    values: pl.DataFrame, column: str = "value", *, cluster: str = "fold", level: float = 0.95
) -> Contrast:
    r"""Return the mean of a column with errors clustered by fold and a t reference.

    .. math:: \hat\mu = \frac1n \sum_{k,i} x_{ki}, \quad
        \text{se}^2 = \frac{K}{K - 1} \frac{1}{n^2} \sum_k \Big(\sum_i (x_{ki} - \hat\mu)\Big)^2

    over K clusters; interval and p value from Student's t with K - 1 degrees of freedom. With the
    same number of cells in each cluster this is the t test on the cluster means. Seeds of one fold
    share its test days and are not counted as independent.
    """
    from scipy import stats

    _check_level(level)
    missing = [name for name in (column, cluster) if name not in values.columns]
    if missing:
        raise ValueError(f"the values lack {', '.join(missing)}; they have {', '.join(values.columns)}.")
    cells = values.select(pl.col(cluster), pl.col(column).cast(pl.Float64).fill_nan(None).alias("value"))
    if cells.height == 0 or cells["value"].null_count():
        raise ValueError(
            f"every cell needs a value of {column}; got {cells.height} cells, "
            f"{cells['value'].null_count()} without. Decide first how a failed fit enters."
        )
    estimate = float(cells["value"].sort().to_numpy().mean())
    ordered = cells.sort(cluster, "value")
    sums = np.add.reduceat(ordered["value"].to_numpy() - estimate, group_starts(ordered[cluster]))
    count = len(sums)
    if count < 2:
        return Contrast(
            estimate=estimate,
            se=None,
            low=None,
            high=None,
            p=None,
            clusters=count,
            cells=cells.height,
            level=level,
        )
    se = math.sqrt(count / (count - 1) * float(sums @ sums)) / cells.height
    # Equal values leave only rounding in `se`; it is no evidence.
    if se <= 1e-15 * max(abs(estimate), 1e-300):
        se = 0.0
    if se == 0:
        p = 1.0 if estimate == 0 else 0.0
    else:
        p = float(2 * stats.t.sf(abs(estimate) / se, df=count - 1))
    half = float(stats.t.ppf(0.5 + level / 2, df=count - 1)) * se
    return Contrast(
        estimate=estimate,
        se=se,
        low=estimate - half,
        high=estimate + half,
        p=p,
        clusters=count,
        cells=cells.height,
        level=level,
    )


def paired_contrast(values: pl.DataFrame, *, cluster: str = "fold", level: float = 0.95) -> Contrast:
    """Return the mean paired difference a - b over (fold, seed), clustered by fold.

    `values` has `fold`, `seed` and either `a` and `b` or `difference`, one row a cell. Pairing
    removes what both arms share (the days of the fold, the draws of the seed). See `clustered_mean`.

    Raises
    ------
    ValueError
        If a (fold, seed) is repeated or a value is missing: an unpaired cell has no place here.
    """
    keys = [name for name in (cluster, "seed") if name in values.columns]
    if cluster not in keys:
        raise ValueError(f"paired values need a column {cluster}; they have {', '.join(values.columns)}.")
    if values.select(keys).is_duplicated().any():
        raise ValueError(f"each ({', '.join(keys)}) must appear once; average or select before pairing.")
    if "difference" not in values.columns:
        missing = [name for name in ("a", "b") if name not in values.columns]
        if missing:
            raise ValueError("paired values need columns a and b, or difference.")
        values = values.with_columns((pl.col("a") - pl.col("b")).alias("difference"))
    return clustered_mean(values, "difference", cluster=cluster, level=level)


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Return p values adjusted by Holm's step-down method, in the given order.

    A None (a contrast that could not be tested) stays None but counts in the family, as a p
    value of 1 would. Source: Holm (1979); `statsmodels.stats.multitest.multipletests`.
    """
    if not p_values:
        return []
    from statsmodels.stats.multitest import multipletests

    adjusted = multipletests([1.0 if p is None else p for p in p_values], method="holm")[1]
    return [None if p is None else float(value) for p, value in zip(p_values, adjusted, strict=True)]


def equivalence(contrast: Contrast, margin: float, *, alpha: float = 0.05) -> Equivalence:
    r"""Test that a difference is smaller than `margin` in size (two one-sided tests).

    .. math:: p = \max\{P(T_{K-1} > (\hat\mu + m) / \text{se}),\ P(T_{K-1} < (\hat\mu - m) / \text{se})\}

    Only this test may say "no difference"; a large p value of the difference may not.
    Source: Schuirmann (1987).
    """
    from scipy import stats

    if not margin > 0:
        raise ValueError(f"the smallest effect of interest must be above 0; got {margin!r}.")
    if contrast.se is None:
        return Equivalence(p=None, low=None, high=None, margin=margin, equivalent=False)
    degrees = contrast.clusters - 1
    half = float(stats.t.ppf(1 - alpha, df=degrees)) * contrast.se
    if contrast.se == 0:
        p = 0.0 if abs(contrast.estimate) < margin else 1.0
    else:
        p = float(stats.t.sf((margin - abs(contrast.estimate)) / contrast.se, df=degrees))
    low, high = contrast.estimate - half, contrast.estimate + half
    return Equivalence(p=p, low=low, high=high, margin=margin, equivalent=p < alpha)


def contrast_power(effect: float, *, sd: float, clusters: int, alpha: float = 0.05) -> float:
    """Return the probability that a two-sided paired t test over clusters finds `effect`.

    `sd` is the standard deviation of one cluster's mean difference (a pilot's `Contrast.sd`). The
    statistic is noncentral t with ``clusters - 1`` degrees of freedom, noncentrality
    ``effect sqrt(clusters) / sd``. One cluster has no power: 0.
    """
    from scipy import stats

    _check_spread(sd, clusters)
    if clusters < 2:
        return 0.0
    if sd == 0:
        return 1.0 if effect else alpha
    shift = abs(effect) * math.sqrt(clusters) / sd
    critical = float(stats.t.ppf(1 - alpha / 2, df=clusters - 1))
    upper = float(stats.nct.sf(critical, clusters - 1, shift))
    if shift > 30 or not math.isfinite(upper):
        # scipy's noncentral t loses its digits far out; there only the error estimate is random:
        # P(shift / sqrt(chi2 / df) > critical).
        return float(stats.chi2.cdf((clusters - 1) * (shift / critical) ** 2, clusters - 1))
    # From a shift of 6 on the wrong sign is rarer than 1e-9, and scipy may give NaN for it.
    return upper + (float(stats.nct.cdf(-critical, clusters - 1, shift)) if shift < 6 else 0.0)


def minimum_detectable_effect(
    *, sd: float, clusters: int, power: float = 0.8, alpha: float = 0.05
) -> float | None:
    """Return the effect that `contrast_power` finds with probability `power`; None with one cluster."""
    _check_spread(sd, clusters)
    _check_power(power, alpha)
    if clusters < 2:
        return None
    if sd == 0:
        return 0.0
    return _bisect(lambda effect: contrast_power(effect, sd=sd, clusters=clusters, alpha=alpha) - power, sd)


def clusters_needed(
    effect: float, *, sd: float, power: float = 0.8, alpha: float = 0.05, most: int = 10_000
) -> int | None:
    """Return the fewest clusters with which `effect` is found with probability `power`.

    None if more than `most` would be needed (or the effect is 0).
    """
    _check_spread(sd, 1)
    _check_power(power, alpha)
    if effect == 0 or contrast_power(effect, sd=sd, clusters=most, alpha=alpha) < power:
        return None
    low, high = 1, most
    while high - low > 1:
        middle = (low + high) // 2
        if contrast_power(effect, sd=sd, clusters=middle, alpha=alpha) >= power:
            high = middle
        else:
            low = middle
    return high


def r2_standard_error(r2: float, *, dates: int, assets: float) -> float:
    r"""Return the standard error of an out-of-sample R2, about :math:`2 \sqrt{R^2 / (T N)}`.

    `assets` is the effective number of independent assets (see `effective_assets`), `dates` the
    number of non-overlapping outcomes.
    """
    if not (0 <= r2 < 1 and dates > 0 and assets > 0):
        raise ValueError(f"need 0 <= r2 < 1, dates > 0 and assets > 0; got {r2!r}, {dates!r}, {assets!r}.")
    return 2 * math.sqrt(r2 / (dates * assets))


def r2_power(r2: float, *, dates: int, assets: float, alpha: float = 0.05) -> float:
    """Return the probability that a true R2 is found to be above 0, one-sided, by its standard error."""
    from scipy import stats

    error = r2_standard_error(r2, dates=dates, assets=assets)
    return alpha if error == 0 else float(stats.norm.sf(stats.norm.ppf(1 - alpha) - r2 / error))


def paired_r2_sd(r2: float, *, agreement: float, dates: int, assets: float) -> float:
    r"""Return the standard deviation of one fold's R2 difference between two like arms.

    .. math:: 2 \sqrt{2 R^2 (1 - \rho) / (T N)}

    for two calibrated forecasts of the same R2 whose correlation is `agreement` (rho) over a test
    period of `dates`. It is the sampling part alone, a floor for planning before a pilot exists:
    training noise comes on top.
    """
    if not -1 <= agreement <= 1:
        raise ValueError(f"agreement is a correlation in [-1, 1]; got {agreement!r}.")
    return r2_standard_error(r2, dates=dates, assets=assets) * math.sqrt(2 * (1 - agreement))


def effective_assets(frame: pl.DataFrame, *, column: str = "realised") -> float:
    r"""Return the effective number of independent assets, :math:`N^2 / \sum_{ij} \rho_{ij}^2`.

    The squared correlations count because an R2 sums products forecast x outcome, and forecasts
    of correlated assets are taken to be as correlated as the outcomes. Dates on which an asset has
    no outcome are left out for all (only complete dates enter).
    """
    wide = frame.pivot(on="asset", index="date", values=column, sort_columns=True).sort("date").drop("date")
    matrix = wide.drop_nulls().to_numpy()
    matrix = matrix[:, matrix.std(axis=0) > 0] if len(matrix) > 1 else matrix[:, :0]
    if matrix.shape[1] == 0:
        return 1.0
    if matrix.shape[1] == 1:
        return 1.0
    correlation = np.corrcoef(matrix, rowvar=False)
    return float(matrix.shape[1] ** 2 / np.sum(correlation**2))


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


def _check_level(level: float) -> None:
    if not 0 < level < 1:
        raise ValueError(f"level must lie between 0 and 1; got {level!r}.")


def _check_spread(sd: float, clusters: int) -> None:
    if not (math.isfinite(sd) and sd >= 0 and clusters >= 1):
        raise ValueError(
            f"need a finite sd >= 0 and a cluster at least; got sd {sd!r}, clusters {clusters!r}."
        )


def _check_power(power: float, alpha: float) -> None:
    if not 0 < alpha < power < 1:
        raise ValueError(f"need 0 < alpha < power < 1; got alpha {alpha!r}, power {power!r}.")


def _bisect(function: Callable[[float], float], start: float) -> float:
    low, high = 0.0, start
    while function(high) < 0:
        low, high = high, 2 * high
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        if function(middle) < 0:
            low = middle
        else:
            high = middle
    return high

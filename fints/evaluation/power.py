"""What could a study find? Power of its contrasts and the sampling error of an R2."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import polars as pl

__all__ = [
    "contrast_power",
    "detectable_r2",
    "effective_assets",
    "forecast_power",
    "minimum_detectable_effect",
    "paired_r2_sd",
    "r2_standard_error",
]


def contrast_power(effect: float, *, sd: float, clusters: int, alpha: float = 0.05) -> float:
    """Return the probability that a two-sided paired t test over clusters finds `effect`.

    `sd` is the standard deviation of one cluster's mean difference (a pilot's `ClusteredMean.sd`). The
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


def r2_standard_error(r2: float, *, dates: int, assets: float) -> float:
    r"""Return the standard error of an out-of-sample R2, about :math:`2 \sqrt{R^2 / (T N)}`.

    `assets` is the effective number of independent assets (see `effective_assets`), `dates` the
    number of non-overlapping outcomes.
    """
    if not (0 <= r2 < 1 and dates > 0 and assets > 0):
        raise ValueError(f"need 0 <= r2 < 1, dates > 0 and assets > 0; got {r2!r}, {dates!r}, {assets!r}.")
    return 2 * math.sqrt(r2 / (dates * assets))


def forecast_power(
    test: str, r2: float, *, dates: int, assets: float, correlation: float = 0.0, alpha: float = 0.05
) -> float:
    r"""Return the probability that a test of one forecast finds a true R2.

    For a calibrated forecast (the conditional mean, Gaussian, of variance R2 times that of the outcome)
    of N independent assets over T dates whose outcomes do not overlap, each statistic is about normal
    with variance 1 and mean

    ======================  ========================================  =========================
    test                    mean                                      critical region
    ======================  ========================================  =========================
    ``clark_west``          :math:`\sqrt{R^2 T N}`                    one-sided
    ``diebold_mariano``     :math:`\sqrt{R^2 T N} / 2`, against zero  two-sided
    ``giacomini_white``     its square :math:`R^2 T N / 4`            chi-squared, 3 degrees
    ``pesaran_timmermann``  :math:`(2 / \pi) \sqrt{T N}\, \arcsin R`  one-sided
    ``rank_ic``             :math:`\frac{3 N}{\pi (N + 1)}            two-sided
                            \sqrt{R^2 T (N - 1) / (1 - \rho)}`
    ``long_short``          that of ``rank_ic``                       one-sided
    ======================  ========================================  =========================

    with rho the mean `correlation` between assets, which an IC, being within a date, takes out. Where
    forecasts of correlated assets are correlated too, N is `effective_assets`. Changing volatility
    lowers the power of tests on squared errors and raises that of ranks.
    """
    from scipy import stats

    if not (0 <= r2 < 1 and dates > 0 and assets > 0 and 0 <= correlation < 1 and 0 < alpha < 1):
        raise ValueError(
            "need 0 <= r2 < 1, dates > 0, assets > 0, 0 <= correlation < 1 and 0 < alpha < 1; "
            f"got {r2!r}, {dates!r}, {assets!r}, {correlation!r}, {alpha!r}."
        )
    whole = math.sqrt(r2 * dates * assets)
    if test == "giacomini_white":
        return float(stats.ncx2.sf(stats.chi2.ppf(1 - alpha, 3), 3, whole**2 / 4)) if r2 else alpha
    # The mean of Spearman's coefficient of N Gaussian pairs of small correlation r is 3 N r / (pi (N + 1)).
    ranks = 3 * assets / (math.pi * (assets + 1))
    ranks *= math.sqrt(r2 * dates * max(assets - 1, 0) / (1 - correlation))
    means = {
        "clark_west": whole,
        "diebold_mariano": whole / 2,
        "pesaran_timmermann": 2 / math.pi * math.sqrt(dates * assets) * math.asin(math.sqrt(r2)),
        "rank_ic": ranks,
        "long_short": ranks,
    }
    if test not in means:
        raise ValueError(f"unknown test {test!r}. Known: {', '.join((*means, 'giacomini_white'))}.")
    if test in ("clark_west", "pesaran_timmermann", "long_short"):
        return float(stats.norm.sf(stats.norm.ppf(1 - alpha) - means[test]))
    critical = float(stats.norm.ppf(1 - alpha / 2))
    return float(stats.norm.sf(critical - means[test]) + stats.norm.cdf(-critical - means[test]))


def detectable_r2(*, dates: int, assets: float, power: float = 0.8, alpha: float = 0.05) -> float:
    r"""Return the R2 found by Clark-West with probability `power`, :math:`(z_{1-\alpha} + z_{power})^2 / TN`.

    `dates` counts outcomes that do not overlap, `assets` is their effective number. At most 1.
    """
    from scipy.special import ndtri

    _check_power(power, alpha)
    if not (dates > 0 and assets > 0):
        raise ValueError(f"need dates > 0 and assets > 0; got {dates!r}, {assets!r}.")
    needed = float(ndtri(1 - alpha) + ndtri(power))
    return min(1.0, needed**2 / (dates * assets))


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

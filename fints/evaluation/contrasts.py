"""Is a difference between arms real, absent or undecided? Tests on (fold, seed) cells, clustered by fold."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from fints.evaluation.rows import group_starts

__all__ = ["ClusteredMean", "Equivalence", "clustered_mean", "equivalence", "holm", "paired_contrast"]


@dataclass(frozen=True, kw_only=True)
class ClusteredMean:
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


def clustered_mean(
    values: pl.DataFrame, column: str = "value", *, cluster: str = "fold", level: float = 0.95
) -> ClusteredMean:
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
        return ClusteredMean(
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
    return ClusteredMean(
        estimate=estimate,
        se=se,
        low=estimate - half,
        high=estimate + half,
        p=p,
        clusters=count,
        cells=cells.height,
        level=level,
    )


def paired_contrast(values: pl.DataFrame, *, cluster: str = "fold", level: float = 0.95) -> ClusteredMean:
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
    r"""Return p values adjusted by Holm's step-down method, in the given order.

    .. math:: \tilde p_{(k)} = \max_{j \le k} \min\{1, (m - j + 1)\, p_{(j)}\}

    over the m sorted values. A None (a contrast that could not be tested) stays None but counts in the
    family, as a p value of 1 would.
    Source: Holm (1979). A test holds it to `statsmodels.stats.multitest.multipletests`, which runs
    Python's garbage collector on every call: seconds in a large process.
    """
    raw = np.array([1.0 if p is None else p for p in p_values], dtype=np.float64)
    order = np.argsort(raw, kind="stable")
    adjusted = np.empty_like(raw)
    adjusted[order] = np.minimum(np.maximum.accumulate(raw[order] * np.arange(len(raw), 0, -1)), 1.0)
    return [None if p is None else float(value) for p, value in zip(p_values, adjusted, strict=True)]


def equivalence(contrast: ClusteredMean, margin: float, *, alpha: float = 0.05) -> Equivalence:
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


def _check_level(level: float) -> None:
    if not 0 < level < 1:
        raise ValueError(f"level must lie between 0 and 1; got {level!r}.")

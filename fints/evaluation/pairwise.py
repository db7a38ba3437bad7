"""All differences between many arms at once: intervals that hold together, whatever is best among them."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

__all__ = ["Pairwise", "pairwise_differences"]

# All flips of 13 clusters' signs; of more clusters as many are drawn.
MOST_FLIPS = 4096


@dataclass(frozen=True, kw_only=True)
class Pairwise:
    """Differences of every level from every other, each (A, A): the row's level less the column's.

    `low` and `high` hold for all pairs together; `p` is adjusted for all pairs. `critical` is the number
    of standard errors that an interval reaches, infinite where there are too few clusters for any.
    """

    estimate: np.ndarray
    se: np.ndarray
    p: np.ndarray
    critical: float
    clusters: int
    level: float

    @property
    def low(self) -> np.ndarray:
        """Lower ends of the intervals."""
        return self.estimate - self._half()

    @property
    def high(self) -> np.ndarray:
        """Upper ends of the intervals."""
        return self.estimate + self._half()

    def may_be_best(self) -> list[int]:
        """Return the levels that no other one surely exceeds: the best is among them."""
        exceeded = (self.low > 0).any(axis=0)
        return [int(place) for place in np.flatnonzero(~exceeded)]

    def behind_the_best(self) -> np.ndarray:
        """Return how far each level lies behind the best at most, (A,); never below 0."""
        return np.maximum(self.high.max(axis=0), 0.0)

    def _half(self) -> np.ndarray:
        # An infinite reach of an error of 0 is none: the levels are one.
        with np.errstate(invalid="ignore"):
            return np.nan_to_num(self.critical * self.se, nan=0.0, posinf=np.inf)


def pairwise_differences(values: np.ndarray, *, level: float = 0.95, seed: int = 0) -> Pairwise:
    r"""Compare all levels with each other on the same clusters.

    With :math:`d_{kij} = x_{ki} - x_{kj}` of cluster k, the statistics
    :math:`t_{ij} = \bar d_{ij} \sqrt K / s_{ij}` are held against

    .. math:: \max_{i < j} |t^*_{ij}|, \quad d^*_{kij} = e_k d_{kij}, \quad e_k = \pm 1

    over all signs :math:`e` (as many as 4,096 random ones from 14 clusters on). A cluster's differences
    change sign together, so what arms share, and that their differences are correlated, is kept. The test
    is exact where a cluster's differences are distributed symmetrically about 0; the intervals are its
    inversion with standard errors, and hold together with probability `level`.

    Parameters
    ----------
    values
        (K, A): a row a cluster, a column a level; every level has a value in every cluster.
    level
        Of the intervals.
    seed
        Of the signs, where they are drawn.

    Raises
    ------
    ValueError
        If there are fewer than two clusters or levels, or a value is missing.

    Notes
    -----
    With K clusters no p value is below :math:`2^{1 - K}`: five cannot decide anything at 5 %. Source: the
    randomisation test of Fisher (1935) with the maximum statistic of Westfall and Young (1993); the
    comparison with the best that follows from all pairs is that of Hsu (1996), section 4.2.4.
    """
    x = np.asarray(values, dtype=np.float64)
    if x.ndim != 2 or min(x.shape) < 2 or not np.isfinite(x).all():
        raise ValueError(
            f"values must be (clusters, levels), two of each or more and all finite; got shape {x.shape}, "
            f"{int((~np.isfinite(x)).sum())} not finite."
        )
    if not 0 < level < 1:
        raise ValueError(f"level must lie between 0 and 1; got {level!r}.")
    clusters, levels = x.shape
    one, other = np.triu_indices(levels, 1)
    d = x[:, one] - x[:, other]
    # Rounding alone is no difference: levels that agree to the last digits are one.
    d = np.where(np.abs(d) <= 1e-12 * np.abs(x).max(axis=1, keepdims=True), 0.0, d)
    reference = np.sort(_t(_signs(clusters, seed) @ d / clusters, d).max(axis=1))
    mean = d.mean(axis=0)
    t = _t(mean[None], d)[0]
    # Ties count as being as large: the flip that changes nothing is among the flips.
    p = (reference[None] >= t[:, None] * (1 - 1e-9)).mean(axis=1)
    allowed = int(np.floor((1 - level) * len(reference) + 1e-9))
    critical = float(reference[-allowed - 1]) if allowed else np.inf
    se = d.std(axis=0, ddof=1) / np.sqrt(clusters)
    found = {name: np.zeros((levels, levels)) for name in ("estimate", "se")} | {
        "p": np.ones((levels, levels))
    }
    for name, pairs, sign in (("estimate", mean, -1.0), ("se", se, 1.0), ("p", p, 1.0)):
        found[name][one, other] = pairs
        found[name][other, one] = sign * pairs
    return Pairwise(**found, critical=critical, clusters=clusters, level=level)


def _signs(clusters: int, seed: int) -> np.ndarray:
    """Return signs (M, K), the first cluster's always +1: turning all of them round changes no size."""
    if 2 ** (clusters - 1) <= MOST_FLIPS:
        return np.array([(1.0, *rest) for rest in itertools.product((1.0, -1.0), repeat=clusters - 1)])
    drawn = np.random.default_rng(seed).choice((-1.0, 1.0), size=(MOST_FLIPS, clusters))
    drawn[0] = 1.0
    return drawn


def _t(means: np.ndarray, d: np.ndarray) -> np.ndarray:
    """Return sizes of t statistics (M, P) of means (M, P) of `d` (K, P) with some signs turned round."""
    clusters = len(d)
    squares = np.square(d).sum(axis=0)
    variance = (squares - clusters * means**2) / (clusters - 1)
    # What is left of rounding where all differences are equal in size.
    none = variance <= 1e-14 * squares / clusters
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.abs(means) / np.sqrt(np.where(none, 0.0, variance) / clusters)
    return np.where(squares > 0, t, 0.0)

"""How likely it is that the best of many trials is good in the sample only."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from fints.words import counted

__all__ = ["Overfitting", "probability_of_overfitting"]


@dataclass(frozen=True, kw_only=True)
class Overfitting:
    """What choosing the best trial in one half of the dates gives in the other half.

    `probability` is the share of splits in which the chosen trial falls below the median of the other
    half; `loss_probability` that in which its Sharpe ratio there is below 0; `slope` that of its ratio
    there on its ratio where it was chosen (None if constant); `logits` (splits,) of its relative rank.
    """

    probability: float
    loss_probability: float
    slope: float | None
    splits: int
    trials: int
    logits: np.ndarray


def probability_of_overfitting(returns: np.ndarray, *, blocks: int = 16) -> Overfitting:
    r"""Return the probability of backtest overfitting by combinatorially symmetric cross-validation.

    .. math:: \mathrm{PBO} = P(\lambda < 0), \quad \lambda = \ln \frac{\omega}{1 - \omega}, \quad
        \omega = \frac{\mathrm{rank}(n^*)}{N + 1}

    over all ways to choose half of the `blocks` adjacent blocks of dates; :math:`n^*` has the highest
    Sharpe ratio in the chosen half, its rank (average for ties) is in the other one. About 1/2 where all
    trials are worthless, 0 where the best is truly best.

    Parameters
    ----------
    returns
        (T, N): a row a date, a column a trial, *all* trials on the same dates. A trial that failed has
        earned 0.
    blocks
        Even; 16 gives 12,870 splits.

    Raises
    ------
    ValueError
        If there are fewer than two trials or two dates a block, `blocks` is odd, or a number is not finite.

    Notes
    -----
    Source: Bailey, Borwein, Lopez de Prado, Zhu (2017), section 2.
    """
    from scipy import stats

    values = np.asarray(returns, dtype=np.float64)
    if values.ndim != 2 or values.shape[1] < 2 or not np.isfinite(values).all():
        raise ValueError(f"returns must be (dates, trials), two trials or more, finite; got {values.shape}.")
    if blocks < 2 or blocks % 2 or len(values) < 2 * blocks:
        raise ValueError(
            f"blocks must be even and hold two dates each; got {blocks} for {counted(len(values), 'date')}."
        )
    # Off the mean of all dates, so that sums of squares keep their digits.
    centre = values.mean(axis=0)
    pieces = np.array_split(values - centre, blocks)
    counts = np.array([len(piece) for piece in pieces], dtype=np.float64)
    sums, squares = (np.stack([f(piece) for piece in pieces]) for f in (_sum, _sum_of_squares))
    halves = list(itertools.combinations(range(blocks), blocks // 2))
    chosen = np.zeros((len(halves), blocks))
    chosen[np.arange(len(halves))[:, None], np.array(halves)] = 1.0

    inside = _ratios(chosen, counts, sums, squares, centre)
    outside = _ratios(1.0 - chosen, counts, sums, squares, centre)
    best, row = inside.argmax(axis=1), np.arange(len(halves))
    rank = stats.rankdata(outside, axis=1)[row, best]
    share = rank / (values.shape[1] + 1)
    logits = np.log(share / (1 - share))
    x, y = inside[row, best], outside[row, best]
    return Overfitting(
        probability=float(np.mean(logits < 0)),
        loss_probability=float(np.mean(y < 0)),
        slope=float(np.cov(x, y)[0, 1] / x.var(ddof=1)) if np.ptp(x) > 0 else None,
        splits=len(halves),
        trials=values.shape[1],
        logits=logits,
    )


def _sum(piece: np.ndarray) -> np.ndarray:
    return piece.sum(axis=0)


def _sum_of_squares(piece: np.ndarray) -> np.ndarray:
    return (piece**2).sum(axis=0)


def _ratios(
    chosen: np.ndarray, counts: np.ndarray, sums: np.ndarray, squares: np.ndarray, centre: np.ndarray
) -> np.ndarray:
    """Return the Sharpe ratios (splits, trials) on the chosen blocks; 0 for a trial that stands still."""
    count = (chosen @ counts)[:, None]
    mean = chosen @ sums / count
    variance = (chosen @ squares - count * mean**2) / (count - 1)
    still = variance <= 1e-24 * (centre**2 + squares.sum(axis=0) / counts.sum())
    return np.where(still, 0.0, (mean + centre) / np.sqrt(np.where(still, 1.0, variance)))

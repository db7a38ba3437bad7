"""What the curves of a fit, or of a row of fits, say: spikes of the loss, and how much the rate matters."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["RateRange", "learning_rate_range", "spikes_per_thousand"]

# The fixed rule of a spike: these are not to be tuned to a result.
SPIKE_WINDOW = 128
SPIKE_DEVIATIONS = 7.0
NORMAL_MAD = 1.4826


def spikes_per_thousand(losses: Sequence[float], *, window: int = SPIKE_WINDOW) -> float | None:
    r"""Return how many loss spikes a fit had in 1,000 steps; None before the first window is full.

    A step is high if

    .. math:: \mathrm{loss}_s > \mathrm{median} + 7 \cdot 1.4826\, \mathrm{MAD}

    with median and median absolute deviation of the `window` steps before it; neighbouring high steps are
    one spike. The count is over the steps that have a whole window before them.

    Parameters
    ----------
    losses
        Of each step (`FitResult.losses`).
    window
        Steps looked back on.

    Notes
    -----
    Seven deviations from a rolling average are the "spike score" of OLMo 2 (arXiv 2501.00656). Here the
    window is shorter, since fits are, and median and MAD stand for mean and deviation, so that one spike
    does not hide the next. Losses of returns have fat tails of their own: compare arms that saw the same
    batches, not with zero.
    """
    if len(losses) <= window:
        return None
    spikes, high_before = 0, False
    for step in range(window, len(losses)):
        past = losses[step - window : step]
        middle = statistics.median(past)
        spread = statistics.median(abs(value - middle) for value in past)
        high = losses[step] > middle + SPIKE_DEVIATIONS * NORMAL_MAD * spread
        spikes += high and not high_before
        high_before = high
    return 1000 * spikes / (len(losses) - window)


@dataclass(frozen=True, kw_only=True)
class RateRange:
    """The learning rates whose result is close to the best.

    Attributes
    ----------
    best_rate, best
        The best rate of the grid and its share.
    low, high
        Ends of the range, interpolated between rates.
    decades
        ``log10(high / low)``: the primary measure of stability.
    low_open, high_open
        Whether the grid ends before the range does: it is then at least this wide.
    """

    best_rate: float
    best: float
    low: float
    high: float
    decades: float
    low_open: bool
    high_open: bool


def learning_rate_range(shares: Mapping[float, float], *, within: float = 0.1) -> RateRange | None:
    r"""Return the range of learning rates whose share of oracle is within 10 % of the best.

    .. math:: \{\eta : \mathrm{share}(\eta) \ge (1 - 0.1)\, \max_{\eta'} \mathrm{share}(\eta')\}

    the connected part around the best rate, with share linear in :math:`\log\eta` between neighbouring
    rates. None where the best share is not above 0: there is then nothing to be close to.

    Parameters
    ----------
    shares
        Share of oracle by learning rate; a diverged fit counts as what the zero forecast reaches, 0.
    within
        Of the best.

    Raises
    ------
    ValueError
        If there are fewer than two rates, or a share is not finite.
    """
    rates = sorted(shares)
    if len(rates) < 2 or not all(math.isfinite(share) for share in shares.values()):
        raise ValueError(f"a range needs two learning rates with finite shares; got {dict(shares)}.")
    best_rate = max(rates, key=lambda rate: shares[rate])
    best = shares[best_rate]
    if best <= 0:
        return None
    level = (1 - within) * best
    place = rates.index(best_rate)
    low, low_open = _end(rates[place::-1], shares, level)
    high, high_open = _end(rates[place:], shares, level)
    return RateRange(
        best_rate=best_rate,
        best=best,
        low=low,
        high=high,
        decades=math.log10(high / low),
        low_open=low_open,
        high_open=high_open,
    )


def _end(rates: Sequence[float], shares: Mapping[float, float], level: float) -> tuple[float, bool]:
    """Walk away from the best rate; return where the level is crossed, and whether it never is."""
    for near, far in itertools.pairwise(rates):
        if shares[far] < level:
            part = (shares[near] - level) / (shares[near] - shares[far])
            return near * (far / near) ** part, False
    return rates[-1], True

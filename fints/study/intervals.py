"""The interval of a mean over clusters."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

__all__ = ["interval"]


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the mean over panels and its 95 % interval by Student's t; that of one panel is unbounded."""
    from scipy import stats

    number = len(values)
    mean = statistics.fmean(values)
    if number < 2:
        return mean, -math.inf, math.inf
    half = float(stats.t.ppf(0.975, number - 1)) * statistics.stdev(values) / math.sqrt(number)
    return mean, mean - half, mean + half

r"""Sums without rounding, so that no order, block or machine can change a mean or a deviation.

A double is an integer times a power of two, so a sum of doubles is a fraction that can be held exactly. It is
cut out of the numbers in slices of equal weight: with :math:`\sigma = 2^{e + m}`, :math:`|x_i| < 2^e` and
:math:`2^m \ge n + 2`,

.. math:: q_i = (x_i \oplus \sigma) \ominus \sigma, \qquad x_i \leftarrow x_i - q_i

is exact, every :math:`q_i` is a multiple of :math:`2^{-53} \sigma`, and so their sum has no rounding error in
whatever order it is taken; what is left of :math:`x_i` is at most :math:`2^{-53} \sigma` and is cut again.

Source: Rump, Ogita, Oishi, Accurate floating-point summation, part I (2008), algorithm 3.1. Squares are split
into a rounded product and its error by Dekker's product (1971).
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

__all__ = ["Moments", "exact_sum"]

Array = np.ndarray

# Beyond it a square overflows; nothing that is measured in finance comes near.
LARGEST = 2.0**500
# 2^27 + 1 splits 53 bits into two halves whose products are exact.
SPLITTER = 134217729.0
# Values at a time: what a level of the cut works on stays in the cache.
AT_ONCE = 1 << 14


def exact_sum(values: Array) -> Fraction:
    """Return the sum of finite float64 `values` (N,) without rounding."""
    total = Fraction(0)
    for start in range(0, len(values), AT_ONCE):
        rest = values[start : start + AT_ONCE].copy()
        bits = (len(rest) + 1).bit_length()
        while (top := float(np.abs(rest).max())) > 0:
            sigma = math.ldexp(1.0, math.frexp(top)[1] + bits)
            part = rest + sigma
            part -= sigma
            rest -= part
            total += Fraction(float(part.sum()))
    return total


class Moments:
    r"""Count, sum and sum of squares of numbers that come in any blocks and order, all exact.

    .. math:: m = \frac 1n \sum x_i, \qquad s = \sqrt{\frac 1n \sum x_i^2 - m^2}

    are rounded once each from the exact fractions.
    """

    def __init__(self) -> None:
        self.count = 0
        self._sum = Fraction(0)
        self._squares = Fraction(0)

    def add(self, values: Array) -> None:
        """Take in `values` (N,) float64.

        Raises
        ------
        ValueError
            If one is not finite or too large to be squared.
        """
        if not len(values):
            return
        # NaN fails the comparison too.
        if not float(np.abs(values).max()) < LARGEST:
            raise ValueError(f"values must be finite and below {LARGEST:.0e}; got {np.abs(values).max():g}.")
        self.count += len(values)
        self._sum += exact_sum(values)
        for start in range(0, len(values), AT_ONCE):
            square, error = _squared(values[start : start + AT_ONCE])
            self._squares += exact_sum(square) + exact_sum(error)

    @property
    def mean(self) -> float:
        """Mean of all values; there must be one."""
        return float(self._sum / self.count)

    @property
    def root_mean_square(self) -> float:
        """Root of the mean square of all values; there must be one."""
        return math.sqrt(float(self._squares / self.count))

    @property
    def deviation(self) -> float:
        """Standard deviation, divided by the number of values; exactly 0 if all are equal."""
        return math.sqrt(float((self._squares - self._sum**2 / self.count) / self.count))


def _squared(values: Array) -> tuple[Array, Array]:
    """Return the rounded squares and their errors, which add up to the exact ones."""
    high = SPLITTER * values
    high -= high - values
    low = values - high
    square = values * values
    error = high * high
    error -= square
    high *= low
    error += 2 * high
    low *= low
    error += low
    return square, error

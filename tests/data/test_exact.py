"""Sums without rounding: what fractions say, in any order and any pieces."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fints.data import exact
from fints.data.exact import Moments, exact_sum

NUMBERS = st.lists(
    st.floats(-1e100, 1e100).filter(lambda x: x == 0 or abs(x) > 1e-100), min_size=1, max_size=60
)


@given(values=NUMBERS, pieces=st.integers(1, 60))
def test_sums_and_squares_are_those_of_fractions(values: list[float], pieces: int) -> None:
    fractions = [Fraction(value) for value in values]
    assert exact_sum(np.array(values)) == sum(fractions)
    moments = Moments()
    for first in range(0, len(values), pieces):
        moments.add(np.array(values[first : first + pieces]))
    number = len(values)
    mean, square = sum(fractions) / number, sum(x * x for x in fractions) / number
    assert moments.count == number
    assert moments.mean == float(mean)
    assert moments.root_mean_square == math.sqrt(float(square))
    assert moments.deviation == math.sqrt(float(square - mean**2))


def test_many_values_of_all_sizes_sum_to_what_fsum_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact, "AT_ONCE", 1000)
    draw = np.random.default_rng(0)
    values = draw.standard_normal(30_000) * 10.0 ** draw.integers(-30, 30, 30_000)
    assert float(exact_sum(values)) == math.fsum(values.tolist())
    assert exact_sum(values) == exact_sum(values[::-1].copy())


def test_equal_values_have_no_deviation_at_all() -> None:
    moments = Moments()
    moments.add(np.full(12_345, 0.1))
    assert (moments.mean, moments.deviation) == (0.1, 0.0)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf, 1e200])
def test_what_has_no_finite_square_is_refused(wrong: float) -> None:
    with pytest.raises(ValueError, match="must be finite and below"):
        Moments().add(np.array([1.0, wrong]))

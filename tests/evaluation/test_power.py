"""Power and standard errors against statsmodels and simulation."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from statsmodels.stats.power import TTestPower

from fints.evaluation import (
    contrast_power,
    effective_assets,
    minimum_detectable_effect,
    paired_r2_sd,
    r2_standard_error,
)


@pytest.mark.parametrize("clusters", [2, 4, 8, 30, 1000])
@pytest.mark.parametrize("ratio", [0.0, 0.1, 0.5, 1.0])
def test_power_is_that_of_the_t_test_in_statsmodels(clusters: int, ratio: float):
    expected = TTestPower().power(ratio, clusters, 0.05)
    assert contrast_power(ratio * 3.0, sd=3.0, clusters=clusters) == pytest.approx(expected, abs=1e-7)


def test_power_grows_with_the_effect_and_never_leaves_zero_to_one():
    for clusters in (2, 3, 5, 100):
        powers = [contrast_power(effect, sd=1.0, clusters=clusters) for effect in np.linspace(0, 60, 241)]
        assert all(0 <= power <= 1 for power in powers)
        assert all(later >= earlier - 1e-3 for earlier, later in itertools.pairwise(powers))
        assert powers[-1] > 0.99


def test_the_detectable_effect_inverts_the_power():
    effect = minimum_detectable_effect(sd=0.7, clusters=6)
    assert contrast_power(effect, sd=0.7, clusters=6) == pytest.approx(0.8, abs=1e-6)
    assert minimum_detectable_effect(sd=1.0, clusters=1) is None
    assert contrast_power(1.0, sd=1.0, clusters=1) == 0.0


def test_the_standard_error_of_r2_gives_the_t_values_of_ten_daily_years():
    assert 0.001 / r2_standard_error(0.001, dates=2520, assets=1) == pytest.approx(0.8, abs=0.01)
    assert 0.001 / r2_standard_error(0.001, dates=2520, assets=20) == pytest.approx(3.5, abs=0.06)


def test_the_standard_error_of_r2_and_of_its_difference_match_simulation():
    rng = np.random.default_rng(13)
    r2, dates, assets, agreement = 0.02, 400, 4, 0.6
    single, difference = [], []
    for _ in range(600):
        noise = rng.standard_normal((3, dates, assets))
        common = math.sqrt(agreement) * noise[0]
        a, b = (math.sqrt(r2) * (common + math.sqrt(1 - agreement) * noise[place]) for place in (1, 2))
        # Both are calibrated: each is the conditional mean given itself.
        y = (a + b) / (1 + agreement) + rng.standard_normal((dates, assets))
        total = (y**2).sum()
        found = [1 - ((y - p) ** 2).sum() / total for p in (a, b)]
        single.append(found[0])
        difference.append(found[0] - found[1])
    assert np.std(single) == pytest.approx(r2_standard_error(r2, dates=dates, assets=assets), rel=0.12)
    expected = paired_r2_sd(r2, agreement=agreement, dates=dates, assets=assets)
    assert np.std(difference) == pytest.approx(expected, rel=0.12)


@pytest.mark.parametrize(
    ("correlation", "expected"), [(0.0, 10.0), (1.0, 1.0), (0.5, 100 / (10 + 90 * 0.25))]
)
def test_effective_assets_fall_from_all_to_one_with_correlation(
    forecasts, correlation: float, expected: float
):
    rng = np.random.default_rng(14)
    common = rng.standard_normal((20_000, 1))
    y = math.sqrt(correlation) * common + math.sqrt(1 - correlation) * rng.standard_normal((20_000, 10))
    assert effective_assets(forecasts(y, y)) == pytest.approx(expected, rel=0.03)


def test_a_panel_of_one_or_of_flat_assets_counts_as_one(forecasts):
    y = np.random.default_rng(15).standard_normal((30, 1))
    assert effective_assets(forecasts(y, y)) == 1.0
    assert effective_assets(forecasts(np.zeros((30, 3)), np.zeros((30, 3)))) == 1.0

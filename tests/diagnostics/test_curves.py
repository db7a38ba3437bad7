"""Rules on the numbers of fits: spikes, learning-rate ranges, parts of the depth penalty, shares."""

from __future__ import annotations

import math

import pytest
import torch

from fints.diagnostics import (
    calibrated_share,
    depth_penalty,
    forecast_variance_ratio,
    learning_rate_range,
    share_of_oracle,
    spikes_per_thousand,
)


def quiet(number, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return (1 + 0.1 * torch.randn(number, generator=generator)).tolist()


def test_a_spike_is_counted_once_however_long_it_lasts():
    losses = quiet(628)
    assert spikes_per_thousand(losses) == 0
    losses[200] = 5.0
    losses[400:405] = [4.0, 9.0, 7.0, 6.0, 4.0]
    assert spikes_per_thousand(losses) == pytest.approx(2 * 1000 / 500)
    assert spikes_per_thousand(losses[:128]) is None


def test_the_rule_is_seven_robust_deviations_above_the_median_of_the_window_before():
    losses = quiet(129)
    past = torch.tensor(losses[:128], dtype=torch.float64)
    middle = past.quantile(0.5)
    edge = float(middle + 7 * 1.4826 * (past - middle).abs().quantile(0.5))
    for value, expected in ((edge * 1.001, 1000), (edge * 0.999, 0)):
        assert spikes_per_thousand([*losses[:128], value]) == expected


def test_spikes_are_blind_to_the_unit_of_the_loss():
    losses = quiet(400, seed=3)
    losses[300] = 4.0
    assert spikes_per_thousand(losses) == spikes_per_thousand([1e-6 * loss + 5 for loss in losses]) > 0


def test_a_learning_rate_range_ends_where_the_share_falls_below_nine_tenths():
    """Linear in log rate: from 1 to 0.8 over a decade, 0.9 lies half a decade away."""
    found = learning_rate_range({1e-4: 0.8, 1e-3: 1.0, 1e-2: 0.8})
    assert (found.best_rate, found.best) == (1e-3, 1.0)
    assert found.low == pytest.approx(10**-3.5)
    assert found.high == pytest.approx(10**-2.5)
    assert found.decades == pytest.approx(1)
    assert not found.low_open
    assert not found.high_open


def test_a_range_that_the_grid_ends_says_so_and_a_far_second_peak_does_not_count():
    open_ended = learning_rate_range({1e-4: 0.98, 1e-3: 1.0, 1e-2: 0.0, 1e-1: 0.95})
    assert open_ended.low_open
    assert open_ended.low == 1e-4
    assert not open_ended.high_open
    assert open_ended.high == pytest.approx(10**-2.9)
    assert learning_rate_range({1e-3: -0.1, 1e-2: 0.0}) is None
    with pytest.raises(ValueError, match="two learning rates with finite shares"):
        learning_rate_range({1e-3: math.nan, 1e-2: 0.0})


@pytest.mark.parametrize(
    ("train", "test", "kind"),
    [
        (1.3, 1.6, "optimisation"),
        (0.5, 1.6, "generalisation"),
        (1.05, 1.5, "generalisation"),
        (2.0, 0.9, "none"),
    ],
)
def test_the_parts_of_a_depth_penalty_add_up_and_name_the_larger(train, test, kind):
    found = depth_penalty(train=train, test=test, reference_train=1.0, reference_test=1.2)
    assert found.optimisation + found.generalisation == pytest.approx(found.penalty)
    assert found.penalty == pytest.approx(test - 1.2)
    assert found.kind == kind


def test_shares_are_of_the_signal_and_calibration_forgives_scale_alone():
    generator = torch.Generator().manual_seed(0)
    signal, noise = (torch.randn(500, generator=generator, dtype=torch.float64) for _ in range(2))
    forecast = 0.6 * signal + 0.3 * noise
    share = share_of_oracle(forecast, signal)
    assert share == pytest.approx(float(1 - (forecast - signal).square().sum() / signal.square().sum()))
    cosine = float(forecast @ signal / forecast.norm() / signal.norm())
    for scale in (0.01, 1.0, 30.0):
        calibrated, scalar = calibrated_share(scale * forecast, signal)
        assert calibrated == pytest.approx(cosine**2)
        assert scalar == pytest.approx(float(forecast @ signal / forecast.square().sum()) / scale)
    assert calibrated > share
    assert forecast_variance_ratio(2 * forecast, signal) == pytest.approx(
        4 * float(forecast.square().sum() / signal.square().sum())
    )
    assert calibrated_share(torch.zeros(500), signal) == (0.0, 0.0)
    signal[3] = torch.nan
    assert math.isfinite(share_of_oracle(forecast, signal))

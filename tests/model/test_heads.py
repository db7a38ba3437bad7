"""Forecasts stay where a likelihood is finite."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fints.model.heads import HEADS, Forecast


@pytest.mark.parametrize("size", [0.0, 1.0, 1e4, 3e38])
@pytest.mark.parametrize("head", ["gaussian", "student_t"])
def test_no_read_out_makes_the_likelihood_overflow(head, size):
    module = HEADS[head](8, 2)
    z = torch.randn(3, 4, 8, generator=torch.Generator().manual_seed(0)).clamp(-1, 1) * size
    with torch.no_grad():
        module.linear.weight.fill_(0.1)
        module.linear.weight[0].neg_()
    mean, log_scale, degrees = module(z)
    assert log_scale.abs().max() <= 10
    surprise = ((1.0 - mean.clamp(-100, 100)) * torch.exp(-log_scale)).square()
    assert surprise.isfinite().all()
    if head == "student_t":
        assert (degrees > 2).all()
        assert (degrees <= 100).all()
        assert (
            torch.distributions.StudentT(degrees, 0.0, log_scale.exp())
            .log_prob(torch.tensor(1.0))
            .isfinite()
            .all()
        )
    else:
        assert degrees is None


def test_log_scales_are_read_almost_as_they_are_where_it_matters():
    module = HEADS["gaussian"](1, 1)
    with torch.no_grad():
        module.linear.weight.copy_(torch.tensor([[0.0], [1.0]]))
        module.linear.bias.zero_()
    z = torch.linspace(-2, 2, 9)[:, None]
    assert (module(z).log_scale - z).abs().max() < 0.03


def test_degrees_start_at_eight():
    module = HEADS["student_t"](4, 1)
    nn.init.zeros_(module.linear.weight)
    nn.init.zeros_(module.linear.bias)
    assert module(
        torch.randn(1, 1, 4, generator=torch.Generator().manual_seed(0))
    ).degrees.item() == pytest.approx(8)


@pytest.mark.parametrize("head", list(HEADS))
def test_horizons_are_columns_of_each_field(head):
    module = HEADS[head](6, 3)
    z = torch.randn(2, 5, 6, generator=torch.Generator().manual_seed(0))
    raw = z @ module.linear.weight.T + module.linear.bias
    forecast = module(z)
    assert isinstance(forecast, Forecast)
    torch.testing.assert_close(forecast.mean, raw[..., :3])
    fields = [field for field in forecast if field is not None]
    assert len(fields) == {"point": 1, "gaussian": 2, "student_t": 3}[head]
    assert all(field.shape == (2, 5, 3) for field in fields)


@pytest.mark.parametrize("head", list(HEADS))
def test_forecasts_are_in_full_precision_under_autocast(head):
    module = HEADS[head](6, 1)
    z = torch.randn(2, 5, 6, generator=torch.Generator().manual_seed(0))
    with torch.autocast("cpu", torch.bfloat16):
        lower = module(z)
    for ours, expected in zip(lower, module(z), strict=True):
        assert (ours is None) == (expected is None)
        assert ours is None or torch.equal(ours, expected)

"""NaN means missing: it is learned from, and never spreads."""

from __future__ import annotations

import pytest
import torch

from fints.residual import RESIDUALS


@pytest.mark.parametrize("autocast", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("window", ["all missing", "all zero", "one token present"])
@pytest.mark.parametrize("residual", list(RESIDUALS))
def test_empty_windows_give_finite_forecasts_and_gradients(model, residual, window, autocast):
    network = model(residual=residual, head="student_t")
    x = torch.full((2, 12, 5), torch.nan)
    if window == "all zero":
        x = torch.zeros_like(x)
    elif window == "one token present":
        x[:, -1] = 1.0
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        forecast = network(x)
    assert all(field.isfinite().all() for field in forecast)
    sum(field.sum() for field in forecast).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in network.parameters())


def test_a_missing_value_is_not_the_same_as_a_zero(model, x):
    network = model(random=True)
    assert x.isnan().any()
    assert not torch.equal(network(x).mean, network(x.nan_to_num(0.0)).mean)


def test_the_embedding_is_linear_in_values_and_indicators(model, x):
    embedding = model(random=True, positions="learned").double().embedding
    x = x.double()
    values, missing = embedding.linear.weight.split(5, dim=1)
    expected = x.nan_to_num(0.0) @ values.T + x.isnan().double() @ missing.T + embedding.linear.bias
    torch.testing.assert_close(embedding(x), expected + embedding.positions, rtol=0, atol=1e-12)
    torch.testing.assert_close(embedding(x[:, 5:]), (expected + embedding.positions)[:, 5:])


def test_no_gradient_is_lost_to_a_missing_value(model, x):
    network = model()
    x.requires_grad_()
    (gradient,) = torch.autograd.grad(network(x).mean.sum(), x)
    assert torch.equal(gradient[x.isnan()], torch.zeros(int(x.isnan().sum())))
    assert gradient.isfinite().all()

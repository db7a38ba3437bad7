"""No forecast depends on a later token, nor on another window."""

from __future__ import annotations

import pytest
import torch

from fints.residual import RESIDUALS


@pytest.fixture(params=list(RESIDUALS))
def residual(request):
    return request.param


@pytest.mark.parametrize("positions", ["relative", "learned"])
@pytest.mark.parametrize("shock", [1000.0, torch.nan])
def test_the_future_never_reaches_the_past(model, x, residual, positions, shock):
    network = model(residual=residual, positions=positions, random=True, head="student_t")
    before = network(x)
    for t in (3, 7, 11):
        shocked = x.clone()
        shocked[:, t:] = shock * torch.ones_like(x[:, t:])
        after = network(shocked)
        for old, new in zip(before, after, strict=True):
            assert torch.equal(old[:, :t], new[:, :t])
            assert not torch.equal(old[:, t:], new[:, t:])


def test_no_gradient_flows_from_a_forecast_to_a_later_token(model, x, residual):
    network = model(residual=residual, random=True)
    x = x.nan_to_num(0.3).requires_grad_()
    (gradient,) = torch.autograd.grad(network(x).mean[:, 6].sum(), x)
    assert not gradient[:, 7:].any()
    assert (gradient[:, :7].abs().amax(dim=(0, 2)) > 0).all()


def test_a_window_changes_nothing_in_another(model, x, residual):
    network = model(residual=residual, random=True)
    shocked = x.clone()
    shocked[1] = 50.0
    before, after = network(x).mean, network(shocked).mean
    assert torch.equal(before[[0, 2, 3]], after[[0, 2, 3]])
    assert not torch.equal(before[1], after[1])


@pytest.mark.parametrize("positions", ["relative", "learned"])
def test_learned_positions_count_back_from_the_decision(model, x, residual, positions):
    # Relative positions know distances only; learned ones tie the last row to the last token.
    network = model(residual=residual, positions=positions, depth=1, random=True).double()
    short, long = network(x[:, 4:].double()).mean, network(x.double()).mean
    assert short.shape[1] == 8
    blind = x.clone()
    blind[:, :4] = x.flip(0)[:, :4]
    assert not torch.equal(short, long[:, 4:])
    if positions == "relative":
        prefix = network(x[:, :8].double()).mean
        torch.testing.assert_close(prefix, long[:, :8], rtol=0, atol=1e-12)


def test_a_window_longer_than_the_context_is_refused(model, x):
    with pytest.raises(ValueError, match="at most context = 12 tokens; got 24"):
        model()(torch.cat([x, x], dim=1))

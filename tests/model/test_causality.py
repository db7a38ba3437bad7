"""No forecast depends on a later token, nor on another window."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fints.config import ModelConfig
from fints.model import build
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


def test_learned_positions_count_back_from_the_decision(model, x):
    """The last token has the same position in a short window as in a long one; the first has not."""
    network = model(positions="learned", random=True).double()
    x = x.double()
    whole = network.embedding(x)
    assert torch.equal(network.embedding(x[:, 4:]), whole[:, 4:])
    assert not torch.isclose(network.embedding(x[:, :8]), whole[:, :8]).all(dim=-1).any()


def test_relative_positions_know_distances_alone(model, x, residual):
    network = model(residual=residual, positions="relative", random=True).double()
    x = x.double()
    torch.testing.assert_close(network(x[:, :8]).mean, network(x).mean[:, :8], rtol=0, atol=1e-12)
    learned = model(residual=residual, positions="learned", random=True).double()
    assert not torch.isclose(learned(x[:, :8]).mean, learned(x).mean[:, :8]).any()


def test_a_window_longer_than_the_context_is_refused(model, x):
    with pytest.raises(ValueError, match="at most context = 12 tokens; got 24"):
        model()(torch.cat([x, x], dim=1))


@pytest.mark.parametrize(
    ("residual", "options"),
    [
        ("window_rescaled_pre_norm", {"over": "window"}),
        ("window_scale_restoring_post_norm", {"over": "window"}),
        ("by_depth", {"segments": [["pre_norm", 1], ["window_rescaled_pre_norm", 1, {"over": "window"}]]}),
    ],
)
def test_a_scale_of_the_whole_window_is_refused_where_every_token_is_forecast_from(residual, options):
    config = ModelConfig(residual=residual, residual_options=options, depth=2, width=8, num_heads=2)
    with pytest.raises(ValueError, match='must be "last_token"; got "every_token"'):
        build(config, num_features=3, context=6, seed=0)
    last = replace(config, forecast_from="last_token")
    network = build(last, num_features=3, context=6, seed=0)
    x = torch.randn(2, 6, 3)
    shocked = x.clone()
    shocked[:, 4:] *= 1000
    assert network.sees_later_tokens
    assert not torch.equal(network(x).mean[:, :4], network(shocked).mean[:, :4])

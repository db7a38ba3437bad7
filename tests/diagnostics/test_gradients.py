from __future__ import annotations

import pytest
import torch

from fints.config import ModelConfig
from fints.diagnostics import branch_gradient_norms, output_gradient_norms, update_to_weight
from fints.model import Trace, build


@pytest.fixture
def model():
    small = ModelConfig(width=8, depth=2, num_heads=2, residual="dynamic_hyper_connections")
    return build(small, num_features=3, context=5, seed=0)


@pytest.fixture
def loss_and_trace(model):
    trace = Trace()
    inputs = torch.randn(4, 5, 3, generator=torch.Generator().manual_seed(0))
    return model(inputs, trace=trace).mean.square().mean(), trace


def test_gradient_norms_equal_those_of_backward_and_touch_no_grad(model, loss_and_trace):
    loss, _ = loss_and_trace
    norms = branch_gradient_norms(loss, model.branches)
    assert all(parameter.grad is None for parameter in model.parameters())
    loss.backward()
    assert len(norms) == 4
    for norm, branch in zip(norms, model.branches, strict=True):
        literal = torch.cat([parameter.grad.flatten() for parameter in branch.parameters()]).norm()
        torch.testing.assert_close(norm, literal)
        assert norm > 0


def test_the_gradient_of_an_output_is_how_the_loss_changes_with_it(model, loss_and_trace):
    loss, trace = loss_and_trace
    norms = output_gradient_norms(loss, trace.outputs)
    for norm, output in zip(norms, trace.outputs, strict=True):
        (gradient,) = torch.autograd.grad(loss, output, retain_graph=True)
        torch.testing.assert_close(norm, gradient.square().sum().sqrt())


def test_a_frozen_or_unread_branch_has_gradient_zero(model):
    model.branches[1].requires_grad_(False)
    loss = model.branches[0](torch.ones(1, 5, 8)).square().mean()
    norms = branch_gradient_norms(loss, model.branches)
    assert norms[0] > 0
    assert [norm.item() for norm in norms[1:]] == [0, 0, 0]


def test_update_to_weight_is_relative_to_the_weights_before_the_step(model):
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    with torch.no_grad():
        for layer, branch in enumerate(model.branches):
            for parameter in branch.parameters():
                parameter.mul_(1 + 0.1 * (layer + 1))
    update = {name: parameter.detach() - before[name] for name, parameter in model.named_parameters()}
    ratios = update_to_weight(model.branches, update, "branches.")
    assert [ratio.item() for ratio in ratios] == pytest.approx([0.1, 0.2, 0.3, 0.4], rel=1e-4)


def test_weights_that_start_at_zero_have_no_ratio(model):
    with torch.no_grad():
        for parameter in model.branches[0].parameters():
            parameter.fill_(0.5)
    update = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    assert update_to_weight(model.branches, update, "branches.")[0].isnan()

"""A trace sees every sublayer and changes nothing."""

from __future__ import annotations

import pytest
import torch

from fints.model import Trace
from fints.residual import RESIDUALS


@pytest.fixture(params=list(RESIDUALS))
def network(request, model):
    return model(residual=request.param, random=True)


def test_a_traced_pass_gives_the_same_bits(network, x):
    for checkpointed in (False, True):
        network.activation_checkpointing = checkpointed
        assert torch.equal(network(x, trace=Trace()).mean, network(x).mean)


def test_each_list_has_one_tensor_a_sublayer_in_order(network, x):
    trace = Trace()
    network(x, trace=trace)
    for tensors in (trace.read, trace.outputs, trace.trunks):
        assert [tensor.shape for tensor in tensors] == [(4, 12, 16)] * 6
    state = network.residual.open(network.embedding(x))
    for layer, branch in enumerate(network.branches):
        given = []

        def spied(u, branch=branch, given=given):
            given.append(branch(u))
            return given[0]

        assert torch.equal(network.residual.read(state, layer), trace.read[layer])
        assert torch.equal(network.residual.merge(state, layer), trace.trunks[layer])
        state = network.residual.step(state, layer, spied)
        assert torch.equal(given[0], trace.outputs[layer])
    opened = network.residual.open(network.embedding(x))
    assert torch.equal(trace.trunks[0], network.residual.merge(opened, 0))
    assert torch.equal(network.head(trace.final).mean, network(x).mean)


def test_gradients_by_depth_are_those_of_a_nudged_output(network, x):
    network = network.double()
    x = x.double()
    trace = Trace()
    loss = network(x, trace=trace).mean.sum()
    gradients = torch.autograd.grad(loss, trace.outputs)
    for layer in range(6):
        nudge = torch.randn(4, 12, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(layer))

        def loss_when_nudged(size, layer=layer, nudge=nudge):
            state = network.residual.open(network.embedding(x))
            for k, branch in enumerate(network.branches):
                moved = (lambda u, branch=branch: branch(u) + size * nudge) if k == layer else branch
                state = network.residual.step(state, k, moved)
            return network.head(network.residual.close(state, 6)).mean.sum().item()

        slope = (loss_when_nudged(1e-5) - loss_when_nudged(-1e-5)) / 2e-5
        assert slope == pytest.approx((gradients[layer] * nudge).sum().item(), rel=1e-5, abs=1e-7)

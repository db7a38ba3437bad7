"""LayerNorm scaling: its equation, its factors, and Pre-Norm with other gains."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from fints.residual import build_residual

NAME = "layer_norm_scaling"


@pytest.mark.parametrize("first_layer", [0, 6])
@pytest.mark.parametrize("norm", ["layer_norm", "rms_norm"])
def test_layer_norm_scaling_is_its_equation(network, x, literal_norm, norm, first_layer):
    net = network(NAME, random=True, norm=norm, first_layer=first_layer)
    h = x
    for k, branch in enumerate(net.branches):
        block = (first_layer + k) // 2 + 1
        h = h + branch(literal_norm(net.residual.norms[k], h) / block**0.5)
    assert_close(net(x), literal_norm(net.residual.final_norm, h), rtol=0, atol=1e-12)


@pytest.mark.parametrize("norm", ["layer_norm", "rms_norm"])
def test_it_is_pre_norm_with_gains_over_the_root_of_the_block(network, x, norm):
    net, pre_norm = network(NAME, random=True, norm=norm), network("pre_norm", norm=norm)
    pre_norm.residual.load_state_dict(net.residual.state_dict())
    with torch.no_grad():
        for k, norm_k in enumerate(pre_norm.residual.norms):
            for parameter in norm_k.parameters():
                parameter /= (k // 2 + 1) ** 0.5
    assert_close(net(x), pre_norm(x), rtol=0, atol=1e-12)


def test_blocks_1_4_and_9_are_scaled_by_1_a_half_and_a_third():
    residual = build_residual(NAME, width=4, num_sublayers=18).double()
    state = torch.zeros(1, 1, 4)
    for block, factor in [(1, 1), (4, 1 / 2), (9, 1 / 3)]:
        for layer in (2 * block - 2, 2 * block - 1):
            assert residual.weights(state, layer)["scale"].item() == pytest.approx(factor, rel=1e-15)


def test_the_first_block_is_pre_norm(network, x):
    net, pre_norm = network(NAME), network("pre_norm")
    states, expected = net.states(x), pre_norm.states(x)
    assert all(torch.equal(states[k], expected[k]) for k in range(3))
    assert not torch.isclose(states[3], expected[3]).all(-1).any()

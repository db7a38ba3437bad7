"""DenseFormer against its equation, and what its weights are at the start."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from fints.residual import RESIDUALS

GRID = [(1, 1), (2, 1), (1, 2), (2, 3), (3, 2), (4, 5), (9, 1)]


def literal(net, x, dilation, period):
    """The network from the paper, block by block; alpha_ij by name."""
    residual, past, y, averaged = net.residual, [x], x, 0
    blocks = [range(k, k + 2) for k in range(0, len(net.branches) - 1, 2)]
    for i, sublayers in enumerate(blocks, 1):
        h = y
        for k in sublayers:
            h = h + net.branches[k](residual.norms[k](h))
        past.append(h)
        if i % period == 0:
            j = [j for j in range(i + 1) if (i - j) % dilation == 0]
            alpha = residual.alpha[averaged]
            assert len(alpha) == len(j) == (i - 1 + 1 + dilation) // dilation
            y = sum(alpha[at] * past[source] for at, source in enumerate(j))
            averaged += 1
        else:
            y = h
    for k in range(2 * len(blocks), len(net.branches)):
        y = y + net.branches[k](residual.norms[k](y))
    assert averaged == len(residual.alpha)
    return residual.final_norm(y)


@pytest.mark.parametrize(("dilation", "period"), GRID)
@pytest.mark.parametrize("num_sublayers", [12, 13])
def test_denseformer_is_its_equation(network, x, dilation, period, num_sublayers):
    options = {"dilation": dilation, "period": period}
    net = network("denseformer", options, num_sublayers=num_sublayers, random=True)
    assert_close(net(x), literal(net, x, dilation, period), rtol=0, atol=1e-11)


def test_three_blocks_by_hand(network, x):
    net = network("denseformer", num_sublayers=6)
    given = [[0.5, 2.0], [-1.0, 0.25, 1.0], [0.0, 1.0, -0.5, 3.0]]
    for alpha, values in zip(net.residual.alpha, given, strict=True):
        alpha.data.copy_(torch.tensor(values))
    norm, branch = net.residual.norms, net.branches

    def block(b, h):
        h = h + branch[2 * b](norm[2 * b](h))
        return h + branch[2 * b + 1](norm[2 * b + 1](h))

    x1 = block(0, x)
    x2 = block(1, 0.5 * x + 2 * x1)
    x3 = block(2, -x + 0.25 * x1 + x2)
    assert_close(net(x), net.residual.final_norm(x1 - 0.5 * x2 + 3 * x3), rtol=0, atol=1e-12)


@pytest.mark.parametrize(("dilation", "period"), GRID)
def test_the_start_is_pre_norm_bit_for_bit(network, x, dilation, period):
    net = network("denseformer", {"dilation": dilation, "period": period})
    assert torch.equal(net(x), network("pre_norm")(x))


def test_redrawing_every_linear_map_leaves_the_start_alone(network, x):
    def redraw(module):
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.3, generator=generator)
            nn.init.zeros_(module.bias)

    outputs = []
    for name in ("denseformer", "pre_norm"):
        generator = torch.Generator().manual_seed(7)
        net = network(name)
        before = net(x)
        net.apply(redraw)
        outputs.append(net(x))
        assert not torch.equal(outputs[-1], before)
    assert torch.equal(*outputs)


def test_the_count_of_weights_is_the_papers():
    scheme = RESIDUALS["denseformer"]
    for blocks in (1, 4, 16, 48):
        assert scheme.extra_parameters(64, 2 * blocks, norm="layer_norm") == blocks * (blocks + 3) // 2
    # 4x5 over 48 blocks: blocks 5, 10 ... 45 with floor((i + 4) / 4) weights.
    counts = sum((i + 4) // 4 for i in range(5, 49, 5))
    assert scheme.extra_parameters(64, 96, norm="layer_norm", dilation=4, period=5) == counts


def test_weights_are_reported_over_all_block_outputs(network, x):
    net = network("denseformer", {"dilation": 2}, random=True)
    states = net.states(x)
    assert net.residual.weights(states[4], 4) == {}
    alpha = net.residual.weights(states[5], 5)["alpha"]
    assert_close(alpha[[1, 3]], net.residual.alpha[2], rtol=0, atol=0)
    assert alpha[[0, 2]].eq(0).all()

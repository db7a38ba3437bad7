"""Pre-Norm, Post-Norm and no skip against their equations, written out."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close


@pytest.mark.parametrize("norm", ["layer_norm", "rms_norm"])
def test_pre_norm_is_its_equation(network, x, literal_norm, norm):
    net = network("pre_norm", random=True, norm=norm)
    h = x
    for norm_k, branch in zip(net.residual.norms, net.branches, strict=True):
        h = h + branch(literal_norm(norm_k, h))
    assert_close(net(x), literal_norm(net.residual.final_norm, h), rtol=0, atol=1e-12)


@pytest.mark.parametrize("norm", ["layer_norm", "rms_norm"])
def test_post_norm_is_its_equation(network, x, literal_norm, norm):
    net = network("post_norm", random=True, norm=norm)
    h = x
    for norm_k, branch in zip(net.residual.norms, net.branches, strict=True):
        h = literal_norm(norm_k, h + branch(h))
    assert_close(net(x), h, rtol=0, atol=1e-12)


@pytest.mark.parametrize("norm", ["layer_norm", "rms_norm"])
def test_no_skip_is_its_equation(network, x, literal_norm, norm):
    net = network("no_skip", random=True, norm=norm)
    h = x
    for norm_k, branch in zip(net.residual.norms, net.branches, strict=True):
        h = branch(literal_norm(norm_k, h))
    assert_close(net(x), literal_norm(net.residual.final_norm, h), rtol=0, atol=1e-12)


def test_without_a_skip_nothing_passes_a_silent_branch(network, x):
    net = network("no_skip")
    for parameter in net.branches[3][2].parameters():
        torch.nn.init.zeros_(parameter)
    states = net.states(x)
    assert not states[4].any()
    assert states[3].any()
    mixing = net.residual.mixing(states[3], 3)
    assert (mixing.read.item(), mixing.carry.item(), mixing.write.item()) == (1, 0, 1)


def test_post_norm_is_the_one_stream_matrix_with_a_weight_per_token(network, x):
    # B = A_r = w and A_m = 1 with w = 1 / sqrt(var_in + var_out + 2 cov), for centred h and y.
    net = network("post_norm")
    h = x - x.mean(-1, keepdim=True)
    for layer, branch in enumerate(net.branches):
        y = branch(h)
        y_centred = y - y.mean(-1, keepdim=True)
        covariance = (h * y_centred).mean(-1, keepdim=True)
        variances = h.var(-1, correction=0, keepdim=True) + y.var(-1, correction=0, keepdim=True)
        w = (variances + 2 * covariance).rsqrt()
        expected = w * h + w * y_centred
        h = net.residual.step(h, layer, branch)
        assert_close(h, expected, rtol=0, atol=1e-11)


def test_post_norm_leaves_each_token_standardised(network, x):
    for state in network("post_norm").states(x)[1:]:
        assert state.mean(-1).abs().max() < 1e-13
        assert (state.var(-1, correction=0) - 1).abs().max() < 1e-9


def test_pre_norm_with_silent_branches_passes_its_input_and_its_gradient(network, x):
    net = network("pre_norm")
    for branch in net.branches:
        for parameter in branch[2].parameters():
            torch.nn.init.zeros_(parameter)
    x.requires_grad_()
    last = net.states(x)[-1]
    assert torch.equal(last, x)
    (gradient,) = torch.autograd.grad(last.sum(), x)
    assert torch.equal(gradient, torch.ones_like(x))

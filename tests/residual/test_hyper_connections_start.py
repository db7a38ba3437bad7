"""Fresh Hyper-Connections compute what Pre-Norm computes, for any number of streams."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

SCHEMES = [
    ("static_hyper_connections", {}),
    ("dynamic_hyper_connections", {"tanh": True}),
    ("dynamic_hyper_connections", {"tanh": False}),
]
IDS = ["static", "dynamic-tanh", "dynamic-linear"]
STREAMS = [1, 2, 4, 8]


def stream_axis(name: str) -> int:
    return 0 if name.startswith("static") else -2


@pytest.fixture(params=SCHEMES, ids=IDS)
def scheme(request):
    return request.param


@pytest.mark.parametrize("norm_eps", [1e-12, 1e-5])
@pytest.mark.parametrize("num_streams", STREAMS)
def test_the_start_equals_pre_norm(network, x, scheme, num_streams, norm_eps):
    name, options = scheme
    net = network(name, {**options, "num_streams": num_streams}, norm_eps=norm_eps)
    reference = network("pre_norm", norm_eps=norm_eps)
    for layer, (state, h) in enumerate(zip(net.states(x), reference.states(x), strict=True)):
        assert_close(net.residual.merge(state, layer), h, rtol=1e-11, atol=1e-11)
    assert_close(net(x), reference(x), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("num_streams", STREAMS)
def test_branch_gradients_at_the_start_equal_those_of_pre_norm(network, x, scheme, num_streams):
    name, options = scheme
    net, reference = network(name, {**options, "num_streams": num_streams}), network("pre_norm")
    target = torch.randn(x.shape, dtype=x.dtype, generator=torch.Generator().manual_seed(2))
    gradients = []
    for each in (net, reference):
        loss = (each(x) - target).square().sum()
        gradients.append(torch.autograd.grad(loss, list(each.branches.parameters())))
    for ours, theirs in zip(*gradients, strict=True):
        assert theirs.abs().max() > 1e-3
        assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("num_streams", STREAMS)
def test_the_gradient_summed_over_streams_equals_that_of_pre_norm_at_every_depth(
    network, x, scheme, num_streams
):
    name, options = scheme
    net, reference = network(name, {**options, "num_streams": num_streams}), network("pre_norm")
    x.requires_grad_()
    streams, trunk = net.states(x), reference.states(x)
    ours = torch.autograd.grad(net.residual.close(streams[-1], 8).square().sum(), streams[:-1])
    theirs = torch.autograd.grad(reference.residual.close(trunk[-1], 8).square().sum(), trunk[:-1])
    # The last states carry rounding only: the squared output of a norm is constant.
    for layer, (many, one) in enumerate(zip(ours, theirs, strict=True)):
        assert_close(many.sum(stream_axis(name)), one, rtol=1e-9, atol=1e-10, msg=f"layer {layer}")


@pytest.mark.parametrize("first_layer", [0, 3, 6])
def test_each_sublayer_reads_its_home_stream(network, scheme, first_layer):
    name, options = scheme
    for num_streams in STREAMS:
        residual = network(name, {**options, "num_streams": num_streams}, first_layer=first_layer).residual
        assert len(residual.A_m) == 8
        for k in range(8):
            home = torch.zeros(num_streams, 1, dtype=torch.float64)
            home[(first_layer + k) % num_streams] = 1
            assert torch.equal(residual.A_m[k], home)
            assert torch.equal(residual.A_r[k], torch.eye(num_streams, dtype=torch.float64))
            assert torch.equal(residual.B[k], torch.ones(1, num_streams, dtype=torch.float64))


def test_dynamic_parts_start_silent_at_a_hundredth(network):
    residual = network("dynamic_hyper_connections").residual
    assert len(residual.W) == 8
    for k in range(8):
        assert not residual.W[k].any()
        # float32's 0.01, since networks are built in float32
        assert residual.s_alpha[k].item() == pytest.approx(0.01, rel=1e-7)
        assert residual.s_beta[k].item() == pytest.approx(0.01, rel=1e-7)


def test_training_tells_the_streams_apart(network, x, scheme):
    name, options = scheme
    net = network(name, options)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    for _ in range(3):
        optimizer.zero_grad()
        (net(x) - x.roll(1, 0)).square().mean().backward()
        optimizer.step()
    spread = net.states(x)[-1].std(stream_axis(name)).mean()
    assert spread > 1e-4

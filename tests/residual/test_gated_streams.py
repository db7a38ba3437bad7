"""Gated streams against their equations as index loops, and the copies whose gates do nothing."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from fints.residual import build_residual

NAME = "gated_streams"
VARIANTS = ["add_write", "convex_read", "lerp_write"]
LIKE_PRE_NORM = VARIANTS[:2]


def norm_of_vector(norm, h: Tensor) -> Tensor:
    mean = sum(h[d] for d in range(len(h))) / len(h)
    variance = sum((h[d] - mean) ** 2 for d in range(len(h))) / len(h)
    return (h - mean) / (variance + norm.eps).sqrt() * norm.weight + norm.bias


def sigmoid(z: float) -> float:
    return 1 / (1 + math.exp(-z))


def one_token_gates(residual, layer: int, variant: str, streams: list[Tensor], eps: float = 1e-5):
    """read[i], keep[i], write[i] of one token, number by number."""
    n, width = len(streams), len(streams[0])
    logits: list[list[float]] = [[], []]
    for i, h in enumerate(streams):
        normed = h / (sum(h[d] ** 2 for d in range(width)) / width + eps).sqrt()
        for gate in (0, 1):
            dot = (normed @ residual.W[layer][:, gate]).item()
            if variant == "lerp_write":
                dot /= math.sqrt(width)
            logits[gate].append(dot + residual.b[layer][gate, i].item())
    p, q = logits
    if variant == "lerp_write":
        total = sum(math.exp(z) for z in p)
        return [math.exp(z) / total for z in p], [1 - sigmoid(z) for z in q], [sigmoid(z) for z in q]
    read, write = [sigmoid(z) for z in p], [2 * sigmoid(z) for z in q]
    if variant == "convex_read":
        total = sum(read)
        read = [r / total for r in read]
    return read, [1.0] * n, write


def one_token(net, variant: str, x: Tensor, n: int) -> Tensor:
    streams = [x for _ in range(n)]
    for layer, branch in enumerate(net.branches):
        read, keep, write = one_token_gates(net.residual, layer, variant, streams)
        y = branch(norm_of_vector(net.residual.norms[layer], sum(read[i] * streams[i] for i in range(n))))
        streams = [keep[i] * streams[i] + write[i] * y for i in range(n)]
    return norm_of_vector(net.residual.final_norm, sum(streams) / n)


@pytest.mark.parametrize("num_streams", [1, 2, 4])
@pytest.mark.parametrize("variant", VARIANTS)
def test_gated_streams_are_their_equation(network, x, variant, num_streams):
    x = x[:, :2]
    options = {"num_streams": num_streams, "variant": variant}
    net = network(NAME, options, num_sublayers=4, random=True, norm_eps=1e-5)
    literal = torch.stack([torch.stack([one_token(net, variant, t, num_streams) for t in row]) for row in x])
    assert_close(net(x), literal, rtol=0, atol=1e-11)


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_mixing_rebuilds_the_step_and_is_that_of_each_token(network, x, variant):
    net = network(NAME, {"num_streams": 3, "variant": variant}, random=True, norm_eps=1e-5)
    state, y = net.states(x)[3], torch.randn_like(x)
    read, carry, write = net.residual.mixing(state, 3)
    assert_close(net.residual.read(state, 3), torch.einsum("...i,...id->...d", read, state))
    after = torch.einsum("...ij,...id->...jd", carry, state) + write.unsqueeze(-1) * y.unsqueeze(-2)
    assert_close(net.residual.step(state, 3, lambda _: y), after, rtol=0, atol=1e-11)
    literal = one_token_gates(net.residual, 3, variant, list(state[1, 2]))
    for ours, expected in zip((read, carry.diagonal(dim1=-2, dim2=-1), write), literal, strict=True):
        assert_close(ours[1, 2], torch.tensor(expected, dtype=x.dtype), rtol=0, atol=1e-12)


@pytest.mark.parametrize("num_streams", [1, 2, 4, 8])
@pytest.mark.parametrize("variant", LIKE_PRE_NORM)
def test_added_writes_start_as_pre_norm(network, x, variant, num_streams):
    options = {"num_streams": num_streams, "variant": variant}
    net, reference = network(NAME, options, norm_eps=0.0), network("pre_norm", norm_eps=0.0)
    target = x.roll(1, 0)
    for layer, (state, h) in enumerate(zip(net.states(x), reference.states(x), strict=True)):
        assert_close(net.residual.merge(state, layer), h, rtol=0, atol=1e-11)
        if variant == "convex_read" and layer < 8:
            assert_close(net.residual.read(state, layer), h, rtol=0, atol=1e-11)
    gradients = [
        torch.autograd.grad((each(x) - target).square().sum(), list(each.branches.parameters()))
        for each in (net, reference)
    ]
    for ours, theirs in zip(*gradients, strict=True):
        assert theirs.abs().max() > 1e-3
        assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("variant", LIKE_PRE_NORM)
def test_the_gradient_summed_over_streams_equals_that_of_pre_norm_at_every_depth(network, x, variant):
    net, reference = network(NAME, {"variant": variant}), network("pre_norm")
    x.requires_grad_()
    streams, trunk = net.states(x), reference.states(x)
    target = x.detach().roll(1, 0)
    ours = torch.autograd.grad((net.residual.close(streams[-1], 8) - target).square().sum(), streams)
    theirs = torch.autograd.grad((reference.residual.close(trunk[-1], 8) - target).square().sum(), trunk)
    for many, one in zip(ours, theirs, strict=True):
        assert one.abs().max() > 1e-4
        assert_close(many.sum(-2), one, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("variant", VARIANTS)
def test_each_sublayer_reads_its_home_stream_most(network, x, variant):
    for num_streams, first_layer in [(2, 0), (4, 3)]:
        options = {"num_streams": num_streams, "variant": variant}
        residual = network(NAME, options, first_layer=first_layer).residual
        for layer in range(8):
            read = residual.weights(residual.open(x), layer)["read"][0, 0]
            assert read.argmax() == (first_layer + layer) % num_streams
            assert len(read.unique()) == 2


@pytest.mark.parametrize("variant", VARIANTS)
def test_training_tells_the_streams_apart(network, x, variant):
    net = network(NAME, {"variant": variant})
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    for _ in range(5):
        optimizer.zero_grad()
        (net(x) - x.roll(1, 0)).square().mean().backward()
        optimizer.step()
    assert net.states(x)[-1].std(-2).max() > 1e-5


@pytest.mark.parametrize("variant", VARIANTS)
def test_gates_keep_their_ranges_at_random_parameters(network, x, variant):
    net = network(NAME, {"variant": variant}, random=True)
    reach = []
    for layer, state in enumerate(net.states(x)[:-1]):
        weights = net.residual.weights(state, layer)
        assert 0 < weights["read"].min() < weights["read"].max() < 1
        assert weights["write"].min() > 0
        reach.append(weights["write"].max().item())
        if variant != "add_write":
            assert_close(weights["read"].sum(-1), torch.ones_like(weights["read"][..., 0]))
    assert (1 < max(reach) < 2) if variant in LIKE_PRE_NORM else (0.5 < max(reach) < 1)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_closed_write_leaves_the_streams_as_they_were(network, x, variant):
    net = network(NAME, {"variant": variant}, random=True)
    state = net.states(x)[2]
    with torch.no_grad():
        net.residual.b[2][1] = -1e4
    assert torch.equal(net.residual.step(state, 2, net.branches[2]), state)


def test_a_lerp_never_makes_a_stream_longer_than_what_it_was_made_of(network, x):
    net = network(NAME, {"variant": "lerp_write"}, random=True)
    state, longest = net.residual.open(x), x.norm(dim=-1)
    for layer, branch in enumerate(net.branches):
        outputs = []
        state = net.residual.step(
            state, layer, lambda u, branch=branch, seen=outputs: seen.append(10 * branch(u)) or seen[0]
        )
        longest = torch.maximum(longest, outputs[0].norm(dim=-1))
        assert (state.norm(dim=-1) <= longest.unsqueeze(-1) + 1e-12).all()
    # An added write does not keep the bound.
    net = network(NAME, {"variant": "add_write"}, random=True)
    grown = net.states(x)[-1].norm(dim=-1).max()
    assert grown > max(x.norm(dim=-1).max(), *(b(x).norm(dim=-1).max() for b in net.branches))


@pytest.mark.parametrize("num_sublayers", [1, 2, 21, 48])
def test_lerp_gates_start_smaller_as_the_root_of_depth(num_sublayers):
    residual = build_residual(NAME, {"variant": "lerp_write"}, width=8, num_sublayers=num_sublayers)
    write = residual.weights(residual.open(torch.randn(2, 3, 8)), num_sublayers - 1)["write"]
    expected = sigmoid(-3.0) * math.sqrt(21 / num_sublayers)
    assert_close(write, torch.full_like(write, expected), rtol=1e-6, atol=0)
    # The published value: 0.047 at 21 layers.
    assert num_sublayers != 21 or round(expected, 3) == 0.047


def test_an_unknown_variant_is_one_clear_message():
    with pytest.raises(ValueError, match=r"unknown variant 'lerp'.*add_write, convex_read, lerp_write"):
        build_residual(NAME, {"variant": "lerp"}, width=8, num_sublayers=2)


@pytest.mark.parametrize("num_streams", [1, 4])
def test_gates_on_equal_copies_change_nothing_whatever_they_are(network, x, num_streams):
    net = network("gated_copies", {"num_streams": num_streams}, random=True, norm_eps=0.0)
    plain = network("pre_norm", norm_eps=0.0)
    values = net.residual.state_dict()
    plain.residual.load_state_dict({key: values[key] for key in plain.residual.state_dict()})
    gates = net.residual.weights(x, 0)["g"]
    assert gates.shape == (3, 5, num_streams)
    assert gates.min() < 0.3 < 0.7 < gates.max()
    assert_close(net.residual.read(x, 0), gates.sum(-1, keepdim=True) * x, rtol=0, atol=1e-12)
    assert not torch.allclose(net.residual.read(x, 0), plain.residual.read(x, 0))
    assert_close(net.states(x)[-1], plain.states(x)[-1], rtol=0, atol=1e-10)
    assert_close(net(x), plain(x), rtol=0, atol=1e-10)


def test_gates_on_equal_copies_are_the_sum_of_n_sigmoids(network, x):
    residual = network("gated_copies", {"num_streams": 3}, random=True, norm_eps=1e-5).residual
    token = x[1, 2]
    normed = token / (sum(token[d] ** 2 for d in range(16)) / 16 + 1e-5).sqrt()
    gates = [sigmoid((normed @ residual.W[1][:, i] + residual.b[1][i]).item()) for i in range(3)]
    assert_close(residual.read(x, 1)[1, 2], sum(gates) * token, rtol=0, atol=1e-12)
    read, carry, write = residual.mixing(x, 1)
    assert read[1, 2].item() == pytest.approx(sum(gates), abs=1e-12)
    assert (carry.item(), write.item()) == (1.0, 1.0)


@pytest.mark.parametrize("variant", VARIANTS)
def test_parameters_are_those_of_the_published_table(variant):
    for num_streams, width, expected in [(2, 128, 260), (4, 64, 136), (4, 512, 1032), (8, 128, 272)]:
        options = {"num_streams": num_streams, "variant": variant}
        residual = build_residual(NAME, options, width=width, num_sublayers=3)
        assert residual.extra_parameters(width, 1, norm="layer_norm", **options) == expected
        assert sum(p.numel() for p in residual.parameters()) == 4 * 2 * width + 3 * expected

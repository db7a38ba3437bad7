"""Manifold-constrained Hyper-Connections against the paper's equations, on random parameters."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.testing import assert_close

from fints.residual import RESIDUALS, build_residual

NAME = "manifold_hyper_connections"
MIXES = ["sinkhorn", "permutations"]


def norm_of_vector(norm, h: Tensor) -> Tensor:
    mean = sum(h[d] for d in range(len(h))) / len(h)
    variance = sum((h[d] - mean) ** 2 for d in range(len(h))) / len(h)
    return (h - mean) / (variance + norm.eps).sqrt() * norm.weight + norm.bias


def sigmoid(z: float) -> float:
    return 1 / (1 + math.exp(-z))


def literal_sinkhorn(r: list[float], n: int) -> list[list[float]]:
    m = [[math.exp(r[i * n + j]) for j in range(n)] for i in range(n)]
    for _ in range(20):
        columns = [sum(m[i][j] for i in range(n)) for j in range(n)]
        m = [[m[i][j] / columns[j] for j in range(n)] for i in range(n)]
        rows = [sum(m[i][j] for j in range(n)) for i in range(n)]
        m = [[m[i][j] / rows[i] for j in range(n)] for i in range(n)]
    return m


def literal_permutations(r: list[float], n: int) -> list[list[float]]:
    m = [[0.0] * n for _ in range(n)]
    total = sum(math.exp(z) for z in r)
    for z, order in zip(r, itertools.permutations(range(n)), strict=True):
        for i in range(n):
            m[i][order[i]] += math.exp(z) / total
    return m


def one_token_coefficients(residual, layer: int, streams: list[Tensor], eps: float = 1e-5):
    """H_pre[j], H_res[i][j], H_post[i] of one token, number by number; the norm before the product."""
    n = len(streams)
    x = torch.cat(streams)
    x = x / (sum(x[d] ** 2 for d in range(len(x))) / len(x) + eps).sqrt()
    phi, b, alpha = residual.phi[layer], residual.b[layer], residual.alpha[layer]
    names = ["pre"] * n + ["post"] * n + ["res"] * (phi.shape[1] - 2 * n)
    scale = {"pre": alpha[0], "post": alpha[1], "res": alpha[2]}
    logits = [(scale[name] * (x @ phi[:, c]) + b[c]).item() for c, name in enumerate(names)]
    mix = {"sinkhorn": literal_sinkhorn, "permutations": literal_permutations}[residual.mix]
    return (
        [sigmoid(z) for z in logits[:n]],
        mix(logits[2 * n :], n),
        [2 * sigmoid(z) for z in logits[n : 2 * n]],
    )


def one_token(net, x: Tensor, n: int) -> Tensor:
    """The whole network on one token (D,), from the paper."""
    streams = [x for _ in range(n)]
    for layer, branch in enumerate(net.branches):
        pre, res, post = one_token_coefficients(net.residual, layer, streams)
        u = sum(pre[j] * streams[j] for j in range(n))
        y = branch(norm_of_vector(net.residual.norms[layer], u))
        streams = [sum(res[i][j] * streams[j] for j in range(n)) + post[i] * y for i in range(n)]
    return norm_of_vector(net.residual.final_norm, sum(streams) / n)


@pytest.mark.parametrize("num_streams", [1, 2, 3, 4])
@pytest.mark.parametrize("mix", MIXES)
def test_manifold_hyper_connections_are_their_equation(network, x, mix, num_streams):
    x = x[:, :2]
    options = {"num_streams": num_streams, "mix": mix}
    net = network(NAME, options, num_sublayers=3, random=True, norm_eps=1e-5)
    literal = torch.stack([torch.stack([one_token(net, token, num_streams) for token in row]) for row in x])
    assert_close(net(x), literal, rtol=0, atol=1e-11)


@pytest.mark.parametrize("mix", MIXES)
def test_the_weights_reported_are_the_coefficients_of_each_token(network, x, mix):
    net = network(NAME, {"num_streams": 3, "mix": mix}, random=True, norm_eps=1e-5)
    state = net.states(x)[2]
    weights = net.residual.weights(state, 2)
    for b, t in [(0, 0), (2, 4)]:
        literal = one_token_coefficients(net.residual, 2, list(state[b, t]))
        for key, expected in zip(("H_pre", "H_res", "H_post"), literal, strict=True):
            assert_close(weights[key][b, t], torch.tensor(expected, dtype=x.dtype), rtol=0, atol=1e-12)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_the_norm_after_the_product_is_the_norm_before_it(dtype, tolerance):
    torch.manual_seed(0)
    residual = build_residual(NAME, width=16, num_sublayers=1, norm_eps=1e-5).to(dtype)
    for parameter in residual.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    state = torch.randn(20, 5, 4, 16, dtype=dtype) * torch.logspace(-3, 3, 20, dtype=dtype).view(-1, 1, 1, 1)
    normed = F.rms_norm(state.flatten(-2), (64,), eps=1e-5) @ residual.phi[0]
    logits = residual.alpha[0][0] * normed[..., :4] + residual.b[0][:4]
    assert_close(residual.weights(state, 0)["H_pre"], logits.sigmoid(), rtol=0, atol=tolerance)


@pytest.mark.parametrize("mix", MIXES)
def test_every_coefficient_depends_on_every_stream(network, x, mix):
    residual = network(NAME, {"num_streams": 3, "mix": mix}, random=True).residual
    generator = torch.Generator().manual_seed(2)
    state = torch.randn(3, 5, 3, 16, dtype=x.dtype, generator=generator)
    before = residual.weights(state, 0)
    for stream in range(3):
        shocked = state.clone()
        shocked[..., stream, :] += torch.randn(16, dtype=x.dtype, generator=generator)
        for key, after in residual.weights(shocked, 0).items():
            assert (after - before[key]).abs().amax(dim=(0, 1)).min() > 1e-6, (key, stream)


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("num_streams", [1, 2, 4])
def test_equal_writes_of_one_give_pre_norm_whatever_is_read_and_mixed(network, x, mix, num_streams):
    options = {"num_streams": num_streams, "mix": mix}
    # No epsilon: the reads scale what the norm of the branch is given.
    net, reference = network(NAME, options, norm_eps=0.0), network("pre_norm", norm_eps=0.0)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for b in net.residual.b:
            b.copy_(torch.randn(b.shape, generator=generator))
            b[num_streams : 2 * num_streams] = 0.0
    target = x.roll(1, 0)
    for layer, (state, h) in enumerate(zip(net.states(x), reference.states(x), strict=True)):
        assert_close(net.residual.merge(state, layer), h, rtol=0, atol=1e-11)
    gradients = [
        torch.autograd.grad((each(x) - target).square().sum(), list(each.branches.parameters()))
        for each in (net, reference)
    ]
    for ours, theirs in zip(*gradients, strict=True):
        assert theirs.abs().max() > 1e-3
        assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("mix", MIXES)
def test_the_gradient_summed_over_streams_equals_that_of_pre_norm_at_every_depth(network, x, mix):
    net, reference = network(NAME, {"mix": mix}), network("pre_norm")
    x.requires_grad_()
    streams, trunk = net.states(x), reference.states(x)
    target = x.detach().roll(1, 0)
    ours = torch.autograd.grad((net.residual.close(streams[-1], 8) - target).square().sum(), streams)
    theirs = torch.autograd.grad((reference.residual.close(trunk[-1], 8) - target).square().sum(), trunk)
    for many, one in zip(ours, theirs, strict=True):
        assert one.abs().max() > 1e-4
        assert_close(many.sum(-2), one, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("mix", MIXES)
def test_the_home_start_is_that_of_the_ruling_and_the_same_for_both_mixes(network, x, mix):
    for num_streams, first_layer in [(1, 0), (2, 1), (4, 0), (4, 3)]:
        options = {"num_streams": num_streams, "mix": mix}
        residual = network(NAME, options, first_layer=first_layer).residual
        state = residual.open(x)
        for layer in range(8):
            weights = residual.weights(state, layer)
            home = torch.full((num_streams,), sigmoid(-3.0), dtype=x.dtype)
            home[(first_layer + layer) % num_streams] = sigmoid(3.0)
            assert_close(weights["H_pre"][0, 0], home, rtol=0, atol=1e-12)
            assert torch.equal(weights["H_post"], torch.ones_like(weights["H_post"]))
            off = 1 / (math.exp(3.0) + num_streams - 1)
            expected = torch.full((num_streams, num_streams), off, dtype=x.dtype)
            expected.fill_diagonal_(math.exp(3.0) * off)
            # The logits are float32's.
            assert_close(weights["H_res"][1, 2], expected, rtol=0, atol=1e-7)
        assert not any(phi.any() for phi in residual.phi)
        assert all(alpha.tolist() == pytest.approx([0.01] * 3, rel=1e-6) for alpha in residual.alpha)


@pytest.mark.parametrize("mix", MIXES)
def test_the_other_starts_are_those_of_their_repositories(network, x, mix):
    uniform = network(NAME, {"mix": mix, "init": "megatron"}).residual
    assert not any(b.any() for b in uniform.b)
    for phi in uniform.phi:
        bound = math.sqrt(6 / sum(phi.shape))
        assert 0.9 * bound < phi.abs().max() <= bound
        with torch.no_grad():
            phi.zero_()
    weights = uniform.weights(uniform.open(x), 1)
    for key, value in {"H_pre": 0.5, "H_post": 1.0, "H_res": 0.25}.items():
        assert_close(weights[key], torch.full_like(weights[key], value), rtol=0, atol=1e-12)
    lite = network(NAME, {"mix": mix, "init": "mhc_lite"}).residual
    weights = lite.weights(lite.open(x), 1)
    written = torch.tensor([2 * sigmoid(z) for z in (-1.0, 1.0, -1.0, -1.0)], dtype=x.dtype)
    assert_close(weights["H_post"][0, 0], written, rtol=0, atol=1e-12)
    assert_close(weights["H_pre"][0, 0], written / 2, rtol=0, atol=1e-12)
    assert 0.99 < weights["H_res"].diagonal(dim1=-2, dim2=-1).min() < 1


@pytest.mark.parametrize("mix", MIXES)
def test_the_mix_can_learn_from_the_start(network, x, mix):
    # With 0.99 on its diagonal and beyond, H_res is all but frozen.
    residual = network(NAME, {"mix": mix}).residual
    state = residual.open(x)[:1, :1]

    mixed = residual.weights(state, 0)["H_res"][0, 0].flatten()
    rows = [torch.autograd.grad(each, residual.b[0], retain_graph=True)[0] for each in mixed]
    assert torch.stack(rows).norm() > 0.1


def spread_after_training(net, x, steps: int = 20) -> float:
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        (net(x) - x.roll(1, 0)).square().mean().backward()
        optimizer.step()
    return net.states(x)[-1].std(-2).max().item()


@pytest.mark.parametrize("mix", MIXES)
def test_training_tells_the_streams_apart(network, x, mix):
    assert spread_after_training(network(NAME, {"mix": mix}), x) > 1e-5


def test_equal_reads_would_never_tell_the_streams_apart(network, x):
    # The saddle that the home stream is there for: silent maps and equal reads.
    net = network(NAME)
    with torch.no_grad():
        for b in net.residual.b:
            b[:4] = 0.0
    assert spread_after_training(net, x) < 1e-12


@pytest.mark.parametrize("mix", MIXES)
def test_what_is_mixed_is_doubly_stochastic_at_random_parameters(network, x, mix):
    net = network(NAME, {"mix": mix}, random=True)
    for layer, state in enumerate(net.states(x)[:-1]):
        weights = net.residual.weights(state, layer)
        assert weights["H_res"].min() >= 0
        assert (weights["H_res"].sum(-1) - 1).abs().max() < 1e-12
        if mix == "permutations":
            assert (weights["H_res"].sum(-2) - 1).abs().max() < 1e-12
        assert 0 < weights["H_pre"].min() < weights["H_pre"].max() < 1
        assert 1 < weights["H_post"].max() < 2


@pytest.mark.parametrize("mix", MIXES)
def test_the_mixing_rebuilds_the_step(network, x, mix):
    net = network(NAME, {"num_streams": 3, "mix": mix}, random=True)
    state, y = net.states(x)[3], torch.randn_like(x)
    read, carry, write = net.residual.mixing(state, 3)
    assert_close(net.residual.read(state, 3), torch.einsum("...i,...id->...d", read, state))
    after = torch.einsum("...ij,...id->...jd", carry, state) + write.unsqueeze(-1) * y.unsqueeze(-2)
    assert_close(net.residual.step(state, 3, lambda _: y), after, rtol=0, atol=1e-11)
    merged = torch.einsum("i,...id->...d", net.residual.merging(state, 3), state)
    assert_close(net.residual.merge(state, 3), merged, rtol=0, atol=1e-12)


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("size", [0.0, 100.0])
def test_coefficients_stay_in_full_precision_with_finite_gradients_under_autocast(mix, size):
    torch.manual_seed(0)
    residual = build_residual(NAME, {"mix": mix}, width=16, num_sublayers=2)
    with torch.no_grad():
        for b, phi in zip(residual.b, residual.phi, strict=True):
            b.add_(size * torch.randn(b.shape).sign())
            phi.normal_()
    branch = torch.nn.Linear(16, 16)
    x = torch.randn(4, 3, 16)
    state = residual.open(x)
    full = residual.weights(state, 0)
    with torch.autocast("cpu", torch.bfloat16):
        for key, value in residual.weights(state, 0).items():
            assert torch.equal(value, full[key]), key
        for layer in range(2):
            state = residual.step(state, layer, branch)
        output = residual.close(state, 2)
    assert output.isfinite().all()
    gradients = torch.autograd.grad(output.square().sum() + output[..., 0].sum(), residual.parameters())
    assert all(gradient.isfinite().all() for gradient in gradients)


def test_parameters_are_those_of_the_published_table():
    scheme = RESIDUALS[NAME]
    for num_streams, width, expected in [(2, 128, 2059), (4, 64, 6171), (4, 512, 49179), (8, 128, 82003)]:
        assert scheme.extra_parameters(width, 1, norm="layer_norm", num_streams=num_streams) == expected
    for num_streams in (1, 2, 3, 4):
        options = {"num_streams": num_streams, "mix": "permutations"}
        residual = build_residual(NAME, options, width=8, num_sublayers=3)
        extra = scheme.extra_parameters(8, 3, norm="layer_norm", **options)
        assert sum(p.numel() for p in residual.parameters()) == 4 * 16 + extra


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mix": "softmax"}, "unknown mix 'softmax'.*sinkhorn, permutations"),
        ({"init": "identity"}, "unknown init 'identity'.*home, megatron, mhc_lite"),
        ({"mix": "permutations", "num_streams": 5}, "at most 4 .* got 5"),
        ({"num_streams": 0}, "at least 1; got 0"),
    ],
)
def test_a_wrong_option_is_one_clear_message(options, message):
    with pytest.raises(ValueError, match=message):
        build_residual(NAME, options, width=8, num_sublayers=2)

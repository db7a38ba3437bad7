"""Frac-Connections against the paper's equations as index loops, on random parameters."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from fints.residual import RESIDUALS, build_residual

NAMES = ["static_frac_connections", "frac_connections"]
FRACTIONS = [1, 2, 4, 8]


def norm_of_vector(norm, h: Tensor) -> Tensor:
    mean = sum(h[d] for d in range(len(h))) / len(h)
    variance = sum((h[d] - mean) ** 2 for d in range(len(h))) / len(h)
    return (h - mean) / (variance + norm.eps).sqrt() * norm.weight + norm.bias


def one_token_coefficients(residual, name: str, layer: int, fractions: list[Tensor]):
    """Y[i][j], A[i][j], B[j] of one token, number by number."""
    m = len(fractions)
    y = [[residual.Y[layer][i, j] for j in range(m)] for i in range(m)]
    a = [[residual.A[layer][i, j] for j in range(m)] for i in range(m)]
    b = [residual.B[layer][0, j] for j in range(m)]
    if name == "frac_connections":
        w_y, w_a, w_beta = residual.W[layer].split([m, m, 1], dim=1)
        s_alpha, s_beta = residual.s_alpha[layer], residual.s_beta[layer]
        normed = [norm_of_vector(residual.coefficient_norms[layer], h) for h in fractions]
        for i in range(m):
            b[i] = b[i] + s_beta * torch.tanh(normed[i] @ w_beta[:, 0])
            for j in range(m):
                y[i][j] = y[i][j] + s_alpha * torch.tanh(normed[i] @ w_y[:, j])
                a[i][j] = a[i][j] + s_alpha * torch.tanh(normed[i] @ w_a[:, j])
    return y, a, b


def one_token(net, name: str, x: Tensor, m: int) -> Tensor:
    """The whole network on one token (D,), from the paper."""
    part = len(x) // m
    h = [x[i * part : (i + 1) * part] for i in range(m)]
    for layer, branch in enumerate(net.branches):
        y_mix, a_mix, b = one_token_coefficients(net.residual, name, layer, h)
        u = torch.cat([sum(y_mix[i][j] * h[i] for i in range(m)) for j in range(m)])
        y = branch(norm_of_vector(net.residual.norms[layer], u))
        h = [
            sum(a_mix[i][j] * h[i] for i in range(m)) + b[j] * y[j * part : (j + 1) * part] for j in range(m)
        ]
    return norm_of_vector(net.residual.final_norm, torch.cat(h))


@pytest.mark.parametrize("num_fractions", FRACTIONS)
@pytest.mark.parametrize("name", NAMES)
def test_frac_connections_are_their_equation(network, x, name, num_fractions):
    x = x[:, :2]
    options = {"num_fractions": num_fractions}
    net = network(name, options, num_sublayers=3, random=True, norm_eps=1e-5)
    literal = torch.stack([torch.stack([one_token(net, name, t, num_fractions) for t in row]) for row in x])
    assert_close(net(x), literal, rtol=0, atol=1e-11)


@pytest.mark.parametrize("num_fractions", FRACTIONS)
@pytest.mark.parametrize("name", NAMES)
def test_the_start_is_pre_norm_with_its_scale_and_gradients(network, x, name, num_fractions):
    net = network(name, {"num_fractions": num_fractions}, norm_eps=1e-5)
    reference = network("pre_norm", norm_eps=1e-5)
    for ours, theirs in zip(net.states(x), reference.states(x), strict=True):
        assert_close(ours, theirs, rtol=0, atol=1e-12)
    target = x.roll(1, 0)
    gradients = [
        torch.autograd.grad((each(x) - target).square().sum(), list(each.branches.parameters()))
        for each in (net, reference)
    ]
    for ours, theirs in zip(*gradients, strict=True):
        assert theirs.abs().max() > 1e-3
        assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("static_frac_connections", "static_hyper_connections"),
        ("frac_connections", "dynamic_hyper_connections"),
    ],
)
def test_one_fraction_is_hyper_connections_of_one_stream(network, x, name, other):
    fractions = network(name, {"num_fractions": 1}, random=True)
    streams = network(other, {"num_streams": 1})
    values = {
        key.replace("Y.", "A_m.").replace("A.", "A_r."): value
        for key, value in fractions.residual.state_dict().items()
    }
    streams.residual.load_state_dict(values)
    assert_close(fractions(x), streams(x), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_only_equal_offsets_of_fractions_are_mixed(network, x, name):
    # Permuting the offsets inside all fractions alike commutes with the mix (whose norm, in the
    # dynamic one, must not tell offsets apart for that).
    residual = network(name, random=True).residual
    order = torch.randperm(4, generator=torch.Generator().manual_seed(4))
    if name == "frac_connections":
        with torch.no_grad():
            for norm, W in zip(residual.coefficient_norms, residual.W, strict=True):
                norm.weight.fill_(1.3), norm.bias.fill_(0.2)
                W.copy_(W[:1].expand_as(W) + 0.0)

    def permuted(h: Tensor) -> Tensor:
        return h.unflatten(-1, (4, 4))[..., order].flatten(-2)

    assert_close(residual.read(permuted(x), 2), permuted(residual.read(x, 2)), rtol=0, atol=1e-12)
    shocked = x.clone()
    shocked[..., 5] += 1.0
    if name == "static_frac_connections":
        moved = (residual.read(shocked, 2) - residual.read(x, 2))[0, 0].abs() > 1e-9
        assert moved.nonzero().flatten().tolist() == [1, 5, 9, 13]


@pytest.mark.parametrize("name", NAMES)
def test_the_mixing_of_fractions_rebuilds_the_step(network, x, name):
    net = network(name, {"num_fractions": 2}, random=True)
    state, y = net.states(x)[3], torch.randn_like(x)
    read, carry, write = net.residual.mixing_of_fractions(state, 3)
    h, v = state.unflatten(-1, (2, 8)), y.unflatten(-1, (2, 8))
    u = torch.einsum("...ib,...id->...bd", read, h).flatten(-2)
    assert_close(net.residual.read(state, 3), u, rtol=0, atol=1e-12)
    after = torch.einsum("...ij,...id->...jd", carry, h) + torch.einsum("...aj,...ad->...jd", write, v)
    assert_close(net.residual.step(state, 3, lambda _: y), after.flatten(-2), rtol=0, atol=1e-11)
    assert net.residual.mixing(state, 3) is None
    assert net.residual.merging(state, 3) is None


def test_what_a_sublayer_reads_is_the_product_of_fraction_matrices_over_all_earlier_outputs(network, x):
    net = network("static_frac_connections", random=True)
    residual, outputs, state = net.residual, [x], x
    maps = [residual.mixing_of_fractions(x, layer) for layer in range(8)]
    for k, branch in enumerate(net.branches):
        expected = torch.zeros_like(x)
        for j, output in enumerate(outputs):
            matrix = torch.eye(4, dtype=x.dtype) if j == 0 else maps[j - 1].write
            for t in range(j, k):
                matrix = matrix @ maps[t].carry
            matrix = matrix @ maps[k].read
            expected += torch.einsum("ab,...ad->...bd", matrix, output.unflatten(-1, (4, 4))).flatten(-2)
        assert_close(residual.read(state, k), expected, rtol=1e-11, atol=1e-9)
        state = residual.step(state, k, lambda u, branch=branch: outputs.append(branch(u)) or outputs[-1])


def test_parameters_are_those_of_the_published_table():
    sizes = [(2, 128, 10, 460), (4, 64, 36, 214), (4, 128, 36, 390), (4, 512, 36, 1446), (8, 128, 136, 442)]
    for num_fractions, width, static, dynamic in sizes:
        for name, expected in zip(NAMES, (static, dynamic), strict=True):
            given = {"norm": "layer_norm", "num_fractions": num_fractions}
            assert RESIDUALS[name].extra_parameters(width, 1, **given) == expected
            residual = build_residual(name, {"num_fractions": num_fractions}, width=width, num_sublayers=1)
            assert sum(p.numel() for p in residual.parameters()) == 4 * width + expected


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("num_fractions", "message"),
    [(0, "at least 1; got 0"), (3, "width must be a multiple of num_fractions; got 16 and 3")],
)
def test_fractions_that_do_not_divide_the_width_are_refused(name, num_fractions, message):
    with pytest.raises(ValueError, match=message):
        build_residual(name, {"num_fractions": num_fractions}, width=16, num_sublayers=2)

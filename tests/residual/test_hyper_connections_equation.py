"""Hyper-Connections against the paper's equations as index loops, on random parameters."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

STREAMS = [1, 2, 3, 4, 8]
DYNAMIC = [{"tanh": True}, {"tanh": False}]


def norm_of_vector(norm, h: Tensor) -> Tensor:
    mean = sum(h[d] for d in range(len(h))) / len(h)
    variance = sum((h[d] - mean) ** 2 for d in range(len(h))) / len(h)
    return (h - mean) / (variance + norm.eps).sqrt() * norm.weight + norm.bias


def one_token_coefficients(residual, layer: int, streams: list[Tensor]):
    """A_m[i], A_r[i][j], B[j] of one token, number by number."""
    n = len(streams)
    a_m = [residual.A_m[layer][i, 0] for i in range(n)]
    a_r = [[residual.A_r[layer][i, j] for j in range(n)] for i in range(n)]
    b = [residual.B[layer][0, j] for j in range(n)]
    if hasattr(residual, "W"):
        w_m, w_r, w_beta = residual.W[layer].split([1, n, 1], dim=1)
        squash = torch.tanh if residual.tanh else lambda z: z
        normed = [norm_of_vector(residual.coefficient_norms[layer], h) for h in streams]
        for i in range(n):
            a_m[i] = a_m[i] + residual.s_alpha[layer] * squash(normed[i] @ w_m[:, 0])
            b[i] = b[i] + residual.s_beta[layer] * squash(normed[i] @ w_beta[:, 0])
            for j in range(n):
                a_r[i][j] = a_r[i][j] + residual.s_alpha[layer] * squash(normed[i] @ w_r[:, j])
    return a_m, a_r, b


def one_token(net, x: Tensor, num_streams: int) -> Tensor:
    """The whole network on one token (D,), from the paper."""
    n = num_streams
    streams = [x for _ in range(n)]
    for layer, branch in enumerate(net.branches):
        a_m, a_r, b = one_token_coefficients(net.residual, layer, streams)
        u = sum(a_m[i] * streams[i] for i in range(n))
        y = branch(norm_of_vector(net.residual.norms[layer], u))
        streams = [sum(a_r[i][j] * streams[i] for i in range(n)) + b[j] * y for j in range(n)]
    return norm_of_vector(net.residual.final_norm, sum(streams) / n)


def assert_is_the_equation(net, x: Tensor, num_streams: int) -> None:
    literal = torch.stack([torch.stack([one_token(net, token, num_streams) for token in row]) for row in x])
    assert_close(net(x), literal, rtol=0, atol=1e-11)


@pytest.mark.parametrize("num_streams", STREAMS)
def test_static_hyper_connections_are_their_equation(network, x, num_streams):
    net = network(
        "static_hyper_connections", {"num_streams": num_streams}, num_sublayers=4, random=True, norm_eps=1e-5
    )
    assert_is_the_equation(net, x, num_streams)


@pytest.mark.parametrize("options", DYNAMIC, ids=["tanh", "linear"])
@pytest.mark.parametrize("num_streams", STREAMS)
def test_dynamic_hyper_connections_are_their_equation(network, x, num_streams, options):
    options = {"num_streams": num_streams, **options}
    net = network("dynamic_hyper_connections", options, num_sublayers=4, random=True, norm_eps=1e-5)
    assert_is_the_equation(net, x, num_streams)


@pytest.mark.parametrize("name", ["static_hyper_connections", "dynamic_hyper_connections"])
def test_the_output_depends_on_how_streams_are_mixed(network, x, name):
    net = network(name, random=True)
    before = net(x)
    for layer in range(len(net.branches)):
        with torch.no_grad():
            net.residual.A_r[layer][0, -1] += 1
        after = net(x)
        assert (after - before).abs().max() > 1e-3, f"layer {layer}"
        before = after


def test_what_a_sublayer_reads_is_the_sum_of_eq_27_over_all_earlier_outputs(network, x):
    net = network("static_hyper_connections", random=True)
    residual, outputs, state = net.residual, [x], net.residual.open(x)
    n = residual.num_streams
    for k, branch in enumerate(net.branches):
        # c_kj = B^j (prod_{t = j + 1}^{k - 1} A_r^t) A_m^k, and ones for B of the embedding.
        expected = torch.zeros_like(x)
        for j, output in enumerate(outputs):
            row = torch.ones(1, n, dtype=x.dtype) if j == 0 else residual.B[j - 1]
            for t in range(j, k):
                row = row @ residual.A_r[t]
            expected = expected + (row @ residual.A_m[k]) * output
        assert_close(residual.read(state, k), expected, rtol=1e-12, atol=1e-10)
        state = residual.step(state, k, lambda u, branch=branch: outputs.append(branch(u)) or outputs[-1])


def test_the_weights_reported_are_the_coefficients_of_each_token(network, x):
    net = network("dynamic_hyper_connections", {"num_streams": 3}, random=True)
    state = net.states(x)[2]
    weights = net.residual.weights(state, 2)
    assert set(weights) == {"A_m", "A_r", "B"}
    for b, t in [(0, 0), (2, 4)]:
        a_m, a_r, write = one_token_coefficients(net.residual, 2, list(state[b, t]))
        assert_close(weights["A_m"][b, t], torch.stack(a_m), rtol=0, atol=1e-12)
        assert_close(weights["A_r"][b, t], torch.stack([torch.stack(r) for r in a_r]), rtol=0, atol=1e-12)
        assert_close(weights["B"][b, t], torch.stack(write), rtol=0, atol=1e-12)


def test_the_weights_reported_rebuild_the_static_step(network, x):
    net = network("static_hyper_connections", random=True)
    state = net.residual.open(x)
    weights = net.residual.weights(state, 0)
    y = net.branches[0](net.residual.norms[0](torch.einsum("i,ibtd->btd", weights["A_m"], state)))
    expected = torch.einsum("ij,ibtd->jbtd", weights["A_r"], state) + weights["B"][:, None, None, None] * y
    assert_close(net.residual.step(state, 0, net.branches[0]), expected, rtol=0, atol=1e-12)

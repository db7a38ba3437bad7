"""Known layouts as Hyper-Connection matrices, each against a loop that knows nothing of streams."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from fints.residual import StaticHyperConnections, build_residual
from fints.residual.hyper_connection_matrices import (
    exact_parallel_matrices,
    exact_parallel_read_out,
    matrix,
    parallel_matrices,
    post_norm_matrix,
    pre_norm_matrix,
    sequential_matrix,
)

SIZES = [1, 2, 3, 4]


def with_matrices(net, matrices):
    """The network with the same branches and norms around streams mixed by the given matrices."""
    residual = StaticHyperConnections.from_matrices(matrices, 16, norm_eps=1e-12).double()
    residual.norms.load_state_dict(net.residual.norms.state_dict())
    net.residual = residual
    return net


def random_norms(net):
    with torch.no_grad():
        for parameter in net.residual.norms.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(5)))
    return net


def branch_outputs(net, start: int, h, count: int):
    return [
        branch(norm(h))
        for norm, branch in list(zip(net.residual.norms, net.branches, strict=True))[start : start + count]
    ]


def test_the_pre_norm_matrix_gives_pre_norm(network, x):
    reference = random_norms(network("pre_norm"))
    expected = reference.states(x)[-1]
    net = with_matrices(reference, [pre_norm_matrix()] * 8)
    assert_close(net.states(x)[-1][0], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("num_streams", SIZES)
def test_the_sequential_matrix_gives_the_pre_norm_trunk_in_every_stream(network, x, num_streams):
    reference = random_norms(network("pre_norm"))
    expected = reference.states(x)[-1]
    net = with_matrices(reference, [sequential_matrix(num_streams)] * 8)
    assert net.states(x)[-1].shape[0] == num_streams
    for stream in net.states(x)[-1]:
        assert_close(stream, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("num_streams", [2, 4])
def test_the_exact_parallel_matrices_give_the_parallel_block(network, x, num_streams):
    net = random_norms(network("pre_norm"))
    expected = x
    for start in range(0, 8, num_streams):
        expected = expected + sum(branch_outputs(net, start, expected, num_streams))
    groups = 8 // num_streams
    net = with_matrices(net, exact_parallel_matrices(num_streams) * groups)
    assert_close(exact_parallel_read_out(net.states(x)[-1]), expected, rtol=0, atol=1e-11)


@pytest.mark.parametrize("num_streams", [2, 4])
def test_the_papers_parallel_matrices_multiply_the_trunk_at_every_group(network, x, num_streams):
    net = random_norms(network("pre_norm"))
    total = num_streams * x
    for start in range(0, 8, num_streams):
        total = num_streams * total + sum(branch_outputs(net, start, total, num_streams))
    groups = 8 // num_streams
    net = with_matrices(net, parallel_matrices(num_streams) * groups)
    assert_close(net.states(x)[-1].sum(0), total, rtol=1e-12, atol=1e-10)


def test_for_two_streams_the_matrices_are_those_printed():
    assert sequential_matrix().tolist() == [[0, 1, 1], [1, 1, 0], [0, 0, 1]]
    odd, even = parallel_matrices()
    assert odd.tolist() == [[0, 1, 0], [1, 1, 1], [1, 1, 1]]
    assert even.tolist() == [[0, 0, 1], [0, 1, 0], [1, 0, 1]]
    odd, even = exact_parallel_matrices()
    assert odd.tolist() == [[0, 1, 0], [1, 1, 1], [0, 0, 0]]
    assert even.tolist() == [[0, 1, 0], [0, 1, 0], [1, 0, 1]]


def test_the_post_norm_matrix_of_each_token_gives_post_norm(network, x):
    net = network("post_norm")
    h = x - x.mean(-1, keepdim=True)
    for layer, (branch, expected) in enumerate(zip(net.branches, net.states(h)[1:], strict=True)):
        # A branch whose output is centred over D, as the equality needs.
        y = branch(h) - branch(h).mean(-1, keepdim=True)
        connection = post_norm_matrix(h, y, eps=1e-12)
        assert connection.shape == (3, 5, 2, 2)
        A_m, A_r, B = connection[..., 1, :1], connection[..., 1, 1:], connection[..., 0, 1:]
        assert torch.equal(A_m, torch.ones_like(A_m))
        ours = A_r * h + B * y
        centred = net.residual.step(h, layer, lambda u, y=y: y)
        assert_close(ours, centred, rtol=0, atol=1e-12)
        # And the norm alone centres: the trunk of the network itself, whose branch is not centred.
        assert_close(centred, expected, rtol=0, atol=1e-12)
        h = expected


def test_a_matrix_is_read_as_source_then_destination(network, x):
    generator = torch.Generator().manual_seed(7)
    B, A_m, A_r = torch.randn(3, generator=generator), torch.randn(3, generator=generator), torch.eye(3)
    A_r[0, 2] = 5.0
    residual = StaticHyperConnections.from_matrices([matrix(B, A_m, A_r)], 16)
    state = torch.randn(3, 1, 1, 16, generator=generator)
    y = torch.randn(1, 1, 16, generator=generator)
    assert_close(residual.read(state, 0), sum(A_m[i] * state[i] for i in range(3)))
    after = residual.step(state, 0, lambda u: y)
    assert_close(after[0], state[0] + B[0] * y)
    assert_close(after[2], state[2] + 5 * state[0] + B[2] * y)


@pytest.mark.parametrize(
    ("matrices", "message"),
    [
        ([], "one square matrix"),
        ([torch.zeros(2, 3)], "one square matrix .* got shapes"),
        ([torch.zeros(2, 2), torch.zeros(3, 3)], "of one size for each sublayer"),
        ([torch.zeros(1, 1)], "one square matrix"),
        ([torch.ones(2, 2)], "must be 0"),
    ],
)
def test_what_is_no_matrix_of_hyper_connections_is_refused(matrices, message):
    with pytest.raises(ValueError, match=message):
        StaticHyperConnections.from_matrices(matrices, 16)


@pytest.mark.parametrize("make", [sequential_matrix, parallel_matrices, exact_parallel_matrices])
def test_no_streams_are_refused(make):
    with pytest.raises(ValueError, match="at least 1; got 0"):
        make(0)


class Branch(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden, self.output = nn.Linear(16, 32), nn.Linear(32, 16)


@pytest.mark.parametrize("name", ["static_hyper_connections", "dynamic_hyper_connections"])
@pytest.mark.parametrize(
    ("option", "factor"), [(None, 1), ("none", 1), ("mul_sqrt_n", 2), ("div_sqrt_n", 0.5)]
)
def test_fresh_output_weights_are_rescaled_only_if_asked(name, option, factor):
    options = {"num_streams": 4} if option is None else {"num_streams": 4, "out_init_scale": option}
    residual = build_residual(name, options, width=16, num_sublayers=2)
    branch = Branch()
    before = {key: value.clone() for key, value in branch.state_dict().items()}
    residual.init_branch(branch, 1)
    for key, value in branch.state_dict().items():
        assert torch.equal(value, before[key] * (factor if key == "output.weight" else 1)), key


def test_a_scale_that_is_unknown_or_has_nothing_to_scale_is_refused():
    with pytest.raises(ValueError, match=r"out_init_scale 'sqrt'\. Choose one of none, mul_sqrt_n"):
        build_residual("static_hyper_connections", {"out_init_scale": "sqrt"}, width=16, num_sublayers=2)
    residual = build_residual(
        "static_hyper_connections", {"out_init_scale": "div_sqrt_n"}, width=16, num_sublayers=2
    )
    with pytest.raises(ValueError, match="child `output`; got Linear"):
        residual.init_branch(nn.Linear(16, 16), 0)

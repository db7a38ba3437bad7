"""What every scheme in the table keeps, whatever its equation."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from fints.residual import RESIDUALS, build_residual, options_of

NAMES = list(RESIDUALS)
# The embedding is rescaled on entry, as these schemes' equations say.
RESCALE_ON_ENTRY = {"peri_ln", "window_rescaled_pre_norm"}
# Own parameters that decay, by prefix of their names: maps from the state to mixing weights. Gains,
# biases, scalars and static weights do not.
DECAYED = {
    "dynamic_hyper_connections": ("W.",),
    "manifold_hyper_connections": ("phi.",),
    "frac_connections": ("W.",),
    "gated_streams": ("W.",),
    "gated_copies": ("W.",),
    # Two sublayers are one block, which belongs to the upper part.
    "by_depth": ("parts.0.W.",),
}


def states_of(state) -> tuple[torch.Tensor, ...]:
    return state if isinstance(state, tuple) else (state,)


@pytest.fixture(params=NAMES)
def name(request):
    return request.param


@pytest.mark.parametrize("num_streams", [1, 2, 4, 8])
def test_merging_what_was_opened_gives_it_back_bit_for_bit(name, num_streams):
    options = {"num_streams": num_streams} if "num_streams" in options_of(name) else {}
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        residual = build_residual(name, options, width=36, num_sublayers=2).to(dtype)
        x = torch.randn(40, 31, 36, generator=torch.Generator().manual_seed(0)).to(dtype)
        assert torch.equal(residual.merge(residual.open(x), 0), x) == (name not in RESCALE_ON_ENTRY)


# What a branch is given, from what its sublayer reads, where that is not the sublayer's norm of it.
READ_THE_TRUNK = (
    "post_norm",
    "deep_norm",
    "resi_dual",
    "admin",
    "window_scale_restoring_post_norm",
    "frozen_scale_post_norm",
)
BRANCH_INPUT = {name: lambda residual, h, layer: h for name in READ_THE_TRUNK} | {
    "layer_norm_scaling": lambda residual, h, layer: residual.norms[layer](h) * (layer // 2 + 1) ** -0.5,
    "mix_ln": lambda residual, h, layer: h if layer < 2 else residual.norms[layer](h),
    "by_depth": lambda residual, h, layer: residual.part(layer).norms[layer % 4](h),
}


def test_a_branch_is_given_the_norm_of_what_read_returns_and_runs_once(network, x, name):
    net = network(name, random=True)
    state, given = net.residual.open(x), []
    for layer, branch in enumerate(net.branches):
        h = net.residual.read(state, layer)
        state = net.residual.step(state, layer, lambda u, branch=branch: given.append(u) or branch(u))
        assert len(given) == layer + 1
        given_is = BRANCH_INPUT.get(name, lambda residual, h, layer: residual.norms[layer](h))
        expected = given_is(net.residual, h, layer)
        torch.testing.assert_close(given[-1], expected, rtol=0, atol=1e-12)


def test_every_parameter_learns_at_random_coefficients(network, x, name):
    net = network(name, random=True)
    target = torch.randn(x.shape, dtype=x.dtype, generator=torch.Generator().manual_seed(2))
    (net(x) - target).square().sum().backward()
    silent = [key for key, p in net.named_parameters() if p.grad is None or not p.grad.abs().max() > 0]
    assert silent == []


def test_a_state_dict_restores_every_bit(network, x, name):
    trained, fresh = network(name, random=True, seed=1), network(name)
    assert not torch.equal(trained(x), fresh(x))
    fresh.load_state_dict(trained.state_dict())
    assert torch.equal(trained(x), fresh(x))


def test_a_token_changes_nothing_at_the_other_tokens(network, x, name):
    net = network(name, random=True)
    shocked = x.clone()
    shocked[:, 2] *= 1000
    for layer, (before, after) in enumerate(zip(net.states(x), net.states(shocked), strict=True)):
        merged = [net.residual.merge(state, layer) for state in (before, after)]
        # What is scaled by the window's past changes with the past, and never with the future.
        others = [0, 1] if name.startswith("window_") else [0, 1, 3, 4]
        assert torch.equal(merged[0][:, others], merged[1][:, others])
        if layer < len(net.branches):
            for value, other in zip(
                net.residual.weights(before, layer).values(),
                net.residual.weights(after, layer).values(),
                strict=True,
            ):
                if value.shape[:2] == x.shape[:2]:
                    assert torch.equal(value[:, others], other[:, others])


@pytest.mark.parametrize("norm", ["layer_norm", "rms_norm"])
@pytest.mark.parametrize("width", [8, 64, 128])
def test_parameters_are_those_of_the_formula(name, width, norm):
    grid = [1, 2, 4, 8] if "num_streams" in options_of(name) else [None]
    norms = {"layer_norm": 2, "rms_norm": 1}[norm] * width
    for num_streams in grid:
        options = {} if num_streams is None else {"num_streams": num_streams}
        residual = build_residual(name, options, width=width, num_sublayers=3, norm=norm)
        extra = RESIDUALS[name].extra_parameters(width, 3, norm=norm, **options)
        assert sum(p.numel() for p in residual.parameters()) == 4 * norms + extra


def test_parameters_are_those_of_the_published_table():
    static, dynamic = RESIDUALS["static_hyper_connections"], RESIDUALS["dynamic_hyper_connections"]
    for num_streams, width, shc, dhc in [
        (2, 128, 8, 778),
        (4, 64, 24, 538),
        (4, 512, 24, 4122),
        (8, 128, 80, 1618),
    ]:
        sizes = {"norm": "layer_norm", "num_streams": num_streams}
        assert static.extra_parameters(width, 1, **sizes) == shc
        assert dynamic.extra_parameters(width, 1, **sizes) == dhc


def test_only_dynamic_maps_decay(name):
    residual = build_residual(name, None, width=8, num_sublayers=2)
    names = {key for key, _ in residual.named_parameters()}
    assert residual.no_decay() <= names
    expected = {key for key in names if key.startswith(DECAYED.get(name, ()))}
    assert names - residual.no_decay() == expected


@pytest.mark.parametrize("autocast", [False, True], ids=["float32", "bfloat16"])
def test_an_all_zero_window_gives_finite_outputs_and_gradients(name, autocast):
    residual = build_residual(name, None, width=16, num_sublayers=4)
    branches = [torch.nn.Linear(16, 16) for _ in range(4)]
    x = torch.zeros(2, 3, 16, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        state = residual.open(x)
        for layer, branch in enumerate(branches):
            state = residual.step(state, layer, branch)
        output = residual.close(state, 4)
    assert output.isfinite().all()
    gradients = torch.autograd.grad(output.sum(), [x, *residual.parameters()])
    assert all(gradient.isfinite().all() for gradient in gradients)


def test_under_autocast_branches_run_lower_and_the_trunk_does_not(name):
    residual = build_residual(name, None, width=16, num_sublayers=2)
    branch, seen = torch.nn.Linear(16, 16), []
    with torch.autocast("cpu", torch.bfloat16):
        state = residual.open(torch.randn(2, 3, 16))
        for layer in range(2):
            assert residual.read(state, layer).dtype == torch.float32
            assert all(value.dtype == torch.float32 for value in residual.weights(state, layer).values())
            state = residual.step(state, layer, lambda u: seen.append(branch(u)) or seen[-1])
            assert all(part.dtype == torch.float32 for part in states_of(state))
    assert [y.dtype for y in seen] == [torch.bfloat16] * 2


def test_a_scheme_says_whether_its_trunk_grows_with_depth(name):
    torch.manual_seed(0)
    residual = build_residual(name, width=64, num_sublayers=8)
    x = 100 * torch.randn(2, 3, 64)
    residual.calibrate(x, [lambda u: 3 * torch.randn(u.shape)] * 8)
    state = residual.open(x)
    for layer in range(8):
        state = residual.step(state, layer, lambda u: 3 * torch.randn(u.shape))
    length = residual.merge(state, 8).norm(dim=-1).mean().item()
    # This one is normed to the scale of its input.
    length /= 100 if name == "window_scale_restoring_post_norm" else 1
    assert (length < 1.01 * 64**0.5) == residual.part(7).normalises_trunk


def test_every_scheme_says_where_it_is_from(name):
    scheme = RESIDUALS[name]
    assert scheme.paper
    assert "F(" in scheme.equation
    assert scheme.parameter_formula
    for section in ("Source:", "Departures:", "Parameters per sublayer"):
        assert section in scheme.__doc__


def test_a_scheme_says_truly_whether_it_starts_as_pre_norm(network, x, name):
    ours, pre_norm = network(name)(x), network("pre_norm")(x)
    distance = (ours - pre_norm).abs().max().item()
    assert (distance < 1e-10) == RESIDUALS[name].equals_pre_norm_at_start, distance


@pytest.mark.parametrize(
    "name",
    [
        "static_hyper_connections",
        "dynamic_hyper_connections",
        "manifold_hyper_connections",
        "static_frac_connections",
        "frac_connections",
        "gated_streams",
    ],
)
def test_a_silent_branch_leaves_the_mix_of_streams_at_work(network, x, name):
    """A step is affine in what its branch returns, so two other branches tell what a silent one leaves."""
    net = network(name, random=True)
    state = net.states(x)[3]
    y = torch.randn(x.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(5))

    def after(factor):
        return net.residual.step(state, 3, lambda u: factor * y)

    assert_close(after(0.0), 2 * after(1.0) - after(2.0))
    if name != "gated_streams":  # whose streams are carried on as they are
        assert not torch.allclose(after(0.0), state)

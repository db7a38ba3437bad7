"""Learned weights on skip and branch: equations, limits, and where they start."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from fints.residual import build_residual

NORMS = ["layer_norm", "rms_norm"]


@pytest.mark.parametrize("norm", NORMS)
def test_learnable_skip_is_its_equation(network, x, literal_norm, norm):
    net = network("learnable_skip", random=True, norm=norm)
    h = x
    for k, branch in enumerate(net.branches):
        h = net.residual.a[k] * h + net.residual.b[k] * branch(literal_norm(net.residual.norms[k], h))
    assert_close(net(x), literal_norm(net.residual.final_norm, h), rtol=0, atol=1e-12)


@pytest.mark.parametrize("norm", NORMS)
def test_layer_scale_is_its_equation(network, x, literal_norm, norm):
    net = network("layer_scale", random=True, norm=norm)
    h = x
    for k, branch in enumerate(net.branches):
        y = branch(literal_norm(net.residual.norms[k], h))
        h = torch.stack([h[..., d] + net.residual.scale[k][d] * y[..., d] for d in range(16)], dim=-1)
    assert_close(net(x), literal_norm(net.residual.final_norm, h), rtol=0, atol=1e-12)


def test_re_zero_is_its_equation_without_any_norm(network, x):
    net = network("re_zero", random=True)
    h = x
    for k, branch in enumerate(net.branches):
        h = h + net.residual.alpha[k] * branch(h)
    assert_close(net(x), h, rtol=0, atol=1e-12)
    assert {key for key, _ in net.residual.named_parameters()} == {f"alpha.{k}" for k in range(8)}


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize(("name", "options"), [("re_zero", {"branch_norm": "pre"}), ("skip_init", {})])
def test_a_weighted_pre_norm_branch_is_its_equation(network, x, literal_norm, name, options, norm):
    net = network(name, options, random=True, norm=norm)
    h = x
    for k, branch in enumerate(net.branches):
        h = h + net.residual.alpha[k] * branch(literal_norm(net.residual.norms[k], h))
    assert_close(net(x), literal_norm(net.residual.final_norm, h), rtol=0, atol=1e-12)


ZERO = [
    ("re_zero", {}),
    ("re_zero", {"branch_norm": "pre"}),
    ("skip_init", {}),
    ("layer_scale", {"initial_value": 0.0}),
]


@pytest.mark.parametrize(("name", "options"), ZERO)
def test_with_a_weight_of_zero_the_trunk_is_the_embedding_bit_for_bit(network, x, name, options):
    for state in network(name, options).states(x):
        assert torch.equal(state, x)


@pytest.mark.parametrize(("name", "options"), ZERO)
def test_branches_learn_nothing_in_the_first_step_and_something_in_the_second(network, x, name, options):
    net = network(name, options)
    target = torch.randn(x.shape, dtype=x.dtype, generator=torch.Generator().manual_seed(2))
    weights = [weight for key, weight in net.residual.named_parameters() if "norm" not in key]
    for step in range(2):
        net.zero_grad()
        (net(x) - target).square().sum().backward()
        gradients = [parameter.grad for branch in net.branches for parameter in branch.parameters()]
        if step == 0:
            assert all(not gradient.any() for gradient in gradients)
            assert all(weight.grad.abs().max() > 0 for weight in weights)
        else:
            assert all(gradient.abs().max() > 0 for gradient in gradients)
        with torch.no_grad():
            for weight in weights:
                weight -= 0.01 * weight.grad


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("re_zero", {"branch_norm": "pre"}),
        ("skip_init", {"initial_value": 1.0}),
        ("layer_scale", {"initial_value": 1.0}),
    ],
)
def test_with_a_weight_of_one_it_is_pre_norm(network, x, name, options):
    net, pre_norm = network(name, options), network("pre_norm")
    if name == "re_zero":
        for alpha in net.residual.alpha:
            torch.nn.init.ones_(alpha)
    assert torch.equal(net(x), pre_norm(x))


@pytest.mark.parametrize(
    ("num_blocks", "start"), [(1, 0.1), (18, 0.1), (19, 1e-5), (24, 1e-5), (25, 1e-6), (48, 1e-6)]
)
def test_layer_scale_starts_smaller_the_deeper_the_network(num_blocks, start):
    for num_sublayers in (2 * num_blocks - 1, 2 * num_blocks):
        residual = build_residual("layer_scale", width=8, num_sublayers=num_sublayers)
        assert len(residual.scale) == num_sublayers
        assert all(torch.equal(scale, torch.full((8,), start)) for scale in residual.scale)
    for options in ({"initial_value": 0.3}, {"initial_value": 0}):
        residual = build_residual("layer_scale", options, width=8, num_sublayers=2 * num_blocks)
        assert all(torch.equal(scale, torch.full((8,), options["initial_value"])) for scale in residual.scale)
    left_open = build_residual("layer_scale", {"initial_value": None}, width=8, num_sublayers=2 * num_blocks)
    assert left_open.scale[0][0].item() == pytest.approx(start)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("layer_scale", {"initial_value": "small"}, "must be a number; got 'small'"),
        ("layer_scale", {"initial_value": True}, "must be a number; got True"),
        ("skip_init", {"initial_value": None}, "must be a number; got None"),
        ("re_zero", {"branch_norm": "post"}, "branch_norm = 'post' is unknown. Choose one of none, pre"),
    ],
)
def test_a_weight_that_cannot_be_is_one_clear_message(name, options, message):
    with pytest.raises(ValueError, match=message):
        build_residual(name, options, width=8, num_sublayers=2)


def test_a_silent_branch_leaves_the_weight_of_the_skip_at_work(network, x):
    """Dropping a branch (stochastic depth, an ablation) means y = 0, not a sublayer that never was."""
    net = network("learnable_skip", random=True)
    assert_close(net.residual.step(x, 3, torch.zeros_like), net.residual.a[3] * x, rtol=0, atol=0)
    admin, deep_norm = network("admin", random=True).residual, network("deep_norm", random=True).residual
    expected = admin.norms[3](admin.omega[3] * x)
    assert_close(admin.step(x, 3, torch.zeros_like), expected, rtol=0, atol=1e-14)
    expected = deep_norm.norms[3](deep_norm.alpha * x)
    assert_close(deep_norm.step(x, 3, torch.zeros_like), expected, rtol=0, atol=1e-14)


def test_the_mixing_of_a_learnable_skip_rebuilds_its_step(network, x):
    net = network("learnable_skip", random=True)
    outputs = []
    after = net.residual.step(x, 2, lambda u: outputs.append(net.branches[2](u)) or outputs[0])
    mixing = net.residual.mixing(x, 2)
    assert_close(mixing.carry[0, 0] * x + mixing.write[0] * outputs[0], after, rtol=0, atol=1e-12)
    assert mixing.read.item() == 1

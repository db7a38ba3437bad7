"""Every path through the coefficients has the right derivative, at random parameters."""

from __future__ import annotations

import pytest
import torch
from torch.func import functional_call

THREE = {"num_streams": 3}
CASES = [
    ("static_hyper_connections", THREE),
    ("dynamic_hyper_connections", {**THREE, "tanh": True}),
    ("dynamic_hyper_connections", {**THREE, "tanh": False}),
    ("static_frac_connections", {"num_fractions": 2}),
    ("frac_connections", {"num_fractions": 2}),
    ("gated_streams", {**THREE, "variant": "add_write"}),
    ("gated_streams", {**THREE, "variant": "convex_read"}),
    ("gated_streams", {**THREE, "variant": "lerp_write"}),
    ("gated_copies", THREE),
]


# Their maps have n (n^2 + 2 n) D numbers a sublayer, each of which is differenced.
MANIFOLD = [
    ("manifold_hyper_connections", {**THREE, "mix": "sinkhorn"}),
    ("manifold_hyper_connections", {**THREE, "mix": "permutations"}),
]


def assert_gradients_agree(network, name, options, **sizes):
    net = network(name, options, num_sublayers=2, random=True, norm_eps=1e-5, **sizes)
    names = [key for key, _ in net.residual.named_parameters()]
    values = [parameter.detach().requires_grad_() for parameter in net.residual.parameters()]
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(1, 2, sizes["width"], dtype=torch.float64, generator=generator, requires_grad=True)

    def output(x, *values):
        parameters = {f"residual.{key}": value for key, value in zip(names, values, strict=True)}
        return functional_call(net, parameters, (x,))

    assert torch.autograd.gradcheck(output, (x, *values))


@pytest.mark.parametrize(("name", "options"), CASES)
def test_gradients_agree_with_finite_differences(network, name, options):
    assert_gradients_agree(network, name, options, width=6)


@pytest.mark.parametrize(("name", "options"), MANIFOLD)
def test_gradients_agree_with_finite_differences_at_a_small_width(network, name, options):
    assert_gradients_agree(network, name, options, width=2, norm="rms_norm")


@pytest.mark.slow
@pytest.mark.parametrize(("name", "options"), MANIFOLD)
def test_gradients_agree_with_finite_differences_through_all_maps(network, name, options):
    assert_gradients_agree(network, name, options, width=6)

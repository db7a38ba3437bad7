"""Every path through the coefficients has the right derivative, at random parameters."""

from __future__ import annotations

import pytest
import torch
from torch.func import functional_call

CASES = [
    ("static_hyper_connections", {}),
    ("dynamic_hyper_connections", {"tanh": True}),
    ("dynamic_hyper_connections", {"tanh": False}),
]


@pytest.mark.parametrize(("name", "options"), CASES)
def test_gradients_agree_with_finite_differences(network, name, options):
    net = network(name, {**options, "num_streams": 3}, width=6, num_sublayers=2, random=True, norm_eps=1e-5)
    names = [key for key, _ in net.residual.named_parameters()]
    values = [parameter.detach().requires_grad_() for parameter in net.residual.parameters()]
    x = torch.randn(
        1, 2, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(3), requires_grad=True
    )

    def output(x, *values):
        parameters = {f"residual.{key}": value for key, value in zip(names, values, strict=True)}
        return functional_call(net, parameters, (x,))

    assert torch.autograd.gradcheck(output, (x, *values))

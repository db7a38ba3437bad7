"""Every scheme of one stream, and mixtures of two, has the right derivatives, at random parameters."""

from __future__ import annotations

import pytest
import torch
from torch.func import functional_call

CASES = [
    ("pre_norm", {}),
    ("post_norm", {}),
    ("no_skip", {}),
    ("learnable_skip", {}),
    ("sandwich_norm", {}),
    ("peri_ln", {}),
    ("layer_norm_scaling", {}),
    ("layer_scale", {}),
    ("re_zero", {}),
    ("re_zero", {"branch_norm": "pre"}),
    ("skip_init", {}),
    ("deep_norm", {}),
    ("resi_dual", {}),
    ("admin", {}),
    ("window_rescaled_pre_norm", {}),
    ("window_scale_restoring_post_norm", {}),
    ("frozen_scale_post_norm", {}),
    ("mix_ln", {"post_share": 0.5}),
    ("by_depth", {"segments": [["static_hyper_connections", 1, {"num_streams": 2}], ["post_norm", 1]]}),
]
# Those that need two blocks to show what they are.
MIXTURES = ("mix_ln", "by_depth")


@pytest.mark.parametrize(("name", "options"), CASES)
def test_gradients_agree_with_finite_differences(network, name, options):
    num_sublayers = 4 if name in MIXTURES else 2
    net = network(name, options, width=6, num_sublayers=num_sublayers, random=True, norm_eps=1e-5)
    names = [key for key, _ in net.residual.named_parameters()]
    values = [parameter.detach().requires_grad_() for parameter in net.residual.parameters()]
    # The scale of a window is a constant for the gradient, though it depends on x.
    windowed = name.startswith("window")
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(1, 2 if windowed else 1, 6, dtype=torch.float64, generator=generator)
    x.requires_grad_(not windowed)

    def output(x, *values):
        parameters = {f"residual.{key}": value for key, value in zip(names, values, strict=True)}
        return functional_call(net, parameters, (x,))

    assert torch.autograd.gradcheck(output, (x, *values))

"""A mixture by depth whose parts are fused is the plain one, forward and backward."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from fints.residual import build_residual
from fints.residual.fused import fused
from fints.residual.fused_by_depth import FusedByDepth

WIDTH = 64
MIXTURES = [
    [["pre_norm", 1], ["dynamic_hyper_connections", 2]],
    [["dynamic_hyper_connections", 1], ["pre_norm", 1], ["static_hyper_connections", 1]],
    [["frac_connections", 1], ["gated_streams", 1], ["attention_residuals", 1]],
    [["attention_residuals", 2], ["static_frac_connections", 1]],
    [["gated_streams", 2, {"variant": "lerp_write"}], ["deep_norm", 1]],
    [["manifold_hyper_connections", 1], ["denseformer", 1], ["block_attention_residuals", 1]],
]


def drawn(segments: list[Any], norm: str) -> nn.ModuleDict:
    generator = torch.Generator().manual_seed(0)
    num_sublayers = 2 * sum(segment[1] for segment in segments)
    scheme = build_residual(
        "by_depth", {"segments": segments}, width=WIDTH, num_sublayers=num_sublayers, norm=norm
    )
    branches = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(num_sublayers)]
    net = nn.ModuleDict({"scheme": scheme, "branches": nn.ModuleList(branches)})
    for parameter in net.parameters():
        nn.init.normal_(parameter, std=0.3, generator=generator)
    return net


def results(net: nn.ModuleDict, form: Any, x: Tensor) -> list[Tensor]:
    state = form.open(x)
    for layer, branch in enumerate(net["branches"]):
        state = form.step(state, layer, branch)
    z = form.close(state, len(net["branches"]))
    return [z, *torch.autograd.grad(z.pow(3).mean(), [x, *net.parameters()], allow_unused=True)]


@pytest.mark.parametrize("norm", ["layer_norm", "rms_norm"])
@pytest.mark.parametrize("segments", MIXTURES, ids=lambda segments: "-".join(each[0] for each in segments))
def test_the_fused_pass_is_the_plain_one_and_so_are_its_gradients(segments, norm):
    net = drawn(segments, norm)
    form = fused(net["scheme"])
    assert isinstance(form, FusedByDepth)
    x = torch.randn(6, 20, WIDTH, generator=torch.Generator().manual_seed(1)).requires_grad_()
    exact = copy.deepcopy(net).double()
    wanted = results(exact, exact["scheme"], x.detach().double().requires_grad_())
    plain, ours = results(net, net["scheme"], x), results(net, form, x)
    everything = torch.cat([each.flatten() for each in wanted[1:] if each is not None]).norm()
    for found, reference, own in zip(ours, wanted, plain, strict=True):
        assert (found is None) == (reference is None)
        if found is not None and reference is not None and own is not None:
            # Streams that have just been opened are equal, and what reads them has gradients that cancel.
            size = reference.norm() + 0.1 * everything
            error, own_error = (((each.double() - reference).norm() / size).item() for each in (found, own))
            assert error < max(1e-5, 4 * own_error)


def test_a_mixture_of_plain_parts_is_plain():
    segments = [["denseformer", 1], ["gated_copies", 1]]
    assert fused(build_residual("by_depth", {"segments": segments}, width=WIDTH, num_sublayers=4)) is None


def test_a_part_whose_sizes_the_kernels_are_not_made_for_runs_plain():
    segments = [["frac_connections", 1, {"num_fractions": 8}], ["gated_streams", 1]]
    net = drawn(segments, "layer_norm")
    form = fused(net["scheme"])
    assert isinstance(form, FusedByDepth)
    assert form.forms[0] is net["scheme"].parts[0]
    x = torch.randn(2, 20, WIDTH, generator=torch.Generator().manual_seed(1)).requires_grad_()
    for found, plain in zip(results(net, form, x), results(net, net["scheme"], x), strict=True):
        assert_close(found, plain, rtol=0, atol=1e-5 * plain.abs().max().item())


@pytest.mark.parametrize("name", ["pre_norm", "dynamic_hyper_connections", "gated_streams", "layer_scale"])
def test_a_width_that_the_kernels_are_not_made_for_runs_plain_below_another_part_too(name):
    # Below another part a scheme has no final norm to tell its width by.
    segments = [[name, 1], ["gated_copies", 1]]
    scheme = build_residual("by_depth", {"segments": segments}, width=24, num_sublayers=4)
    assert fused(scheme) is None

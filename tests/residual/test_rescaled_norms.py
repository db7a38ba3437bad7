"""Norms that keep, restore or freeze the input's scale: equations, and the identities between them."""

from __future__ import annotations

import math

import pytest
import torch
from torch.testing import assert_close

from fints.residual import build_residual
from fints.residual.rescaled_norms import window_scale

NORMS = ["layer_norm", "rms_norm"]


def literal_scale(window: torch.Tensor, t: int, over: str, eps: float) -> float:
    """The root mean square that token t of one window (T, D) is divided by."""
    seen = window if over == "window" else window[: t + 1]
    numbers = [number.item() for number in seen.flatten()]
    return math.sqrt(sum(number**2 for number in numbers) / len(numbers) + eps)


def scales(x: torch.Tensor, over: str, eps: float) -> torch.Tensor:
    return torch.tensor(
        [[[literal_scale(window, t, over, eps)] for t in range(len(window))] for window in x], dtype=x.dtype
    )


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("over", ["past", "window"])
def test_window_rescaled_pre_norm_is_its_equation(network, x, literal_norm, over, norm):
    net = network("window_rescaled_pre_norm", {"over": over}, random=True, norm=norm, norm_eps=1e-3)
    h = x / scales(x, over, 1e-3)
    for norm_k, branch in zip(net.residual.norms, net.branches, strict=True):
        h = h + branch(literal_norm(norm_k, h))
    assert_close(net(x), literal_norm(net.residual.final_norm, h), rtol=0, atol=1e-12)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("over", ["past", "window"])
def test_window_scale_restoring_post_norm_is_its_equation(network, x, literal_norm, over, norm):
    name = "window_scale_restoring_post_norm"
    net = network(name, {"over": over}, random=True, norm=norm, norm_eps=1e-3)
    s = scales(5 * x, over, 1e-3)
    h = 5 * x
    for norm_k, branch in zip(net.residual.norms, net.branches, strict=True):
        h = s * literal_norm(norm_k, h + branch(h))
    assert_close(net(5 * x), h / s, rtol=0, atol=1e-12)


@pytest.mark.parametrize("norm", NORMS)
def test_frozen_scale_post_norm_is_its_equation(network, x, norm):
    net = network("frozen_scale_post_norm", random=True, norm=norm, norm_eps=1e-3)
    residual = net.residual
    given = 3 * x[:2]
    h, sigmas = given, []
    # First the measurement, sublayer by sublayer, then other windows through the constants.
    for windows in (given, x):
        h = windows
        for k, branch in enumerate(net.branches):
            z = h + branch(h)
            if norm == "layer_norm":
                z = z - z.mean(-1, keepdim=True)
            if len(sigmas) <= k:
                sigmas.append(math.sqrt((z**2).mean().item() + 1e-3))
            h = residual.norms[k].weight * z / sigmas[k]
            if norm == "layer_norm":
                h = h + residual.norms[k].bias
    residual.calibrate(given, list(net.branches))
    assert_close(residual.sigma, torch.tensor(sigmas, dtype=x.dtype), rtol=1e-12, atol=0)
    assert_close(net(x), h, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("norm", NORMS)
def test_frozen_on_one_token_it_is_post_norm_there_and_nowhere_else(network, x, norm):
    net = network("frozen_scale_post_norm", random=True, norm=norm)
    post_norm = network("post_norm", random=True, norm=norm)
    token = x[:1, :1]
    net.residual.calibrate(token, list(net.branches))
    assert_close(net(token), post_norm(token), rtol=0, atol=1e-10)
    assert not torch.isclose(net(2 * token), post_norm(2 * token)).all()


def test_past_and_window_agree_at_the_last_token_and_past_never_looks_ahead(x):
    past, window = window_scale(x, "past", 0.0), window_scale(x, "window", 0.0)
    assert_close(past[:, -1:], window, rtol=0, atol=1e-14)
    later = x.clone()
    later[:, 3:] *= 100
    assert torch.equal(window_scale(later, "past", 0.0)[:, :3], past[:, :3])
    assert not torch.equal(window_scale(later, "window", 0.0), window)
    assert not window_scale(x.clone().requires_grad_(), "past", 0.0).requires_grad


@pytest.mark.parametrize("over", ["past", "window"])
def test_only_the_rescaled_arm_ignores_the_scale_of_a_window(network, x, over):
    rescaled = network("window_rescaled_pre_norm", {"over": over}, random=True, norm_eps=0.0)
    assert_close(rescaled(4 * x), rescaled(x), rtol=0, atol=1e-10)
    for name, options in [
        ("pre_norm", {}),
        ("window_scale_restoring_post_norm", {"over": over}),
        ("frozen_scale_post_norm", {}),
    ]:
        net = network(name, options, random=True, norm_eps=0.0)
        assert not torch.isclose(net(4 * x), net(x)).all(-1).any(), name


def test_the_read_out_of_the_restoring_arm_has_post_norms_scale(network, x):
    net = network("window_scale_restoring_post_norm", norm_eps=0.0)
    for size in (0.01, 1.0, 100.0):
        output = net(size * x)
        assert_close(output.square().mean(-1), torch.ones(3, 5, dtype=x.dtype), rtol=0, atol=1e-9)
        trunk = net.residual.merge(net.states(size * x)[5], 5)
        ratio = trunk.square().mean(-1, keepdim=True).sqrt() / scales(size * x, "past", 0.0)
        assert_close(ratio, torch.ones_like(ratio), rtol=0, atol=1e-9)


def root_mean_square(h: torch.Tensor) -> torch.Tensor:
    return h.square().mean(-1, keepdim=True).sqrt()


def test_pre_norm_divided_by_its_rms_at_every_sublayer_is_gainless_post_norm(network, x):
    pre_norm = network("pre_norm", norm="rms_norm", norm_eps=0.0)
    post_norm = network("post_norm", norm="rms_norm", norm_eps=0.0)
    h = x / root_mean_square(x)
    for k, expected in enumerate(post_norm.states(h)):
        assert_close(h, expected, rtol=0, atol=1e-12)
        if k < len(pre_norm.branches):
            h = pre_norm.residual.step(h, k, pre_norm.branches[k])
            h = h / root_mean_square(h)


def test_post_norm_multiplied_back_by_its_own_rms_is_a_network_without_norm(network, x):
    post_norm = network("post_norm", norm="rms_norm", norm_eps=0.0)
    bare = network("re_zero")
    for alpha in bare.residual.alpha:
        torch.nn.init.ones_(alpha)
    h = x
    for k, branch in enumerate(post_norm.branches):
        h = post_norm.residual.step(h, k, branch) * root_mean_square(h + branch(h))
    assert_close(h, bare(x), rtol=1e-11, atol=1e-11)


def test_a_window_of_unit_scale_is_post_norm_in_the_restoring_arm(network, x):
    x = x / window_scale(x, "window", 0.0)
    name = "window_scale_restoring_post_norm"
    net = network(name, {"over": "window"}, random=True, norm_eps=0.0)
    assert_close(net(x), network("post_norm", random=True, norm_eps=0.0)(x), rtol=0, atol=1e-11)


@pytest.mark.parametrize("name", ["window_rescaled_pre_norm", "window_scale_restoring_post_norm"])
def test_a_scale_over_anything_else_is_refused(name):
    with pytest.raises(ValueError, match=r"over = 'future' is unknown\. Choose past \(causal.*or window"):
        build_residual(name, {"over": "future"}, width=8, num_sublayers=2)

"""The fused forms of all but attention over depth are the plain steps, forward and backward."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

from fints.residual import build_residual
from fints.residual.fused import Fused, fused
from fints.residual.fused_frac import FusedFrac
from fints.residual.fused_gated import FusedGated
from fints.residual.fused_single import FusedPostNorm, FusedSingle

NUM_SUBLAYERS = 5
FRACS = ("static_frac_connections", "frac_connections")
VARIANTS = ("add_write", "convex_read", "lerp_write")
STREAMS = ("static_hyper_connections", "dynamic_hyper_connections")
ADDING = ("pre_norm", "learnable_skip", "layer_scale", "skip_init")
FORMS = [
    *((name, {}, 64, FusedSingle) for name in ADDING),
    ("post_norm", {}, 64, FusedPostNorm),
    *((name, {"num_streams": n}, 48, Fused) for name in STREAMS for n in (1, 2, 3, 4, 5, 6, 7, 8)),
    ("dynamic_hyper_connections", {"tanh": False}, 32, Fused),
    *(("frozen_scale_post_norm", {}, width, FusedPostNorm) for width in (16, 64)),
    *((name, {"num_fractions": m}, 16 * m, FusedFrac) for name in FRACS for m in (1, 2, 3, 4, 5, 6, 7, 8)),
    *((name, {"num_fractions": 2}, 96, FusedFrac) for name in FRACS),
    *(
        ("gated_streams", {"variant": variant, "num_streams": n}, 48, FusedGated)
        for variant in VARIANTS
        for n in (1, 2, 3, 4, 5, 6, 7, 8)
    ),
]
ONE_EACH = [
    *((name, {}, 32) for name in STREAMS),
    *((name, {}, 64) for name in (*ADDING, "post_norm", *FRACS)),
    ("frozen_scale_post_norm", {}, 48),
    *(("gated_streams", {"variant": variant}, 32) for variant in VARIANTS),
]


def drawn(name: str, options: dict[str, Any], width: int, norm: str = "layer_norm") -> nn.ModuleDict:
    """A scheme and its branches away from any start, where many wrong formulas agree with the right one."""
    generator = torch.Generator().manual_seed(0)
    # With a small eps a norm takes the size of what is read away, and its gradient cancels to rounding.
    sizes = {"width": width, "num_sublayers": NUM_SUBLAYERS, "norm": norm, "norm_eps": 0.1}
    scheme = build_residual(name, options, **sizes)
    branches = [nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(NUM_SUBLAYERS)]
    net = nn.ModuleDict({"scheme": scheme, "branches": nn.ModuleList(branches)})
    for parameter in net.parameters():
        nn.init.normal_(parameter, std=0.3, generator=generator)
    for buffer in net.buffers():
        buffer.uniform_(0.5, 2.0, generator=generator)
    return net


def tokens(width: int) -> Tensor:
    """240 tokens: more than one thread has a share."""
    return torch.randn(12, 20, width, generator=torch.Generator().manual_seed(1)).requires_grad_()


def passed(form: Any, branches: Any, x: Tensor, *, checkpointed: bool = False) -> Tensor:
    state = form.open(x)
    for layer, branch in enumerate(branches):
        if checkpointed:
            state = checkpoint(form.step, state, layer, branch, use_reentrant=False)
        else:
            state = form.step(state, layer, branch)
    return form.close(state, len(branches))


def results(net: nn.ModuleDict, form: Any, x: Tensor, *, checkpointed: bool = False) -> list[Tensor]:
    """The read-out and the gradients of the input and of every parameter."""
    z = passed(form, net["branches"], x, checkpointed=checkpointed)
    return [z, *torch.autograd.grad(z.pow(3).mean(), [x, *net.parameters()])]


def agree(net: nn.ModuleDict, x: Tensor, *, checkpointed: bool = False) -> None:
    """Hold the fused pass to the plain one in float64: as near as the plain one in float32, or to 1e-5."""
    exact = copy.deepcopy(net).double()
    wanted = results(exact, exact["scheme"], x.detach().double().requires_grad_())
    plain = results(net, net["scheme"], x)
    ours = results(net, fused(net["scheme"]), x, checkpointed=checkpointed)
    everything = torch.cat([each.flatten() for each in wanted[1:]]).norm()
    names = ["read-out", "x", *(name for name, _ in net.named_parameters())]
    for name, found, reference, own in zip(names, ours, wanted, plain, strict=True):
        # A gradient that cancels to nothing cannot be had better than float32 holds all of them.
        size = reference.norm() + (0.0 if name == "read-out" else 1e-3 * everything)
        error, own_error = (((each.double() - reference).norm() / size).item() for each in (found, own))
        assert error < max(1e-5, 4 * own_error), (name, error, own_error)


@pytest.fixture(params=[1, 2], ids=["one thread", "two threads"])
def _threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("norm", ["layer_norm", "rms_norm"])
@pytest.mark.parametrize(("name", "options", "width", "form"), FORMS)
def test_the_fused_pass_is_the_plain_one_and_so_are_its_gradients(name, options, width, form, norm):
    net = drawn(name, options, width, norm)
    assert isinstance(fused(net["scheme"]), form)
    agree(net, tokens(width))


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize("checkpointed", [False, True], ids=["kept", "checkpointed"])
@pytest.mark.parametrize(("name", "options", "width"), ONE_EACH)
def test_neither_threads_nor_recomputing_matter(name, options, width, checkpointed):
    agree(drawn(name, options, width), tokens(width), checkpointed=checkpointed)


@pytest.mark.parametrize(("name", "options", "width"), ONE_EACH)
def test_a_second_backward_pass_gives_the_same_bits(name, options, width):
    net, x = drawn(name, options, width), tokens(width)
    loss = passed(fused(net["scheme"]), net["branches"], x).pow(3).mean()
    first, second = (torch.autograd.grad(loss, [x, *net.parameters()], retain_graph=True) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize(("name", "options", "width"), ONE_EACH)
def test_a_branch_that_ignores_its_input_cuts_no_gradient(name, options, width):
    net, x = drawn(name, options, width), tokens(width)
    constant = torch.randn(x.shape, generator=torch.Generator().manual_seed(2))
    branches = [lambda u: constant] * NUM_SUBLAYERS
    plain, ours = (
        torch.autograd.grad(passed(form, branches, x).pow(3).mean(), x)[0]
        for form in (net["scheme"], fused(net["scheme"]))
    )
    assert_close(ours, plain, rtol=0, atol=1e-5 * plain.abs().max().item())


@pytest.mark.parametrize(("name", "options", "width"), ONE_EACH)
def test_under_autocast_the_state_stays_in_full_precision(name, options, width):
    net, x = drawn(name, options, width), tokens(width)
    form = fused(net["scheme"])
    with torch.autocast("cpu", torch.bfloat16):
        state = form.step(form.open(x), 0, net["branches"][0])
        assert {part.dtype for part in state if part is not None} == {torch.float32}
        z, plain = passed(form, net["branches"], x), passed(net["scheme"], net["branches"], x)
    assert z.dtype == plain.dtype
    # Branches round to bfloat16 in both; what is around them differs by rounding alone.
    assert (z - plain).norm() / plain.norm() < 0.02


@pytest.mark.parametrize(
    ("name", "options", "width"),
    [
        *((name, {"num_fractions": 4}, 48) for name in FRACS),
        *((name, {"num_fractions": 9}, 144) for name in FRACS),
        ("gated_streams", {}, 24),
        ("gated_streams", {"num_streams": 9}, 32),
    ],
)
def test_what_the_kernels_are_not_made_for_runs_plain(name, options, width):
    assert fused(build_residual(name, options, width=width, num_sublayers=2)) is None


@pytest.mark.parametrize(("name", "options", "width"), ONE_EACH)
def test_a_scheme_in_double_precision_runs_plain(name, options, width):
    assert fused(build_residual(name, options, width=width, num_sublayers=2).double()) is None


@pytest.mark.parametrize(("name", "options", "width"), ONE_EACH)
def test_a_window_of_zeros_stays_finite(name, options, width):
    net = drawn(name, options, width)
    for found in results(net, fused(net["scheme"]), torch.zeros(2, 3, width, requires_grad=True)):
        assert found.isfinite().all()


@pytest.fixture
def _filled():
    """What was allocated and not written holds NaN."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(before)


@pytest.mark.usefixtures("_filled")
@pytest.mark.parametrize("windows", [0, 2])
@pytest.mark.parametrize(("name", "options", "width"), ONE_EACH)
def test_all_that_is_returned_was_written_without_a_window_too(name, options, width, windows):
    net, x = drawn(name, options, width), tokens(width)[:windows].detach().requires_grad_()
    z = passed(fused(net["scheme"]), net["branches"], x)
    found = [z, *torch.autograd.grad(z.sum(), [x, *net["scheme"].parameters()])]
    for each in found:
        assert each.isfinite().all()
        assert windows or not each.any()


@pytest.mark.parametrize(("name", "options", "width"), ONE_EACH)
def test_a_second_derivative_is_refused_and_never_a_part_of_it(name, options, width):
    net, x = drawn(name, options, width), tokens(width)
    z = passed(fused(net["scheme"]), net["branches"], x)
    with pytest.raises(ValueError, match="first derivatives only"):
        torch.autograd.grad(z.pow(3).sum(), x, create_graph=True)

"""The fused form of attention over depth is the plain step, forward and backward."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

from fints.residual import build_residual
from fints.residual.fused import fused
from fints.residual.fused_depth import FusedDepth

# So many that groups of steps have sources enough in common to be read in two phases.
WIDTH, NUM_SUBLAYERS = 32, 19
CASES = [
    ("attention_residuals", {}),
    ("attention_residuals", {"score_norm": "none"}),
    ("attention_residuals", {"normaliser": "sigmoid", "window": 2}),
    ("block_attention_residuals", {"block_size": 1}),
    ("block_attention_residuals", {"block_size": 2}),
    ("block_attention_residuals", {"block_size": 3, "window": 1}),
    ("state_attention", {}),
]


def scheme_and_branches(
    name: str, options: dict, *, width: int = WIDTH, norm: str = "layer_norm"
) -> tuple[nn.Module, list[nn.Module]]:
    generator = torch.Generator().manual_seed(0)
    scheme = build_residual(name, options, width=width, num_sublayers=NUM_SUBLAYERS, norm=norm)
    branches = [nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(NUM_SUBLAYERS)]
    for module in (scheme, *branches):
        for parameter in module.parameters():
            nn.init.normal_(parameter, std=0.3, generator=generator)
    return scheme, branches


def passed(form, branches, x: Tensor, *, checkpointed: bool = False) -> Tensor:
    state = form.open(x)
    for layer, branch in enumerate(branches):
        if checkpointed:
            state = checkpoint(form.step, state, layer, branch, use_reentrant=False)
        else:
            state = form.step(state, layer, branch)
    return form.close(state, len(branches))


def agree(scheme: nn.Module, branches: list[nn.Module], x: Tensor, *, checkpointed: bool = False) -> None:
    """Hold the fused pass and its gradients to the plain ones in float64."""
    form = fused(scheme)
    assert isinstance(form, FusedDepth)
    everything = nn.ModuleList([scheme, *branches])
    exact = copy.deepcopy(everything).double()
    results = []
    for first, net, start, recompute in (
        (exact[0], exact, x.detach().double().requires_grad_(), False),
        (form, everything, x, checkpointed),
    ):
        z = passed(first, net[1:], start, checkpointed=recompute)
        results.append([z, *torch.autograd.grad(z.pow(3).mean(), [start, *net.parameters()])])
    for plain, ours in zip(*results, strict=True):
        scale = plain.abs().max().item()
        assert_close(ours.double(), plain, rtol=0, atol=1e-5 * scale)


@pytest.fixture
def x() -> Tensor:
    # 240 tokens: more than one thread has a share.
    generator = torch.Generator().manual_seed(1)
    return torch.randn(12, 20, WIDTH, generator=generator).requires_grad_()


@pytest.fixture(params=[1, 2], ids=["one thread", "two threads"])
def _threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize("checkpointed", [False, True], ids=["kept", "checkpointed"])
@pytest.mark.parametrize(("name", "options"), CASES)
def test_the_fused_pass_is_the_plain_one_and_so_are_its_gradients(x, name, options, checkpointed):
    agree(*scheme_and_branches(name, options), x, checkpointed=checkpointed)


@pytest.mark.parametrize("norm", ["layer_norm", "rms_norm"])
@pytest.mark.parametrize("tokens", [1, 16, 35])
@pytest.mark.parametrize("width", [16, 80, 144])
def test_any_number_of_tokens_and_any_width_of_whole_vectors_will_do(width, tokens, norm):
    x = torch.randn(tokens, 1, width, generator=torch.Generator().manual_seed(3)).requires_grad_()
    agree(*scheme_and_branches("block_attention_residuals", {"block_size": 3}, width=width, norm=norm), x)


def test_a_branch_that_ignores_its_input_cuts_no_gradient(x):
    scheme, _ = scheme_and_branches("attention_residuals", {})
    constant = torch.randn(x.shape, generator=torch.Generator().manual_seed(2))
    gradients = [
        torch.autograd.grad(passed(form, [lambda u: constant] * NUM_SUBLAYERS, x).pow(3).mean(), x)[0]
        for form in (scheme, fused(scheme))
    ]
    assert_close(*gradients, rtol=0, atol=1e-5 * gradients[0].abs().max().item())


def test_a_second_backward_pass_gives_the_same_numbers(x):
    scheme, branches = scheme_and_branches("block_attention_residuals", {"block_size": 2})
    loss = passed(fused(scheme), branches, x).pow(3).mean()
    first, second = (
        torch.autograd.grad(loss, [x, *scheme.parameters()], retain_graph=True) for _ in range(2)
    )
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_under_autocast_the_sources_stay_in_full_precision(x):
    scheme, branches = scheme_and_branches("attention_residuals", {})
    form = fused(scheme)
    with torch.autocast("cpu", torch.bfloat16):
        z, plain = passed(form, branches, x), passed(scheme, branches, x)
    assert z.dtype == plain.dtype
    # Branches round to bfloat16 in both; what is around them differs by rounding alone.
    assert_close(z, plain, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(
    ("options", "width"), [({"query": "input"}, 32), ({}, 24)], ids=["input query", "width 24"]
)
def test_what_the_kernels_are_not_made_for_runs_plain(options, width):
    assert fused(build_residual("attention_residuals", options, width=width, num_sublayers=2)) is None

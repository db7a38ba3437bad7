"""Two phases of attention over depth are one softmax over all sources."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from fints.residual import build_residual
from fints.residual.depth_functions import planned
from fints.residual.fused_depth import FusedDepth
from fints.residual.two_phase import merged, partial_of

QUERIES, SOURCES, BATCH, TOKENS, WIDTH = 3, 7, 2, 4, 16


@pytest.fixture
def drawn() -> tuple[Tensor, Tensor]:
    """Scores (Q, n, B, T) and sources (n, B, T, D) in float64."""
    generator = torch.Generator().manual_seed(0)
    scores = 3 * torch.randn(QUERIES, SOURCES, BATCH, TOKENS, generator=generator, dtype=torch.float64)
    sources = torch.randn(SOURCES, BATCH, TOKENS, WIDTH, generator=generator, dtype=torch.float64)
    return scores.requires_grad_(), sources.requires_grad_()


def directly(scores: Tensor, sources: Tensor) -> Tensor:
    return torch.einsum("qnbt,nbtd->qbtd", scores.softmax(1), sources)


@pytest.mark.parametrize("split", range(1, SOURCES))
def test_two_phases_are_the_direct_softmax_and_so_are_their_gradients(drawn, split):
    scores, sources = drawn
    first, second = (
        partial_of(scores[:, part], sources[part]) for part in (slice(0, split), slice(split, None))
    )
    found = []
    for mean in (directly(scores, sources), merged(first, second).mean(), merged(second, first).mean()):
        found.append([mean, *torch.autograd.grad(mean.pow(3).sum(), drawn, retain_graph=True)])
    for each in found[1:]:
        for ours, direct in zip(each, found[0], strict=True):
            assert_close(ours, direct, rtol=0, atol=1e-12)


def test_sources_may_come_one_by_one(drawn):
    scores, sources = drawn
    so_far = partial_of(scores[:, :1], sources[:1])
    for i in range(1, SOURCES):
        so_far = merged(so_far, partial_of(scores[:, i : i + 1], sources[i : i + 1]))
    assert_close(so_far.mean(), directly(scores, sources), rtol=0, atol=1e-12)


def test_scores_beyond_what_an_exponential_holds_are_no_matter(drawn):
    scores, sources = drawn[0].detach() * 1e3, drawn[1]
    both = merged(partial_of(scores[:, :3], sources[:3]), partial_of(scores[:, 3:], sources[3:]))
    assert_close(both.mean(), directly(scores, sources), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("attention_residuals", {}),
        ("attention_residuals", {"normaliser": "sigmoid"}),
        ("block_attention_residuals", {"block_size": 3}),
        ("state_attention", {}),
    ],
)
def test_the_fused_pass_in_two_phases_is_that_in_one(name, options):
    generator = torch.Generator().manual_seed(1)
    scheme = build_residual(name, options, width=WIDTH, num_sublayers=20)
    for parameter in scheme.parameters():
        nn.init.normal_(parameter, std=0.5, generator=generator)
    x = torch.randn(5, 20, WIDTH, generator=generator).requires_grad_()
    form = FusedDepth(scheme)
    assert any(step.common for step in form.steps)
    found = []
    for steps in (form.steps, planned([step.reads for step in form.steps], 1)):
        form.steps = steps
        state = form.open(x)
        for layer in range(20):
            state = form.step(state, layer, torch.sin)
        z = form.close(state, 20)
        found.append([z, *torch.autograd.grad(z.pow(3).mean(), [x, *scheme.parameters()])])
    assert not any(step.common for step in form.steps)
    for two, one in zip(*found, strict=True):
        assert_close(two, one, rtol=0, atol=1e-6 * one.abs().max().item())


def test_steps_that_share_too_little_read_one_by_one():
    scheme = build_residual("attention_residuals", {"window": 3}, width=WIDTH, num_sublayers=20)
    assert not any(step.common for step in FusedDepth(scheme).steps)

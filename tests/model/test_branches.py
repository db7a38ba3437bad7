"""Attention and feed-forward against their equations, written out."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from fints.model import CausalSelfAttention, FeedForward


def randomised(branch: nn.Module) -> nn.Module:
    generator = torch.Generator().manual_seed(0)
    for parameter in branch.parameters():
        nn.init.normal_(parameter, std=0.5, generator=generator)
    return branch.double()


def tokens(num_tokens: int, width: int) -> torch.Tensor:
    return torch.randn(2, num_tokens, width, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("relative", [True, False])
@pytest.mark.parametrize("num_tokens", [7, 4, 1])
def test_attention_is_its_equation(relative, num_tokens):
    width, num_heads, context = 12, 3, 7
    attention = randomised(
        CausalSelfAttention(width, num_heads, context=context, dropout=0.0, relative_positions=relative)
    )
    size = width // num_heads
    x = tokens(num_tokens, width)
    query, key, value = (
        x @ w.T + b
        for w, b in zip(
            attention.query_key_value.weight.chunk(3), attention.query_key_value.bias.chunk(3), strict=True
        )
    )
    expected = torch.zeros_like(x)
    for head in range(num_heads):
        columns = slice(head * size, (head + 1) * size)
        for b in range(len(x)):
            for i in range(num_tokens):
                scores = []
                for j in range(i + 1):
                    score = query[b, i, columns] @ key[b, j, columns] / math.sqrt(size)
                    if relative:
                        score = score + attention.position_bias[head, context - 1 - (i - j)]
                    scores.append(score.exp())
                for j in range(i + 1):
                    expected[b, i, columns] += scores[j] / sum(scores) * value[b, j, columns]
    expected = expected @ attention.output.weight.T + attention.output.bias
    assert_close(attention(x), expected, rtol=0, atol=1e-12)


def test_every_relative_position_learns():
    attention = randomised(CausalSelfAttention(8, 2, context=5, dropout=0.0, relative_positions=True))
    attention(tokens(5, 8)).square().sum().backward()
    assert attention.position_bias.grad.abs().min() > 0
    assert attention.position_bias.shape == (2, 5)


@pytest.mark.parametrize(
    ("activation", "function"),
    [
        ("gelu", lambda z: z * 0.5 * (1 + torch.erf(z / math.sqrt(2)))),
        ("relu", lambda z: z.clamp(min=0)),
        ("silu", lambda z: z / (1 + torch.exp(-z))),
    ],
)
def test_feed_forward_is_its_equation(activation, function):
    branch = randomised(FeedForward(6, 10, activation=activation, dropout=0.0))
    x = tokens(3, 6)
    hidden = function(x @ branch.hidden.weight.T + branch.hidden.bias)
    assert_close(branch(x), hidden @ branch.output.weight.T + branch.output.bias, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", ["attention", "feed_forward"])
def test_dropout_acts_on_the_output_and_only_in_training(kind):
    def make(dropout):
        torch.manual_seed(0)
        if kind == "attention":
            return CausalSelfAttention(64, 2, context=9, dropout=dropout, relative_positions=True)
        return FeedForward(64, 64, activation="gelu", dropout=dropout)

    with torch.random.fork_rng(devices=[]):
        plain, dropping = make(0.0), make(0.25)
        x = tokens(9, 64).float()
        kept = dropping(x)
    dropped = kept == 0
    assert dropped.float().mean().item() == pytest.approx(0.25, abs=0.05)
    assert_close(kept[~dropped], (plain(x) / 0.75)[~dropped], rtol=1e-6, atol=1e-7)
    assert torch.equal(dropping.eval()(x), plain(x))


def test_impossible_sizes_and_names_are_refused():
    with pytest.raises(ValueError, match="multiple of num_heads; got 10 and 4"):
        CausalSelfAttention(10, 4, context=5, dropout=0.0, relative_positions=True)
    with pytest.raises(ValueError, match="unknown activation 'tanh'"):
        FeedForward(8, 8, activation="tanh", dropout=0.0)

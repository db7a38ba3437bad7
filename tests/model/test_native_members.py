"""The kernels of several networks' branches are those of one, whatever the sizes and whoever is beside."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fints.model.branches import CausalSelfAttention, FeedForward
from fints.model.native_members import attend_all, feed_forward_all, has_stacked_form
from fints.training import threads

# Rows that fill no block of 48, and columns of every strip.
SIZES = [(16, 2, 64, 5, 13), (32, 4, 128, 4, 24), (48, 3, 80, 2, 33), (80, 5, 112, 1, 7)]


def randomised(branch: torch.nn.Module, seed: int) -> torch.nn.Module:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in branch.parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
    return branch


def stacked(branches: list[Any], names: list[str]) -> list[Tensor]:
    """Return parameters side by side in one tensor, a row a network, as a stack has them."""
    parts = [torch.stack([b.get_parameter(name).detach() for b in branches]) for name in names]
    flat = torch.cat([part.flatten(1) for part in parts], dim=1)
    pieces = flat.split([part[0].numel() for part in parts], dim=1)
    return [piece.view(part.shape).requires_grad_() for piece, part in zip(pieces, parts, strict=True)]


def expected(branches: list[Any], run: Any, inputs: list[Tensor], dy: Tensor) -> list[Tensor]:
    """Return outputs and gradients of each network by itself, stacked, in double precision."""
    found = []
    for k, branch in enumerate(branches):
        branch.double()
        own = [each[k].detach().double().requires_grad_() for each in inputs]
        y = run(branch, *own)
        y.backward(dy[k].double())
        found.append([y, *(each.grad for each in own), *(p.grad for p in branch.parameters())])
    return [torch.stack(list(column)).detach() for column in zip(*found, strict=True)]


def assert_close(found: list[Tensor], wanted: list[Tensor]) -> None:
    assert len(found) == len(wanted)
    for own, other in zip(found, wanted, strict=True):
        scale = float(other.abs().max())
        torch.testing.assert_close(own.double(), other, rtol=1e-4, atol=2e-6 * max(scale, 1e-3))


@pytest.mark.parametrize(("width", "heads", "hidden", "batch", "tokens"), SIZES)
def test_feed_forwards_of_several_networks_are_each_their_equation(
    width: int, heads: int, hidden: int, batch: int, tokens: int
) -> None:
    branches = [
        randomised(FeedForward(width, hidden, activation="gelu", dropout=0.0), seed) for seed in range(3)
    ]
    assert has_stacked_form(branches[0])
    names = [name for name, _ in branches[0].named_parameters()]
    maps = stacked(branches, names)
    u = torch.randn(3, batch, tokens, width, requires_grad=True)
    dy = torch.randn(3, batch, tokens, width)
    y = feed_forward_all(u, *maps)
    y.backward(dy)
    found = [y, u.grad, *(each.grad for each in maps)]
    assert_close(found, expected(branches, lambda branch, one: branch(one), [u], dy))


@pytest.mark.parametrize(("width", "heads", "hidden", "batch", "tokens"), SIZES)
@pytest.mark.parametrize("mixes", [False, True])
def test_attentions_of_several_networks_are_each_their_equation(
    width: int, heads: int, hidden: int, batch: int, tokens: int, mixes: bool
) -> None:
    branches = [
        randomised(
            CausalSelfAttention(
                width,
                heads,
                context=tokens + 3,
                dropout=0.0,
                relative_positions=True,
                value_residual="learned" if mixes else "none",
            ),
            seed,
        )
        for seed in range(3)
    ]
    names = [name for name, _ in branches[0].named_parameters()]
    own = dict(zip(names, stacked(branches, names), strict=True))
    u = torch.randn(3, batch, tokens, width, requires_grad=True)
    first = torch.randn(3, batch, tokens, width, requires_grad=True)
    dy = torch.randn(3, batch, tokens, width)
    maps = tuple(
        own[f"{part}.{kind}"] for part in ("query_key_value", "output") for kind in ("weight", "bias")
    )
    y, *_ = attend_all(
        u,
        maps,
        own["position_bias"],
        first if mixes else None,
        own.get("value_mix"),
        num_heads=heads,
        hand_on=False,
    )
    y.backward(dy)

    def run(branch: CausalSelfAttention, one: Tensor, *values: Tensor) -> Tensor:
        # The plain branch has its values head by head.
        by_head = [
            each.view(batch, tokens, heads, -1).transpose(1, 2).reshape(batch * heads, tokens, -1)
            for each in values
        ]
        return branch.attend(one, by_head[0] if by_head else None)[0]

    inputs = [u, first] if mixes else [u]
    found = [y, *(each.grad for each in inputs), *(own[name].grad for name in names)]
    assert_close(found, expected(branches, run, inputs, dy))


def test_values_that_are_handed_on_bring_their_gradient_back() -> None:
    branches = [
        randomised(CausalSelfAttention(16, 2, context=6, dropout=0.0, relative_positions=False), seed)
        for seed in range(2)
    ]
    names = [name for name, _ in branches[0].named_parameters()]
    own = dict(zip(names, stacked(branches, names), strict=True))
    u = torch.randn(2, 3, 6, 16, requires_grad=True)
    dvalue = torch.randn(2, 3, 6, 16)
    maps = tuple(own.values())
    _, value, *_ = attend_all(u, maps, None, None, None, num_heads=2, hand_on=True)
    value.backward(dvalue)

    def run(branch: CausalSelfAttention, one: Tensor) -> Tensor:
        y, handed = branch.attend(one, None)
        # The map out has no part in the values.
        return handed.view(3, 2, 6, 8).transpose(1, 2).reshape(3, 6, 16) + 0.0 * y.sum()

    wanted = expected(branches, run, [u], dvalue)
    assert_close([value, u.grad, *(each.grad for each in own.values())], wanted)


def test_a_network_has_the_same_bits_whoever_is_beside_it_and_on_however_many_threads() -> None:
    branches = [randomised(FeedForward(32, 64, activation="gelu", dropout=0.0), seed) for seed in range(4)]
    names = [name for name, _ in branches[0].named_parameters()]
    u = torch.randn(4, 6, 9, 32)

    def run(members: list[int], number: int) -> list[Tensor]:
        maps = stacked([branches[k] for k in members], names)
        own = u[members].clone().requires_grad_()
        with threads(number):
            y = feed_forward_all(own, *maps)
            y.square().sum().backward()
        return [y.detach(), own.grad, *(each.grad for each in maps)]

    everybody = run([0, 1, 2, 3], 1)
    for members, number in (([0, 1, 2, 3], 2), ([2], 1), ([2, 0], 3)):
        for own, other in zip(run(members, number), everybody, strict=True):
            assert torch.equal(own, other[members])

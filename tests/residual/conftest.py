"""Small float64 networks of residual schemes, at the start and on random parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fints.residual import Residual, build_residual

WIDTH, NUM_SUBLAYERS = 16, 8


class Network(nn.Module):
    """A residual scheme around small token-wise branches."""

    def __init__(self, residual: Residual, branches: list[nn.Module]) -> None:
        super().__init__()
        self.residual = residual
        self.branches = nn.ModuleList(branches)

    def states(self, x: Tensor) -> list[Any]:
        """The state before each sublayer and after the last."""
        states = [self.residual.open(x)]
        for layer, branch in enumerate(self.branches):
            states.append(self.residual.step(states[-1], layer, branch))
        return states

    def forward(self, x: Tensor) -> Tensor:
        return self.residual.close(self.states(x)[-1], len(self.branches))


def make_branch(width: int, generator: torch.Generator) -> nn.Module:
    branch = nn.Sequential(nn.Linear(width, 2 * width), nn.Tanh(), nn.Linear(2 * width, width)).double()
    for parameter in branch.parameters():
        nn.init.normal_(parameter, std=0.4, generator=generator)
    return branch


@pytest.fixture
def network() -> Callable[..., Network]:
    """Build a network; the branches depend on the seed alone, whatever the scheme."""

    def make(
        name: str,
        options: dict[str, Any] | None = None,
        *,
        width: int = WIDTH,
        num_sublayers: int = NUM_SUBLAYERS,
        seed: int = 0,
        norm_eps: float = 1e-12,
        random: bool = False,
        **given: Any,
    ) -> Network:
        generator = torch.Generator().manual_seed(seed)
        branches = [make_branch(width, generator) for _ in range(num_sublayers)]
        residual = build_residual(
            name, options, width=width, num_sublayers=num_sublayers, norm_eps=norm_eps, **given
        ).double()
        if random:
            for parameter in residual.parameters():
                nn.init.normal_(parameter, std=0.7, generator=generator)
        return Network(residual, branches)

    return make


@pytest.fixture
def x() -> Tensor:
    """Three windows of five tokens (3, 5, 16), unit normal."""
    return torch.randn(3, 5, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def literal_norm() -> Callable[[nn.Module, Tensor], Tensor]:
    """The norm over the last axis, from its definition."""

    def normed(norm: nn.Module, h: Tensor) -> Tensor:
        if isinstance(norm, nn.LayerNorm):
            centred = h - h.sum(-1, keepdim=True) / h.shape[-1]
            variance = (centred * centred).sum(-1, keepdim=True) / h.shape[-1]
            return centred / (variance + norm.eps).sqrt() * norm.weight + norm.bias
        return h / ((h * h).sum(-1, keepdim=True) / h.shape[-1] + norm.eps).sqrt() * norm.weight

    return normed

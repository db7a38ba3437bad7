"""One forward pass of a training step, with a place at each sublayer where its backward pass can be changed.

Shapes: K networks, B batch, T tokens, D width, L sublayers; K is there only where parameters are stacked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fints.residual import Branch, Residual

__all__ = ["Passing"]

Rule = Callable[[int, Tensor], Tensor]


class Passing:
    """What each sublayer read and returned in one pass.

    Attributes
    ----------
    read : list of Tensor
        u_k (K, B, T, D), what sublayer k read before any norm.
    outputs : list of Tensor
        y_k (K, B, T, D) as the scheme received it.
    rule : callable or None
        ``rule(layer, g)`` is what goes on into branch `layer` in a backward pass where g = dL/dy_k
        arrives, in the shape of y_k; None passes on g. It may be set anew between two backward passes of
        the same graph.
    """

    def __init__(self) -> None:
        self.read: list[Tensor] = []
        self.outputs: list[Tensor] = []
        self.rule: Rule | None = None

    def release(self) -> None:
        """Forget the pass.

        Its graph knows this place, and this place what came out of the graph: a circle that no collector
        sees, for half of it is not Python's. Without this every step would stay in memory.
        """
        self.read.clear()
        self.outputs.clear()
        self.rule = None

    def watch(self, residual: Residual[Any], state: Any, layer: int, branch: Branch) -> Branch:
        """Return `branch`, whose output passes this place unchanged, bit for bit."""
        read = residual.read(state, layer)
        return lambda u: self.at(layer, read, branch(u))

    def at(self, layer: int, read: Tensor, y: Tensor) -> Tensor:
        """Note what sublayer `layer` read and returned, and return the latter unchanged, bit for bit."""
        self.read.append(read)
        placed: Tensor = _Place.apply(y, self, layer)
        self.outputs.append(placed)
        return placed


class _Place(torch.autograd.Function):
    """The identity, with a backward pass that asks the rule."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, passing: Passing, layer: int) -> Tensor:
        ctx.passing, ctx.layer = passing, layer
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None]:
        rule = ctx.passing.rule
        return (g if rule is None else rule(ctx.layer, g)), None, None

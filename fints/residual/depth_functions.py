"""The step of attention over depth of `depth_kernels.cpp` as a differentiable function.

Between two branches such a scheme adds what the first returned to its sources, and attends over them for
the second. Both happen in one pass. The sources of all sublayers lie in one tensor, reserved at the start;
a step fills one slot. It returns the tensor for the next one, whose gradient then comes back through
it, and is taken up in the same pass.

Shapes: B batch, T tokens, D width, s slots, M = B T.
"""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fints.residual.native import address, kernels

__all__ = ["Filled", "Slots", "fill_and_attend", "reserve"]

_APART = 5 * 16


class Filled(NamedTuple):
    """Sources so far, and the output that is still to be filled in."""

    sources: Tensor
    """(s, M D and some more)"""
    scale: Tensor
    """(s, M): one over the root mean square of each source, no part of the graph."""
    y: Tensor
    """(B, T, D)"""


class Slots(NamedTuple):
    """What a step fills and reads."""

    chosen: tuple[int, ...]
    """The slots of its sources."""
    fill: int
    """The slot that y goes to."""
    grows: bool
    """Whether the slot before that one is added to y."""
    normed: bool
    sigmoid: bool
    eps: float
    factor: float
    """What the weighted sum is multiplied by."""


def reserve(x: Tensor, count: int) -> Filled:
    """Return room for `count` sources like x (B, T, D), which is the first to be filled in."""
    # Slots a power of two apart would have all sources of a token fall into the same lines of the cache.
    return Filled(x.new_empty(count, x.numel() + _APART), x.new_empty(count, x[..., 0].numel()), x)


def fill_and_attend(filled: Filled, query: Tensor, slots: Slots) -> tuple[Tensor, Tensor]:
    """Return u = factor * sum_i alpha_i v_i (B, T, D), and the sources with y among them.

    A state may be stepped from once, or again with the same y, as checkpointing does.
    """
    result: tuple[Tensor, Tensor] = _FillAndAttend.apply(*filled, query, slots)
    return result


def _arguments(sources: Tensor, scale: Tensor, width: int, slots: Slots) -> tuple[Any, ...]:
    n = len(slots.chosen)
    chosen = (ctypes.c_int64 * n)(*slots.chosen)
    how = (slots.fill, slots.grows, slots.normed, slots.sigmoid, slots.eps, slots.factor)
    return scale.shape[1], width, sources.shape[1], chosen, n, *how


class _FillAndAttend(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, sources: Tensor, scale: Tensor, y: Tensor, query: Tensor, slots: Slots
    ) -> tuple[Tensor, Tensor]:
        y, query = y.contiguous(), query.contiguous()
        alpha = y.new_empty(*y.shape[:-1], len(slots.chosen))
        dots, u = torch.empty_like(alpha), torch.empty_like(y)
        found = [address(tensor) for tensor in (y, query, sources, scale, alpha, dots, u)]
        kernels().fints_depth(
            *_arguments(sources, scale, y.shape[-1], slots), *found, torch.get_num_threads()
        )
        ctx.save_for_backward(sources, scale, query, alpha, dots)
        ctx.slots, ctx.shape = slots, y.shape
        ctx.set_materialize_grads(False)
        return u, sources

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, du: Tensor | None, more: Tensor | None) -> tuple[Tensor | None, ...]:
        sources, scale, query, alpha, dots = ctx.saved_tensors
        if du is None and more is None:
            return None, None, None, None, None
        # The next step made `more` for this one alone, so it may hold the sum.
        more = torch.zeros_like(sources) if more is None else more.contiguous()
        du = sources.new_zeros(ctx.shape) if du is None else du.contiguous()
        dy, dquery = torch.empty_like(du), torch.zeros_like(query)
        found = [address(tensor) for tensor in (query, sources, scale, alpha, dots, du, more, dy, dquery)]
        arguments = _arguments(sources, scale, ctx.shape[-1], ctx.slots)
        kernels().fints_depth_back(*arguments, *found, torch.get_num_threads())
        return more, None, dy, dquery, None

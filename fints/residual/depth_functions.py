"""The step of attention over depth of `depth_kernels.cpp` as a differentiable function.

Between two branches such a scheme adds what the first returned to its sources, and attends over them for
the second. Both happen in one pass, the norm of the second included. The sources of all sublayers lie in
one tensor, reserved at the start; a step fills one slot and returns the tensor for the next one.

Steps that follow one another form groups. The first of a group reads the sources that its steps have in
common for all of them, and each later one merges what that gave with the sources that came since: the two
phases of Kimi Team 2026 (arXiv 2603.15031), whose equation is `fints.residual.two_phase`.

What comes back through that tensor is no gradient of it but what the later steps leave for the earlier
ones: each the gradient of its u. A step sums up what its readers send to the one source that it filled, so
that no source's gradient is written more than once; with it goes what that source gives to the gradients of
its readers' queries, which therefore are whole only at the first step.

Shapes: B batch, T tokens, D width, s slots, M = B T.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fints.residual.first_order import first_order
from fints.residual.native import LANES, address, kernels
from fints.residual.norm_arguments import NormArguments

__all__ = ["Filled", "Reads", "Step", "fill_and_attend", "planned", "reserve"]

_APART = 5 * 16
# Sources in common from which on reading them once a group outweighs writing down what that gives.
_WORTH = 4


class Filled(NamedTuple):
    """Sources so far, and the output that is still to be filled in."""

    sources: Tensor
    """(s + 1, M D and some more), as `depth_kernels.cpp` says; the last slot is used on the way back only."""
    queries: Tensor
    """(s - 1, D), of the steps 1, 2, ..., times the gain of the keys' norm."""
    y: Tensor
    """(B, T, D)"""
    ahead: Tensor
    """What the later steps of a group have of the sources in common, no part of the graph."""


class Reads(NamedTuple):
    """What a step reads; it fills the slot of its own number."""

    chosen: tuple[int, ...]
    """The slots of its sources."""
    grows: bool
    """Whether the slot before its own is added to y."""
    factor: float
    """What the weighted sum is multiplied by."""


class _Reader(ctypes.Structure):
    _fields_ = (("slot", ctypes.c_int64), ("n", ctypes.c_int64), ("factor", ctypes.c_double))


class Step(NamedTuple):
    """A step among all steps, as the kernels take it."""

    reads: Reads
    slot: int
    chosen: ctypes.Array[ctypes.c_int64]
    readers: ctypes.Array[_Reader]
    """The steps that read its slot."""
    handed: bool
    """Whether the next step adds this one's slot to its own."""
    group: int
    """The first step of its group."""
    common: int
    """How many of its sources, the first, all steps of the group read; 0 where too few for two phases."""
    later: int
    """How many steps of the group come after it."""


def planned(steps: Sequence[Reads], group_size: int) -> list[Step]:
    """Return the steps that fill the slots 0, 1, ... and know of each other."""
    plan = []
    for slot, reads in enumerate(steps):
        readers = [
            _Reader(later, len(steps[later].chosen), steps[later].factor)
            for later in range(slot, len(steps))
            if slot in steps[later].chosen
        ]
        first = slot - slot % group_size
        last = min(first + group_size, len(steps)) - 1
        common = steps[first].chosen
        shared = all(each.chosen[: len(common)] == common for each in steps[first : last + 1])
        plan.append(
            Step(
                reads=reads,
                slot=slot,
                chosen=(ctypes.c_int64 * len(reads.chosen))(*reads.chosen),
                readers=(_Reader * len(readers))(*readers),
                handed=slot + 1 < len(steps) and steps[slot + 1].grows,
                group=first,
                common=len(common) if shared and last > first and len(common) >= _WORTH else 0,
                later=last - slot,
            )
        )
    return plan


def reserve(x: Tensor, queries: Tensor, plan: Sequence[Step]) -> Filled:
    """Return room for the sources of all steps, like x (B, T, D), which is the first to be filled in."""
    # What has one number a token is taken in whole vectors of tokens.
    lanes = -(-x[..., 0].numel() // LANES) * LANES
    # Slots a power of two apart would have all sources of a token fall into the same lines of the cache.
    slot = x.numel() + 2 * lanes + _APART
    ahead = x.new_empty(LANES + slot * max(step.later if step.common else 0 for step in plan))
    # No group's number: nothing is known yet.
    ahead[0] = -1.0
    return Filled(x.new_empty(len(plan) + 1, slot), queries, x, ahead)


def fill_and_attend(
    filled: Filled, norm: NormArguments, step: Step, *, normed: bool, eps: float, sigmoid: bool
) -> tuple[Tensor, Filled]:
    """Return z = N(u) (B, T, D), u = factor * sum_i alpha_i v_i, and the state with y among its sources.

    A state may be stepped from once, or again with the same y, as checkpointing does.

    Parameters
    ----------
    filled
        The state; its `y` is that of the step before, and in the state returned still is.
    norm
        N.
    step
        Of `planned`.
    normed
        Whether keys are normed.
    eps
        Of the keys' norm.
    sigmoid
        Whether weights are sigmoids of their scores, instead of their softmax.
    """
    how = (step, normed, sigmoid, eps, norm.centred, norm.eps)
    z, sources, queries = _FillAndAttend.apply(*filled, norm.gain, norm.bias, how)
    return z, Filled(sources, queries, filled.y, filled.ahead)


class _FillAndAttend(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        sources: Tensor,
        queries: Tensor,
        y: Tensor,
        ahead: Tensor,
        norm_gain: Tensor | None,
        norm_bias: Tensor | None,
        how: tuple[Any, ...],
    ) -> tuple[Tensor, Tensor, Tensor]:
        y = y.contiguous()
        u, z = torch.empty_like(y), torch.empty_like(y)
        kept = y.new_empty(*y.shape[:-1], 2)
        kernels().fints_depth(
            *_arguments(sources, queries, y.shape, norm_gain, norm_bias, how),
            *(address(ahead), how[0].group, how[0].common, how[0].later),
            *(address(tensor) for tensor in (y, sources, u, kept, z)),
            torch.get_num_threads(),
        )
        ctx.save_for_backward(sources, queries, norm_gain, norm_bias, u, kept)
        ctx.how = how
        ctx.set_materialize_grads(False)
        return z, sources, queries

    @staticmethod
    @first_order
    def backward(
        ctx: Any, dz: Tensor | None, arrived: Tensor | None, dqueries: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        sources, queries, norm_gain, norm_bias, u, kept = ctx.saved_tensors
        step = ctx.how[0]
        # No step comes after the last. What a later one made is for this one alone, and may hold the sum.
        arrived = torch.empty_like(sources) if arrived is None else arrived
        dqueries = torch.zeros_like(queries) if dqueries is None else dqueries
        dz = torch.zeros_like(u) if dz is None else dz.contiguous()
        dy = torch.empty_like(u)
        dgain, dbias = (None if each is None else torch.empty_like(each) for each in (norm_gain, norm_bias))
        kernels().fints_depth_back(
            *_arguments(sources, queries, u.shape, norm_gain, norm_bias, ctx.how),
            *(step.readers, len(step.readers), step.handed, len(sources) - 1),
            *(address(each) for each in (sources, u, kept, dz, arrived, dy, dqueries, dgain, dbias)),
            torch.get_num_threads(),
        )
        return arrived, dqueries, dy, None, dgain, dbias, None


def _arguments(
    sources: Tensor,
    queries: Tensor,
    shape: torch.Size,
    norm_gain: Tensor | None,
    norm_bias: Tensor | None,
    how: tuple[Any, ...],
) -> tuple[Any, ...]:
    """Return the first arguments of both passes."""
    step, normed, sigmoid, eps, centred, norm_eps = how
    reads, width = step.reads, shape[-1]
    sizes = (shape.numel() // width, width, sources.shape[1])
    slots = (step.chosen, len(reads.chosen), step.slot, reads.grows)
    norm = (address(norm_gain), address(norm_bias), centred, norm_eps)
    return *sizes, *slots, normed, sigmoid, eps, reads.factor, *norm, address(queries)

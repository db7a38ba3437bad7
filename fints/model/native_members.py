"""The branches of several networks at once on a CPU, each network's in one piece that stays in the cache.

A small network's products take less time than the calls around them, and what several networks would hold
between two such calls no longer fits the cache: so a whole branch of all of them, products included, is one
call here.

Shapes: K networks, B batch, T tokens, D width. Parameters are stacked (K, ...) and may be slices of one
tensor that holds all parameters of a network side by side.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fints.model.branches import CausalSelfAttention, FeedForward
from fints.residual.first_order import first_order
from fints.residual.native import LANES, address, kernels

__all__ = ["AttentionBranches", "FeedForwards", "attend_all", "feed_forward_all", "has_stacked_form"]


def has_stacked_form(branch: nn.Module) -> bool:
    """Return whether the kernels are made for this branch."""
    weights = list(branch.parameters())
    if any(each.dtype != torch.float32 or each.device.type != "cpu" for each in weights):
        return False
    if isinstance(branch, CausalSelfAttention):
        return branch.output.in_features % LANES == 0
    return (
        isinstance(branch, FeedForward)
        and isinstance(branch.activation, nn.GELU)
        and branch.activation.approximate == "none"
        and branch.hidden.out_features % LANES == 0
        and branch.hidden.in_features % LANES == 0
    )


def feed_forward_all(u: Tensor, w_1: Tensor, b_1: Tensor, w_2: Tensor, b_2: Tensor) -> Tensor:
    """Return W_2 gelu(W_1 u + b_1) + b_2 of each network, for u (K, B, T, D)."""
    y: Tensor = FeedForwards.apply(u, w_1, b_1, w_2, b_2)
    return y


def attend_all(
    u: Tensor,
    maps: tuple[Tensor, Tensor, Tensor, Tensor],
    table: Tensor | None,
    first: Tensor | None,
    mix: Tensor | None,
    *,
    num_heads: int,
    hand_on: bool,
) -> tuple[Tensor, Tensor]:
    """Return the attention of each network, for u (K, B, T, D), and its own values if `hand_on`.

    Parameters
    ----------
    u
        What the branches read.
    maps
        Weight and bias of the map in, weight and bias of the map out.
    table
        The bias by distance (K, heads, context), None without one.
    first, mix
        The first attention's values (K, B, T, D) and their weights (K, 2); None where nothing is mixed.
    num_heads
        Of each network.
    hand_on
        Whether later attentions want the values; they are empty otherwise.
    """
    keep = torch.is_grad_enabled()
    result: tuple[Tensor, Tensor] = AttentionBranches.apply(
        u, *maps, table, first, mix, num_heads, hand_on, keep
    )
    return result


class FeedForwards(torch.autograd.Function):
    """The feed-forwards of K networks; under `torch.vmap` that of one of them."""

    @staticmethod
    def forward(u: Tensor, w_1: Tensor, b_1: Tensor, w_2: Tensor, b_2: Tensor) -> Tensor:
        """Return y (K, B, T, D)."""
        u = u.contiguous()
        y = torch.empty_like(u)
        kernels().fints_feed_forwards(
            *_feed_forwards(u, w_1, b_1, w_2, b_2), address(y), torch.get_num_threads()
        )
        return y

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Keep the input and the parameters; the hidden numbers are made again."""
        u, *maps = inputs
        ctx.save_for_backward(u.contiguous(), *maps)

    @staticmethod
    @first_order
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, ...]:
        """Return the gradients of all inputs."""
        u, *maps = ctx.saved_tensors
        dy = dy.contiguous()
        found = [torch.empty(each.shape) for each in (u, *maps)]
        kernels().fints_feed_forwards_back(
            *_feed_forwards(u, *maps),
            *(address(each) for each in (dy, *found)),
            torch.get_num_threads(),
        )
        return tuple(found)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *given: Any) -> tuple[Tensor, int]:
        """Return the outputs of all members of a `torch.vmap`."""
        u, *maps = _members(info, in_dims, given)
        return feed_forward_all(u, *maps), 0


class AttentionBranches(torch.autograd.Function):
    """The attention branches of K networks; under `torch.vmap` that of one of them."""

    @staticmethod
    def forward(
        u: Tensor,
        w_in: Tensor,
        b_in: Tensor,
        w_out: Tensor,
        b_out: Tensor,
        table: Tensor | None,
        first: Tensor | None,
        mix: Tensor | None,
        num_heads: int,
        hand_on: bool,
        keep: bool,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Return y (K, B, T, D), the own values (empty unless handed on), and what the way back needs."""
        u, first = u.contiguous(), None if first is None else first.contiguous()
        members, batch, tokens, width = u.shape
        qkv, mixed, y = u.new_empty(*u.shape[:-1], 3, width), torch.empty_like(u), torch.empty_like(u)
        whole, rest = divmod(tokens, LANES)
        vectors = LANES * whole * (whole + 1) // 2 + (tokens if rest else 0)
        shares = u.new_empty((members, batch, num_heads, vectors, LANES) if keep else 0)
        kernels().fints_attentions(
            *_sizes(u, num_heads),
            _step(w_in, b_in, w_out, b_out, table),
            *(_start(each) for each in (u, w_in, b_in, w_out, b_out, table)),
            0 if table is None else table.shape[-1],
            *_mixing(first, mix),
            *(address(each) for each in (qkv, mixed, shares if keep else None, y)),
            torch.get_num_threads(),
        )
        value = qkv[..., 2, :].contiguous() if hand_on else u.new_empty(members, 0)
        return y, value, qkv, mixed, shares

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Keep the inputs and what the forward pass made."""
        u, w_in, _, w_out, _, table, first, mix, num_heads, _, _ = inputs
        _, _, qkv, mixed, shares = output
        ctx.mark_non_differentiable(qkv, mixed, shares)
        first = None if first is None else first.contiguous()
        ctx.save_for_backward(u.contiguous(), w_in, w_out, table, first, mix, qkv, mixed, shares)
        ctx.num_heads = num_heads
        ctx.set_materialize_grads(False)

    @staticmethod
    @first_order
    def backward(ctx: Any, dy: Tensor | None, dvalue: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
        """Return the gradients of all inputs."""
        u, w_in, w_out, table, first, mix, qkv, mixed, shares = ctx.saved_tensors
        dy = torch.zeros_like(u) if dy is None else dy.contiguous()
        dvalue = None if dvalue is None or not dvalue.numel() else dvalue.contiguous()
        members, width = len(u), u.shape[-1]
        du, dfirst = torch.empty_like(u), None if first is None else torch.empty_like(first)
        dw_in, dw_out = torch.empty(w_in.shape), torch.empty(w_out.shape)
        db_out = u.new_empty(members, width)
        sizes = [3 * width, 0 if table is None else table[0].numel(), 0 if first is None else 2]
        sums = u.new_empty(members, sum(sizes))
        kernels().fints_attentions_back(
            *_sizes(u, ctx.num_heads),
            _step(w_in, w_out, table),
            *(_start(each) for each in (u, w_in, w_out, table)),
            0 if table is None else table.shape[-1],
            *_mixing(first, mix),
            *(address(each) for each in (qkv, mixed, shares, dy, dvalue, du, dw_in, dw_out, db_out, dfirst)),
            address(sums),
            torch.get_num_threads(),
        )
        db_in, dtable, dmix = sums.split(sizes, dim=1)
        return (
            du,
            dw_in,
            db_in,
            dw_out,
            db_out,
            None if table is None else dtable.view(table.shape),
            dfirst,
            None if first is None else dmix,
            None,
            None,
            None,
        )

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *given: Any) -> tuple[Any, Any]:
        """Return the outputs of all members of a `torch.vmap`."""
        return AttentionBranches.apply(*_members(info, in_dims, given)), (0,) * 5


def _members(info: Any, in_dims: tuple[int | None, ...], given: tuple[Any, ...]) -> list[Any]:
    """Return the arguments of a vmapped call with the members first; what they share is repeated."""
    return [
        each
        if not isinstance(each, Tensor)
        else each.expand(info.batch_size, *each.shape)
        if at is None
        else each.movedim(at, 0)
        for each, at in zip(given, in_dims, strict=True)
    ]


def _feed_forwards(u: Tensor, w_1: Tensor, b_1: Tensor, w_2: Tensor, b_2: Tensor) -> tuple[Any, ...]:
    """Return the first arguments of both passes."""
    members, *_, width = u.shape
    rows = u.numel() // (members * width)
    starts = (_start(each) for each in (u, w_1, b_1, w_2, b_2))
    return members, rows, width, w_1.shape[1], _step(w_1, b_1, w_2, b_2), *starts


def _sizes(u: Tensor, num_heads: int) -> tuple[int, int, int, int, int]:
    members, batch, tokens, width = u.shape
    return members, batch, tokens, num_heads, width // num_heads


def _mixing(first: Tensor | None, mix: Tensor | None) -> tuple[Any, ...]:
    return _start(first), _start(mix), 0 if mix is None else mix.stride(0)


def _start(tensor: Tensor | None) -> int | None:
    """Return where a float32 tensor lies whose members are contiguous each, None for None."""
    if tensor is None:
        return None
    assert tensor.dtype == torch.float32, tensor.dtype
    assert tensor[0].is_contiguous(), tensor.stride()
    return tensor.data_ptr()


def _step(*parameters: Tensor | None) -> int:
    """Return how far the parameters of a network lie from those of the one before, the same for all."""
    steps = {each.stride(0) for each in parameters if each is not None and len(each) > 1}
    assert len(steps) <= 1, steps
    return steps.pop() if steps else 0

"""Branches on a CPU in fewer passes, equal to those of `branches.py`.

A branch is one autograd function here: matrix products are torch's, and between them one pass of
`fints.residual` kernels does what torch would do in many (bias and activation, or the whole attention).

Shapes: B batch, T tokens, D width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fints.model.branches import CausalSelfAttention, FeedForward
from fints.residual.first_order import first_order
from fints.residual.native import LANES, address, kernels

__all__ = ["attend", "feed_forward", "has_native_form"]


def has_native_form(branch: nn.Module) -> bool:
    """Return whether `attend` or `feed_forward` computes this branch faster than it does itself."""
    weights = list(branch.parameters())
    if any(each.dtype != torch.float32 or each.device.type != "cpu" for each in weights):
        return False
    if isinstance(branch, CausalSelfAttention):
        return True
    return (
        isinstance(branch, FeedForward)
        and isinstance(branch.activation, nn.GELU)
        and branch.activation.approximate == "none"
        and branch.hidden.out_features % LANES == 0
    )


def feed_forward(branch: FeedForward, u: Tensor) -> Tensor:
    """Return the output (B, T, D) of a feed-forward whose activation is GELU."""
    if not _in_float32(u):
        result: Tensor = branch(u)
        return result
    hidden, output = branch.hidden, branch.output
    y: Tensor = _FeedForward.apply(u, hidden.weight, hidden.bias, output.weight, output.bias)
    dropped: Tensor = branch.dropout(y)
    return dropped


def attend(
    branch: CausalSelfAttention, u: Tensor, first_value: Tensor | None, *, hand_on: bool
) -> tuple[Tensor, Tensor | None]:
    """Return the output (B, T, D), and the own values (B, T, D) before any mix if `hand_on`.

    Raises
    ------
    ValueError
        If the values are to be mixed and `first_value`, those of the first attention, is None.
    """
    lacking = branch.value_mix is not None and first_value is None
    if lacking or not _in_float32(u) or not has_native_form(branch):
        y, value = branch.attend(u, first_value)
        return y, value if hand_on else None
    maps = branch.query_key_value, branch.output
    y, value = _Attention.apply(
        u,
        *(each for linear in maps for each in (linear.weight, linear.bias)),
        branch.position_bias,
        None if branch.value_mix is None else first_value,
        branch.value_mix,
        branch.num_heads,
        hand_on,
    )
    return branch.dropout(y), value if hand_on else None


def _in_float32(u: Tensor) -> bool:
    return u.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")


class _FeedForward(torch.autograd.Function):
    """W_2 gelu(W_1 u + b_1) + b_2. Kept is the slope of gelu, not its input, so that erf is computed once."""

    @staticmethod
    def forward(ctx: Any, u: Tensor, w_1: Tensor, b_1: Tensor, w_2: Tensor, b_2: Tensor) -> Tensor:
        rows = u.reshape(-1, u.shape[-1])
        hidden = rows @ w_1.t()
        slope = torch.empty_like(hidden)
        kernels().fints_gelu(
            *hidden.shape, address(hidden), address(b_1), address(slope), torch.get_num_threads()
        )
        ctx.save_for_backward(rows, w_1, slope, hidden, w_2)
        return torch.addmm(b_2, hidden, w_2.t()).view_as(u)

    @staticmethod
    @first_order
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, ...]:
        rows, w_1, slope, hidden, w_2 = ctx.saved_tensors
        flat = dy.reshape(-1, dy.shape[-1])
        dz, db_1 = flat @ w_2, slope.new_zeros(slope.shape[-1])
        # In place: dz is the gradient of gelu's value before, of its input after.
        kernels().fints_gelu_back(
            *slope.shape,
            *(address(each) for each in (dz, slope, dz, db_1)),
            torch.get_num_threads(),
        )
        return (dz @ w_1).view_as(dy), dz.t() @ rows, db_1, flat.t() @ hidden, flat.sum(0)


class _Attention(torch.autograd.Function):
    """Causal self-attention, from its input to its output map; see `CausalSelfAttention` for the equation."""

    @staticmethod
    def forward(
        ctx: Any,
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
    ) -> tuple[Tensor, Tensor]:
        batch, tokens, width = u.shape
        rows = u.reshape(-1, width)
        # Without its bias, which the kernel adds.
        qkv = rows @ w_in.t()
        table, first = (None if each is None else each.contiguous() for each in (table, first))
        mixed = torch.empty_like(rows)
        whole, rest = divmod(tokens, LANES)
        vectors = LANES * whole * (whole + 1) // 2 + (tokens if rest else 0)
        kept = any(ctx.needs_input_grad)
        shares = u.new_empty(batch * num_heads, vectors, LANES) if kept else None
        ctx.sizes = (batch, tokens, num_heads, width // num_heads)
        kernels().fints_attention(
            *_given(ctx.sizes, qkv, b_in, table, first, mix),
            address(mixed),
            address(shares),
            torch.get_num_threads(),
        )
        ctx.save_for_backward(rows, w_in, qkv, w_out, mixed, shares, table, first, mix)
        ctx.set_materialize_grads(False)
        value = qkv.view(batch, tokens, 3, width)[:, :, 2].contiguous() if hand_on else u.new_empty(0)
        return torch.addmm(b_out, mixed, w_out.t()).view_as(u), value

    @staticmethod
    @first_order
    def backward(ctx: Any, dy: Tensor | None, dvalue: Tensor | None) -> tuple[Tensor | None, ...]:
        rows, w_in, qkv, w_out, mixed, shares, table, first, mix = ctx.saved_tensors
        dy = torch.zeros_like(rows) if dy is None else dy
        shape, flat = dy.shape, dy.reshape(rows.shape)
        dmixed = flat @ w_out
        dqkv, dfirst = torch.empty_like(qkv), None if first is None else torch.empty_like(first)
        sizes = [qkv.shape[-1], 0 if table is None else table.numel(), 0 if first is None else 2]
        sums = rows.new_zeros(sum(sizes))
        kernels().fints_attention_back(
            *_given(ctx.sizes, qkv, None, table, first, mix),
            *(address(each) for each in (shares, dmixed, dqkv, dfirst, sums)),
            torch.get_num_threads(),
        )
        db_in, dtable, dmix = sums.split(sizes)
        if dvalue is not None:
            # The own values went on to later attentions too.
            own = dvalue.reshape(rows.shape)
            dqkv.view(*rows.shape[:-1], 3, rows.shape[-1])[:, 2] += own
            db_in = db_in + torch.cat([own.new_zeros(2 * own.shape[-1]), own.sum(0)])
        return (
            (dqkv @ w_in).view(shape),
            dqkv.t() @ rows,
            db_in,
            flat.t() @ mixed,
            flat.sum(0),
            None if table is None else dtable.view_as(table),
            dfirst,
            None if first is None else dmix,
            None,
            None,
        )


def _given(
    sizes: tuple[int, int, int, int],
    qkv: Tensor,
    bias: Tensor | None,
    table: Tensor | None,
    first: Tensor | None,
    mix: Tensor | None,
) -> tuple[Any, ...]:
    """Return the first arguments of both passes."""
    context = 0 if table is None else table.shape[-1]
    return (*sizes, address(qkv), address(bias), address(table), context, address(first), address(mix))

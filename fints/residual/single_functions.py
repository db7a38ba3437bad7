"""The pass of `single_kernels.cpp` as a differentiable function; see `fints.residual.fused_single`."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from fints.residual.first_order import first_order
from fints.residual.native import LANES, address, kernels
from fints.residual.norm_arguments import NormArguments

__all__ = ["PendingSum", "add_and_norm"]


class PendingSum(NamedTuple):
    """A stream (B, T, D) and the branch's output that is due on it; nothing is due where y is None."""

    x: Tensor
    y: Tensor | None = None


def add_and_norm(
    pending: PendingSum, skip: Tensor | None, scale: Tensor | None, norm: NormArguments, fixed: float = -1.0
) -> tuple[Tensor, Tensor]:
    """Return N(h) and h = skip x + scale y; skip is one number, scale one or (D,), and None is 1.

    Where `fixed` is not below 0, the norm multiplies by it and not by one over each token's root mean square.
    """
    if pending[1] is None:
        skip = scale = None
    result: tuple[Tensor, Tensor] = _AddAndNorm.apply(*pending, skip, scale, *norm, fixed)
    return result


class _AddAndNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        y: Tensor | None,
        skip: Tensor | None,
        scale: Tensor | None,
        gain: Tensor | None,
        bias: Tensor | None,
        centred: bool,
        eps: float,
        fixed: float,
    ) -> tuple[Tensor, Tensor]:
        x, y = x.contiguous(), None if y is None else y.contiguous()
        ctx.rest = scale is not None and scale.dim() == 1, centred, eps, fixed
        kept, u = x.new_empty(*x.shape[:-1], 2), torch.empty_like(x)
        h = x if y is None else torch.empty_like(x)
        kernels().fints_single(
            *_given(x, y, skip, scale, gain, bias, *ctx.rest),
            *(address(each) for each in (kept, h, u)),
            torch.get_num_threads(),
        )
        ctx.save_for_backward(x, y, skip, scale, gain, bias, kept)
        ctx.set_materialize_grads(False)
        return u, h

    @staticmethod
    @first_order
    def backward(ctx: Any, du: Tensor | None, more: Tensor | None) -> tuple[Tensor | None, ...]:
        x, y, skip, scale, gain, bias, kept = ctx.saved_tensors
        width = x.shape[-1]
        du = torch.zeros_like(x) if du is None else du.contiguous()
        more = None if more is None else more.contiguous()
        dx = torch.empty_like(x)
        alike = y is None or (skip is None and scale is None)
        dy = None if alike else torch.empty_like(x)
        sums = x.new_zeros(3 * width + LANES)
        kernels().fints_single_back(
            *_given(x, y, skip, scale, gain, bias, *ctx.rest),
            *(address(each) for each in (kept, du, more, dx, dy, sums)),
            torch.get_num_threads(),
        )
        dgain, dbias, dscale, dskip = sums.split([width, width, width, LANES])
        return (
            dx,
            None if y is None else dx if alike else dy,
            None if skip is None else dskip.sum().view_as(skip),
            None if scale is None else dscale if scale.dim() else dscale.sum(),
            None if gain is None else dgain,
            None if bias is None else dbias,
            None,
            None,
            None,
        )


def _given(
    x: Tensor,
    y: Tensor | None,
    skip: Tensor | None,
    scale: Tensor | None,
    gain: Tensor | None,
    bias: Tensor | None,
    wide: bool,
    centred: bool,
    eps: float,
    fixed: float,
) -> tuple[Any, ...]:
    """Return the first arguments of both passes."""
    width = x.shape[-1]
    where = (address(each) for each in (x, y, skip, scale))
    return x.numel() // width, width, *where, wide, address(gain), address(bias), centred, eps, fixed

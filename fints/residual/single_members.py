"""The pass of `single_functions` for several networks at once, of schemes that add y as it is.

Shapes: K networks, B batch, T tokens, D width; x, y, h, u (K, B, T, D), gain and bias (K, D).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fints.residual.first_order import first_order
from fints.residual.native import LANES, address, kernels

__all__ = ["add_and_norm_all"]


def add_and_norm_all(
    x: Tensor, y: Tensor | None, gain: Tensor, bias: Tensor | None, *, centred: bool, eps: float
) -> tuple[Tensor, Tensor]:
    """Return N(h) and h = x + y of each network; h is x where y is None.

    Parameters
    ----------
    x, y
        The streams, and what is to be added to them.
    gain, bias
        Of the norms; all of them may be slices of one tensor of K rows.
    centred, eps
        LayerNorm or RMSNorm, and what is added under the root.
    """
    result: tuple[Tensor, Tensor] = _AddAndNormAll.apply(x, y, gain, bias, centred, eps)
    return result


class _AddAndNormAll(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, y: Tensor | None, gain: Tensor, bias: Tensor | None, centred: bool, eps: float
    ) -> tuple[Tensor, Tensor]:
        x, y = x.contiguous(), None if y is None else y.contiguous()
        kept, u = x.new_empty(*x.shape[:-1], 2), torch.empty_like(x)
        h = x if y is None else torch.empty_like(x)
        kernels().fints_singles(
            *_given(x, y, gain, bias, centred, eps),
            *(address(each) for each in (kept, h, u)),
            torch.get_num_threads(),
        )
        ctx.save_for_backward(x, y, gain, bias, kept)
        ctx.rest = centred, eps
        ctx.set_materialize_grads(False)
        return u, h

    @staticmethod
    @first_order
    def backward(ctx: Any, du: Tensor | None, more: Tensor | None) -> tuple[Tensor | None, ...]:
        x, y, gain, bias, kept = ctx.saved_tensors
        width = x.shape[-1]
        du = torch.zeros_like(x) if du is None else du.contiguous()
        more = None if more is None else more.contiguous()
        dx, sums = torch.empty_like(x), x.new_zeros(len(x), 3 * width + LANES)
        kernels().fints_singles_back(
            *_given(x, y, gain, bias, *ctx.rest),
            *(address(each) for each in (kept, du, more, dx, sums)),
            torch.get_num_threads(),
        )
        dgain, dbias = sums[:, :width], sums[:, width : 2 * width]
        return dx, None if y is None else dx, dgain, None if bias is None else dbias, None, None


def _given(
    x: Tensor, y: Tensor | None, gain: Tensor, bias: Tensor | None, centred: bool, eps: float
) -> tuple[Any, ...]:
    """Return the first arguments of both passes."""
    width = x.shape[-1]
    steps = {each.stride(0) for each in (gain, bias) if each is not None and len(each) > 1}
    assert len(steps) <= 1, steps
    starts = (None if each is None else each.data_ptr() for each in (gain, bias))
    rows, step = x[0].numel() // width, steps.pop() if steps else 0
    return len(x), rows, width, step, address(x), address(y), *starts, centred, eps

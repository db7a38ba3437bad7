"""Branches on a CPU in fewer passes, equal to those of `branches.py`.

Shapes: B batch, T tokens, D width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from fints.model.branches import FeedForward
from fints.residual.native import LANES, address, kernels

__all__ = ["feed_forward", "has_native_form"]


def has_native_form(branch: FeedForward) -> bool:
    """Return whether `feed_forward` computes this branch."""
    return (
        isinstance(branch.activation, nn.GELU)
        and branch.activation.approximate == "none"
        and branch.hidden.out_features % LANES == 0
        and branch.hidden.weight.dtype == torch.float32
        and branch.hidden.weight.device.type == "cpu"
    )


def feed_forward(branch: FeedForward, u: Tensor) -> Tensor:
    """Return the output (B, T, D) of a feed-forward whose activation is GELU."""
    if torch.is_autocast_enabled("cpu") or u.dtype != torch.float32:
        result: Tensor = branch(u)
        return result
    hidden: Tensor = _LinearGelu.apply(u, branch.hidden.weight, branch.hidden.bias)
    dropped: Tensor = branch.dropout(branch.output(hidden))
    return dropped


class _LinearGelu(torch.autograd.Function):
    """gelu(W u + b), keeping the slope of gelu instead of its input, so that erf is computed once."""

    @staticmethod
    def forward(ctx: Any, u: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        z = u @ weight.t()
        slope = torch.empty_like(z)
        rows = z.numel() // z.shape[-1]
        kernels().fints_gelu(
            rows, z.shape[-1], address(z), address(bias), address(slope), torch.get_num_threads()
        )
        ctx.save_for_backward(u, weight, slope)
        return z

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dvalue: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        u, weight, slope = ctx.saved_tensors
        dvalue = dvalue.contiguous()
        dz, dbias = torch.empty_like(slope), slope.new_zeros(slope.shape[-1])
        kernels().fints_gelu_back(
            slope.numel() // slope.shape[-1],
            slope.shape[-1],
            *(address(each) for each in (dvalue, slope, dz, dbias)),
            torch.get_num_threads(),
        )
        flat = dz.view(-1, dz.shape[-1])
        return dz @ weight, flat.t() @ u.reshape(-1, u.shape[-1]), dbias

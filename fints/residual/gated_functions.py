"""The step of gated streams of `gated_kernels.cpp` as a differentiable function.

Between two branches the scheme writes what the first returned and reads what the second gets. Both
happen in one pass over the streams, the norm of the second included: so a state is the streams *before*
the last write, and the write that is pending::

    H_i = x_i + w_i y        or, where it is a lerp,        H_i = x_i + w_i (y - x_i)

A pass returns the streams that it wrote, H, for the next one. The gradient of that one then comes back
through H, and is taken up in the same pass.

Shapes: B batch, T tokens, n streams, D width; streams (B, T, n, D), y and z (B, T, D).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from fints.residual.first_order import first_order
from fints.residual.native import address, kernels
from fints.residual.norm_arguments import NormArguments

__all__ = ["READS", "PendingStreams", "write_and_average", "write_and_gate"]

# As gated_kernels.cpp numbers them.
READS = {"add_write": 0, "convex_read": 1, "lerp_write": 2}
_MEAN = 3


class PendingStreams(NamedTuple):
    """Streams and the write that is due on them; nothing is due where y is None."""

    streams: Tensor
    y: Tensor | None = None
    w: Tensor | None = None
    """(B, T, n)"""


def write_and_gate(
    pending: PendingStreams,
    W: Tensor,
    b: Tensor,
    norm: NormArguments,
    *,
    variant: str,
    factor: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return z = N(u), the weights of the next write and H.

    Parameters
    ----------
    W, b
        As in `GatedStreams`.
    factor
        By which w . H_i / rms(H_i) is multiplied.
    eps
        Added to the mean square under the root.
    """
    how = (variant == "lerp_write", READS[variant], factor, eps, norm.centred, norm.eps)
    result: tuple[Tensor, Tensor, Tensor] = _WriteAndGate.apply(*pending, W, b, norm.gain, norm.bias, how)
    return result


def write_and_average(pending: PendingStreams, norm: NormArguments, *, variant: str) -> Tensor:
    """Return N(mean of the streams H)."""
    how = (variant == "lerp_write", _MEAN, 0.0, 0.0, norm.centred, norm.eps)
    z: Tensor = _WriteAndGate.apply(*pending, None, None, norm.gain, norm.bias, how)[0]
    return z


class _WriteAndGate(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        streams: Tensor,
        y: Tensor | None,
        w: Tensor | None,
        W: Tensor | None,
        b: Tensor | None,
        norm_gain: Tensor | None,
        norm_bias: Tensor | None,
        how: tuple[Any, ...],
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        streams = streams.contiguous()
        y = None if y is None else y.contiguous()
        *lead, n, width = streams.shape
        tokens = streams.numel() // (n * width)
        saved = next_w = written = None
        if W is not None:
            saved = streams.new_empty(tokens, 5 * n)
            next_w = streams.new_empty(*lead, n)
            written = streams if y is None else torch.empty_like(streams)
        kept = streams.new_empty(tokens, 2)
        z = streams.new_empty(*lead, width)
        tensors = (streams, y, w, W, b, norm_gain, norm_bias)
        kernels().fints_gated(
            *_arguments(tensors, how),
            *(address(each) for each in (saved, next_w, kept, written, z)),
            torch.get_num_threads(),
        )
        ctx.save_for_backward(*tensors, saved, kept)
        ctx.how = how
        ctx.set_materialize_grads(False)
        return z, next_w, written

    @staticmethod
    @first_order
    def backward(
        ctx: Any, dz: Tensor | None, dnext_w: Tensor | None, more: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        *tensors, saved, kept = ctx.saved_tensors
        streams = tensors[0]
        *lead, n, width = streams.shape
        dz = streams.new_zeros(*lead, width) if dz is None else dz.contiguous()
        if saved is not None:
            dnext_w = streams.new_zeros(*lead, n) if dnext_w is None else dnext_w.contiguous()
        more = None if more is None else more.contiguous()
        # The next pass made `more` for this one alone, so it may hold the sum.
        found = [
            torch.empty_like(streams) if more is None else more,
            *(None if each is None else torch.empty_like(each) for each in tensors[1:]),
        ]
        kernels().fints_gated_back(
            *_arguments(tensors, ctx.how),
            *(address(each) for each in (saved, kept, dz, dnext_w, more)),
            *(address(each) for each in found),
            torch.get_num_threads(),
        )
        return *found, None


def _arguments(
    tensors: tuple[Tensor | None, ...] | list[Tensor | None], how: tuple[Any, ...]
) -> tuple[Any, ...]:
    """Return the first arguments of both passes."""
    assert tensors[0] is not None
    *_, n, width = tensors[0].shape
    lerp, read, factor, eps, centred, norm_eps = how
    found = [address(each) for each in tensors]
    sizes = (tensors[0].numel() // (n * width), width, n)
    return *sizes, *found[:3], lerp, *found[3:5], read, factor, eps, *found[5:], centred, norm_eps

"""The step of Frac-Connections of `frac_kernels.cpp` as a differentiable function.

Between two branches the scheme writes what the first returned and mixes what the second gets. Both
happen in one pass, the norm of the second included: so a state is the mixed fractions *before* the last
write, and the write that is pending::

    H_i = x_i + b_i y_i

Shapes: B batch, T tokens, D width, m fractions; x, y and z (B, T, D).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from fints.residual.first_order import first_order
from fints.residual.native import address, kernels
from fints.residual.norm_arguments import NormArguments

__all__ = ["Coefficients", "PendingFractions", "write_and_mix"]


class PendingFractions(NamedTuple):
    """Fractions and the write that is due on them; nothing is due where y is None."""

    x: Tensor
    """(B, T, D)"""
    y: Tensor | None = None
    b: Tensor | None = None
    """(B, T, m), or (1, m) where all tokens share it."""


class Coefficients(NamedTuple):
    """What a sublayer's coefficients follow from, named as in `FracConnections`; constants if W is None."""

    Y: Tensor
    A: Tensor
    B: Tensor
    W: Tensor | None = None
    s_alpha: Tensor | None = None
    s_beta: Tensor | None = None
    gain: Tensor | None = None
    bias: Tensor | None = None


def write_and_mix(
    pending: PendingFractions, coefficients: Coefficients, norm: NormArguments, *, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return z = N(vec(Y(H)^T H)), vec(A(H)^T H) and B(H), the weights of the next write.

    Parameters
    ----------
    eps
        Of the norm of the coefficients, which is of the kind of `norm`.
    """
    z, carried, b = _WriteAndMix.apply(
        *pending, *coefficients, norm.gain, norm.bias, norm.centred, norm.eps, eps
    )
    return z, carried, coefficients.B if b is None else b


def _empty_like(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else torch.empty_like(tensor)


class _WriteAndMix(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        y: Tensor | None,
        b: Tensor | None,
        Y: Tensor,
        A: Tensor,
        B: Tensor,
        W: Tensor | None,
        s_alpha: Tensor | None,
        s_beta: Tensor | None,
        gain: Tensor | None,
        bias: Tensor | None,
        norm_gain: Tensor,
        norm_bias: Tensor | None,
        centred: bool,
        norm_eps: float,
        eps: float,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        x = x.contiguous()
        y = None if y is None else y.contiguous()
        m, tokens = len(Y), x.numel() // x.shape[-1]
        ctx.step = 0 if b is None or b.numel() == m else m
        ctx.how = (centred, eps, norm_eps)
        activated = moments = next_b = None
        if W is not None:
            # A row is read as whole vectors: the last one's end lies within.
            activated = x.new_empty(tokens * m * (2 * m + 1) + 32)
            moments = x.new_empty(tokens, m, 2)
            next_b = x.new_empty(*x.shape[:-1], m)
        kept = x.new_empty(tokens, 2)
        carried, z = torch.empty_like(x), torch.empty_like(x)
        tensors = (x, y, b, Y, A, B, W, s_alpha, s_beta, gain, bias, norm_gain, norm_bias)
        kernels().fints_frac(
            *_arguments(tensors, ctx.step, ctx.how),
            *(address(each) for each in (activated, moments, next_b, kept, carried, z)),
            torch.get_num_threads(),
        )
        ctx.save_for_backward(*tensors, activated, moments, kept)
        ctx.set_materialize_grads(False)
        return z, carried, next_b

    @staticmethod
    @first_order
    def backward(
        ctx: Any, dz: Tensor | None, dcarried: Tensor | None, dnext_b: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        *tensors, activated, moments, kept = ctx.saved_tensors
        x, m = tensors[0], len(tensors[3])
        dz, dcarried = (torch.zeros_like(x) if each is None else each.contiguous() for each in (dz, dcarried))
        if moments is not None:
            shape = (*x.shape[:-1], m)
            dnext_b = x.new_zeros(shape) if dnext_b is None else dnext_b.contiguous()
        found = [_empty_like(each) for each in tensors]
        if moments is None:
            # The constant B acts in the next pass only, as its b.
            found[5] = None
        kernels().fints_frac_back(
            *_arguments(tensors, ctx.step, ctx.how),
            *(address(each) for each in (activated, moments, kept, dz, dcarried, dnext_b)),
            *(address(each) for each in found),
            torch.get_num_threads(),
        )
        return *found, None, None, None


def _arguments(
    tensors: tuple[Tensor | None, ...] | list[Tensor | None], step: int, how: tuple[bool, float, float]
) -> tuple[Any, ...]:
    """Return the first arguments of both passes."""
    x, Y = tensors[0], tensors[3]
    assert x is not None
    assert Y is not None
    m, width = len(Y), x.shape[-1]
    found = [address(each) for each in tensors]
    return x.numel() // width, width // m, m, *found[:3], step, *found[3:], *how

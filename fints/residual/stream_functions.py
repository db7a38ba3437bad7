"""The stream operations of `stream_kernels.cpp` and `manifold_kernels.cpp` as differentiable functions.

Between two branches a scheme of streams writes what the first returned and reads what the second gets.
Both happen in one pass over the streams, the norm of what is read included: so a state is the streams
*before* the last write, and the write that is pending::

    H_j = sum_i w_ij X_i + w_nj y

A pass returns the streams that it wrote, H, for the next one. The gradient of that one then comes back
through H, and is taken up in the same pass.

Shapes: B batch, T tokens, n streams, D width; streams (B, T, n, D), u, y and z (B, T, D).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from fints.residual.first_order import first_order
from fints.residual.native import LANES, address, kernels
from fints.residual.norm_arguments import NormArguments

__all__ = ["Coefficients", "Pending", "write_and_gate", "write_and_map", "write_and_read"]


class Pending(NamedTuple):
    """Streams and the write that is due on them; nothing is due where y is None."""

    streams: Tensor
    y: Tensor | None = None
    weights: Tensor | None = None
    """(n + 1, n), or (B, T, n + 1, n) where each token has its own."""


class Coefficients(NamedTuple):
    """What a sublayer's coefficients follow from, named as in `DynamicHyperConnections`.

    ::

        C_i = [A_m | A_r | B^T]_i + [s_alpha | s_beta] tanh(N_dyn(H_i) W),    N_dyn with `gain` and `bias`
    """

    A_m: Tensor
    A_r: Tensor
    B: Tensor
    W: Tensor
    s_alpha: Tensor
    s_beta: Tensor
    gain: Tensor
    bias: Tensor | None


def write_and_read(pending: Pending, weights: Tensor | None, norm: NormArguments) -> tuple[Tensor, Tensor]:
    """Return z = N(sum_i r_i H_i) and H; weights r (n,) or (B, T, n); None reads nothing, z is then empty."""
    result: tuple[Tensor, Tensor] = _WriteAndRead.apply(*pending, weights, *norm)
    return result


def write_and_map(
    pending: Pending, coefficients: Coefficients, norm: NormArguments, *, eps: float, tanh: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return z = N(A_m(H)^T H), the weights [A_r(H) ; B(H)] (B, T, n + 1, n) of the next write, and H.

    Parameters
    ----------
    eps
        Of N_dyn, which is of the kind of `norm`.
    """
    result: tuple[Tensor, Tensor, Tensor] = _WriteAndMap.apply(*pending, *coefficients, *norm, eps, tanh)
    return result


def write_and_gate(
    pending: Pending, phi: Tensor, scales: Tensor, b: Tensor, *, eps: float, iterations: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return u = sigmoid(p) H, the weights [Sinkhorn(r)^T ; 2 sigmoid(q)] (B, T, n + 1, n), and H.

    ::

        [p | q | r] = scales * (vec H phi) / rms(vec H) + b

    with phi (n D, 2 n + n^2) and one of the three scales each for p, q and r.
    """
    result: tuple[Tensor, Tensor, Tensor] = _WriteAndGate.apply(*pending, phi, scales, b, eps, iterations)
    return result


def _contiguous(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.contiguous()


def _write(streams: Tensor, y: Tensor | None, weights: Tensor | None) -> tuple[Any, ...]:
    """Return the first arguments of every pass."""
    *_, n, width = streams.shape
    step = 0 if weights is None or weights.dim() == 2 else n * (n + 1)
    return streams.numel() // (n * width), width, n, address(streams), address(y), address(weights), step


class _Gradients:
    """Where a backward pass puts what it finds for the arguments of a write."""

    def __init__(
        self, streams: Tensor, y: Tensor | None, weights: Tensor | None, more: Tensor | None
    ) -> None:
        # The next pass made `more` for this one alone, so it may hold the sum.
        self.streams = torch.empty_like(streams) if more is None else more
        self.y = None if y is None else torch.empty_like(y)
        self.weights = None if weights is None else torch.empty_like(weights)

    def addresses(self) -> tuple[int | None, ...]:
        return address(self.streams), address(self.y), address(self.weights)

    def tensors(self) -> tuple[Tensor | None, ...]:
        return self.streams, self.y, self.weights


class _WriteAndRead(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        streams: Tensor,
        y: Tensor | None,
        weights: Tensor | None,
        read: Tensor | None,
        gain: Tensor | None,
        bias: Tensor | None,
        centred: bool,
        eps: float,
    ) -> tuple[Tensor, Tensor]:
        streams = streams.contiguous()
        y, weights, read = _contiguous(y), _contiguous(weights), _contiguous(read)
        *lead, _, width = streams.shape
        ctx.r_step = 0 if read is None or read.dim() == 1 else read.shape[-1]
        ctx.norm = centred, eps
        written = streams if y is None else torch.empty_like(streams)
        kept = streams.new_empty(*lead, 2)
        z = streams.new_empty(0 if read is None else (*lead, width))
        kernels().fints_given(
            *_write(streams, y, weights),
            address(read),
            ctx.r_step,
            address(gain),
            address(bias),
            *ctx.norm,
            *(address(each) for each in (kept, written, z)),
            torch.get_num_threads(),
        )
        ctx.save_for_backward(streams, y, weights, read, gain, bias, kept)
        ctx.set_materialize_grads(False)
        return z, written

    @staticmethod
    @first_order
    def backward(ctx: Any, dz: Tensor | None, more: Tensor | None) -> tuple[Tensor | None, ...]:
        streams, y, weights, read, gain, bias, kept = ctx.saved_tensors
        if dz is None and more is None:
            return (None,) * 8
        dz, more = _contiguous(dz), _contiguous(more)
        read = None if dz is None else read
        dread = None if read is None else torch.empty_like(read)
        found = _Gradients(streams, y, weights, more)
        sums = streams.new_empty(2, streams.shape[-1])
        kernels().fints_given_back(
            *_write(streams, y, weights),
            address(read),
            ctx.r_step,
            address(gain),
            address(bias),
            *ctx.norm,
            *(address(each) for each in (kept, dz, more)),
            *found.addresses(),
            *(address(each) for each in (dread, sums)),
            torch.get_num_threads(),
        )
        dgain, dbias = (None if each is None else sums[k] for k, each in enumerate((gain, bias)))
        return *found.tensors(), dread, dgain, dbias, None, None


class _WriteAndMap(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        streams: Tensor,
        y: Tensor | None,
        weights: Tensor | None,
        A_m: Tensor,
        A_r: Tensor,
        B: Tensor,
        W: Tensor,
        s_alpha: Tensor,
        s_beta: Tensor,
        dynamic_gain: Tensor,
        dynamic_bias: Tensor | None,
        gain: Tensor,
        bias: Tensor | None,
        centred: bool,
        norm_eps: float,
        eps: float,
        tanh: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        streams = streams.contiguous()
        y, weights = _contiguous(y), _contiguous(weights)
        coefficients = Coefficients(A_m, A_r, B, W, s_alpha, s_beta, dynamic_gain, dynamic_bias)
        norm = NormArguments(gain, bias, centred, norm_eps)
        *lead, n, width = streams.shape
        activated = streams.new_empty(*lead, n, n + 2)
        normed = streams.new_empty(*lead, n, 2)
        read = streams.new_empty(*lead, n)
        kept = streams.new_empty(*lead, 2)
        next_weights = streams.new_empty(*lead, n + 1, n)
        written = streams if y is None else torch.empty_like(streams)
        z = streams.new_empty(*lead, width)
        kernels().fints_dynamic(
            *_write(streams, y, weights),
            *_mapped(coefficients, norm, eps, tanh),
            *(address(each) for each in (activated, normed, read, kept, next_weights, written, z)),
            torch.get_num_threads(),
        )
        ctx.save_for_backward(streams, y, weights, *coefficients, gain, bias, activated, normed, read, kept)
        ctx.how = centred, norm_eps, eps, tanh
        ctx.set_materialize_grads(False)
        return z, next_weights, written

    @staticmethod
    @first_order
    def backward(
        ctx: Any, dz: Tensor | None, dnext: Tensor | None, more: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        streams, y, weights, *tensors, gain, bias, activated, normed, read, kept = ctx.saved_tensors
        coefficients, (centred, norm_eps, eps, tanh) = Coefficients(*tensors), ctx.how
        *lead, n, width = streams.shape
        dz = streams.new_zeros(*lead, width) if dz is None else dz.contiguous()
        dnext = streams.new_zeros(*lead, n + 1, n) if dnext is None else dnext.contiguous()
        more = _contiguous(more)
        found = _Gradients(streams, y, weights, more)
        wanted = (gain, bias, *coefficients)
        sizes = [width if each is None else each.numel() for each in wanted]
        sums = streams.new_empty(sum(sizes))
        kernels().fints_dynamic_back(
            *_write(streams, y, weights),
            *_mapped(coefficients, NormArguments(gain, bias, centred, norm_eps), eps, tanh),
            *(address(each) for each in (activated, normed, read, kept, dz, dnext, more)),
            *found.addresses(),
            address(sums),
            torch.get_num_threads(),
        )
        dgain, dbias, *rest = (
            None if each is None else part.view_as(each)
            for each, part in zip(wanted, sums.split(sizes), strict=True)
        )
        return *found.tensors(), *rest, dgain, dbias, None, None, None, None


def _mapped(coefficients: Coefficients, norm: NormArguments, eps: float, tanh: bool) -> tuple[Any, ...]:
    """Return the arguments of both passes that follow those of the write."""
    gain, bias, centred, norm_eps = norm
    return (
        *(address(each) for each in coefficients),
        eps,
        tanh,
        address(gain),
        address(bias),
        centred,
        norm_eps,
    )


class _WriteAndGate(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        streams: Tensor,
        y: Tensor | None,
        weights: Tensor | None,
        phi: Tensor,
        scales: Tensor,
        b: Tensor,
        eps: float,
        iterations: int,
    ) -> tuple[Tensor, Tensor, Tensor]:
        streams = streams.contiguous()
        y, weights = _contiguous(y), _contiguous(weights)
        maps = phi.contiguous(), scales.contiguous(), b.contiguous()
        *lead, n, width = streams.shape
        # In sixteens of tokens and of logits.
        rows = -(-streams.numel() // (n * width * LANES)) * LANES
        products = streams.new_empty(rows, -(-b.numel() // LANES) * LANES)
        inverse = streams.new_empty(rows)
        read = streams.new_empty(*lead, n)
        next_weights = streams.new_empty(*lead, n + 1, n)
        written = streams if y is None else torch.empty_like(streams)
        u = streams.new_empty(*lead, width)
        kernels().fints_manifold(
            *_write(streams, y, weights),
            *(address(each) for each in maps),
            eps,
            iterations,
            *(address(each) for each in (products, inverse, read, next_weights, written, u)),
            torch.get_num_threads(),
        )
        ctx.save_for_backward(streams, y, weights, *maps, products, inverse, read)
        ctx.eps, ctx.iterations = eps, iterations
        ctx.set_materialize_grads(False)
        return u, next_weights, written

    @staticmethod
    @first_order
    def backward(
        ctx: Any, du: Tensor | None, dnext: Tensor | None, more: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        streams, y, weights, phi, scales, b, products, inverse, read = ctx.saved_tensors
        *lead, n, width = streams.shape
        du = streams.new_zeros(*lead, width) if du is None else du.contiguous()
        dnext = streams.new_zeros(*lead, n + 1, n) if dnext is None else dnext.contiguous()
        more = _contiguous(more)
        found = _Gradients(streams, y, weights, more)
        sizes = [phi.numel(), b.numel(), scales.numel()]
        sums = streams.new_empty(sum(sizes))
        kernels().fints_manifold_back(
            *_write(streams, y, weights),
            *(address(each) for each in (phi, scales, b)),
            ctx.eps,
            ctx.iterations,
            *(address(each) for each in (products, inverse, read, du, dnext, more)),
            *found.addresses(),
            address(sums),
            torch.get_num_threads(),
        )
        dphi, db, dscales = sums.split(sizes)
        return *found.tensors(), dphi.view(b.numel(), -1).t(), dscales, db, None, None

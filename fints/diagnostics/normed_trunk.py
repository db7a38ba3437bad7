"""The depth-mixing matrix of a scheme that norms its trunk, with the norms' scales held as they are.

Shapes: B batch, T tokens, D width, L sublayers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from fints.residual import Residual

__all__ = ["held_scale_mixing"]


def held_scale_mixing(residual: Residual[Any], x: Tensor, outputs: Sequence[Tensor]) -> Tensor:
    r"""Return what stands for M where the trunk is normed: its directional derivatives.

    With the branches' outputs v_1 ... v_L held fixed, and the scale (the standard deviation, or root
    mean square) that each norm divides a token by, and c_j a factor on v_j, 1 in the network as it is::

        M[k, j] = <v_j, d u_k / d c_j> / <v_j, v_j>        for each token

    A norm is then a linear map, so u_k is the sum of all d u_k / d c_j and of biases: the split of
    u_k into its sources is exact, and M is each part's size along its own source. Under Post-Norm
    with gains of 1, M[k, j] is the product of 1 / scale over the norms between, as in its matrix form
    (arXiv 2409.19606), less what is lost to centring. Where u_k is a sum with fixed weights, M is those
    weights; a weight that itself depends on v_j has its own derivative in it; a factor inside the
    branch (a layer scale, a norm of the output) counts as part of the weight.

    The scales are held because without that M says nothing: a norm undoes every change along the
    vector it divides, so the source that the trunk consists of would have a weight near 0.

    Parameters
    ----------
    residual
        The scheme; its norms are calls of `torch.nn.functional.layer_norm` or `rms_norm`.
    x
        What `Residual.open` was given (B, T, D); v_0 is what it made of that.
    outputs
        What the branches returned (B, T, D), one a sublayer.

    Returns
    -------
    Tensor
        (B, T, L + 1, L + 1) on the CPU in double precision, [reader, source]; the last reader is the
        read-out. NaN in the column of a source that is zero at a token.
    """
    given = [x.detach(), *(output.detach() for output in outputs)]
    sources = [residual.merge(residual.open(given[0]), 0).detach(), *given[1:]]
    with torch.enable_grad(), _HeldScales():
        factors = x.new_ones(len(given)).requires_grad_()
        read = _inputs(residual, given, factors)
        # Forward mode by two backward ones: the gradient by c is linear in what it is weighted with,
        # so its derivative by that weighting is d u / d c. (torch.func.jvp warns of its own making.)
        weighting = torch.zeros_like(read, requires_grad=True)
        (gradient,) = torch.autograd.grad(read, factors, weighting, create_graph=True)
        columns = []
        for number, source in enumerate(sources):
            (change,) = torch.autograd.grad(gradient[number], weighting, retain_graph=True)
            along = (change * source.unsqueeze(-2)).sum(-1).cpu().double()
            columns.append(along / source.square().sum(-1).cpu().double().unsqueeze(-1))
    # Above the diagonal 0 / 0 is 0: nothing reads what is yet to come.
    return torch.stack(columns, dim=-1).tril()


def _inputs(residual: Residual[Any], given: Sequence[Tensor], factors: Tensor) -> Tensor:
    """Return u_0 ... u_L (B, T, L + 1, D) with each source multiplied by its factor."""
    state = residual.open(given[0] * factors[0])
    read = []
    for layer, output in enumerate(given[1:]):
        read.append(residual.read(state, layer))
        scaled = output * factors[layer + 1]
        state = residual.step(state, layer, lambda _, scaled=scaled: scaled)  # type: ignore[misc]
    return torch.stack([*read, residual.merge(state, len(read))], dim=-2)


class _HeldScales(TorchFunctionMode):
    """Inside, a norm divides by its scale as by a constant."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        held: dict[Callable[..., Any], Callable[..., Any]] = {
            F.layer_norm: _layer_norm,
            F.rms_norm: _rms_norm,
        }
        return held.get(func, func)(*args, **(kwargs or {}))


def _layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    axes = tuple(range(-len(normalized_shape), 0))
    centred = input - input.mean(axes, keepdim=True)
    variance = centred.square().mean(axes, keepdim=True).detach()
    return _affine(centred * (variance + eps).rsqrt(), weight, bias)


def _rms_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    axes = tuple(range(-len(normalized_shape), 0))
    square = input.square().mean(axes, keepdim=True).detach()
    added = torch.finfo(input.dtype).eps if eps is None else eps
    return _affine(input * (square + added).rsqrt(), weight, None)


def _affine(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    x = x if weight is None else x * weight
    return x if bias is None else x + bias

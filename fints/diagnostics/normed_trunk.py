"""The depth-mixing matrix of a scheme that is no sum of its sources, with its norms' scales held.

Shapes: B batch, T tokens, D width, L sublayers.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from fints.residual import Residual, State

__all__ = ["HeldScales", "held_scale_mixing"]

# Of a factor, for a central difference in double precision: exact but for rounding where u_k is affine.
DIFFERENCE = 1e-3


def held_scale_mixing(residual: Residual[Any], x: Tensor, outputs: Sequence[Tensor]) -> Tensor:
    """Return what stands for M where u_k is no sum of weighted sources: its directional derivatives.

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

    Derivatives are central differences on a double-precision copy of the scheme: they ask nothing of
    how its steps are written.

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
    own = copy.deepcopy(residual).cpu().double()
    given = [tensor.detach().cpu().double() for tensor in (x, *outputs)]
    held = HeldScales()
    columns = []
    with torch.no_grad():
        with held:
            start = own.open(given[0])
            marks = [(start, held.place)]
            for layer, output in enumerate(given[1:]):
                own.read(marks[-1][0], layer)
                state = _step(own, marks[-1][0], layer, output)
                marks.append((state, held.place))
            own.merge(marks[-1][0], len(outputs))
        sources = [own.merge(start, 0), *given[1:]]
        for number, source in enumerate(sources):
            ends = []
            for factor in (1 + DIFFERENCE, 1 - DIFFERENCE):
                changed = given[number] * factor
                # What was read before this source came is as it was.
                if number == 0:
                    with held:
                        ends.append(_inputs(own, own.open(changed), 0, given))
                else:
                    before, place = marks[number - 1]
                    with held.at(place):
                        own.read(before, number - 1)
                        state = _step(own, before, number - 1, changed)
                        ends.append(_inputs(own, state, number, given))
            change = (ends[0] - ends[1]) / (2 * DIFFERENCE)
            along = (change * source.unsqueeze(-2)).sum(-1) / source.square().sum(-1, keepdim=True)
            columns.append(F.pad(along, (number, 0)))
    return torch.stack(columns, dim=-1)


def _inputs(residual: Residual[Any], state: State, layer: int, given: Sequence[Tensor]) -> Tensor:
    """Return u_k from k = `layer` on (B, T, L + 1 - layer, D), for the outputs in `given`."""
    read = []
    for k in range(layer, len(given) - 1):
        read.append(residual.read(state, k))
        state = _step(residual, state, k, given[k + 1])
    return torch.stack([*read, residual.merge(state, len(given) - 1)], dim=-2)


def _step(residual: Residual[Any], state: State, layer: int, output: Tensor) -> State:
    after: State = residual.step(state, layer, lambda _: output)
    return after


class HeldScales(TorchFunctionMode):
    """Inside for the first time, a norm's scale is written down; from then on it divides by that scale.

    So are tensors that are detached. Both must be called in the same order each time.
    """

    def __init__(self) -> None:
        super().__init__()
        self._scales: list[Tensor] = []
        self._recorded = False
        self.place = 0

    def at(self, place: int) -> HeldScales:
        """Begin with what was written down when `place` was this."""
        self.place = place
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._recorded = True
        self.place = 0

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        own: dict[Callable[..., Any], Callable[..., Any]] = {
            F.layer_norm: self._layer_norm,
            F.rms_norm: self._rms_norm,
            # What a scheme detaches (the scale of a window) is a constant of its derivatives.
            Tensor.detach: lambda tensor: self._held(tensor.detach()),
        }
        return own.get(func, func)(*args, **(kwargs or {}))

    def _held(self, scale: Tensor) -> Tensor:
        """Return what was written down at this place, or write this down."""
        if not self._recorded:
            self._scales.append(scale)
        self.place += 1
        return self._scales[self.place - 1]

    def _layer_norm(
        self,
        input: Tensor,
        normalized_shape: Sequence[int],
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-5,
    ) -> Tensor:
        axes = tuple(range(-len(normalized_shape), 0))
        centred = input - input.mean(axes, keepdim=True)
        inverse = self._held((centred.square().mean(axes, keepdim=True) + eps).rsqrt())
        return _affine(centred * inverse, weight, bias)

    def _rms_norm(
        self,
        input: Tensor,
        normalized_shape: Sequence[int],
        weight: Tensor | None = None,
        eps: float | None = None,
    ) -> Tensor:
        axes = tuple(range(-len(normalized_shape), 0))
        added = torch.finfo(input.dtype).eps if eps is None else eps
        inverse = self._held((input.square().mean(axes, keepdim=True) + added).rsqrt())
        return _affine(input * inverse, weight, None)


def _affine(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    x = x if weight is None else x * weight
    return x if bias is None else x + bias

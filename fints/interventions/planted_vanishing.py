"""Vanishing gradients, planted in two ways; under AdamW neither shows, so both are for SGD.

Shapes: B batch, T tokens, D width, L sublayers.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from fints.interventions.base import Cause, NetworkChange, Role, checked_dose
from fints.residual import Branch, Residual

__all__ = ["SaturatedBranches", "ShrunkGradients"]


class ShrunkGradients(NetworkChange):
    r"""Shrink the gradient on the state at each sublayer; the forward pass is untouched.

    .. math:: \frac{\partial L}{\partial S_k} \leftarrow (1 - d)\, \frac{\partial L}{\partial S_k}

    with d the dose and S_k what the scheme carries into sublayer k. Sublayer k of L gets
    :math:`(1 - d)^{L - 1 - k}` of its gradient, and what lies below the first :math:`(1 - d)^L`.

    Parameters
    ----------
    dose : float
        d, from 0 to below 1.
    seed : int
        Not used.
    """

    cause: ClassVar[Cause] = "gradient"
    role: ClassVar[Role] = "disease"

    def __init__(self, *, dose: float, seed: int) -> None:
        self.dose = checked_dose("shrunk_gradients", dose, most=1)

    def alter(self, residual: Residual[Any], state: Any, layer: int, branch: Branch) -> tuple[Any, Branch]:
        """Return the state behind a place that shrinks its gradient, and the branch."""
        keep = 1 - self.dose
        if isinstance(state, Tensor):
            return _Shrunk.apply(state, keep), branch
        return tuple(_Shrunk.apply(part, keep) for part in state), branch


class SaturatedBranches(NetworkChange):
    r"""Pass what every branch returns through the flat part of a tanh.

    .. math:: y_k \leftarrow (1 - d)\, y_k + d \tanh(y_k + b)

    with d the dose and b the offset. The slope there is about :math:`1 / \cosh^2 b`, 0.03 at b = 2.5, so
    little gradient reaches the branch and little of what it says reaches the trunk, until its own weights
    have moved by as much as b.

    Parameters
    ----------
    dose : float
        d, from 0 to 1.
    seed : int
        Not used.
    offset : float
        b.
    """

    cause: ClassVar[Cause] = "gradient"
    role: ClassVar[Role] = "disease"

    def __init__(self, *, dose: float, seed: int, offset: float = 2.5) -> None:
        self.dose = checked_dose("saturated_branches", dose, most=1)
        self.offset = offset

    def alter(self, residual: Residual[Any], state: Any, layer: int, branch: Branch) -> tuple[Any, Branch]:
        """Return the state, and the branch with its output saturated."""

        def saturated(u: Tensor) -> Tensor:
            y = branch(u)
            return (1 - self.dose) * y + self.dose * torch.tanh(y + self.offset)

        return state, saturated


class _Shrunk(torch.autograd.Function):
    """The identity, whose backward pass multiplies by a constant; also under ``torch.func``."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, keep: float) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float], output: Tensor) -> None:
        _, ctx.keep = inputs

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        return g * ctx.keep, None

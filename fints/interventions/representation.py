r"""Relief of representation collapse: a penalty on tokens and increments that point the same way.

Shapes: B batch, T tokens, D width; N = B T tokens; L sublayers.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fints.interventions.base import Cause, Penalty, Role, checked_dose
from fints.interventions.passing import Passing
from fints.training import derive

__all__ = ["Decorrelation", "DecorrelationPlacebo", "alignment"]


def alignment(read: Sequence[Tensor], outputs: Sequence[Tensor]) -> Tensor:
    r"""Return how much tokens point the same way and neighbouring increments along each other, in [0, 2].

    .. math:: \frac1L \sum_k \frac{1}{N(N-1)} \sum_{t \ne t'} \cos^2(\tilde u_{k,t}, \tilde u_{k,t'})
        + \frac1{L-1} \sum_{k \ge 1} \frac1N \sum_t \cos^2(y_{k-1,t}, y_{k,t})

    with :math:`\tilde u_k` what sublayer k reads less its mean token, and y_k what its branch returns. The
    first sum is 1 where all centred tokens lie on one line, and about 1 / D where they fill the space: it
    falls as their effective rank rises. Differentiable; a token or increment of length 0 counts as
    orthogonal to all.
    """
    tokens = torch.stack([_squared_cosine(u) for u in read]).mean()
    along = [(_unit(a) * _unit(b)).sum(-1).square().mean() for a, b in itertools.pairwise(outputs)]
    return tokens + (torch.stack(along).mean() if along else tokens.new_zeros(()))


class Decorrelation(Penalty):
    r"""Add the gradient of `alignment` to that of the loss, at a fixed share of its length.

    .. math:: g \leftarrow g + d\, \frac{\lVert g\rVert}{\lVert a\rVert}\, a, \qquad
        a = \nabla_\theta\, \mathrm{alignment}

    with d the dose and both norms over all parameters. The share is of the gradient, not of the loss:
    so a placebo can have the same, and the dose means the same at every depth.

    Parameters
    ----------
    dose : float
        d, from 0 on; 1 pulls as strongly as the loss.
    seed : int
        Not used.
    """

    cause: ClassVar[Cause] = "representation"
    role: ClassVar[Role] = "relief"

    def __init__(self, *, dose: float, seed: int) -> None:
        self.dose = checked_dose("decorrelation", dose)

    def add(self, passing: Passing, model: nn.Module, *, step: int) -> None:
        """Add the pull of the penalty."""
        _pull(alignment(passing.read, passing.outputs), model, self.dose)


class DecorrelationPlacebo(Penalty):
    r"""The penalty of `Decorrelation`, with what it asks of one token asked of another.

    .. math:: a = \sum_k \Bigl(\frac{\partial u_k}{\partial\theta}\Bigr)^{\!\top} \Pi_k
        \frac{\partial\,\mathrm{alignment}}{\partial u_k} +
        \Bigl(\frac{\partial y_k}{\partial\theta}\Bigr)^{\!\top} \Pi'_k
        \frac{\partial\,\mathrm{alignment}}{\partial y_k}

    with :math:`\Pi` permutations of the N tokens, drawn from the seed anew for each step and sublayer. What
    pulls at the tokens has the same lengths and the same mean, and the whole gradient the same share of the
    loss's as in `Decorrelation`; only its targets are wrong.

    Parameters
    ----------
    dose : float
        As in `Decorrelation`.
    seed : int
        Draws the permutations.
    """

    cause: ClassVar[Cause] = "representation"
    role: ClassVar[Role] = "placebo"

    def __init__(self, *, dose: float, seed: int) -> None:
        self.dose = checked_dose("decorrelation_placebo", dose)
        self.seed = derive(seed, "decorrelation_placebo")

    def add(self, passing: Passing, model: nn.Module, *, step: int) -> None:
        """Add the pull of the penalty, permuted over tokens."""
        generator = torch.Generator().manual_seed(derive(self.seed, step))

        def permuted(z: Tensor) -> Tensor:
            number = z.numel() // z.shape[-1]
            order = torch.randperm(number, generator=generator).to(z.device)
            moved: Tensor = _Permuted.apply(z, order)
            return moved

        read = [permuted(u) for u in passing.read]
        outputs = [permuted(y) for y in passing.outputs]
        _pull(alignment(read, outputs), model, self.dose)


class _Permuted(torch.autograd.Function):
    """The identity, whose backward pass gives each token's gradient to another."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, order: Tensor) -> Tensor:
        ctx.order = order
        return z.view_as(z)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        return g.reshape(-1, g.shape[-1])[ctx.order].view(g.shape), None


def _squared_cosine(z: Tensor) -> Tensor:
    """Return the mean squared cosine of two different centred tokens, from the (D, D) sum of products."""
    flat = z.reshape(-1, z.shape[-1])
    unit = _unit(flat - flat.mean(0, keepdim=True))
    number = unit.shape[0]
    squares = (unit.mT @ unit).square().sum()
    return (squares - number) / max(1, number * (number - 1))


def _unit(z: Tensor) -> Tensor:
    return torch.nn.functional.normalize(z.float() if z.dtype == torch.bfloat16 else z, dim=-1)


def _pull(value: Tensor, model: nn.Module, dose: float) -> None:
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    pull = torch.autograd.grad(value, parameters, materialize_grads=True)
    held = [parameter.grad for parameter in parameters if parameter.grad is not None]
    own, size = (torch.stack([g.norm() for g in found]).norm() for found in (held, pull))
    factor = torch.where(size > 0, dose * own / torch.where(size > 0, size, 1.0), 0.0)
    for parameter, g in zip(parameters, pull, strict=True):
        if parameter.grad is None:
            parameter.grad = factor * g
        else:
            parameter.grad.add_(factor * g)

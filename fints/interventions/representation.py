r"""Relief of representation collapse: a penalty on tokens and increments that point the same way.

Shapes: B batch, T tokens, D width; N = B T tokens; L sublayers.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from fints.interventions.base import Cause, Penalty, Role, checked_dose, one_cycle
from fints.interventions.passing import Passing
from fints.training import derive

__all__ = ["Decorrelation", "DecorrelationPlacebo", "alignment"]


def alignment(read: Sequence[Tensor], outputs: Sequence[Tensor], order: Tensor | None = None) -> Tensor:
    r"""Return how much tokens point the same way and neighbouring increments along each other, in [0, 2].

    .. math:: \frac1L \sum_k \frac{1}{N(N-1)} \sum_{t \ne t'} \cos^2(\tilde u_{k,t}, P \tilde u_{k,t'})
        + \frac1{L-1} \sum_{k \ge 1} \frac1N \sum_t \cos^2(y_{k,t}, P y_{k-1,t})

    with :math:`\tilde u_k` what sublayer k reads less its mean token, y_k what its branch returns, and P the
    identity. The first sum is 1 where all centred tokens lie on one line, and about 1 / D where they fill the
    space: it falls as their effective rank rises. Differentiable; a token or increment of length 0 counts
    as orthogonal to all.

    Parameters
    ----------
    read, outputs
        u_k and y_k, (B, T, D) each.
    order
        A permutation of the D coordinates, to stand for P; then this measures nothing.
    """
    tokens = torch.stack([_squared_cosine(u, order) for u in read]).mean()
    pairs = itertools.pairwise(outputs)
    along = [(_permuted(_unit(a), order) * _unit(b)).sum(-1).square().mean() for a, b in pairs]
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
        _pull(_gradient(alignment(passing.read, passing.outputs), model), model, self.dose)


class DecorrelationPlacebo(Penalty):
    r"""The penalty of `Decorrelation` with permuted targets: a pull as strong and as steady, at nothing.

    .. math:: g \leftarrow g + d\, \frac{\lVert g\rVert}{\lVert b\rVert}\, b, \qquad
        b = b_0 - \frac{a \cdot b_0}{a \cdot a}\, a, \qquad b_0 = \nabla_\theta\, \mathrm{alignment}_P

    with a as there, and P in `alignment` a permutation of the D coordinates in one cycle, drawn from the seed
    and the same at every step and sublayer: a token is asked to be orthogonal to the others with their
    coordinates in another order. What that still has in common with a (a cosine of 0.3 to 0.4 in fresh
    networks) is taken out, so to first order the alignment does not change.

    Permuting whose gradient a token gets, rather than what it is asked, would be no placebo: the part that
    all tokens share, which moves biases and gains, would stay as it is.

    Parameters
    ----------
    dose : float
        As in `Decorrelation`.
    seed : int
        Draws P.
    """

    cause: ClassVar[Cause] = "representation"
    role: ClassVar[Role] = "placebo"

    def __init__(self, *, dose: float, seed: int) -> None:
        self.dose = checked_dose("decorrelation_placebo", dose)
        self.seed = derive(seed, "decorrelation_placebo")

    def add(self, passing: Passing, model: nn.Module, *, step: int) -> None:
        """Add the pull of the penalty with permuted targets."""
        order = torch.tensor(one_cycle(passing.read[0].shape[-1], self.seed), device=passing.read[0].device)
        own = _gradient(alignment(passing.read, passing.outputs), model)
        other = _gradient(alignment(passing.read, passing.outputs, order), model)
        size = torch.stack([g.square().sum() for g in own]).sum()
        shared = torch.stack([(g * h).sum() for g, h in zip(own, other, strict=True)]).sum()
        part = torch.where(size > 0, shared / torch.where(size > 0, size, 1.0), 0.0)
        _pull([h - part * g for g, h in zip(own, other, strict=True)], model, self.dose)


def _squared_cosine(z: Tensor, order: Tensor | None) -> Tensor:
    """Return the mean squared cosine of two different centred tokens, from the (D, D) sum of products."""
    flat = z.reshape(-1, z.shape[-1])
    unit = _unit(flat - flat.mean(0, keepdim=True))
    target = _permuted(unit, order)
    number = unit.shape[0]
    same = (unit * target).sum(-1).square().sum()
    return ((target.mT @ unit).square().sum() - same) / max(1, number * (number - 1))


def _permuted(z: Tensor, order: Tensor | None) -> Tensor:
    return z if order is None else z[..., order]


def _unit(z: Tensor) -> Tensor:
    return torch.nn.functional.normalize(z.float() if z.dtype == torch.bfloat16 else z, dim=-1)


def _gradient(value: Tensor, model: nn.Module) -> list[Tensor]:
    return list(torch.autograd.grad(value, _trained(model), retain_graph=True, materialize_grads=True))


def _trained(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def _pull(pull: list[Tensor], model: nn.Module, dose: float) -> None:
    """Add `pull` to the gradients, as a share of their length."""
    parameters = _trained(model)
    held = [parameter.grad for parameter in parameters if parameter.grad is not None]
    own, size = (torch.stack([g.norm() for g in found]).norm() for found in (held, pull))
    factor = torch.where(size > 0, dose * own / torch.where(size > 0, size, 1.0), 0.0)
    for parameter, g in zip(parameters, pull, strict=True):
        if parameter.grad is None:
            parameter.grad = factor * g
        else:
            parameter.grad.add_(factor * g)

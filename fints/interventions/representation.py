r"""Relief of representation collapse: a penalty on tokens and increments that point the same way.

Shapes: K networks, B batch, T tokens, D width; N = B T tokens; L sublayers.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from copy import copy
from typing import ClassVar, Self

import torch
from torch import Tensor

from fints.interventions.base import Cause, Penalty, Role, checked_dose, one_cycle
from fints.interventions.passing import Passing
from fints.training import Weights, by_row, derive, lengths

__all__ = [
    "Decorrelation",
    "DecorrelationPlacebo",
    "HingedDecorrelation",
    "HingedDecorrelationPlacebo",
    "alignment",
    "token_alignment",
]


# What 99 of 100 sublayers of a healthy reference stay below: `python benchmarks/thresholds.py`.
MARGIN = 0.55


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
        u_k and y_k, (B, T, D) each, or (K, B, T, D) of several networks, which gives K numbers.
    order
        A permutation of the D coordinates, to stand for P; then this measures nothing. (K, D) for several.
    """
    tokens = torch.stack([token_alignment(u, order) for u in read]).mean(0)
    units = [_unit(y) for y in outputs]
    along = [(_permuted(a, order) * b).sum(-1).square().mean((-2, -1)) for a, b in itertools.pairwise(units)]
    return tokens + (torch.stack(along).mean(0) if along else 0.0)


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

    def add(self, passing: Passing, weights: Weights, *, step: int) -> None:
        """Add the pull of the penalty."""
        _pull(weights.slopes(alignment(passing.read, passing.outputs)), weights, self.dose)


class DecorrelationPlacebo(Penalty):
    r"""The penalty of `Decorrelation` with permuted targets: a pull as strong and as steady, at nothing.

    .. math:: g \leftarrow g + d\, \frac{\lVert g\rVert}{\lVert b\rVert}\, b, \qquad
        b = b_0 - \frac{a \cdot b_0}{a \cdot a}\, a, \qquad b_0 = \nabla_\theta\, \mathrm{alignment}_P

    with a as there, and P in `alignment` a permutation of the D coordinates in one cycle, drawn from the seed
    and the same at every step and sublayer: a token is asked to be orthogonal to the others with their
    coordinates in another order. What that still has in common with a is taken out, so to first order the
    alignment does not change.

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
        self.seeds = [derive(seed, "decorrelation_placebo")]

    def beside(self, others: Sequence[Self]) -> Self:
        """Return the placebo of K stacked networks, each with its own P."""
        joined = copy(self)
        joined.seeds = [*self.seeds, *(seed for each in others for seed in each.seeds)]
        return joined

    def add(self, passing: Passing, weights: Weights, *, step: int) -> None:
        """Add the pull of the penalty with permuted targets."""
        first = passing.read[0]
        orders = torch.tensor([one_cycle(first.shape[-1], seed) for seed in self.seeds], device=first.device)
        own = weights.slopes(alignment(passing.read, passing.outputs))
        order = orders if weights.stacked else orders[0]
        other = weights.slopes(alignment(passing.read, passing.outputs, order))
        _pull(_across(other, own), weights, self.dose)


class HingedDecorrelation(Penalty):
    r"""Push the tokens of a sublayer apart once they are more alike than a healthy network's ever are.

    .. math:: g \leftarrow g + d\, \frac{\lVert g\rVert}{\lVert a\rVert}\, a, \qquad
        a = \nabla_\theta\, \frac1L \sum_k \max(0, A_k - b)

    with d the dose, b the margin and :math:`A_k` the `token_alignment` of what sublayer k reads. While no
    sublayer is above the margin, nothing is added: with a margin that a healthy network hardly ever crosses
    this acts on a collapsing one alone. `Decorrelation` pulls at every step, and moves much else in a
    network whose tokens are well spread. A hinge keeps representations from collapsing in VICReg too
    (Bardes, Ponce and LeCun 2022), there on their variance.

    Parameters
    ----------
    dose : float
        d, from 0 on; 1 pulls as strongly as the loss.
    seed : int
        Not used.
    margin : float
        b, from 0 to 1. Where the embedding is linear in F features the first sublayer's tokens lie in F
        dimensions, and no sublayer that reads them is below about 1 / F.
    """

    cause: ClassVar[Cause] = "representation"
    role: ClassVar[Role] = "relief"

    def __init__(self, *, dose: float, seed: int, margin: float = MARGIN) -> None:
        self.dose = checked_dose("hinged_decorrelation", dose)
        self.margin = _checked_margin("hinged_decorrelation", margin)

    def add(self, passing: Passing, weights: Weights, *, step: int) -> None:
        """Add the pull on those sublayers that are above the margin."""
        crowded = _crowded(passing, self.margin)
        if crowded:
            _pull(weights.slopes(_excess(passing, crowded)), weights, self.dose)


class HingedDecorrelationPlacebo(Penalty):
    r"""The penalty of `HingedDecorrelation` with permuted targets, on the same sublayers at the same times.

    As `DecorrelationPlacebo`: a pull as strong, with what it has in common with that of the relief taken
    out, so to first order no sublayer's alignment falls.

    Parameters
    ----------
    dose, margin : float
        As in `HingedDecorrelation`.
    seed : int
        Draws the permutation.
    """

    cause: ClassVar[Cause] = "representation"
    role: ClassVar[Role] = "placebo"

    def __init__(self, *, dose: float, seed: int, margin: float = MARGIN) -> None:
        self.dose = checked_dose("hinged_decorrelation_placebo", dose)
        self.margin = _checked_margin("hinged_decorrelation_placebo", margin)
        self.seeds = [derive(seed, "hinged_decorrelation_placebo")]

    def beside(self, others: Sequence[Self]) -> Self:
        """Return the placebo of K stacked networks, each with its own permutation."""
        joined = copy(self)
        joined.seeds = [*self.seeds, *(seed for each in others for seed in each.seeds)]
        return joined

    def add(self, passing: Passing, weights: Weights, *, step: int) -> None:
        """Add the pull with permuted targets on those sublayers that are above the margin."""
        crowded = _crowded(passing, self.margin)
        if not crowded:
            return
        first = passing.read[0]
        orders = torch.tensor([one_cycle(first.shape[-1], seed) for seed in self.seeds], device=first.device)
        own = weights.slopes(_excess(passing, crowded))
        other = weights.slopes(_excess(passing, crowded, orders if weights.stacked else orders[0]))
        _pull(_across(other, own), weights, self.dose)


def _crowded(passing: Passing, margin: float) -> dict[int, Tensor]:
    """Return those sublayers that are above the margin in some network, with in which (K,)."""
    with torch.no_grad():
        above = torch.stack([token_alignment(u) for u in passing.read]) > margin
    # One transfer from a GPU, not one a sublayer.
    somewhere = above.flatten(1).any(1) if above.dim() > 1 else above
    return {k: above[k] for k, one in enumerate(somewhere.tolist()) if one}


def _excess(passing: Passing, crowded: dict[int, Tensor], order: Tensor | None = None) -> Tensor:
    """Return the alignment of crowded sublayers over their number in all, whose gradient is the hinge's."""
    found = [torch.where(where, token_alignment(passing.read[k], order), 0.0) for k, where in crowded.items()]
    return torch.stack(found).sum(0) / len(passing.read)


def _across(other: list[Tensor], own: list[Tensor]) -> list[Tensor]:
    """Return `other` without the part of each network that lies along `own`."""
    size = lengths(own).square()
    products = [(g * h).reshape(len(g), -1).sum(1) for g, h in zip(own, other, strict=True)]
    shared = torch.stack(products).sum(0)
    part = torch.where(size > 0, shared / torch.where(size > 0, size, 1.0), 0.0)
    return [h - by_row(part, g) * g for g, h in zip(own, other, strict=True)]


def _checked_margin(name: str, margin: float) -> float:
    if isinstance(margin, bool) or not isinstance(margin, int | float) or not 0 <= margin < 1:
        raise ValueError(f"the margin of {name} must be a number from 0 to below 1; got {margin!r}.")
    return float(margin)


def token_alignment(z: Tensor, order: Tensor | None = None) -> Tensor:
    r"""Return the mean squared cosine of a centred token and another one, as of one sublayer in `alignment`.

    Over all pairs the sum of squared products of rows of U and of V is the product of their (D, D) sums of
    products, :math:`\langle U^\top U, V^\top V \rangle`.

    Parameters
    ----------
    z
        (B, T, D), or (K, B, T, D) of several networks, which gives K numbers.
    order
        As there.
    """
    flat = z.flatten(-3, -2)
    unit = _unit(flat - flat.mean(-2, keepdim=True))
    target = _permuted(unit, order)
    number = unit.shape[-2]
    same = (unit * target).sum(-1).square().sum(-1)
    own = unit.mT @ unit
    other = own if order is None else target.mT @ target
    return ((own * other).sum((-2, -1)) - same) / max(1, number * (number - 1))


def _permuted(z: Tensor, order: Tensor | None) -> Tensor:
    """Return z (..., D) with its coordinates in another order; of several networks each in its own (K, D)."""
    if order is None:
        return z
    if order.dim() == 1:
        return z[..., order]
    return z.gather(-1, order.view(-1, *[1] * (z.dim() - 2), order.shape[-1]).expand_as(z))


def _unit(z: Tensor) -> Tensor:
    return torch.nn.functional.normalize(z.float() if z.dtype == torch.bfloat16 else z, dim=-1)


def _pull(pull: list[Tensor], weights: Weights, dose: float) -> None:
    """Add `pull` to the gradients, as a share of their length."""
    own, size = lengths(weights.gradients()), lengths(pull)
    factor = torch.where(size > 0, dose * own / torch.where(size > 0, size, 1.0), 0.0)
    weights.add(by_row(factor, g) * g for g in pull)

r"""Relief of vanishing gradients: what reaches each sublayer is brought to a common size.

g_k is the gradient of the loss by what branch k returned, y_k, over the whole batch; G that by the
parameters of all branches. L sublayers.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import ClassVar, Self

import torch
from torch import Tensor

from fints.interventions.base import BackwardChange, Cause, Role, checked_dose, one_cycle
from fints.interventions.passing import Passing
from fints.training import Weights, by_row, derive, lengths

__all__ = ["GradientEqualiser", "GradientEqualiserPlacebo"]


class GradientEqualiser(BackwardChange):
    r"""Rescale the gradient that reaches each branch to a common norm; the forward pass is untouched.

    .. math:: g_k \leftarrow g_k \left(\frac{c}{\lVert g_k\rVert}\right)^{d}, \qquad
        c = \Bigl(\prod_k \lVert g_k^{0}\rVert\Bigr)^{1/L}, \qquad
        G \leftarrow G \, \frac{\lVert G^0\rVert}{\lVert G\rVert}

    with d the dose, and the index 0 for the plain backward pass of the same step, which is run first.
    :math:`\lVert g_k\rVert` is the norm that arrives after the sublayers above were rescaled, so with
    d = 1 all are equal to c. The last factor keeps the total length of the branches' gradient: the
    intervention shares it out anew over depth and is no larger step, which would be amplification.

    Under AdamW, which divides by the size of each gradient, this is nearly without effect: only the
    directions change, where a gradient comes down more than one path. Use it under SGD too.

    Parameters
    ----------
    dose : float
        d, from 0 to 1.
    seed : int
        Not used.

    Notes
    -----
    Two backward passes a step. A sublayer that no gradient reaches is left as it is.
    """

    cause: ClassVar[Cause] = "gradient"
    role: ClassVar[Role] = "relief"

    def __init__(self, *, dose: float, seed: int) -> None:
        self.dose = checked_dose("gradient_equaliser", dose, most=1)

    def backward(self, mean: Tensor, passing: Passing, weights: Weights, *, retain_graph: bool) -> None:
        """Run the plain backward pass for its norms, then the rescaled one."""
        branches = weights.under("branches.")
        norms, length = _plain(mean, passing, branches)
        common = _geometric_mean(norms)

        def equalised(layer: int, g: Tensor) -> Tensor:
            return _times(weights, g, _factor(lengths([weights.row(g)]), common, self.dose))

        passing.rule = equalised
        mean.sum().backward(retain_graph=retain_graph)
        passing.rule = None
        _match(branches, length)


class GradientEqualiserPlacebo(BackwardChange):
    r"""The factors of `GradientEqualiser`, each at another sublayer.

    .. math:: g_k \leftarrow g_k \, s_{\pi(k)}, \qquad
        s_k = \left(\frac{c}{\lVert g_k\rVert}\right)^{d} \text{ of the equaliser}

    with :math:`\pi` one cycle through all sublayers, drawn from the seed. So the backward pass is
    disturbed by the same factors, and the branches' gradient keeps its total length too, but no sublayer
    gets the factor meant for it.

    Parameters
    ----------
    dose : float
        d, from 0 to 1.
    seed : int
        Draws the cycle.

    Notes
    -----
    Three backward passes a step.
    """

    cause: ClassVar[Cause] = "gradient"
    role: ClassVar[Role] = "placebo"

    def __init__(self, *, dose: float, seed: int) -> None:
        self.dose = checked_dose("gradient_equaliser_placebo", dose, most=1)
        self.seeds = [derive(seed, "gradient_equaliser_placebo")]

    def beside(self, others: Sequence[Self]) -> Self:
        """Return the placebo of K stacked networks, each with its own cycle."""
        joined = copy(self)
        joined.seeds = [*self.seeds, *(seed for each in others for seed in each.seeds)]
        return joined

    def backward(self, mean: Tensor, passing: Passing, weights: Weights, *, retain_graph: bool) -> None:
        """Find the equaliser's factors, then run the backward pass with them permuted."""
        branches = weights.under("branches.")
        norms, length = _plain(mean, passing, branches)
        common = _geometric_mean(norms)
        factors = torch.ones_like(norms)

        def equalised(layer: int, g: Tensor) -> Tensor:
            factors[layer] = _factor(lengths([weights.row(g)]), common, self.dose)
            return _times(weights, g, factors[layer])

        passing.rule = equalised
        branches.slopes(mean)
        number = len(passing.outputs)
        cycles = torch.tensor([one_cycle(number, seed) for seed in self.seeds]).to(norms.device)
        permuted = factors.gather(0, cycles.mT)
        passing.rule = lambda layer, g: _times(weights, g, permuted[layer])
        mean.sum().backward(retain_graph=retain_graph)
        passing.rule = None
        _match(branches, length)


def _plain(mean: Tensor, passing: Passing, branches: Weights) -> tuple[Tensor, Tensor]:
    """Return the norms (L, K) of g_k and that of G (K,) in the plain backward pass."""
    number = len(passing.outputs)
    inputs = [*passing.outputs, *branches.named.values()]
    grads = torch.autograd.grad(mean.sum(), inputs, retain_graph=True, materialize_grads=True)
    found = [branches.row(g) for g in grads]
    return torch.stack([lengths([g]) for g in found[:number]]), lengths(found[number:])


def _geometric_mean(norms: Tensor) -> Tensor:
    reached = norms > 0
    logs = torch.where(reached, norms, 1.0).log()
    return torch.exp(logs.sum(0) / reached.sum(0).clamp(min=1))


def _factor(norm: Tensor, common: Tensor, dose: float) -> Tensor:
    return torch.where(norm > 0, common / torch.where(norm > 0, norm, 1.0), 1.0).pow(dose)


def _times(weights: Weights, g: Tensor, factor: Tensor) -> Tensor:
    rows = weights.row(g)
    return (rows * by_row(factor, rows)).view_as(g)


def _match(branches: Weights, length: Tensor) -> None:
    """Give the gradients in the branches together the given length (K,)."""
    held = branches.gradients()
    now = lengths(held)
    factor = torch.where(now > 0, length / torch.where(now > 0, now, 1.0), 1.0)
    for gradient in held:
        gradient.mul_(by_row(factor, gradient))

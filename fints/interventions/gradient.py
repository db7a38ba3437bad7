r"""Relief of vanishing gradients: what reaches each sublayer is brought to a common size.

g_k is the gradient of the loss by what branch k returned, y_k, over the whole batch; G that by the
parameters of all branches. L sublayers.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from fints.interventions.base import BackwardChange, Cause, Role, checked_dose, one_cycle
from fints.interventions.passing import Passing
from fints.training import derive

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

    def backward(self, mean: Tensor, passing: Passing, model: nn.Module, *, retain_graph: bool) -> None:
        """Run the plain backward pass for its norms, then the rescaled one."""
        weights = _branch_weights(model)
        norms, length = _plain(mean, passing, weights)
        common = _geometric_mean(norms)
        passing.rule = lambda layer, g: g * _factor(g.norm(), common, self.dose)
        mean.backward(retain_graph=retain_graph)
        passing.rule = None
        _match(weights, length)


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
        self.seed = derive(seed, "gradient_equaliser_placebo")

    def backward(self, mean: Tensor, passing: Passing, model: nn.Module, *, retain_graph: bool) -> None:
        """Find the equaliser's factors, then run the backward pass with them permuted."""
        weights = _branch_weights(model)
        norms, length = _plain(mean, passing, weights)
        common = _geometric_mean(norms)
        factors: dict[int, Tensor] = {}

        def equalise(layer: int, g: Tensor) -> Tensor:
            factors[layer] = _factor(g.norm(), common, self.dose)
            return g * factors[layer]

        passing.rule = equalise
        torch.autograd.grad(mean, weights, retain_graph=True, materialize_grads=True)
        cycle = one_cycle(len(passing.outputs), self.seed)
        passing.rule = lambda layer, g: g * factors.get(cycle[layer], 1.0)
        mean.backward(retain_graph=retain_graph)
        passing.rule = None
        _match(weights, length)


def _branch_weights(model: nn.Module) -> list[nn.Parameter]:
    branches = model.get_submodule("branches")
    return [parameter for parameter in branches.parameters() if parameter.requires_grad]


def _plain(mean: Tensor, passing: Passing, weights: list[nn.Parameter]) -> tuple[Tensor, Tensor]:
    """Return the norms (L,) of g_k and that of G in the plain backward pass."""
    number = len(passing.outputs)
    found = torch.autograd.grad(mean, [*passing.outputs, *weights], retain_graph=True, materialize_grads=True)
    return torch.stack([g.norm() for g in found[:number]]), _norm(list(found[number:]))


def _geometric_mean(norms: Tensor) -> Tensor:
    reached = norms > 0
    logs = torch.where(reached, norms, 1.0).log()
    return torch.exp(logs.sum() / reached.sum().clamp(min=1))


def _factor(norm: Tensor, common: Tensor, dose: float) -> Tensor:
    return torch.where(norm > 0, common / torch.where(norm > 0, norm, 1.0), 1.0).pow(dose)


def _match(weights: list[nn.Parameter], length: Tensor) -> None:
    """Give the gradients in `weights` together the given length."""
    held = [weight.grad for weight in weights if weight.grad is not None]
    now = _norm(held)
    torch._foreach_mul_(held, torch.where(now > 0, length / torch.where(now > 0, now, 1.0), 1.0))


def _norm(tensors: list[Tensor]) -> Tensor:
    return torch.stack([tensor.norm() for tensor in tensors]).norm()

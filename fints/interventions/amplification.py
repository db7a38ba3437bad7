r"""Relief of amplification: steps that are held to what they change in the output.

f is the forecast, theta the weights before a step, Delta what the optimiser added. L sublayers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor

from fints.interventions.base import Cause, Role, UpdateChange, checked_dose
from fints.training import Weights, by_row

__all__ = ["DepthScaledUpdates", "OutputChangeStep"]


class OutputChangeStep(UpdateChange):
    r"""Shorten a step whose measured change of the output is above a budget.

    .. math:: \theta \leftarrow \theta + s^{d} \Delta, \qquad
        s = \min\left(1,\; \frac{b}{\mathrm{rms}(f(x; \theta + \Delta) - f(x; \theta))}\right)

    with d the dose, b the budget and x the windows of the step, in evaluation mode. A step within the budget
    is untouched to the last bit, so with a budget that a healthy network hardly ever needs this acts on an
    ill one alone: it is no smaller learning rate where there is nothing to relieve. A budget that followed
    the schedule would be one, since in the warm-up an adaptive optimiser's first steps change the output
    more than their share of the rate. Two more forward passes a step.

    Parameters
    ----------
    dose : float
        d, from 0 to 1.
    seed : int
        Not used.
    budget : float
        b, in units of the network's output; targets have root mean square 1.
    """

    cause: ClassVar[Cause] = "amplification"
    role: ClassVar[Role] = "relief"

    def __init__(self, *, dose: float, seed: int, budget: float = 0.07) -> None:
        self.dose = checked_dose("output_change_step", dose, most=1)
        if not budget > 0:
            raise ValueError(f"the budget of output_change_step must be above 0; got {budget!r}.")
        self.budget = budget

    def update(
        self, weights: Weights, take: Callable[[], None], inputs: Tensor, *, rate_share: Tensor
    ) -> None:
        """Take the step, measure it, and shorten it."""
        before = [each.clone() for each in weights.values()]
        earlier = weights.forecasts(inputs)
        take()
        change = (weights.forecasts(inputs) - earlier).square().flatten(1).mean(1).sqrt()
        factor = torch.where(change > self.budget, self.budget / change, 1.0).pow(self.dose)
        _shorten(weights.values(), before, factor)


class DepthScaledUpdates(UpdateChange):
    r"""Shrink every update of the branches as the network is deeper.

    .. math:: \Delta_k \leftarrow \Delta_k \min\left(1, \frac{L_0}{L}\right)^{d}

    for the parameters of every branch k; embedding, head and residual scheme keep theirs. L branches, each
    moved by as much, change the output by up to L times as much as one: with d = 1 that sum is held at what
    it is in the reference of L_0 sublayers, with d = 1/2 at the root of it.

    Parameters
    ----------
    dose : float
        d, from 0 to 1.
    seed : int
        Not used.
    reference : int
        L_0; 8 is a network of 4 blocks, the fixed reference of the depth penalty.
    """

    cause: ClassVar[Cause] = "amplification"
    role: ClassVar[Role] = "relief"

    def __init__(self, *, dose: float, seed: int, reference: int = 8) -> None:
        self.dose = checked_dose("depth_scaled_updates", dose, most=1)
        if reference < 1:
            raise ValueError(f"the reference of depth_scaled_updates must be at least 1; got {reference!r}.")
        self.reference = reference

    def update(
        self, weights: Weights, take: Callable[[], None], inputs: Tensor, *, rate_share: Tensor
    ) -> None:
        """Take the step and shrink it."""
        branches = weights.under("branches.")
        before = [each.clone() for each in branches.values()]
        take()
        factor = min(1.0, self.reference / weights.num_branches) ** self.dose
        _shorten(branches.values(), before, torch.full_like(rate_share, factor))


def _shorten(values: list[Tensor], before: list[Tensor], factor: Tensor) -> None:
    for value, old in zip(values, before, strict=True):
        own = by_row(factor.to(value), value)
        # Adding and taking away would round.
        value.copy_(torch.where(own == 1, value, old + own * (value - old)))

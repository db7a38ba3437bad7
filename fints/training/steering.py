"""What the loop asks of something that changes a fit from inside, so that nothing else need be changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from torch import Tensor, nn

from fints.training.batches import Batches
from fints.training.losses import LossSum

__all__ = ["Steering"]


class Steering(Protocol):
    """What stands for the plain windows, backward pass and step of a fit.

    `fints.interventions.Applied` is one; without any the loop is the plain one. It keeps nothing from one
    step to the next, so a resumed fit equals an undisturbed one.
    """

    def windows(self, train: Batches) -> Batches:
        """Return the windows to train on in place of `train`, the same ones at every call."""
        ...

    def gradients(self, model: nn.Module, loss: Callable[[], LossSum], *, step: int) -> LossSum:
        """Call `loss` once, leave a gradient in every parameter's ``.grad``, and return the loss.

        The gradients are cleared before, and clipped by their global norm afterwards. `step` counts from 0.
        """
        ...

    def update(
        self, model: nn.Module, take: Callable[[], None], inputs: Tensor, *, rate_share: float
    ) -> None:
        """Move the weights once; `take` is the optimiser's own step.

        `inputs` (B, T, F) are those of the step, `rate_share` its learning rate over the highest one.
        """
        ...

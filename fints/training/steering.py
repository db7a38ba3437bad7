"""What the loop asks of something that changes a fit from inside, so that nothing else need be changed.

Shapes: K networks, B batch, T tokens, F features, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from torch import Tensor, nn

from fints.training.batches import Batches
from fints.training.losses import LossSum
from fints.training.weights import Weights

__all__ = ["NEEDS_PLAIN_PASS", "Place", "StackSteering", "Stackable", "Steering"]

NEEDS_PLAIN_PASS = (
    "an intervention needs the plain pass, whose every tensor it can reach. Set training.compile and "
    "training.activation_checkpointing to false, or leave training.interventions empty."
)
# ``at(layer, u, y)`` is called with what each sublayer of a pass read and returned, (K, B, T, D) both, and
# returns what stands for y, with its numbers.
Place = Callable[[int, Tensor, Tensor], Tensor]


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


class StackSteering(Protocol):
    """A `Steering` of K networks with stacked parameters, which end as each would under its own."""

    def gradients(self, weights: Weights, loss: Callable[[Place | None], LossSum], *, step: int) -> LossSum:
        """Call `loss` once, leave a gradient in every row of the weights, and return the losses (K,)."""
        ...

    def update(
        self, weights: Weights, take: Callable[[], None], inputs: Tensor, *, rate_share: Tensor
    ) -> None:
        """Move the weights once; `take` is a step of every network's own optimiser.

        `inputs` (K, B, T, F) are those of the step, `rate_share` (K,) each learning rate over its highest.
        """
        ...


class Stackable(Steering, Protocol):
    """A `Steering` that can be put beside those of other networks."""

    @property
    def only_watches(self) -> bool:
        """Whether every pass of the network computes what it would by itself."""
        ...

    def together(self, others: Sequence[Any]) -> StackSteering:
        """Return the steering of this network and those of the `others`."""
        ...

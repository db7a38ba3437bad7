"""What an intervention is: one change to a fit, at one of five places, with a dose.

======================  ==============================================================
place                   what is changed there
======================  ==============================================================
`WindowChange`          the windows trained on
`NetworkChange`         the state or the branch of a sublayer, in training and forecasts
`BackwardChange`        the backward pass, with the forward pass untouched
`Penalty`               the gradient, by that of a further loss
`UpdateChange`          the step that the optimiser takes
======================  ==============================================================

Each concrete class is one change, made with ``Class(dose=..., seed=...)`` and options of its own. It
keeps nothing from one step to the next.

What acts in a step acts on one network or on K with stacked parameters, and is written for K: it takes
`Weights` and numbers (K,), and nothing of one network enters another. Shapes: K networks, B batch,
T tokens, D width, F features, L sublayers.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor

from fints.interventions.passing import Passing
from fints.residual import Branch, Residual
from fints.training import Batches, Weights

__all__ = [
    "BackwardChange",
    "Cause",
    "Intervention",
    "NetworkChange",
    "Penalty",
    "Role",
    "UpdateChange",
    "WindowChange",
    "checked_dose",
    "one_cycle",
]

Cause = Literal["representation", "gradient", "noise", "amplification"]
Role = Literal["relief", "placebo", "disease", "ablation"]


class Intervention(ABC):
    """One change to a fit.

    Dose 0 is no change at all: `fints.interventions.intervene` leaves such an intervention out.
    """

    cause: ClassVar[Cause]
    """What it is aimed at; a placebo, what its relief is aimed at."""
    role: ClassVar[Role]
    """Whether it is to cure, to look like a cure, to make ill on purpose, or to leave something out."""
    dose: float

    @abstractmethod
    def __init__(self, *, dose: float, seed: int) -> None: ...

    def beside(self, others: Sequence[Self]) -> Self:
        """Return what acts in a step of stacked networks, this on the first and `others` on the rest.

        They are the same change but for their seeds; one that draws nothing in a step is the same for all.
        """
        return self


class WindowChange(Intervention):
    """Changes the windows that are trained on."""

    @abstractmethod
    def windows(self, train: Batches) -> Batches:
        """Return what is trained on in place of `train`."""


class NetworkChange(Intervention):
    """Changes a sublayer, in every pass: training, evaluation, profiles and forecasts."""

    @abstractmethod
    def alter(self, residual: Residual[Any], state: Any, layer: int, branch: Branch) -> tuple[Any, Branch]:
        """Return the state entering sublayer `layer` and the branch it runs, changed."""


class BackwardChange(Intervention):
    """Changes what reaches the sublayers in the backward pass of a training step; at most one a fit."""

    @abstractmethod
    def backward(self, mean: Tensor, passing: Passing, weights: Weights, *, retain_graph: bool) -> None:
        """Leave a gradient of each network's `mean` (K,) in its weights."""


class Penalty(Intervention):
    """Adds the gradient of a further loss."""

    @abstractmethod
    def add(self, passing: Passing, weights: Weights, *, step: int) -> None:
        """Add to the gradients of the weights."""


class UpdateChange(Intervention):
    """Changes the step that the optimiser takes."""

    @abstractmethod
    def update(
        self, weights: Weights, take: Callable[[], None], inputs: Tensor, *, rate_share: Tensor
    ) -> None:
        """Move the weights once; see `fints.training.Steering`. `rate_share` (K,) is each network's own."""


def checked_dose(name: str, dose: float, *, most: float | None = None) -> float:
    """Return a dose from 0 on, and up to `most` where there is an upper end.

    Raises
    ------
    ValueError
        If it is another.
    """
    number = isinstance(dose, int | float) and not isinstance(dose, bool)
    if not number or not 0 <= dose <= (float("inf") if most is None else most):
        upper = "" if most is None else f" and at most {most:g}"
        raise ValueError(f"the dose of {name} must be a number of at least 0{upper}; got {dose!r}.")
    return float(dose)


@functools.cache
def one_cycle(number: int, seed: int) -> tuple[int, ...]:
    """Return a permutation of `number` places that is one cycle through all (Sattolo's algorithm)."""
    generator = torch.Generator().manual_seed(seed)
    places = list(range(number))
    for last in range(number - 1, 0, -1):
        other = int(torch.randint(last, (), generator=generator))
        places[last], places[other] = places[other], places[last]
    return tuple(places)

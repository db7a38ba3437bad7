"""Interventions put to work: one object that the network and the training loop call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fints.interventions.base import (
    BackwardChange,
    Intervention,
    NetworkChange,
    Penalty,
    UpdateChange,
    WindowChange,
)
from fints.interventions.passing import Passing
from fints.model import Transformer
from fints.residual import Branch, Residual
from fints.training import Batches, Weights
from fints.training.losses import LossSum
from fints.training.steering import Place

__all__ = ["Applied", "Together"]


class _Changes:
    """Interventions by their places, in the order of a list."""

    def __init__(self, changes: Sequence[Intervention]) -> None:
        self.all = tuple(changes)
        self.network = [change for change in changes if isinstance(change, NetworkChange)]
        self.windows = [change for change in changes if isinstance(change, WindowChange)]
        self.penalties = [change for change in changes if isinstance(change, Penalty)]
        self.updates = [change for change in changes if isinstance(change, UpdateChange)]
        backward = [change for change in changes if isinstance(change, BackwardChange)]
        if len(backward) > 1:
            names = ", ".join(type(change).__name__ for change in backward)
            raise ValueError(f"one intervention may change the backward pass; got {names}. Leave one out.")
        self.backward = backward[0] if backward else None

    @property
    def watch(self) -> bool:
        """Whether a step needs to know what each sublayer read and returned."""
        return self.backward is not None or bool(self.penalties)

    def pull(self, mean: Tensor, passing: Passing, weights: Weights, *, step: int) -> None:
        """Leave the gradient of each network's `mean` loss in its weights."""
        retain = bool(self.penalties)
        if self.backward is None:
            mean.sum().backward(retain_graph=retain)
        else:
            self.backward.backward(mean, passing, weights, retain_graph=retain)
        for penalty in self.penalties:
            penalty.add(passing, weights, step=step)

    def move(self, weights: Weights, take: Callable[[], None], inputs: Tensor, *, rate_share: Tensor) -> None:
        """Move the weights once; the first of the list is nearest the optimiser."""
        for change in self.updates:
            take = partial(change.update, weights, take, inputs, rate_share=rate_share)
        take()


class Applied:
    """Interventions on one network; a `fints.training.Steering` and an alteration of the network.

    Their order is that of the list. What alters the network does so in every pass from now on, also when
    it forecasts; the rest acts in a fit that is given this as its `steering`.

    Parameters
    ----------
    changes : sequence of Intervention
        What to apply.
    network : Transformer
        The network; its `alteration` is set where something is done in its passes.

    Raises
    ------
    ValueError
        If two change the backward pass, or the network is altered already.
    """

    def __init__(self, changes: Sequence[Intervention], network: Transformer) -> None:
        self._changes = _Changes(changes)
        self._passing: Passing | None = None
        if network.alteration is not None:
            raise ValueError("this network is altered already; build it anew for other interventions.")
        if self._changes.network or self._changes.watch:
            network.alteration = self

    @property
    def changes(self) -> tuple[Intervention, ...]:
        """What is applied."""
        return self._changes.all

    @property
    def only_watches(self) -> bool:
        """Whether every pass of the network computes what it would by itself."""
        return not self._changes.network

    def __call__(self, residual: Residual[Any], state: Any, layer: int, branch: Branch) -> tuple[Any, Branch]:
        """Return the state and the branch that sublayer `layer` runs with."""
        for change in self._changes.network:
            state, branch = change.alter(residual, state, layer, branch)
        if self._passing is not None:
            branch = self._passing.watch(residual, state, layer, branch)
        return state, branch

    def windows(self, train: Batches) -> Batches:
        """Return the windows to train on."""
        for change in self._changes.windows:
            train = change.windows(train)
        return train

    def gradients(self, model: nn.Module, loss: Callable[[], LossSum], *, step: int) -> LossSum:
        """Run one pass and its backward pass as the interventions have it; see `Steering`."""
        passing = Passing()
        if self._changes.watch:
            self._passing = passing
        try:
            total, count = loss()
            self._passing = None
            self._changes.pull(total / count.clamp(min=1), passing, Weights.of(model), step=step)
        finally:
            self._passing = None
            passing.release()
        return LossSum(total.detach(), count)

    def update(
        self, model: nn.Module, take: Callable[[], None], inputs: Tensor, *, rate_share: float
    ) -> None:
        """Move the weights once; see `Steering`."""
        share = torch.tensor([rate_share], dtype=torch.float64)
        self._changes.move(Weights.of(model), take, inputs, rate_share=share)

    def together(self, others: Sequence[Applied]) -> Together:
        """Return these interventions on stacked networks, this one's the first of them."""
        return Together([self, *others])


class Together:
    """Interventions on K networks with stacked parameters: a `fints.training.steering.StackSteering`.

    Parameters
    ----------
    each : sequence of Applied
        Those of each network: the same but for their seeds, and none that changes a pass.

    Raises
    ------
    ValueError
        If they differ in more.
    """

    def __init__(self, each: Sequence[Applied]) -> None:
        if len({tuple((type(one), one.dose) for one in applied.changes) for applied in each}) > 1:
            raise ValueError(
                "networks that are trained together must have the same interventions at the same doses; "
                "these differ. Fit one by one."
            )
        columns = zip(*(applied.changes for applied in each), strict=True)
        self._changes = _Changes([first.beside(rest) for first, *rest in columns])

    def gradients(self, weights: Weights, loss: Callable[[Place | None], LossSum], *, step: int) -> LossSum:
        """Run one pass and its backward pass as the interventions have it."""
        passing = Passing()
        try:
            totals, counts = loss(passing.at if self._changes.watch else None)
            self._changes.pull(totals / counts.clamp(min=1), passing, weights, step=step)
        finally:
            passing.release()
        return LossSum(totals.detach(), counts)

    def update(
        self, weights: Weights, take: Callable[[], None], inputs: Tensor, *, rate_share: Tensor
    ) -> None:
        """Move the weights once, each by its own optimiser."""
        self._changes.move(weights, take, inputs, rate_share=rate_share)

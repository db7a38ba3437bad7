"""Interventions put to work: one object that the network and the training loop call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

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
from fints.training import Batches
from fints.training.losses import LossSum

__all__ = ["Applied"]


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
        self.changes = tuple(changes)
        self._network = [change for change in changes if isinstance(change, NetworkChange)]
        self._windows = [change for change in changes if isinstance(change, WindowChange)]
        self._penalties = [change for change in changes if isinstance(change, Penalty)]
        self._updates = [change for change in changes if isinstance(change, UpdateChange)]
        backward = [change for change in changes if isinstance(change, BackwardChange)]
        if len(backward) > 1:
            names = ", ".join(type(change).__name__ for change in backward)
            raise ValueError(f"one intervention may change the backward pass; got {names}. Leave one out.")
        self._backward = backward[0] if backward else None
        self._passing: Passing | None = None
        if network.alteration is not None:
            raise ValueError("this network is altered already; build it anew for other interventions.")
        if self._network or self._backward is not None or self._penalties:
            network.alteration = self

    def __call__(self, residual: Residual[Any], state: Any, layer: int, branch: Branch) -> tuple[Any, Branch]:
        """Return the state and the branch that sublayer `layer` runs with."""
        for change in self._network:
            state, branch = change.alter(residual, state, layer, branch)
        if self._passing is not None:
            branch = self._passing.watch(residual, state, layer, branch)
        return state, branch

    def windows(self, train: Batches) -> Batches:
        """Return the windows to train on."""
        for change in self._windows:
            train = change.windows(train)
        return train

    def gradients(self, model: nn.Module, loss: Callable[[], LossSum], *, step: int) -> LossSum:
        """Run one pass and its backward pass as the interventions have it; see `Steering`."""
        passing = Passing()
        if self._backward is not None or self._penalties:
            self._passing = passing
        try:
            total, count = loss()
            self._passing = None
            mean = total / count.clamp(min=1)
            retain = bool(self._penalties)
            if self._backward is None:
                mean.backward(retain_graph=retain)
            else:
                self._backward.backward(mean, passing, model, retain_graph=retain)
            for penalty in self._penalties:
                penalty.add(passing, model, step=step)
        finally:
            self._passing = None
            passing.release()
        return LossSum(total.detach(), count)

    def update(
        self, model: nn.Module, take: Callable[[], None], inputs: Tensor, *, rate_share: float
    ) -> None:
        """Move the weights once; see `Steering`. The first of the list is nearest the optimiser."""
        for change in self._updates:
            take = partial(change.update, model, take, inputs, rate_share=rate_share)
        take()

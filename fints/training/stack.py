"""The parameters of several networks in one tensor, and the optimiser over them.

Shapes: K networks, P trainable numbers of each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from fints.config import TrainingConfig
from fints.training.optimizer import optimizer_over, parameter_groups

__all__ = ["Stack"]


class Stack:
    """K networks of one structure whose parameters and gradients are rows of two tensors (K, P).

    In a row the parameters that decay come first. The networks' own parameters are views of their row, so a
    network is at any time what it would be by itself.

    Parameters
    ----------
    models : sequence of Module
        On their device.
    configs : sequence of TrainingConfig
        Of each: its optimiser is its own.
    """

    def __init__(self, models: Sequence[nn.Module], configs: Sequence[TrainingConfig]) -> None:
        self.models = list(models)
        groups = parameter_groups(models[0], 0.0)
        names = [name for group in groups for name in group["names"]]
        shapes = {name: parameter.shape for name, parameter in models[0].named_parameters()}
        self._places: dict[str, tuple[int, int, torch.Size]] = {}
        start = 0
        for name in names:
            self._places[name] = start, start + shapes[name].numel(), shapes[name]
            start += shapes[name].numel()
        self._decayed = sum(shapes[name].numel() for name in groups[0]["names"])
        self.values = torch.stack([self._row(model) for model in models])
        self.gradients = torch.zeros_like(self.values)
        self._slices = [self._pair(row) for row in range(len(models))]
        self.optimizers = [
            optimizer_over(
                [
                    {"params": [part], "weight_decay": decay}
                    for part, decay in zip(pair, (config.weight_decay, 0.0), strict=True)
                    if part.numel()
                ],
                config,
            )
            for pair, config in zip(self._slices, configs, strict=True)
        ]
        self._lay()

    def leaf(self, name: str) -> Tensor:
        """Return the parameter `name` of all networks (K, ...)."""
        first, last, shape = self._places[name]
        return self.values[:, first:last].view(-1, *shape).requires_grad_()

    def leaves(self) -> dict[str, Tensor]:
        """Return every trainable parameter of all networks by its name."""
        return {name: self.leaf(name) for name in self._places}

    def clear(self, leaves: Mapping[str, Tensor]) -> None:
        """Set all gradients to zero, those of the `leaves` too."""
        self.gradients.zero_()
        for leaf in leaves.values():
            leaf.grad = None

    def gather(self, leaves: Mapping[str, Tensor]) -> None:
        """Add the gradients of the `leaves`; those of the networks' own parameters are in place."""
        for name, leaf in leaves.items():
            if leaf.grad is not None:
                first, last, _ = self._places[name]
                self.gradients[:, first:last] += leaf.grad.reshape(len(leaf), -1)

    def named(self, row: Tensor) -> dict[str, Tensor]:
        """Return the parameters of a row (P,) by their names."""
        return {name: row[first:last].view(shape) for name, (first, last, shape) in self._places.items()}

    def keep(self, rows: Sequence[int]) -> None:
        """Go on with these networks alone; the others keep their weights, apart from the stack."""
        for row, model in enumerate(self.models):
            if row not in rows:
                self._part(model)
        self.models = [self.models[row] for row in rows]
        self.optimizers = [self.optimizers[row] for row in rows]
        self._slices = [self._slices[row] for row in rows]
        self.values, self.gradients = self.values[list(rows)], self.gradients[list(rows)]
        self._lay()

    def release(self) -> None:
        """Give every network parameters of its own again."""
        for model in self.models:
            self._part(model)

    def tie(self) -> None:
        """Let the networks' own gradients be views of the stack, whatever somebody else has made of them."""
        for row, model in enumerate(self.models):
            own = dict(model.named_parameters())
            for name, (first, last, shape) in self._places.items():
                own[name].grad = self.gradients[row, first:last].view(shape)

    def _row(self, model: nn.Module) -> Tensor:
        own = dict(model.named_parameters())
        return torch.cat([own[name].detach().reshape(-1) for name in self._places])

    def _pair(self, row: int) -> tuple[Tensor, Tensor]:
        return self.values[row, : self._decayed], self.values[row, self._decayed :]

    def _lay(self) -> None:
        """Let parameters, and what the optimisers move, be views of the stack."""
        for row, (model, pair) in enumerate(zip(self.models, self._slices, strict=True)):
            own = dict(model.named_parameters())
            for name, (first, last, shape) in self._places.items():
                own[name].data = self.values[row, first:last].view(shape)
            for part, fresh in zip(pair, self._pair(row), strict=True):
                part.data = fresh
            pair[0].grad = self.gradients[row, : self._decayed]
            pair[1].grad = self.gradients[row, self._decayed :]
        self.tie()

    def _part(self, model: nn.Module) -> None:
        own = dict(model.named_parameters())
        for name in self._places:
            own[name].data = own[name].detach().clone()
            own[name].grad = None

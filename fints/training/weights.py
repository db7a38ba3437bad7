"""The weights of one network, or of several whose parameters are stacked, as rows.

Shapes: K networks (1 for one by itself), B batch, T tokens, F features, H horizons.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

__all__ = ["Weights", "by_row", "lengths", "num_branches"]


@dataclass(frozen=True, kw_only=True)
class Weights:
    """What an intervention in a step needs of the networks: one row (K, ...) a parameter.

    A number that an intervention takes of a network is so one of K, and nothing of one row enters another.

    Parameters
    ----------
    named : mapping of str to Tensor
        The trained parameters by name: of a network its own, of several (K, ...) each.
    stacked : bool
        Whether they are of several.
    num_branches : int
        L, trained or not.
    evaluated : callable
        The mean forecasts (B, T, H), of several (K, B, T, H), of the windows of a step, in evaluation mode.
    """

    named: Mapping[str, Tensor]
    stacked: bool
    num_branches: int
    evaluated: Callable[[Tensor], Tensor]

    @classmethod
    def of(cls, model: nn.Module) -> Weights:
        """Return those of one network."""

        def evaluated(inputs: Tensor) -> Tensor:
            training = model.training
            model.eval()
            with torch.no_grad():
                mean: Tensor = model(inputs).mean
            model.train(training)
            return mean

        named = {name: each for name, each in model.named_parameters() if each.requires_grad}
        return cls(named=named, stacked=False, num_branches=num_branches(model), evaluated=evaluated)

    def under(self, prefix: str) -> Weights:
        """Return those whose names begin with `prefix`, by the rest of their names."""
        size = len(prefix)
        return replace(
            self, named={name[size:]: each for name, each in self.named.items() if name.startswith(prefix)}
        )

    def row(self, tensor: Tensor) -> Tensor:
        """Return a tensor of one network as (1, ...); of several it is (K, ...) already."""
        return tensor if self.stacked else tensor.unsqueeze(0)

    def values(self) -> list[Tensor]:
        """Return the parameters as rows, detached; what is written there is written to the networks."""
        return [self.row(each.detach()) for each in self.named.values()]

    def gradients(self) -> list[Tensor]:
        """Return the gradients that a backward pass has left, as rows; what is written there counts."""
        return [self.row(each.grad) for each in self.named.values() if each.grad is not None]

    def slopes(self, value: Tensor) -> list[Tensor]:
        """Return the gradient of each network's own `value` (K,), as rows; the graph stays."""
        found = torch.autograd.grad(
            value.sum(), list(self.named.values()), retain_graph=True, materialize_grads=True
        )
        return [self.row(each) for each in found]

    def add(self, pull: Iterable[Tensor]) -> None:
        """Add rows to the gradients."""
        for own, more in zip(self.named.values(), pull, strict=True):
            given = more if self.stacked else more.squeeze(0)
            own.grad = given.clone() if own.grad is None else own.grad.add_(given)

    def forecasts(self, inputs: Tensor) -> Tensor:
        """Return the mean forecasts (K, B, T, H) of the windows of a step, in evaluation mode."""
        return self.row(self.evaluated(inputs))


def num_branches(model: nn.Module) -> int:
    """Return L, how many branches a network has; 0 where it has no such list."""
    branches = getattr(model, "branches", None)
    return len(branches) if isinstance(branches, nn.ModuleList) else 0


def by_row(numbers: Tensor, rows: Tensor) -> Tensor:
    """Return numbers (K,) in a shape that multiplies rows (K, ...) one by one."""
    return numbers.view(-1, *[1] * (rows.dim() - 1))


def lengths(tensors: Iterable[Tensor]) -> Tensor:
    """Return the Euclidean length (K,) of rows (K, ...), each over all tensors."""
    flat = [each.reshape(len(each), -1) for each in tensors]
    return torch.stack([torch.linalg.vector_norm(each, dim=1) for each in flat]).norm(dim=0)

"""What the loop asks of a set of windows, and the order in which it visits them."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from fints.training.seeds import derive

__all__ = ["BatchOrder", "Batches"]


class Batches(Protocol):
    """A set of windows that hands out any of them by position."""

    def __len__(self) -> int:
        """Return the number of windows."""
        ...

    def gather(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return inputs (B, T, F), NaN where missing, and targets (B, T), NaN where a token has none.

        `positions` is an int64 tensor (B,) on the CPU.
        """
        ...


class BatchOrder:
    r"""The windows of each step: every epoch in a fresh order, the epochs joined end to end.

    .. math:: \text{step } s \text{ takes items } sB, \ldots, (s+1)B - 1 \text{ of }
        \pi_0 \,\|\, \pi_1 \,\|\, \pi_2 \,\|\, \ldots

    where :math:`\pi_e` is a permutation drawn from ``derive(seed, "batches", e)``. No window is
    dropped and every batch is full, so shapes never change, also when an epoch is shorter than a
    batch. The order depends on the seed and the number of windows alone: it is the same in every
    arm, and any step can be computed without the steps before it.
    """

    def __init__(self, number: int, batch_size: int, seed: int) -> None:
        if number < 1:
            raise ValueError(f"training needs at least one window; got {number}.")
        self.number = number
        self.batch_size = batch_size
        self.seed = seed
        self._epoch = -1
        self._order = torch.empty(0, dtype=torch.int64)

    def __call__(self, step: int) -> Tensor:
        """Return the positions (B,) of `step`."""
        first, end = step * self.batch_size, (step + 1) * self.batch_size
        parts = []
        while first < end:
            epoch, offset = divmod(first, self.number)
            part = self._permutation(epoch)[offset : offset + end - first]
            parts.append(part)
            first += len(part)
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _permutation(self, epoch: int) -> Tensor:
        if epoch != self._epoch:
            generator = torch.Generator().manual_seed(derive(self.seed, "batches", epoch))
            # The old order goes first: two of a large panel are half a gigabyte.
            self._order = torch.empty(0, dtype=torch.int64)
            self._order = torch.randperm(self.number, generator=generator)
            self._epoch = epoch
        return self._order

"""Windows that a panel's fit is judged and watched on: some of a set, and what was planted for them."""

from __future__ import annotations

import torch
from torch import Tensor

from fints.data.windows import WindowSet
from fints.model import Transformer
from fints.training import predict

__all__ = ["Chosen", "Places", "spread"]


class Places:
    """Windows that are their own place in a set; a `fints.training.Batches`.

    What chooses among them, an intervention for one, shows which it chose.
    """

    def __init__(self, number: int) -> None:
        self._number = number

    def __len__(self) -> int:
        return self._number

    def gather(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return the places (N,), and nothing for targets."""
        return positions, torch.zeros(len(positions), 1)


class Chosen:
    """Some windows of a set, evenly spread; a `fints.training.Batches`."""

    def __init__(self, windows: WindowSet, positions: Tensor) -> None:
        self._windows, self._positions = windows, positions

    @classmethod
    def of(cls, windows: WindowSet, most: int | None = None) -> Chosen:
        """Choose `most` windows of a set; all of them if it has no more."""
        return cls(windows, spread(len(windows), len(windows) if most is None else most))

    def __len__(self) -> int:
        return len(self._positions)

    def gather(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return inputs (N, T, F) and targets of those at `positions` among the chosen."""
        return self._windows.gather(self._positions[positions])

    def forecasts(self, model: Transformer, *, failed: bool) -> Tensor:
        """Return what a fit forecasts for each window's last day (N,); a failed one nothing."""
        if failed:
            return torch.zeros(len(self), dtype=torch.float64)
        return predict(model, self)["mean"][:, 0].double()

    def outcomes(self) -> Tensor:
        """Return the target of each window's last day (N,)."""
        return self._windows.targets.flatten()[self._cells()].double()

    def said(self, clean: Tensor) -> Tensor:
        """Return what was planted for each window's last day (N,)."""
        return clean[self._cells()].double()

    def said_by_token(self, clean: Tensor) -> Tensor:
        """Return what was planted for every day of each window (N, T)."""
        days = torch.arange(1 - self._windows.windows.context, 1)
        return clean[self._cells().unsqueeze(1) + days].float()

    def _cells(self) -> Tensor:
        return self._windows.cell[self._positions].long()


def spread(count: int, most: int) -> Tensor:
    """Return `most` places (N,) evenly spread over `count`; all of them if there are no more."""
    chosen = min(count, most)
    return torch.arange(chosen) * count // chosen

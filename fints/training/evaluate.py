"""The mean loss over a set of windows.

Shapes: B batch, T tokens, F features.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from fints.config import TrainingConfig
from fints.training.batches import Batches
from fints.training.losses import Loss

__all__ = ["evaluate", "lower_precision", "move"]


def evaluate(
    forward: Callable[[Tensor], Any],
    batches: Batches,
    loss: Loss,
    *,
    batch_size: int,
    device: torch.device,
    autocast: AbstractContextManager[Any],
) -> float:
    """Return the mean loss over every target of `batches`, whatever the batch size.

    Losses are summed and divided once by the number of targets: a mean of batch means would
    weigh the last, partial batch as much as a full one. Evaluation mode is the caller's to set.

    Raises
    ------
    ValueError
        If `batches` holds no target.
    """
    sums = []
    number = len(batches)
    with torch.no_grad():
        for start in range(0, number, batch_size):
            positions = torch.arange(start, start + batch_size)
            inputs, targets = batches.gather(positions.clamp(max=number - 1))
            filled = number - start
            if filled < batch_size:
                targets = targets.clone()
                targets[filled:] = torch.nan
            inputs, targets = move((inputs, targets), device)
            with autocast:
                forecast = forward(inputs)
            total, count = loss(forecast, targets)
            sums.append(torch.stack((total, count.to(total.dtype))))
        total, count = torch.stack(sums).cpu().double().sum(0).tolist()
    if count == 0:
        raise ValueError(
            f"an evaluation needs at least one target; got {number} windows without any. "
            "Give a set whose decision dates have outcomes."
        )
    return total / count


def move(batch: tuple[Tensor, Tensor], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return inputs and targets on `device`."""
    inputs, targets = batch
    if device.type == "cpu":
        return inputs, targets
    if device.type == "cuda" and inputs.device.type == "cpu":
        # From pinned memory the copy runs while the host gathers on.
        inputs, targets = inputs.pin_memory(), targets.pin_memory()
    return inputs.to(device, non_blocking=True), targets.to(device, non_blocking=True)


def lower_precision(config: TrainingConfig, device: torch.device) -> torch.autocast:
    """Return the context of a forward pass: autocast to bfloat16, if the configuration says so."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=config.precision == "bfloat16")

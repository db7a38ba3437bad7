"""Passes of a fit: the loss of one batch, and of all validation windows.

Shapes: B batch, T tokens, F features, H horizons.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fints.config import TrainingConfig
from fints.training.batches import Batches
from fints.training.evaluate import evaluate, lower_precision
from fints.training.losses import Loss, LossSum
from fints.training.progress import DivergedError

__all__ = ["loss_of", "validate"]


def loss_of(
    forward: Callable[[Tensor], Any],
    inputs: Tensor,
    targets: Tensor,
    loss: Loss,
    config: TrainingConfig,
    device: torch.device,
) -> LossSum:
    """Return the loss of a batch of windows: its sum, and how many targets are in it."""
    with lower_precision(config, device):
        forecast = forward(inputs)
    return loss(forecast, targets)


def validate(
    forward: Callable[[Tensor], Any],
    validation: Batches,
    loss: Loss,
    config: TrainingConfig,
    device: torch.device,
    number: int,
) -> float:
    """Return the mean loss over the validation windows, of the network after step `number`.

    Raises
    ------
    DivergedError
        If it is not finite.
    """
    value = evaluate(
        forward,
        validation,
        loss,
        batch_size=config.batch_size,
        device=device,
        autocast=lower_precision(config, device),
    )
    if not math.isfinite(value):
        raise DivergedError(number, f"the validation loss is not finite after step {number}")
    return value

"""Small windows and small networks for the training tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from fints.config import ModelConfig, TrainingConfig
from fints.model import Transformer, build

TOKENS, FEATURES = 6, 3


class TensorWindows:
    """Windows held as two tensors; counts how often it was asked."""

    def __init__(self, inputs: Tensor, targets: Tensor) -> None:
        self.inputs, self.targets = inputs, targets
        self.asked: list[Tensor] = []

    def __len__(self) -> int:
        return len(self.inputs)

    def gather(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        self.asked.append(positions)
        return self.inputs[positions], self.targets[positions]


@pytest.fixture
def windows() -> Callable[..., TensorWindows]:
    """Make windows whose target is a linear signal of half the variance, with missing values."""

    def make(number: int, seed: int = 0, *, missing: bool = True) -> TensorWindows:
        generator = torch.Generator().manual_seed(seed)
        inputs = torch.randn(number, TOKENS, FEATURES, generator=generator)
        noise = torch.randn(number, TOKENS, generator=generator)
        targets = (inputs[..., 0] + noise) / 2**0.5
        if missing:
            inputs[torch.rand(inputs.shape, generator=generator) < 0.05] = torch.nan
            targets[torch.rand(targets.shape, generator=generator) < 0.1] = torch.nan
        return TensorWindows(inputs, targets)

    return make


@pytest.fixture
def network() -> Callable[..., Transformer]:
    """Build a small transformer, the same one for the same arguments."""

    def make(seed: int = 0, **changes: Any) -> Transformer:
        small = {"width": 8, "depth": 1, "num_heads": 2, "feed_forward_ratio": 2.0}
        return build(ModelConfig(**(small | changes)), num_features=FEATURES, context=TOKENS, seed=seed)

    return make


@pytest.fixture
def schedule() -> Callable[..., TrainingConfig]:
    """A short schedule on the CPU."""

    def make(**changes: Any) -> TrainingConfig:
        short = {
            "steps": 24,
            "warmup_steps": 3,
            "batch_size": 8,
            "evaluate_every": 6,
            "learning_rate": 1e-2,
            "device": "cpu",
        }
        return TrainingConfig(**(short | changes))

    return make

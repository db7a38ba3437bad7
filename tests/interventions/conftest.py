"""Small networks on random parameters, and small windows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fints.config import ModelConfig, TrainingConfig
from fints.model import Transformer, build

TOKENS, FEATURES = 6, 3


class TensorWindows:
    """Windows held as two tensors."""

    def __init__(self, inputs: Tensor, targets: Tensor) -> None:
        self.inputs, self.targets = inputs, targets

    def __len__(self) -> int:
        return len(self.inputs)

    def gather(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        return self.inputs[positions], self.targets[positions]


@pytest.fixture
def windows() -> TensorWindows:
    """32 windows whose target is a linear signal of half the variance, a tenth of the targets missing."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(32, TOKENS, FEATURES, generator=generator)
    targets = (inputs[..., 0] + torch.randn(32, TOKENS, generator=generator)) / 2**0.5
    targets[torch.rand(targets.shape, generator=generator) < 0.1] = torch.nan
    return TensorWindows(inputs, targets)


@pytest.fixture
def network() -> Callable[..., Transformer]:
    """Build a small network; `random` draws every parameter, so that no equality is one of the start."""

    def make(*, random: bool = False, **fields: Any) -> Transformer:
        small = {"width": 8, "depth": 2, "num_heads": 2, "feed_forward_ratio": 2.0}
        made = build(ModelConfig(**(small | fields)), num_features=FEATURES, context=TOKENS, seed=0)
        if random:
            generator = torch.Generator().manual_seed(1)
            for parameter in made.parameters():
                nn.init.normal_(parameter, std=0.4, generator=generator)
        return made

    return make


@pytest.fixture
def schedule() -> Callable[..., TrainingConfig]:
    """A short schedule on the CPU."""

    def make(**fields: Any) -> TrainingConfig:
        short = {"steps": 6, "warmup_steps": 1, "batch_size": 8, "evaluate_every": 6, "device": "cpu"}
        return TrainingConfig(**(short | fields))

    return make

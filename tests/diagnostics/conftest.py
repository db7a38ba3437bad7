"""Small networks on random parameters, and a batch with missing targets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fints.config import ModelConfig, TrainingConfig
from fints.model import Transformer, build
from fints.training import make_loss
from fints.training.losses import Loss

TOKENS, FEATURES = 6, 3


@pytest.fixture
def random_network() -> Callable[..., Transformer]:
    """Build a small network with every parameter drawn, in double precision."""

    def make(residual: str = "pre_norm", **fields: Any) -> Transformer:
        small = {"width": 8, "depth": 2, "num_heads": 2, "feed_forward_ratio": 2.0}
        config = ModelConfig(residual=residual, **(small | fields))
        made = build(config, num_features=FEATURES, context=TOKENS, seed=0).double()
        generator = torch.Generator().manual_seed(1)
        for parameter in made.parameters():
            nn.init.normal_(parameter, std=0.4, generator=generator)
        return made

    return make


@pytest.fixture
def batch() -> tuple[Tensor, Tensor]:
    """10 windows (10, 6, 3) and targets (10, 6), some missing, in double precision."""
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(10, TOKENS, FEATURES, generator=generator, dtype=torch.float64)
    y = torch.randn(10, TOKENS, generator=generator, dtype=torch.float64)
    y[torch.rand(y.shape, generator=generator) < 0.2] = torch.nan
    return x, y


@pytest.fixture
def loss() -> Loss:
    """The squared error."""
    return make_loss(TrainingConfig())

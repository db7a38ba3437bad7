"""Small transformers, at the start and on random parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fints.config import ModelConfig
from fints.model import Transformer, build

NUM_FEATURES, CONTEXT = 5, 12


@pytest.fixture
def model() -> Callable[..., Transformer]:
    """Build a small transformer; `random` draws every parameter, so that no equality is one of the start."""

    def make(*, random: bool = False, num_horizons: int = 1, seed: int = 0, **fields: Any) -> Transformer:
        config = ModelConfig(**{"width": 16, "depth": 3, "num_heads": 2, **fields})
        network = build(
            config, num_features=NUM_FEATURES, context=CONTEXT, num_horizons=num_horizons, seed=seed
        )
        if random:
            generator = torch.Generator().manual_seed(seed + 100)
            for parameter in network.parameters():
                nn.init.normal_(parameter, std=0.4, generator=generator)
        return network

    return make


@pytest.fixture
def x() -> Tensor:
    """Four windows (4, 12, 5), a fifth of the values missing."""
    generator = torch.Generator().manual_seed(7)
    values = torch.randn(4, CONTEXT, NUM_FEATURES, generator=generator)
    return values.where(torch.rand(values.shape, generator=generator) > 0.2, torch.nan)

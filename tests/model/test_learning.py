"""Three hundred steps are enough for a simple signal."""

from __future__ import annotations

import math

import pytest
import torch

from fints.config import ModelConfig
from fints.model import build


@pytest.mark.slow
@pytest.mark.parametrize("residual", ["pre_norm", "dynamic_hyper_connections"])
def test_a_planted_linear_signal_is_learned_in_300_steps(residual):
    generator = torch.Generator().manual_seed(3)
    features = torch.randn(40, 1000, 4, generator=generator)
    signal = 0.8 * features[..., 0] - 0.6 * features[..., 1].roll(3, 1)
    signal = signal / signal.std() * math.sqrt(0.2)
    target = signal + math.sqrt(0.8) * torch.randn(signal.shape, generator=generator)
    windows = features.unfold(1, 24, 1).mT
    signal, target = signal.unfold(1, 24, 1), target.unfold(1, 24, 1)

    network = build(ModelConfig(residual=residual, width=32, depth=2), num_features=4, context=24, seed=0)
    optimizer = torch.optim.AdamW(network.parameters(), lr=2e-3, betas=(0.9, 0.95), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1, (step + 1) / 50) * 0.5 * (1 + math.cos(math.pi * step / 300))
    )
    for _ in range(300):
        asset = torch.randint(0, 20, (64,), generator=generator)
        day = torch.randint(0, windows.shape[1], (64,), generator=generator)
        loss = (network(windows[asset, day]).mean[..., 0] - target[asset, day]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        schedule.step()

    held_out = windows[20:, ::7].reshape(-1, 24, 4)
    oracle = signal[20:, ::7].reshape(-1, 24)[:, -1]
    with torch.no_grad():
        forecast = network(held_out).mean[:, -1, 0]
    share_of_oracle = 1 - (forecast - oracle).square().mean() / oracle.square().mean()
    assert share_of_oracle > 0.5

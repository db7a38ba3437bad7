"""Every scheme learns a simple signal to nine tenths of what its oracle knows, at depth 4 in 300 steps."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from fints.config import ModelConfig
from fints.data import simulate
from fints.model import build
from fints.residual import RESIDUALS

TOKENS, STEPS = 4, 300
# A control: eight branches in a row, with nothing that carries the input past them.
EXCEPTED = ("no_skip",)


@pytest.fixture(scope="module")
def windows():
    """Features (A, W, T, F), oracle forecast and outcome (A, W, T) of a linear signal at R2 20 %."""
    drawn = simulate(num_assets=40, num_days=2000, r2=0.20, signal="linear", noise="gaussian", seed=11)
    frame = drawn.panel.frame.join(drawn.signal, on=["date", "asset"]).sort("asset", "date")
    shape = (40, frame.height // 40)
    price = frame["close"].to_numpy().reshape(shape)
    outcome = np.diff(np.log(price))
    unit = outcome.std()
    # The first date has no price before it, the last no outcome.
    features = frame.select("a", "b").to_numpy().reshape(*shape, 2)[:, 1:-1]
    signal = frame["signal"].to_numpy().reshape(shape)[:, 1:-1] / unit
    features, signal, outcome = (
        torch.tensor(values, dtype=torch.float32) for values in (features, signal, outcome[:, 1:] / unit)
    )
    return features.unfold(1, TOKENS, 1).mT, signal.unfold(1, TOKENS, 1), outcome.unfold(1, TOKENS, 1)


def share_of_oracle(residual, windows):
    """Train on the first 20 assets at every token; return 1 - E(p - s)^2 / E s^2 on the others."""
    features, signal, outcome = windows
    network = build(ModelConfig(residual=residual, width=16, depth=4), num_features=2, context=TOKENS, seed=0)
    optimizer = torch.optim.AdamW(network.parameters(), lr=4e-3, betas=(0.9, 0.95), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1, (step + 1) / 50) * 0.5 * (1 + math.cos(math.pi * step / STEPS))
    )
    generator = torch.Generator().manual_seed(3)
    for _ in range(STEPS):
        asset = torch.randint(0, 20, (64,), generator=generator)
        day = torch.randint(0, features.shape[1], (64,), generator=generator)
        loss = (network(features[asset, day]).mean[..., 0] - outcome[asset, day]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    oracle = signal[20:, ::TOKENS, -1]
    with torch.no_grad():
        forecast = network(features[20:, ::TOKENS].flatten(0, 1)).mean[:, -1, 0].view_as(oracle)
    return 1 - ((forecast - oracle).square().mean() / oracle.square().mean()).item()


@pytest.mark.slow
@pytest.mark.parametrize("residual", [name for name in RESIDUALS if name not in EXCEPTED])
def test_a_simple_signal_is_learned_to_nine_tenths_of_the_oracle(residual, windows):
    share = share_of_oracle(residual, windows)
    assert share >= 0.9


@pytest.mark.slow
@pytest.mark.parametrize("residual", EXCEPTED)
def test_without_a_skip_it_is_not(residual, windows):
    assert share_of_oracle(residual, windows) < 0.9

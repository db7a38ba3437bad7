"""What is told of a fitted network's inside is what the network does."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from fints.config import Experiment, ModelConfig, TrainingConfig
from fints.diagnostics import batch_gradient_variance, depth_mixing
from fints.model import Transformer, build
from fints.study.panel_inside import Curve, inside_rows, windows_seen
from fints.training import make_loss

N, T, F = 96, 6, 2


class Windows:
    """Windows in memory, the last day of each with an outcome."""

    def __init__(self, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.inputs = torch.randn(N, T, F, generator=generator)
        self.targets = torch.full((N, T), math.nan)
        self.targets[:, -1] = torch.randn(N, generator=generator)
        self.said = torch.randn(N, generator=generator).double()

    def __len__(self) -> int:
        return N

    def gather(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        return self.inputs[positions], self.targets[positions]


def network(residual: str, seed: int, *, moved: bool = True) -> Transformer:
    config = ModelConfig(residual=residual, width=8, num_heads=2, depth=2)
    model = build(config, num_features=F, context=T, seed=seed)
    if moved:
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 0.2 * torch.randn(parameter.shape, generator=generator)
    return model.eval()


def found(residual: str) -> tuple[Transformer, Windows, dict[str, list[Any]]]:
    model, windows = network(residual, 1), Windows()
    loss = make_loss(TrainingConfig())
    rows = inside_rows(model, network(residual, 1, moved=False), windows, windows.said, loss=loss)
    by_measure: dict[str, list[Any]] = {}
    for row in rows:
        assert row["step"] is None
        own = by_measure.setdefault(row["measure"], [])
        assert row["layer"] == len(own)
        own.append(row["value"])
    return model, windows, by_measure


def test_a_rise_is_that_of_the_distance_to_what_was_planted() -> None:
    model, windows, measures = found("pre_norm")

    def distance(skipped: set[int]) -> float:
        """Pre-Norm written out: h <- h + F(N(h)), the branch left out at the skipped ones."""
        with torch.no_grad():
            h = model.embedding(windows.inputs)
            for layer, branch in enumerate(model.branches):
                if layer not in skipped:
                    h = h + branch(model.residual.norms[layer](h))
            p = model.head(model.residual.close(h, 4)).mean[:, -1, 0]
        return float((p.double() - windows.said).square().mean())

    whole = distance(set())
    assert measures["skip_rise"] == pytest.approx([distance({k}) - whole for k in range(4)], abs=1e-5)
    assert measures["block_rise"] == pytest.approx(
        [distance({0, 1}) - whole, distance({2, 3}) - whole], abs=1e-5
    )


def test_every_other_measure_is_that_of_its_own_function() -> None:
    model, windows, measures = found("dynamic_hyper_connections")
    loss = make_loss(TrainingConfig())
    places = torch.arange(64) * N // 64
    x, _ = windows.gather(places)
    assert measures["source_weight"] == pytest.approx(depth_mixing(model, x).mean[-1, 1:].tolist())
    batches = [windows.gather(part) for part in torch.arange(N).split(32)]
    variance = batch_gradient_variance(model, batches, loss=loss).variance
    assert measures["gradient_variance"] == pytest.approx(variance.tolist())
    with torch.no_grad():
        state = model.residual.open(model.embedding(x))
        trunk = model.residual.merge(state, 0)
    assert measures["trunk_size"][0] == pytest.approx(float(trunk.square().mean(-1).sqrt().mean()), rel=1e-5)
    for name in ("diversity", "entropy_read", "entropy_write", "entropy_carry"):
        assert len(measures[name]) == 4
    assert max(measures["entropy_carry"]) <= math.log(4) + 1e-6


def test_the_share_of_the_last_output_is_that_of_the_sum_that_is_read() -> None:
    model, windows, measures = found("pre_norm")
    with torch.no_grad():
        h = model.embedding(windows.inputs[torch.arange(64) * N // 64])
        shares = []
        for layer, branch in enumerate(model.branches):
            y = branch(model.residual.norms[layer](h))
            h = h + y
            # The next sublayer reads the sum, and y with weight 1 in it.
            y_size, h_size = (z.square().mean(-1).sqrt().mean() for z in (y, h))
            shares.append(float(y_size / h_size))
    assert measures["recent_share"][0] is None
    assert measures["recent_share"][1:] == pytest.approx(shares[:3], rel=1e-5)
    # Attention over depth reads a multiple of its mean: a share is free of that factor.
    _, _, attended = found("attention_residuals")
    assert max(attended["recent_share"][1:]) < 3


def test_the_network_before_training_is_measured_beside_and_both_are_left_as_found() -> None:
    _, _, measures = found("pre_norm")
    fresh = network("pre_norm", 1, moved=False)
    before = {name: value.clone() for name, value in fresh.state_dict().items()}
    windows, loss = Windows(), make_loss(TrainingConfig())
    again = inside_rows(fresh, fresh, windows, windows.said, loss=loss)
    own = [row["value"] for row in again if row["measure"] == "gradient_norm"]
    assert measures["gradient_norm_initial"] == pytest.approx(own)
    assert measures["gradient_norm"] != pytest.approx(own)
    for name, value in fresh.state_dict().items():
        assert_close(value, before[name], rtol=0, atol=0)
    assert all(parameter.grad is None for parameter in fresh.parameters())


def test_a_curve_is_the_distance_of_the_last_days_forecast() -> None:
    model, windows = network("post_norm", 2), Windows(3)
    (row,) = Curve(windows, windows.said)(model, 7, {})
    with torch.no_grad():
        p = model(windows.inputs).mean[:, -1, 0].double()
    assert (row["step"], row["layer"], row["measure"]) == (7, None, "validation_distance")
    assert row["value"] == pytest.approx(float((p - windows.said).square().mean()), rel=1e-5)


def test_what_is_asked_is_counted_in_the_windows_that_pass() -> None:
    experiment = Experiment(
        model=ModelConfig(width=8, num_heads=2, depth=2), training=TrainingConfig(steps=100, profile_every=30)
    )

    # Before, at 30, 60 and 90, and after the last step.
    assert windows_seen({"curve": True}, experiment) == 5 * 256
    # Two blocks: four sublayers, two blocks and none; two profiles and eight batches there and back.
    assert windows_seen({"inside": True}, experiment) == 7 * 128 + 3 * (2 * 64 + 8 * 32) + 2 * 64
    assert windows_seen({}, experiment) == 0

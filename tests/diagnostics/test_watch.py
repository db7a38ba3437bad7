"""A watch tells what the mediators and the profile tell, and changes nothing."""

from __future__ import annotations

import copy

import pytest
import torch

from fints.config import ModelConfig, TrainingConfig
from fints.diagnostics import mediators, profile
from fints.diagnostics.watch import PROFILED, Watch
from fints.interventions import intervene
from fints.model import build
from fints.training import make_loss

CONFIG = TrainingConfig()
LOSS = make_loss(CONFIG)


@pytest.fixture(scope="module")
def batch():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(4, 6, 2, generator=generator), torch.randn(4, 6, generator=generator)


def network(depth=2):
    return build(ModelConfig(width=8, num_heads=2, depth=depth), num_features=2, context=6, seed=1)


def by_measure(rows):
    found = {}
    for row in rows:
        found.setdefault(row["measure"], []).append(row)
    return found


@pytest.mark.slow
def test_rows_are_the_mediators_under_the_steering_and_the_profile_beside(batch):
    model = network()
    steering = intervene(model, {"gradient_equaliser": {"dose": 1.0}}, seed=0)
    update = {name: 1e-3 * parameter.detach() for name, parameter in model.named_parameters()}
    found = by_measure(Watch(*batch, CONFIG, steering=steering)(model, 7, update))
    expected = mediators(model, *batch, loss=LOSS, steering=steering, update=update)
    assert set(expected) | set(PROFILED) | {"gradient_norm_plain"} == set(found)
    for name, values in expected.items():
        assert [row["value"] for row in found[name]] == values, name
        layers = range(4) if len(values) > 1 else [None]
        assert [row["layer"] for row in found[name]] == list(layers), name
    plain = [row["gradient_norm"] for row in profile(model, *batch, loss=LOSS)]
    assert [row["value"] for row in found["gradient_norm_plain"]] == plain
    assert plain != expected["gradient_norm"]
    assert {row["step"] for rows in found.values() for row in rows} == {7}


def test_how_far_the_forecasts_are_from_what_was_planted_is_told_where_that_is_known(batch):
    x, y = batch
    model, planted = network(), 0.3 * y + 0.1
    labelled = y.clone()
    labelled[0, 0] = torch.nan
    (row,) = by_measure(Watch(x, labelled, CONFIG, noise_free=planted)(model, 3, {}))["signal_distance"]
    with torch.no_grad():
        apart = (model.eval()(x).mean.squeeze(-1) - planted).square()
    assert row["value"] == pytest.approx(float(apart.flatten()[1:].mean()))
    assert row["layer"] is None
    assert "signal_distance" not in by_measure(Watch(x, y, CONFIG)(model, 3, {}))


def test_a_watch_leaves_weights_gradients_and_generator_as_they_were(batch):
    model = network()
    before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    Watch(*batch, CONFIG)(model, 0, {})
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert torch.equal(state, torch.get_rng_state())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert model.training


def test_what_is_not_finite_is_told_as_none(batch):
    model = network(depth=1)
    with torch.no_grad():
        model.branches[1].get_parameter(next(name for name, _ in model.branches[1].named_parameters())).fill_(
            torch.nan
        )
    rows = by_measure(Watch(*batch, CONFIG)(model, 3, {}))
    assert [row["value"] for row in rows["gradient_norm"]] == [None, None]
    assert [row["value"] for row in rows["output_change"]] == [None]

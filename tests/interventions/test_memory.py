"""No step of a fit stays in memory, whatever intervenes and whatever the scheme."""

from __future__ import annotations

import gc

import pytest
import torch

from fints.config import TrainingConfig
from fints.interventions import INTERVENTIONS, intervene
from fints.residual import RESIDUALS
from fints.training import make_loss

LOSS = make_loss(TrainingConfig())


def live_tensors() -> int:
    gc.collect()
    return sum(isinstance(each, torch.Tensor) for each in gc.get_objects())


def grown(model, windows, steering) -> int:
    """Return how many tensors three steps leave behind, after one that may make what is kept."""
    counts = []
    for step in range(4):
        model.zero_grad()
        if steering is None:
            LOSS(model(windows.inputs), windows.targets).mean().backward()
        else:
            steering.gradients(model, lambda: LOSS(model(windows.inputs), windows.targets), step=step)
        counts.append(live_tensors())
    return counts[-1] - counts[0]


@pytest.mark.parametrize("name", INTERVENTIONS)
def test_a_step_under_an_intervention_leaves_no_tensor_behind(network, windows, name):
    model = network()
    assert grown(model, windows, intervene(model, {name: {"dose": 0.5}}, seed=0)) == 0


@pytest.mark.parametrize("scheme", RESIDUALS)
def test_a_plain_step_of_any_scheme_leaves_no_tensor_behind(network, windows, scheme):
    options = {"by_depth": {"segments": [["pre_norm", 1], ["post_norm", 1]]}}.get(scheme, {})
    model = network(residual=scheme, residual_options=options)
    assert grown(model, windows, None) == 0

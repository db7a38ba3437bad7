"""A network measures real windows in the mode that it trains in, with the weights that it trains from."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.testing import assert_close

from fints.residual import RESIDUALS, Admin, Residual

CALIBRATED = ["admin", "frozen_scale_post_norm"]


def measured(network) -> torch.Tensor:
    residual = network.residual
    return torch.stack(list(residual.omega)) if isinstance(residual, Admin) else residual.sigma.clone()


@pytest.mark.parametrize("value_residual", ["none", "fixed"])
@pytest.mark.parametrize("residual", CALIBRATED)
def test_the_profile_is_of_the_training_mode_and_leaves_the_mode_as_it_was(
    model, x, residual, value_residual
):
    network = model(residual=residual, value_residual=value_residual, dropout=0.5, depth=3).double()
    expected, other = copy.deepcopy(network), copy.deepcopy(network)
    network.eval()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        network.calibrate(x.double())
        torch.manual_seed(1)
        with torch.no_grad():
            expected.residual.calibrate(expected.embedding(x.double()), expected.train().branch_calls())
    assert not network.training
    assert torch.equal(measured(network), measured(expected))
    with torch.no_grad():
        other.residual.calibrate(other.embedding(x.double()), other.eval().branch_calls())
    # Dropout of one half doubles what is left, so the variance of a branch is larger in training.
    assert (measured(network)[-1] > 1.01 * measured(other)[-1]).all()


def test_admin_measures_the_branches_that_it_trains_from(model, x):
    network = model(residual="admin", depth=2).double()
    for branch in network.branches:
        with torch.no_grad():
            branch.output.weight *= 10
    network.calibrate(x.double())
    h, total = network.embedding(x.double()), 1.0
    for layer, branch in enumerate(network.branches):
        omega = torch.full((16,), total**0.5, dtype=torch.float64)
        assert_close(network.residual.omega[layer].detach(), omega, rtol=0, atol=1e-12)
        y = branch(h)
        h = network.residual.norms[layer](omega * h + y)
        total += y.var(correction=0).item()
    assert total > 5


@pytest.mark.parametrize("residual", CALIBRATED)
def test_what_was_measured_is_saved(model, x, residual):
    network, fresh = model(residual=residual), model(residual=residual, seed=1)
    network.calibrate(x)
    fresh.load_state_dict(network.state_dict())
    assert torch.equal(measured(fresh), measured(network))
    assert torch.equal(fresh(x).mean, network(x).mean)
    assert not torch.equal(measured(model(residual=residual)), measured(network))


@pytest.mark.parametrize("residual", list(RESIDUALS))
def test_calibrating_changes_the_constants_that_a_scheme_measures_and_nothing_else(model, x, residual):
    network = model(residual=residual)
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    network.calibrate(x)
    changed = {name for name, tensor in network.state_dict().items() if not torch.equal(tensor, before[name])}
    assert network.training
    assert network.calibrates == bool(changed)
    assert all(name.startswith(("residual.omega.", "residual.sigma")) for name in changed)
    assert all(parameter.grad is None for parameter in network.parameters())


def test_a_scheme_that_measures_says_so():
    for name, scheme in RESIDUALS.items():
        if name != "by_depth":
            assert scheme.calibrates == (scheme.calibrate is not Residual.calibrate), name

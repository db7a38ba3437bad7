"""A fit lets a scheme measure real data once, before its first step."""

from __future__ import annotations

import copy

import pytest
import torch

from fints.diagnostics import Profiler
from fints.residual import Admin
from fints.training import derive, fit

SCHEMES = ["admin", "frozen_scale_post_norm"]


class _Killed(BaseException):
    """Stands for a signal: nothing in the loop may catch it."""


def measured(network) -> torch.Tensor:
    residual = network.residual
    return torch.stack(list(residual.omega)) if isinstance(residual, Admin) else residual.sigma.clone()


def counted(network, calls: list):
    """The network, whose `calibrate` also writes down what it was given."""
    calibrate = network.calibrate
    network.calibrate = lambda inputs: calls.append(inputs) or calibrate(inputs)
    return network


def killed(train, at_step: int):
    """Windows that end the process, as it were, when the batch of a step is gathered."""
    gather, left = train.gather, [at_step]

    def gather_or_die(positions):
        # The identity of a checkpoint gathers once, and so does the calibration.
        if left[0] == -2:
            raise _Killed
        left[0] -= 1
        return gather(positions)

    train.gather = gather_or_die
    return train


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_fit_measures_its_training_windows_before_the_first_step(network, windows, schedule, scheme):
    model, train = network(residual=scheme, dropout=0.3), windows(20)
    expected = copy.deepcopy(model)
    # A rate this small moves nothing that float32 can hold.
    config = schedule(steps=1, warmup_steps=0, learning_rate=1e-12, weight_decay=0.0)
    calls = []
    result = fit(counted(model, calls), train, None, config, seed=3)
    assert (result.outcome, result.steps, len(calls)) == ("finished", 1, 1)
    inputs, _ = train.gather(torch.arange(20))
    assert torch.equal(calls[0].nan_to_num(9.0), inputs.nan_to_num(9.0))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(3, "calibration"))
        expected.calibrate(inputs)
    assert (measured(expected) != 1).any()
    torch.testing.assert_close(measured(model), measured(expected), rtol=0, atol=1e-6)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_measurement_is_determined_by_the_seed_and_leaves_the_callers_generator_alone(
    network, windows, schedule, scheme
):
    found = []
    for seed in (3, 3, 4):
        model = network(residual=scheme, dropout=0.3)
        before = torch.random.get_rng_state()
        fit(model, windows(20), None, schedule(steps=2, warmup_steps=0), seed=seed)
        assert torch.equal(torch.random.get_rng_state(), before)
        found.append(measured(model))
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


def test_what_is_measured_is_that_of_all_windows_though_their_scale_drifts(network, windows, schedule):
    # Calm and wild times, as in prices; a batch of 8 windows would see one of them.
    train = windows(6000, missing=False)
    train.inputs.mul_(torch.linspace(-2, 2, 6000).exp().view(-1, 1, 1))
    model, whole = (network(residual="frozen_scale_post_norm") for _ in range(2))
    calls = []
    config = schedule(steps=1, warmup_steps=0, learning_rate=1e-12, weight_decay=0.0)
    fit(counted(model, calls), train, None, config, seed=3)
    whole.calibrate(train.inputs)
    assert len(calls[0]) == 2048
    torch.testing.assert_close(measured(model), measured(whole), rtol=0.02, atol=0)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_profile_of_step_0_is_of_the_calibrated_network(network, windows, schedule, scheme):
    config, train = schedule(steps=2, warmup_steps=0, profile_every=1), windows(20)
    probe = train.gather(torch.arange(8))
    model = network(residual=scheme)
    expected = copy.deepcopy(model)
    result = fit(model, train, None, config, seed=3, profiler=Profiler(*probe, config))
    expected.calibrate(train.gather(torch.arange(20))[0])
    assert result.profiles[:2] == Profiler(*probe, config)(expected, 0, {})


@pytest.mark.parametrize("profiled", [False, True], ids=["bare", "profiled"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_resumed_fit_keeps_what_was_measured(network, windows, schedule, tmp_path, scheme, profiled):
    config = schedule(steps=9, profile_every=4)
    path = tmp_path / "fit.pt"

    def run(train, model, **given):
        probe = windows(20).gather(torch.arange(8))
        profiler = Profiler(*probe, config) if profiled else None
        return fit(model, train, windows(9, 1), config, seed=3, profiler=profiler, **given)

    whole = network(residual=scheme, dropout=0.2)
    undisturbed = run(windows(20), whole)
    with pytest.raises(_Killed):
        run(
            killed(windows(20), 5),
            network(residual=scheme, dropout=0.2),
            checkpoint=path,
            checkpoint_every=2,
        )
    calls = []
    model = counted(network(residual=scheme, dropout=0.2), calls)
    resumed = run(windows(20), model, checkpoint=path, checkpoint_every=2)
    # A profile of the beginning needs the beginning; nothing else is measured a second time.
    assert len(calls) == profiled
    assert resumed.history == undisturbed.history
    assert resumed.profiles == undisturbed.profiles
    state = whole.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


def test_a_fit_that_fails_at_once_gives_back_the_network_it_started_from(network, windows, schedule):
    model = network(residual="frozen_scale_post_norm")
    expected, train = copy.deepcopy(model), windows(20)
    config = schedule(learning_rate=1e30, warmup_steps=0)
    assert fit(model, train, None, config, seed=3).outcome == "diverged"
    expected.calibrate(train.gather(torch.arange(20))[0])
    state = expected.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


def test_a_scheme_without_constants_costs_no_batch(network, windows, schedule):
    train = windows(20)
    fit(network(), train, None, schedule(steps=2, warmup_steps=0), seed=3)
    assert len(train.asked) == 2

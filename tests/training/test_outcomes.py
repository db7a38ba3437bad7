"""A fit that cannot go on says so; it does not crash, and no number it returns is NaN."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

from fints.training import fit, loop


class Failing(nn.Module):
    """Calls `fail` in the forward pass of the given training step."""

    def __init__(self, inner, step, fail):
        super().__init__()
        self.inner, self.step, self.fail, self.steps = inner, step, fail, 0

    def forward(self, x):
        forecast = self.inner(x)
        if self.training:
            self.steps += 1
            if self.steps == self.step:
                return self.fail(forecast)
        return forecast


def _raise(error):
    def fail(forecast):
        raise error

    return fail


def _finite(result):
    """Every number of a result is a finite one: JSON without NaN takes it."""
    json.dumps([result.history, result.profiles, result.best_validation_loss], allow_nan=False)
    return True


def _equal(model, weights):
    return all(torch.equal(tensor, weights[name]) for name, tensor in model.state_dict().items())


def test_a_learning_rate_of_a_million_diverges_and_says_when(network, windows, schedule):
    for residual in ("pre_norm", "post_norm"):
        model = network(residual=residual)
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        config = schedule(steps=60, learning_rate=1e6)
        result = fit(model, windows(20), windows(9, 1), config, seed=3)
        assert result.outcome == "diverged"
        assert f"at step {result.steps + 1} " in result.reason
        assert "learning rate" in result.reason
        assert _finite(result)
        assert all(row["step"] <= result.steps for row in result.history)
        assert _equal(model, before) or result.history
        assert model(windows(4).inputs).mean.isfinite().all()


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("step", [1, 2, 14])
def test_a_loss_that_is_not_finite_ends_with_the_best_weights(network, windows, schedule, value, step):
    model = Failing(network(), step, lambda forecast: forecast._replace(mean=forecast.mean * value))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    result = fit(model, windows(20), windows(9, 1), schedule(), seed=3)
    assert (result.outcome, result.steps) == ("diverged", step - 1)
    assert f"the training loss is not finite at step {step} (learning rate" in result.reason
    assert _finite(result)
    if step < 6:
        assert (result.best_step, result.best_validation_loss, result.history) == (0, None, [])
        assert _equal(model, before)
    else:
        healthy = network()
        short = fit(healthy, windows(20), windows(9, 1), schedule(), seed=3)
        assert result.history == short.history[:2]
        assert result.best_validation_loss == min(row["validation_loss"] for row in result.history)
    assert not model.training


def test_a_gradient_that_is_not_finite_is_a_divergence_too(network, windows, schedule):
    def fail(forecast):
        # sqrt has an infinite slope at 0: the loss is finite, its gradient is not.
        return forecast._replace(mean=(forecast.mean - forecast.mean.detach()).abs().sqrt())

    result = fit(Failing(network(), 3, fail), windows(20), None, schedule(), seed=3)
    assert (result.outcome, result.steps) == ("diverged", 2)
    assert "the gradient norm is not finite at step 3" in result.reason
    assert _finite(result)


def test_a_validation_loss_that_is_not_finite_is_a_divergence(network, windows, schedule):
    validation = windows(9, 1)
    validation.targets[0, -1] = torch.inf
    result = fit(network(), windows(20), validation, schedule(), seed=3)
    assert (result.outcome, result.history) == ("diverged", [])
    assert "the validation loss is not finite after step 6" in result.reason


def test_a_loss_ten_thousand_times_the_first_is_a_divergence(network, windows, schedule):
    model = Failing(network(), 4, lambda forecast: forecast._replace(mean=forecast.mean + 1000))
    result = fit(model, windows(20), None, schedule(), seed=3)
    assert (result.outcome, result.steps) == ("diverged", 3)
    assert "is over 10000 times the first" in result.reason


@pytest.mark.parametrize("step", [1, 2, 7, 14, 24])
def test_steps_checked_in_groups_name_the_same_step_and_keep_the_same_weights(
    network, windows, schedule, monkeypatch, step
):
    """As on an accelerator, where the steps after the bad one have already moved the weights."""

    def run():
        model = Failing(network(), step, lambda forecast: forecast._replace(mean=forecast.mean * torch.nan))
        return model, fit(model, windows(20), windows(9, 1), schedule(), seed=3)

    model, one_by_one = run()
    monkeypatch.setitem(loop.STEPS_A_CHECK, "cpu", 16)
    other, grouped = run()
    for name in ("outcome", "reason", "steps", "best_step", "best_validation_loss", "history"):
        assert getattr(grouped, name) == getattr(one_by_one, name)
    assert _equal(other, model.state_dict())


@pytest.mark.parametrize(
    "fail",
    [
        _raise(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")),
        _raise(MemoryError()),
        lambda forecast: torch.empty(2**55, dtype=torch.uint8),
    ],
    ids=["accelerator", "python", "cpu_allocator"],
)
@pytest.mark.parametrize("step", [1, 8])
def test_memory_that_runs_out_ends_the_fit_with_the_best_weights(network, windows, schedule, fail, step):
    model = Failing(network(), step, fail)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    result = fit(model, windows(20), windows(9, 1), schedule(), seed=3)
    assert (result.outcome, result.steps) == ("out_of_memory", step - 1)
    assert f"memory ran out on cpu at step {step} (" in result.reason
    assert "lower training.batch_size" in result.reason
    assert len(result.history) == (step > 6)
    assert _equal(model, before) == (step == 1)
    assert not model.training
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_fit_that_is_estimated_not_to_fit_does_not_start(network, windows, schedule):
    train = windows(20)
    result = fit(network(), train, None, schedule(), seed=3, estimated_bytes=2**60)
    assert (result.outcome, result.steps, result.history) == ("out_of_memory", 0, [])
    assert "needs about 1073741824.00 GiB and cpu has" in result.reason
    assert train.asked == []
    assert fit(network(), train, None, schedule(), seed=3, estimated_bytes=2**10).outcome == "finished"


def test_any_other_error_is_not_swallowed(network, windows, schedule):
    model = Failing(network(), 2, _raise(RuntimeError("mat1 and mat2 shapes cannot be multiplied")))
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        fit(model, windows(20), None, schedule(), seed=3)


@pytest.mark.parametrize("step", [0, 14, 24])
@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory."),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ],
    ids=["allocator", "cublas"],
)
def test_memory_that_runs_out_in_a_profile_costs_its_rows_and_not_the_fit(
    network, windows, schedule, step, error
):
    def profiler(model, number, update):
        model.eval()
        if number == step:
            raise error
        return [{"step": number}]

    config = schedule(profile_every=7)
    calm, short = network(dropout=0.2), network(dropout=0.2)
    undisturbed = fit(calm, windows(20), windows(9, 1), config, seed=3)
    result = fit(short, windows(20), windows(9, 1), config, seed=3, profiler=profiler)
    assert (result.outcome, result.steps, result.history) == ("finished", 24, undisturbed.history)
    assert result.profiles == [{"step": number} for number in (0, 7, 14, 21, 24) if number != step]
    assert result.reason == f"all 24 steps taken; memory ran out in the profile of step {step}"
    assert _equal(short, calm.state_dict())


@pytest.mark.parametrize(
    ("every", "at", "steps"),
    [(0, (1, 5), (0, 1, 5, 24)), (10, (5, 20), (0, 5, 10, 20, 24)), (0, (), (24,)), (0, (24,), (0, 24))],
)
def test_a_fit_is_profiled_at_its_cadence_and_at_the_steps_asked_for(
    network, windows, schedule, every, at, steps
):
    config = schedule(profile_every=every, profile_at=at)
    profiler = lambda model, number, update: [{"step": number}]  # noqa: E731
    result = fit(network(), windows(20), None, config, seed=3, profiler=profiler)
    assert result.profiles == [{"step": number} for number in steps]


def test_a_step_that_is_never_taken_cannot_be_profiled(schedule):
    for step in (0, 25):
        with pytest.raises(ValueError, match=r"profile_at = \(.*choose steps from 1 to training.steps = 24"):
            schedule(profile_at=(step,))


def test_any_other_error_of_a_profile_is_not_swallowed(network, windows, schedule):
    def profiler(model, number, update):
        raise RuntimeError("no such sublayer")

    with pytest.raises(RuntimeError, match="no such sublayer"):
        fit(network(), windows(20), None, schedule(), seed=3, profiler=profiler)


def test_a_network_that_was_not_drawn_is_out_of_memory_whatever_is_free_by_now(network, windows, schedule):
    with torch.device("meta"):
        model = network()
    result = fit(model, windows(20), None, schedule(), seed=3, estimated_bytes=2**10)
    assert (result.outcome, result.steps) == ("out_of_memory", 0)

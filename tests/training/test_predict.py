"""A window's forecast depends on that window alone."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from fints.training import predict

SCHEMES = ("pre_norm", "post_norm", "static_hyper_connections", "dynamic_hyper_connections")


def _subset(batches, positions):
    return type(batches)(batches.inputs[positions], batches.targets[positions])


@pytest.fixture
def trained(network):
    """A network away from its initial values, where tokens, heads and streams differ."""

    def make(**changes):
        model = network(**changes)
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
        return model

    return make


@pytest.mark.parametrize("residual", SCHEMES)
@pytest.mark.parametrize("width", [8, 20, 36])
def test_a_forecast_keeps_its_bits_wherever_its_window_stands(trained, windows, residual, width):
    model, batches = trained(residual=residual, width=width, num_heads=2, depth=2), windows(301)
    whole = predict(model, batches, batch_size=49)["mean"]
    generator = torch.Generator().manual_seed(2)
    for number in (301, 300, 150, 97, 96, 95, 5, 2, 1):
        chosen = torch.randperm(301, generator=generator)[:number]
        assert torch.equal(predict(model, _subset(batches, chosen), batch_size=49)["mean"], whole[chosen])


@pytest.mark.slow
@pytest.mark.parametrize(("torch_kernels", "mkl_kernels"), [("avx2", "AVX2"), ("default", "SSE4_2")])
def test_forecasts_keep_their_bits_on_older_processors_too(torch_kernels, mkl_kernels):
    """Their matrix kernels round the last rows of a batch differently; see `predict.STRIP`."""
    kernels = {"ATEN_CPU_CAPABILITY": torch_kernels, "MKL_ENABLE_INSTRUCTIONS": mkl_kernels}
    chosen = f"{__file__}::test_a_forecast_keeps_its_bits_wherever_its_window_stands"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--import-mode=importlib", chosen],
        env=os.environ | kernels | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "12 passed" in done.stdout


def test_other_windows_change_no_forecast_whatever_they_hold(trained, windows):
    model, batches = trained(), windows(100)
    before = predict(model, batches)["mean"]
    batches.inputs[60:] *= 1e3
    batches.inputs[61] = torch.nan
    after = predict(model, batches)["mean"]
    assert torch.equal(after[:60], before[:60])
    assert not torch.equal(after[60:], before[60:])


@pytest.mark.parametrize("number", [1, 2, 47, 48, 49, 100])
def test_every_window_is_forecast_once_in_order(trained, windows, number):
    model, batches = trained(), windows(number)
    expected = model.eval()(batches.inputs).mean[:, -1].detach()
    forecast = predict(model, batches, batch_size=48)
    assert forecast.keys() == {"mean"}
    torch.testing.assert_close(forecast["mean"], expected, rtol=1e-5, atol=1e-6)
    assert not forecast["mean"].requires_grad
    forecast["mean"].add_(1)


def test_every_batch_has_one_shape_that_fills_the_kernels(trained, windows):
    batches = windows(100)
    predict(trained(), batches, batch_size=50)
    assert [len(positions) for positions in batches.asked] == [96, 96]
    assert batches.asked[1].tolist() == [*range(96, 100), *[99] * 92]


@pytest.mark.parametrize(("head", "fields"), [("gaussian", 2), ("student_t", 3)])
def test_distributional_heads_give_all_their_fields(trained, windows, head, fields):
    model, batches = trained(head=head), windows(5)
    forecast = predict(model, batches)
    assert list(forecast) == ["mean", "log_scale", "degrees"][:fields]
    literal = model.eval()(batches.inputs)
    for name, values in forecast.items():
        torch.testing.assert_close(values, getattr(literal, name)[:, -1].detach(), rtol=1e-5, atol=1e-6)


def test_dropout_is_off_and_mode_and_threads_are_left_as_found(trained, windows):
    model = trained(dropout=0.5).train()
    threads = torch.get_num_threads()
    first, second = predict(model, windows(9)), predict(model, windows(9))
    assert torch.equal(first["mean"], second["mean"])
    assert model.training
    assert torch.get_num_threads() == threads


def test_no_window_and_no_batch_size_are_refused(trained, windows):
    with pytest.raises(ValueError, match="at least one window; got none"):
        predict(trained(), windows(0))
    with pytest.raises(ValueError, match="batch_size of at least 1; got 0"):
        predict(trained(), windows(3), batch_size=0)

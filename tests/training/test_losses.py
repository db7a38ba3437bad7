from __future__ import annotations

import math

import pytest
import torch

from fints.config import TrainingConfig
from fints.model import Forecast
from fints.training import gaussian_nll, huber, make_loss, mse, student_t_nll


def _draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_mse_and_huber_equal_their_equations():
    error = 3 * _draw(1000)
    torch.testing.assert_close(mse(error), error**2, rtol=0, atol=1e-14)
    for delta in (0.3, 1.0, 2.5):
        literal = torch.tensor(
            [e * e / 2 if abs(e) <= delta else delta * (abs(e) - delta / 2) for e in error.tolist()],
            dtype=torch.float64,
        )
        torch.testing.assert_close(huber(error, delta), literal, rtol=1e-13, atol=1e-14)


def test_huber_is_half_the_square_inside_and_its_slope_never_exceeds_delta():
    error = (4 * _draw(500)).requires_grad_()
    huber(error, 0.7).sum().backward()
    torch.testing.assert_close(error.grad, error.detach().clamp(-0.7, 0.7))


def test_likelihoods_equal_torchs_distributions():
    error, log_scale = _draw(500), _draw(500, seed=1)
    degrees = 2 + _draw(500, seed=2).exp()
    normal = torch.distributions.Normal(torch.zeros_like(error), log_scale.exp())
    torch.testing.assert_close(
        gaussian_nll(error, log_scale), -normal.log_prob(error), rtol=1e-12, atol=1e-12
    )
    student = torch.distributions.StudentT(degrees, torch.zeros_like(error), log_scale.exp())
    torch.testing.assert_close(
        student_t_nll(error, log_scale, degrees), -student.log_prob(error), rtol=1e-12, atol=1e-12
    )


def test_the_student_likelihood_integrates_to_one_and_tends_to_the_gaussian():
    grid = torch.linspace(-400, 400, 800_001, dtype=torch.float64)
    log_scale, degrees = torch.tensor(0.3, dtype=torch.float64), torch.tensor(4.0, dtype=torch.float64)
    density = torch.exp(-student_t_nll(grid, log_scale, degrees))
    assert torch.trapezoid(density, grid).item() == pytest.approx(1, abs=1e-6)
    error = _draw(50)
    far = student_t_nll(error, log_scale.expand(50), torch.full((50,), 1e7, dtype=torch.float64))
    torch.testing.assert_close(far, gaussian_nll(error, log_scale.expand(50)), rtol=0, atol=1e-5)


@pytest.mark.parametrize(("name", "head"), [("mse", 1), ("huber", 1), ("nll", 2), ("nll", 3)])
def test_a_missing_target_changes_neither_the_loss_nor_any_gradient(name, head):
    targets = _draw(4, 5)
    targets[0, 1] = targets[2] = torch.nan
    present = ~targets.isnan()
    raw = [_draw(4, 5, 1, seed=seed).requires_grad_() for seed in (1, 2, 3)]

    def forecast(fields: list[torch.Tensor]) -> Forecast:
        given = [fields[0], fields[1], 2 + fields[2].exp()][:head]
        return Forecast(*given, *[None] * (3 - head))

    loss = make_loss(TrainingConfig(loss=name))
    whole = loss(forecast(raw), targets)
    gradients = torch.autograd.grad(whole.mean(), raw[:head])
    chosen = [field.detach()[present].unsqueeze(0).requires_grad_() for field in raw]
    alone = loss(forecast(chosen), targets[present].unsqueeze(0))
    expected = torch.autograd.grad(alone.mean(), chosen[:head])

    assert whole.number == alone.number == present.sum()
    torch.testing.assert_close(whole.mean(), alone.mean(), rtol=1e-13, atol=0)
    for gradient, wanted in zip(gradients, expected, strict=True):
        torch.testing.assert_close(gradient[present], wanted[0], rtol=1e-13, atol=0)
        assert not gradient[~present].any()


def test_a_batch_without_targets_costs_nothing_and_moves_nothing():
    mean = _draw(2, 3, 1).requires_grad_()
    value = make_loss(TrainingConfig())(Forecast(mean, None, None), torch.full((2, 3), torch.nan))
    value.mean().backward()
    assert value.mean() == 0
    assert not mean.grad.any()


def test_half_precision_forecasts_are_judged_in_the_precision_of_the_targets():
    mean = torch.full((1, 1, 1), 1.0, dtype=torch.bfloat16)
    value = make_loss(TrainingConfig())(Forecast(mean, None, None), torch.full((1, 1), 1.001))
    assert value.total.item() == pytest.approx(1e-6, rel=1e-3)


def test_a_forecast_of_another_shape_is_refused_and_not_broadcast():
    loss = make_loss(TrainingConfig())
    with pytest.raises(ValueError, match=r"one value a target; got .* \(2, 3, 2\) for targets \(2, 3, 1\)"):
        loss(Forecast(torch.zeros(2, 3, 2), None, None), torch.zeros(2, 3))


def test_the_likelihood_of_a_point_forecast_is_refused_with_the_remedy():
    with pytest.raises(ValueError, match=r'needs a scale; .* model.head = "gaussian"'):
        make_loss(TrainingConfig(loss="nll"))(Forecast(torch.zeros(1, 1, 1), None, None), torch.zeros(1, 1))


def test_several_horizons_are_averaged_over_all_their_targets():
    mean, targets = _draw(3, 4, 2), _draw(3, 4, 2, seed=1)
    value = make_loss(TrainingConfig())(Forecast(mean, None, None), targets)
    assert value.mean().item() == pytest.approx(((mean - targets) ** 2).mean().item(), rel=1e-12)
    assert math.isclose(value.number.item(), 24)

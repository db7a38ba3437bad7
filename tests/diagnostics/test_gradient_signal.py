from __future__ import annotations

import pytest
import torch

from fints.diagnostics import batch_gradient_variance, gradient_signal, per_sample_gradients
from fints.interventions import intervene
from fints.residual import RESIDUALS

SCHEMES = ("pre_norm", "post_norm", "dynamic_hyper_connections")


def looped(model, x, y, loss):
    """The gradient of each window's share of the batch loss, one backward pass a window."""
    model.eval()
    count = (~y.isnan()).sum()
    rows = []
    for b in range(len(x)):
        model.zero_grad()
        (loss(model(x[b : b + 1]), y[b : b + 1]).total * len(x) / count).backward()
        rows.append([torch.cat([p.grad.flatten() for p in branch.parameters()]) for branch in model.branches])
    return [torch.stack(column) for column in zip(*rows, strict=True)]


@pytest.mark.parametrize("residual", SCHEMES)
@pytest.mark.parametrize("chunk", [None, 3])
def test_per_sample_gradients_equal_those_of_a_loop(random_network, batch, loss, residual, chunk):
    model = random_network(residual)
    found = per_sample_gradients(model, *batch, loss=loss, chunk=chunk)
    expected = looped(random_network(residual), *batch, loss)
    assert len(found) == 4
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.slow
@pytest.mark.parametrize("residual", sorted({*RESIDUALS} - {*SCHEMES}))
def test_other_schemes_have_per_sample_gradients_too(random_network, batch, loss, residual):
    fields = {"forecast_from": "last_token"}
    found = per_sample_gradients(random_network(residual, **fields), *batch, loss=loss)
    expected = looped(random_network(residual, **fields), *batch, loss)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-11)


def test_shrunk_gradients_are_seen_by_it(random_network, batch, loss):
    models = [random_network(), random_network()]
    intervene(models[1], {"shrunk_gradients": {"dose": 0.5}}, seed=0)
    plain, shrunk = (per_sample_gradients(model, *batch, loss=loss) for model in models)
    for layer in range(4):
        torch.testing.assert_close(shrunk[layer], plain[layer] * 0.5 ** (3 - layer))


def test_signal_and_noise_are_their_definitions(random_network, batch, loss):
    model = random_network()
    found = gradient_signal(model, *batch, loss=loss)
    for k, g in enumerate(looped(random_network(), *batch, loss)):
        noise = sum(float((row - g.mean(0)).square().sum()) for row in g) / 9
        assert found.norm[k].item() == pytest.approx(g.mean(0).norm().item())
        assert found.noise[k].item() == pytest.approx(noise)
        ratio = (float(g.mean(0).square().sum()) - noise / 10) / noise
        assert found.ratio[k].item() == pytest.approx(ratio)
    assert found.true_cosine is None


def test_the_ratio_is_unbiased_where_windows_are_drawn_from_few(random_network, batch, loss):
    """Windows drawn with replacement from ten: the expected gradient and its noise are known exactly."""
    x, y = batch[0], batch[0][..., 0] + 0.5
    model = random_network(depth=1)
    whole = per_sample_gradients(model, x, y, loss=loss)[0]
    signal = whole.mean(0).square().sum()
    estimates = []
    generator = torch.Generator().manual_seed(0)
    for _ in range(400):
        drawn = torch.randint(10, (4,), generator=generator)
        g = whole[drawn]
        estimates.append((g.mean(0).square().sum() - g.var(0).sum() / 4).item())
    mean, spread = torch.tensor(estimates).mean(), torch.tensor(estimates).std()
    assert abs(mean - signal) < 3 * spread / 20
    found = gradient_signal(model, x[drawn], y[drawn], loss=loss)
    assert (found.ratio[0] * found.noise[0]).item() == pytest.approx(estimates[-1])


def test_the_noise_free_gradient_is_the_signal_and_the_rest_is_noise(random_network, batch, loss):
    """grad (p - y)^2 = grad (p - s)^2 - 2 (y - s) grad p, so without noise the ratio has no end."""
    x, y = batch
    model = random_network()
    clean = torch.where(y.isnan(), torch.nan, x[..., 0] / 2)
    found = gradient_signal(model, x, y, loss=loss, noise_free=clean)
    noisy = [g.mean(0) for g in looped(random_network(), x, y, loss)]
    signal = [g.mean(0) for g in looped(random_network(), x, clean, loss)]
    for k, (g, s) in enumerate(zip(noisy, signal, strict=True)):
        assert found.true_cosine[k].item() == pytest.approx(float(g @ s / g.norm() / s.norm()))
        assert found.true_ratio[k].item() == pytest.approx(float(s @ s / (g - s).square().sum()))
    without = gradient_signal(model, x, clean, loss=loss, noise_free=clean)
    torch.testing.assert_close(without.true_cosine, torch.ones(4, dtype=torch.float64))
    assert (without.true_ratio > 1e20).all()


def test_variance_over_batches_is_its_definition(random_network, batch, loss):
    x, y = batch
    batches = [(x[:4], y[:4]), (x[4:8], y[4:8]), (x[6:], y[6:])]
    found = batch_gradient_variance(random_network(), batches, loss=loss)
    each = [[g.mean(0) for g in looped(random_network(), *one, loss)] for one in batches]
    for k in range(4):
        mean = sum(gradients[k] for gradients in each) / 3
        variance = sum(float((gradients[k] - mean).square().sum()) for gradients in each) / 2
        assert found.variance[k].item() == pytest.approx(variance)
        assert found.relative[k].item() == pytest.approx(variance / float(mean @ mean))
    with pytest.raises(ValueError, match="at least two; got 1"):
        batch_gradient_variance(random_network(), batches[:1], loss=loss)


def test_windows_without_a_target_are_refused(random_network, batch, loss):
    with pytest.raises(ValueError, match="at least one target"):
        per_sample_gradients(random_network(), batch[0], torch.full((10, 6), torch.nan), loss=loss)

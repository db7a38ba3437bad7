from __future__ import annotations

import pytest
import torch

from fints.diagnostics import MEDIATORS, effective_rank, gradient_signal, gradient_table, mediators, record
from fints.diagnostics.tokens import squared_cosine, window_share
from fints.interventions import intervene


def test_mediators_are_the_measures_of_the_network_on_the_batch(random_network, batch, loss):
    x, y = batch
    model = random_network()
    update = {name: torch.full_like(p, 1e-3) for name, p in model.named_parameters()}
    found = mediators(model, x, y, loss=loss, update=update, train_loss=0.7, test_loss=1.0)
    assert {*found} == {name for names in MEDIATORS.values() for name in names}
    held = record(model.eval(), x)
    assert found["effective_rank"] == pytest.approx([effective_rank(u).item() for u in held.read])
    assert found["centred_cosine"] == pytest.approx([squared_cosine(u).item() for u in held.read])
    assert found["window_share"] == pytest.approx([window_share(u).item() for u in held.read])
    norms = [row["gradient_norm"] for row in gradient_table(model, x, y, loss=loss)]
    assert found["gradient_norm"] == pytest.approx(norms)
    assert found["train_test_gap"] == pytest.approx([0.3])
    assert all(parameter.grad is None for parameter in model.parameters())


def test_the_equaliser_moves_the_gradient_and_no_other_mediator_of_the_same_weights(
    random_network, batch, loss
):
    """At given weights the forward pass is untouched, so what is measured of it is the same number."""
    x, y = batch
    before = mediators(random_network("post_norm"), x, y, loss=loss)
    model = random_network("post_norm")
    steering = intervene(model, {"gradient_equaliser": {"dose": 1.0}}, seed=0)
    after = mediators(model, x, y, loss=loss, steering=steering)
    for name, values in before.items():
        assert (after[name] == values) == (name != "gradient_norm")
    assert all(parameter.grad is None for parameter in model.parameters())


def test_where_the_noise_free_targets_are_known_the_gradients_signal_is_exact(random_network, batch, loss):
    x, y = batch
    noise_free = 0.3 * y + 0.1
    found = mediators(random_network(), x, y, loss=loss, noise_free=noise_free)
    model = random_network()
    expected = gradient_signal(model, x, y, loss=loss, noise_free=noise_free)
    assert found["gradient_signal"] == expected.true_ratio.tolist()
    assert found["gradient_signal"] != expected.ratio.tolist()
    assert found.keys() == mediators(model, x, y, loss=loss).keys()

"""Without an intervention, or at dose 0, a fit is the plain one to the last bit."""

from __future__ import annotations

import pytest
import torch

from fints.config import TrainingConfig
from fints.interventions import INTERVENTIONS, intervene
from fints.training import fit

FORWARD_UNTOUCHED = ("shrunk_gradients", "rising_updates")


def weights(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def trained(network, windows, config, named, **fields):
    model = network(**fields)
    steering = intervene(model, named, seed=1)
    result = fit(model, windows, windows, config, seed=2, steering=steering)
    return weights(model), result


def test_no_intervention_and_every_one_at_dose_zero_are_the_plain_fit(network, windows, schedule):
    reference, result = trained(network, windows, schedule(), {}, dropout=0.1)
    every = {name: {"dose": 0.0} for name in INTERVENTIONS}
    model = network(dropout=0.1)
    assert intervene(model, every, seed=1) is None
    assert model.alteration is None
    off, again = trained(network, windows, schedule(), every, dropout=0.1)
    assert same(reference, off)
    assert result.history == again.history
    assert result.losses == again.losses


@pytest.mark.slow
@pytest.mark.parametrize("name", INTERVENTIONS)
def test_every_intervention_changes_the_fit_and_leaves_its_first_loss_if_it_only_moves_gradients(
    network, windows, schedule, name
):
    """Under SGD, which shows what AdamW would divide away."""
    config = schedule(optimizer="sgd", learning_rate=0.1)
    options = {
        "output_change_step": {"budget": 1e-3},
        "depth_scaled_updates": {"reference": 2},
        "hinged_decorrelation": {"margin": 0.1},
        "hinged_decorrelation_placebo": {"margin": 0.1},
    }
    reference, plain = trained(network, windows, config, {})
    changed, result = trained(network, windows, config, {name: {"dose": 0.5, **options.get(name, {})}})
    assert not same(reference, changed)
    forward_untouched = INTERVENTIONS[name].role in ("relief", "placebo") or name in FORWARD_UNTOUCHED
    assert (result.losses[0] == plain.losses[0]) == forward_untouched


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gradient_equaliser_placebo", "decorrelation_placebo", "noisy_targets"])
def test_an_intervened_fit_is_the_same_twice_and_when_resumed(network, windows, schedule, tmp_path, name):
    named = {name: {"dose": 0.5}}
    once, _ = trained(network, windows, schedule(), named, dropout=0.1)
    again, _ = trained(network, windows, schedule(), named, dropout=0.1)
    assert same(once, again)

    class Stop(Exception):
        pass

    def interrupt(row):
        raise Stop

    config = TrainingConfig(**(vars(schedule()) | {"evaluate_every": 4}))
    whole, told = trained(network, windows, config, named, dropout=0.1)
    model = network(dropout=0.1)
    path = tmp_path / "fit.pt"
    with pytest.raises(Stop):
        fit(
            model,
            windows,
            windows,
            config,
            seed=2,
            steering=intervene(model, named, seed=1),
            checkpoint=path,
            checkpoint_every=2,
            on_row=interrupt,
        )
    assert path.exists()
    model = network(dropout=0.1)
    resumed = fit(
        model, windows, windows, config, seed=2, steering=intervene(model, named, seed=1), checkpoint=path
    )
    assert same(weights(model), whole)
    assert resumed.losses == told.losses
    assert len(resumed.losses) == 6


def test_what_the_plain_pass_alone_can_do_is_refused(network, windows, schedule):
    for field in ("compile", "activation_checkpointing"):
        model = network()
        steering = intervene(model, {"token_pull": {"dose": 0.5}}, seed=0)
        with pytest.raises(ValueError, match="an intervention needs the plain pass"):
            fit(model, windows, None, schedule(**{field: True}), seed=0, steering=steering)
    with pytest.raises(ValueError, match="an altered network has no compiled pass"):
        model.compiled()


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ({"token_pul": {"dose": 1}}, "Did you mean 'token_pull'"),
        ({"token_pull": 1.0}, "needs a table with a dose"),
        ({"token_pull": {"dose": 2}}, "at least 0 and at most 1; got 2"),
        ({"token_pull": {"dose": True}}, "must be a number"),
        ({"token_pull": {"dose": 1, "rank": 2}}, "unknown option 'rank' of token_pull. Options: dose"),
        ({"output_change_step": {"dose": 1, "budget": 0}}, "budget of output_change_step must be above 0"),
        (
            {"gradient_equaliser": {"dose": 1}, "gradient_equaliser_placebo": {"dose": 1}},
            "one intervention may change the backward pass",
        ),
    ],
)
def test_what_cannot_be_applied_is_refused(network, named, message):
    with pytest.raises(ValueError, match=message):
        intervene(network(), named, seed=0)

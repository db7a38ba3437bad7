"""Networks with interventions that are trained together are, each of them, the fit by itself."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fints.config import ModelConfig
from fints.diagnostics import mediators
from fints.interventions import INTERVENTIONS, cannot_be_stacked, intervene
from fints.interventions.base import NetworkChange
from fints.interventions.table import WATCHABLE
from fints.residual import RESIDUALS
from fints.training import Member, fit, fit_together, make_loss

STACKED = [name for name, kind in INTERVENTIONS.items() if not issubclass(kind, NetworkChange)]
AT_SUBLAYERS = [
    "gradient_equaliser",
    "gradient_equaliser_placebo",
    "decorrelation",
    "decorrelation_placebo",
    "hinged_decorrelation",
    "hinged_decorrelation_placebo",
]
# Networks of two blocks, and no more options than a scheme asks.
SMALL = {"by_depth": {"segments": [["attention_residuals", 1], ["post_norm", 1]]}}
# Doses and options at which a few steps of a small network show what is done.
OPTIONS = {
    "output_change_step": {"budget": 0.003},
    "depth_scaled_updates": {"reference": 1},
    "hinged_decorrelation": {"margin": 0.1},
    "hinged_decorrelation_placebo": {"margin": 0.1},
}


def named(*names):
    return {name: {"dose": 0.7, **OPTIONS.get(name, {})} for name in names}


@pytest.fixture
def members(network, windows, schedule):
    """Make three members that differ in weights, windows, their number, seed, rate and schedule."""

    def make(interventions, own=None, **model):
        made = []
        for k in range(3):
            one = network(random=True, **model)
            generator = torch.Generator().manual_seed(k)
            with torch.no_grad():
                for parameter in one.parameters():
                    parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
            inputs = torch.randn(24 + 3 * k, *windows.inputs.shape[1:], generator=generator)
            targets = inputs[..., 0] + torch.randn(inputs.shape[:2], generator=generator)
            # AdamW moves a weight whose gradient is rounding alone as far as any other.
            changes = {
                "optimizer": "sgd",
                "learning_rate": 0.03 * (k + 1),
                "warmup_steps": 1 + k,
                "interventions": interventions,
                **(own or {}).get(k, {}),
            }
            made.append(
                Member(
                    model=one,
                    train=type(windows)(inputs, targets),
                    validation=None,
                    config=schedule(**changes),
                    seed=k,
                    steering=intervene(one, interventions, seed=k),
                )
            )
        return made

    return make


def alone(member):
    return fit(
        member.model,
        member.train,
        member.validation,
        member.config,
        seed=member.seed,
        steering=member.steering,
        profiler=member.profiler,
    )


def assert_fits_by_themselves(one, other):
    for together, by_itself, member in zip(fit_together(one), map(alone, other), one, strict=True):
        assert together.losses == pytest.approx(by_itself.losses, rel=1e-5)
        assert together.outcome == by_itself.outcome
        assert together.steps == by_itself.steps
        assert not member.model.training
    for own, expected in zip(one, other, strict=True):
        assert_same_weights(own.model, expected.model)


def assert_same_weights(own, expected):
    for name, tensor in expected.state_dict().items():
        torch.testing.assert_close(own.state_dict()[name], tensor, rtol=2e-5, atol=5e-6, msg=name)


def profiler_of(member, windows, seen):
    """What is measured is the gradient that the fit trains with, on windows that stay the same."""
    loss = make_loss(member.config)

    def profile(model, step, update):
        values = mediators(model, windows.inputs, windows.targets, loss=loss, steering=member.steering)
        seen.extend(values["gradient_norm"])
        return [{"step": step}]

    return profile


@pytest.mark.parametrize("residual", ["pre_norm", "post_norm"])
@pytest.mark.parametrize("name", STACKED)
def test_members_with_an_intervention_are_fits_by_themselves(members, name, residual):
    one, other = (members(named(name), residual=residual, dropout=0.2) for _ in range(2))
    plain = members({}, residual=residual, dropout=0.2)
    assert_fits_by_themselves(one, other)
    for own, member in zip(plain, one, strict=True):
        alone(own)
        moved = [
            (a - b).abs().max().item()
            for a, b in zip(own.model.parameters(), member.model.parameters(), strict=True)
        ]
        assert max(moved) > 3e-4, "the intervention does nothing here, so this test could not fail"


def test_several_interventions_at_once(members):
    all_at_once = named("gradient_equaliser", "decorrelation", "output_change_step", "noisy_targets")
    all_at_once["decorrelation_placebo"] = {"dose": 0.0}
    assert_fits_by_themselves(members(all_at_once), members(all_at_once))


@pytest.mark.parametrize("residual", ["dynamic_hyper_connections", "attention_residuals"])
def test_what_acts_on_updates_and_windows_alone_goes_with_every_scheme(members, residual):
    given = named("output_change_step", "rising_updates", "few_windows")
    assert_fits_by_themselves(members(given, residual=residual), members(given, residual=residual))


@pytest.mark.parametrize("residual", ["pre_norm", "post_norm"])
@pytest.mark.parametrize("norm", ["layer_norm", "rms_norm"])
def test_the_pass_of_other_devices_says_the_same(members, monkeypatch, residual, norm):
    """There no kernel of this package's runs: branches and norms are vmapped, sublayer by sublayer."""
    monkeypatch.setattr("fints.model.stacked.has_stacked_form", lambda branch: False)
    given = named("gradient_equaliser", "decorrelation_placebo")
    sizes = {"residual": residual, "norm": norm, "dropout": 0.2}
    assert_fits_by_themselves(members(given, **sizes), members(given, **sizes))


@pytest.mark.parametrize(
    "name", ["gradient_equaliser_placebo", "decorrelation_placebo", "output_change_step"]
)
def test_a_member_that_diverges_leaves_the_others_their_own_draws_and_windows(members, name):
    own = {0: {"learning_rate": 1e12, "clip_norm": 1e12, "warmup_steps": 0}}
    found = [members(named(name), own=own, residual="post_norm") for _ in range(2)]
    results = fit_together(found[0])
    expected = [alone(member) for member in found[1]]
    assert [result.outcome for result in results] == ["diverged", "finished", "finished"]
    assert expected[0].outcome == "diverged"
    for result, other in zip(results[1:], expected[1:], strict=True):
        assert result.losses == pytest.approx(other.losses, rel=1e-5)
    for one, other in zip(found[0][1:], found[1][1:], strict=True):
        assert_same_weights(one.model, other.model)


@pytest.mark.parametrize("name", ["decorrelation_placebo", "output_change_step"])
def test_a_member_that_stops_early_and_what_is_measured_on_the_way(members, windows, name):
    """A profile runs the network's own passes, with its own steering, between two steps of all."""
    validation = type(windows)(windows.inputs[:10], windows.targets[:10])
    # At a rate of nothing no evaluation is better than the first.
    own = {1: {"learning_rate": 1e-30, "patience": 1}}

    def watched(seen):
        return [
            replace(
                member,
                validation=validation,
                config=replace(member.config, evaluate_every=2, profile_every=2, **own.get(k, {})),
                profiler=profiler_of(member, windows, seen),
            )
            for k, member in enumerate(members(named(name), residual="post_norm"))
        ]

    together, apart = [], []
    one, other = watched(together), watched(apart)
    results, expected = fit_together(one), [alone(member) for member in other]
    assert [result.outcome for result in results] == ["finished", "stopped_early", "finished"]
    for result, by_itself, a, b in zip(results, expected, one, other, strict=True):
        assert (result.steps, result.outcome) == (by_itself.steps, by_itself.outcome)
        assert result.losses == pytest.approx(by_itself.losses, rel=1e-5)
        assert result.best_validation_loss == pytest.approx(by_itself.best_validation_loss, rel=1e-5)
        assert_same_weights(a.model, b.model)
    assert sorted(together) == pytest.approx(sorted(apart), rel=1e-4)
    assert len(together) > 6


@pytest.mark.parametrize("residual", RESIDUALS)
@pytest.mark.parametrize("name", AT_SUBLAYERS)
def test_what_acts_at_sublayers_does_so_under_every_scheme(network, windows, schedule, name, residual):
    """Some have parameters that are single numbers, and some reach a branch by several paths."""
    sizes = {"residual": residual, "residual_options": SMALL.get(residual, {})}
    plain, moved = network(random=True, **sizes), network(random=True, **sizes)
    config = schedule(steps=1, warmup_steps=0, learning_rate=0.1, optimizer="sgd")
    fit(plain, windows, None, config, seed=0)
    fit(moved, windows, None, config, seed=0, steering=intervene(moved, named(name), seed=0))
    assert all(bool(parameter.isfinite().all()) for parameter in moved.parameters())
    assert any(not torch.equal(a, b) for a, b in zip(plain.parameters(), moved.parameters(), strict=True))


@pytest.mark.parametrize("residual", RESIDUALS)
def test_the_plan_knows_which_stacked_pass_can_be_looked_at_by_sublayer(network, residual):
    one = network(residual=residual, residual_options=SMALL.get(residual, {}))
    leaves = {name: each.detach().unsqueeze(0) for name, each in one.named_parameters()}
    assert one.stacked([one], leaves).watchable == (residual in WATCHABLE)


@pytest.mark.parametrize("name", AT_SUBLAYERS)
def test_what_acts_at_sublayers_is_refused_where_they_cannot_be_reached(members, name):
    reason = cannot_be_stacked(named(name), ModelConfig(residual="dynamic_hyper_connections"))
    assert reason is not None
    assert "pre_norm and post_norm" in reason
    assert cannot_be_stacked(named(name), ModelConfig(value_residual="fixed")) is not None
    with pytest.raises(ValueError, match="pre_norm and post_norm"):
        fit_together(members(named(name), residual="dynamic_hyper_connections"))
    assert cannot_be_stacked(named(name), ModelConfig(residual="post_norm")) is None
    assert cannot_be_stacked({name: {"dose": 0.0}}, ModelConfig(residual="attention_residuals")) is None


def test_a_change_of_the_pass_and_a_missing_steering_are_refused(members):
    assert "token_pull" in (cannot_be_stacked(named("token_pull"), ModelConfig()) or "")
    with pytest.raises(ValueError, match="one by one"):
        fit_together(members(named("token_pull")))
    first, *rest = members(named("decorrelation"))
    with pytest.raises(ValueError, match="all have a steering"):
        fit_together([replace(first, steering=None), *rest])
    other = members(named("output_change_step"))[0]
    with pytest.raises(ValueError, match="the same interventions"):
        fit_together([replace(first, model=other.model, steering=other.steering), *rest])
    compiled = [replace(one, config=replace(one.config, compile=True)) for one in (first, *rest)]
    with pytest.raises(ValueError, match="needs the plain pass"):
        fit_together(compiled)

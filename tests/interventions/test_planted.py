"""Planted diseases: what each does to a network, and that it moves the mediator it is meant for."""

from __future__ import annotations

import pytest
import torch

from fints.diagnostics import effective_rank, gradient_table, output_change, record
from fints.diagnostics.tokens import dirichlet, squared_cosine
from fints.interventions import (
    INTERVENTIONS,
    FewWindows,
    LowRankOutputs,
    NoisyTargets,
    RisingUpdates,
    ScaledInputs,
    forecasts_by_scale,
    intervene,
    moved_by_scale,
)
from fints.interventions.planted_collapse import past_mean
from fints.training import Weights, make_loss


def ill(network, name, dose, **fields):
    model = network(random=True, depth=4, **fields).eval()
    intervene(model, {name: {"dose": dose}}, seed=0)
    return model


def test_the_pull_is_towards_the_mean_of_the_past_and_under_pre_norm_shrinks_differences(network, windows):
    u = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(0))
    for t in range(5):
        torch.testing.assert_close(past_mean(u)[:, t], u[:, : t + 1].mean(1))
    model = ill(network, "token_pull", 0.3)
    with torch.no_grad():
        held = record(model, windows.inputs)
    for k, (trunk, y, after) in enumerate(zip(held.trunks, held.outputs, held.trunks[1:], strict=False)):
        torch.testing.assert_close(after, trunk + y)
        own = model.branches[k](held.given[k])
        torch.testing.assert_close(after, 0.7 * trunk + 0.3 * past_mean(trunk) + own, rtol=1e-4, atol=1e-5)


def test_the_outputs_of_low_rank_branches_lie_in_the_same_few_directions(network, windows):
    model = ill(network, "low_rank_outputs", 1.0)
    with torch.no_grad():
        held = record(model, windows.inputs)
    flat = torch.cat([y.reshape(-1, 8) for y in held.outputs])
    values = torch.linalg.svdvals(flat)
    assert values[1] > 0.1
    assert values[2] < 1e-4 * values[1]
    half = LowRankOutputs(dose=0.5, seed=0)
    basis = half._basis(8).float()
    healthy = network(random=True).eval()
    _, branch = half.alter(healthy.residual, held.trunks[0], 0, healthy.branches[0])
    y = healthy.branches[0](held.given[0])
    torch.testing.assert_close(branch(held.given[0]), 0.5 * y + 0.5 * y @ basis @ basis.T)


@pytest.mark.parametrize("residual", ["pre_norm", "post_norm", "dynamic_hyper_connections", "denseformer"])
def test_shrunk_gradients_leave_the_forward_pass_and_shrink_geometrically(
    network, windows, schedule, residual
):
    """Under one scheme of tensors and one of tuples; exactly a power where the trunk is one tensor."""
    loss = make_loss(schedule())
    healthy = network(random=True, depth=4, residual=residual).eval()
    model = ill(network, "shrunk_gradients", 0.5, residual=residual)
    with torch.no_grad():
        assert torch.equal(model(windows.inputs).mean, healthy(windows.inputs).mean)
    rows = [
        [row["gradient_norm"] for row in gradient_table(each, windows.inputs, windows.targets, loss=loss)]
        for each in (healthy, model)
    ]
    ratios = [b / a for a, b in zip(*rows, strict=True)]
    if residual != "denseformer":
        assert ratios == pytest.approx([0.5 ** (7 - k) for k in range(8)], rel=1e-4)
    assert ratios[0] < 0.05
    assert ratios[-1] == pytest.approx(1, rel=1e-4)


@pytest.mark.parametrize(("name", "dose"), [("token_pull", 0.3), ("low_rank_outputs", 1.0)])
def test_collapse_lowers_rank_and_raises_the_centred_cosine(network, windows, name, dose):
    with torch.no_grad():
        healthy = record(network(random=True, depth=4, width=16).eval(), windows.inputs).trunks[-1]
        sick = record(ill(network, name, dose, width=16), windows.inputs).trunks[-1]
    assert effective_rank(sick) < 0.95 * effective_rank(healthy)
    assert squared_cosine(sick) > squared_cosine(healthy)
    if name == "token_pull":
        relative = [dirichlet(z, normalised=True).mean() for z in (sick, healthy)]
        assert relative[0] < 0.8 * relative[1]


@pytest.mark.parametrize(("name", "dose"), [("shrunk_gradients", 0.3), ("saturated_branches", 1.0)])
def test_vanishing_lowers_the_gradient_of_early_branches_by_half(network, windows, schedule, name, dose):
    loss = make_loss(schedule())
    rows = [
        gradient_table(model, windows.inputs, windows.targets, loss=loss)
        for model in (network(depth=4).eval(), _fresh(network, name, dose))
    ]
    for k in range(4):
        assert rows[1][k]["gradient_norm"] < 0.5 * rows[0][k]["gradient_norm"]


@pytest.mark.parametrize(
    ("name", "dose", "residual"),
    [
        ("branch_gain", 4.0, "post_norm"),
        ("sharp_inputs", 4.0, "pre_norm"),
        ("sharp_inputs", 4.0, "post_norm"),
    ],
)
def test_amplification_raises_the_output_change_by_half(network, windows, name, dose, residual):
    healthy = output_change(network(depth=4, residual=residual).eval(), windows.inputs)
    sick = _fresh(network, name, dose, residual=residual)
    assert output_change(sick, windows.inputs) > 1.5 * healthy


def test_rising_updates_lengthen_the_step_of_each_branch_by_its_depth(network, windows):
    model = network(random=True).double()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}

    def take():
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.1)

    RisingUpdates(dose=2.0, seed=0).update(Weights.of(model), take, windows.inputs, rate_share=torch.ones(1))
    for name, parameter in model.named_parameters():
        layer = int(name.split(".")[1]) if name.startswith("branches.") else -1
        expected = before[name] + 0.1 * (1 + 2.0 * (layer + 1) / 4)
        torch.testing.assert_close(parameter.detach(), expected)


def _fresh(network, name, dose, **fields):
    model = network(depth=4, **fields).eval()
    intervene(model, {name: {"dose": dose}}, seed=0)
    return model


def test_each_disease_comes_in_two_mechanisms_and_amplification_in_one_more_for_normed_trunks():
    found = {}
    for kind in INTERVENTIONS.values():
        found.setdefault(kind.role, []).append(kind.cause)
    assert sorted(found["disease"]) == sorted(
        2 * ["representation", "gradient", "amplification", "noise"] + ["amplification"]
    )
    assert {*found["placebo"]} == {"gradient", "representation"}


def test_a_causal_network_stays_causal_when_its_tokens_are_pulled(network, windows):
    model = ill(network, "token_pull", 0.5)
    changed = windows.inputs.clone()
    changed[:, 4:] += 1
    with torch.no_grad():
        before, after = model(windows.inputs).mean, model(changed).mean
    assert torch.equal(before[:, :4], after[:, :4])
    assert not torch.equal(before[:, 4:], after[:, 4:])


def test_few_windows_are_the_last_ones(windows):
    few = FewWindows(dose=0.75, seed=0).windows(windows)
    assert len(few) == 8
    inputs, targets = few.gather(torch.tensor([0, 7]))
    assert torch.equal(inputs, windows.inputs[[24, 31]])
    assert torch.equal(targets.nan_to_num(), windows.targets[[24, 31]].nan_to_num())
    assert len(FewWindows(dose=1.0, seed=0).windows(windows)) == 1


def test_the_noise_of_a_target_is_normal_and_belongs_to_the_outcome_not_to_its_place(windows):
    generator = torch.Generator().manual_seed(4)
    windows.targets = torch.randn(32, 3000, generator=generator)
    windows.targets[5, :10] = windows.targets[9, 20:30]
    windows.targets[1, 1] = torch.nan
    noisy = NoisyTargets(dose=0.5, seed=1).windows(windows)
    assert len(noisy) == 32
    everything = noisy.gather(torch.arange(32))[1]
    noise = (everything - windows.targets) / 0.5
    assert noise[1, 1].isnan()
    assert torch.equal(noise[5, :10], noise[9, 20:30])
    assert torch.equal(noisy.gather(torch.tensor([9]))[1], everything[9:10])
    drawn = noise[noise.isfinite()].double()
    assert drawn.mean().abs() < 4 / len(drawn) ** 0.5
    assert drawn.std().item() == pytest.approx(1, abs=0.01)
    assert (drawn**4).mean().item() == pytest.approx(3, abs=0.1)
    assert torch.corrcoef(torch.stack([drawn, windows.targets[noise.isfinite()].double()]))[0, 1].abs() < 0.01
    other = NoisyTargets(dose=0.5, seed=2).windows(windows).gather(torch.arange(32))[1]
    assert not torch.equal(other[0], everything[0])


def test_scaled_windows_change_their_inputs_alone_and_only_the_given_columns(windows):
    windows.inputs[0, 0, 0] = torch.nan
    inputs, targets = ScaledInputs(windows, 4.0, columns=[0, 2]).gather(torch.arange(4))
    assert inputs[0, 0, 0].isnan()
    assert torch.equal(inputs[1:4, :, 1], windows.inputs[1:4, :, 1])
    assert torch.equal(inputs[1:4, :, [0, 2]], 4 * windows.inputs[1:4][..., [0, 2]])
    assert torch.equal(targets.nan_to_num(), windows.targets[:4].nan_to_num())
    with pytest.raises(ValueError, match="must be above 0; got 0"):
        ScaledInputs(windows, 0)


def test_a_network_that_rescales_its_windows_is_not_moved_by_scale_and_pre_norm_is(network, windows):
    moved = {}
    for residual in ("window_rescaled_pre_norm", "pre_norm"):
        fields = {"residual": residual, "forecast_from": "last_token", "norm_eps": 1e-12}
        model = network(random=True, **fields)
        with torch.no_grad():
            model.embedding.linear.bias.zero_()
            # The indicators of missing values have no scale.
            model.embedding.linear.weight[:, 3:] = 0
        moved[residual] = moved_by_scale(forecasts_by_scale(model, windows))
        assert moved[residual][1.0] == 0
    assert moved["window_rescaled_pre_norm"][4.0] < 1e-3
    assert moved["pre_norm"][4.0] > 0.05

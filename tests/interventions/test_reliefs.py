"""Penalties and steps as their equations, written out on random networks."""

from __future__ import annotations

import itertools

import pytest
import torch

from fints.diagnostics.similarity import centred
from fints.interventions import (
    RELIEFS,
    DecorrelationPlacebo,
    DepthScaledUpdates,
    OutputChangeStep,
    alignment,
    changes,
    intervene,
    token_alignment,
)
from fints.interventions.applied import Applied
from fints.interventions.passing import Passing
from fints.training import Weights, make_loss


def step_gradients(model, steering, windows, schedule, step=0):
    loss = make_loss(schedule())
    steering.gradients(model, lambda: loss(model(windows.inputs), windows.targets), step=step)
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def plain_gradients(model, windows, schedule):
    total, count = make_loss(schedule())(model(windows.inputs), windows.targets)
    model.zero_grad()
    (total / count).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def sites(model, windows):
    passing = Passing()
    model.alteration = lambda residual, state, layer, branch: (
        state,
        passing.watch(residual, state, layer, branch),
    )
    model(windows.inputs)
    model.alteration = None
    return passing


def test_alignment_is_its_definition():
    generator = torch.Generator().manual_seed(0)
    read, outputs = (
        [torch.randn(2, 3, 4, generator=generator, dtype=torch.float64) for _ in range(3)] for _ in range(2)
    )

    def cosine(a, b):
        return float(a @ b / a.norm() / b.norm())

    tokens = []
    for u in read:
        z = centred(u)
        tokens.append(sum(cosine(z[i], z[j]) ** 2 for i in range(6) for j in range(6) if i != j) / 30)
    along = [
        sum(cosine(a[b, t], c[b, t]) ** 2 for b in range(2) for t in range(3)) / 6
        for a, c in itertools.pairwise(outputs)
    ]
    assert alignment(read, outputs).item() == pytest.approx(sum(tokens) / 3 + sum(along) / 2)
    line = torch.randn(2, 3, 1, generator=generator) * torch.ones(4)
    assert alignment([line], [line]).item() == pytest.approx(1, abs=1e-5)
    assert alignment([line], [line, 2 * line]).item() == pytest.approx(2, abs=1e-5)


def test_alignment_with_permuted_targets_is_its_definition():
    generator = torch.Generator().manual_seed(0)
    read, outputs = (
        [torch.randn(2, 3, 4, generator=generator, dtype=torch.float64) for _ in range(3)] for _ in range(2)
    )
    order = torch.tensor([2, 0, 3, 1])

    def squared_cosine(a, b):
        return float(a @ b / a.norm() / b.norm()) ** 2

    tokens = []
    for u in read:
        z = centred(u)
        target = z[:, order]
        tokens.append(sum(squared_cosine(z[i], target[j]) for i in range(6) for j in range(6) if i != j) / 30)
    along = [
        sum(squared_cosine(a[b, t, order], c[b, t]) for b in range(2) for t in range(3)) / 6
        for a, c in itertools.pairwise(outputs)
    ]
    assert alignment(read, outputs, order).item() == pytest.approx(sum(tokens) / 3 + sum(along) / 2)
    assert alignment(read, outputs, order).item() != pytest.approx(alignment(read, outputs).item(), rel=0.01)


def test_alignment_of_several_networks_is_that_of_each():
    generator = torch.Generator().manual_seed(0)
    read, outputs = ([torch.randn(5, 2, 3, 4, generator=generator) for _ in range(3)] for _ in range(2))
    orders = torch.stack([torch.randperm(4, generator=generator) for _ in range(5)])
    for order in (None, orders):
        each = [
            alignment([u[k] for u in read], [y[k] for y in outputs], None if order is None else order[k])
            for k in range(5)
        ]
        torch.testing.assert_close(alignment(read, outputs, order), torch.stack(each))


@pytest.mark.parametrize("name", ["decorrelation", "decorrelation_placebo"])
@pytest.mark.parametrize("dose", [0.3, 2.0])
def test_a_penalty_adds_a_gradient_of_the_given_share(network, windows, schedule, name, dose):
    model = network(random=True)
    own = plain_gradients(model, windows, schedule)
    model = network(random=True)
    found = step_gradients(model, intervene(model, {name: {"dose": dose}}, seed=0), windows, schedule)
    assert (found - own).norm().item() == pytest.approx(dose * own.norm().item(), rel=1e-4)


def test_the_penalty_pulls_against_the_gradient_of_the_alignment_and_the_placebo_across_it(
    network, windows, schedule
):
    """The alignment falls along the penalty's part of a step; along the placebo's it stays at first."""
    model = network(random=True, width=16)
    passing = sites(model, windows)
    slope = torch.autograd.grad(
        alignment(passing.read, passing.outputs), list(model.parameters()), materialize_grads=True
    )
    slope = torch.cat([g.flatten() for g in slope])
    own = plain_gradients(model, windows, schedule)
    cosines = {}
    for name in ("decorrelation", "decorrelation_placebo"):
        fresh = network(random=True, width=16)
        found = step_gradients(fresh, intervene(fresh, {name: {"dose": 1.0}}, seed=0), windows, schedule)
        cosines[name] = torch.nn.functional.cosine_similarity(found - own, slope, dim=0).item()
    assert cosines["decorrelation"] == pytest.approx(1, abs=1e-4)
    assert abs(cosines["decorrelation_placebo"]) < 1e-3


def test_the_placebos_targets_are_the_same_at_every_step_and_others_for_another_seed(
    network, windows, schedule
):
    found = []
    for seed, step in ((0, 3), (0, 4), (1, 3)):
        model = network(random=True)
        steering = Applied([DecorrelationPlacebo(dose=1.0, seed=seed)], model)
        found.append(step_gradients(model, steering, windows, schedule, step=step))
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


HINGED = ["hinged_decorrelation", "hinged_decorrelation_placebo"]


def hinge_slope(network, windows, margin):
    """The gradient of the mean excess of sublayers' alignment over a margin, and how many are above it."""
    model = network(random=True, width=16)
    found = torch.stack([token_alignment(u) for u in sites(model, windows).read])
    excess = (found - margin).clamp(min=0).mean()
    slope = torch.autograd.grad(excess, list(model.parameters()), materialize_grads=True)
    return torch.cat([g.flatten() for g in slope]), int((found > margin).sum()), len(found)


def test_a_hinged_penalty_pulls_along_the_gradient_of_what_is_above_the_margin_and_its_placebo_across(
    network, windows, schedule
):
    model = network(random=True, width=16)
    found = sorted(token_alignment(u).item() for u in sites(model, windows).read)
    margin = (found[0] + found[-1]) / 2
    slope, above, every = hinge_slope(network, windows, margin)
    assert 0 < above < every
    own = plain_gradients(network(random=True, width=16), windows, schedule)
    cosines = []
    for name in HINGED:
        fresh = network(random=True, width=16)
        steering = intervene(fresh, {name: {"dose": 0.3, "margin": margin}}, seed=0)
        pull = step_gradients(fresh, steering, windows, schedule) - own
        assert pull.norm().item() == pytest.approx(0.3 * own.norm().item(), rel=1e-4)
        cosines.append(torch.nn.functional.cosine_similarity(pull, slope, dim=0).item())
    assert cosines == [pytest.approx(1, abs=1e-4), pytest.approx(0, abs=1e-3)]


@pytest.mark.parametrize("name", HINGED)
def test_a_hinged_penalty_leaves_a_step_as_it_is_while_no_sublayer_is_above_the_margin(
    network, windows, schedule, name
):
    own = plain_gradients(network(random=True), windows, schedule)
    fresh = network(random=True)
    steering = intervene(fresh, {name: {"dose": 1.0, "margin": 0.999}}, seed=0)
    assert torch.equal(step_gradients(fresh, steering, windows, schedule), own)


@pytest.mark.parametrize("margin", [-0.1, 1.0, "half", True])
def test_a_margin_is_a_number_from_0_to_below_1(network, margin):
    for name in HINGED:
        with pytest.raises(ValueError, match=f"the margin of {name} must be a number from 0 to below 1"):
            intervene(network(), {name: {"dose": 1.0, "margin": margin}}, seed=0)


def moved_by(model, change, delta, windows, rate_share=1.0):
    """What `change` makes of a step that adds `delta` to every parameter."""
    before = {name: p.detach().clone() for name, p in model.named_parameters()}

    def take():
        with torch.no_grad():
            for name, p in model.named_parameters():
                p.add_(delta[name])

    change.update(Weights.of(model), take, windows.inputs, rate_share=torch.tensor([rate_share]))
    return {name: p.detach() - before[name] for name, p in model.named_parameters()}


def some_step(model, size, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return {
        name: size * torch.randn(p.shape, generator=generator).to(p) for name, p in model.named_parameters()
    }


@pytest.mark.parametrize("dose", [0.5, 1.0])
def test_a_step_that_changes_the_output_too_much_is_shortened_to_its_budget(network, windows, dose):
    model = network(random=True).double().eval()
    windows.inputs = windows.inputs.double()
    delta = some_step(model, 0.05)
    before = model(windows.inputs).mean
    moved_by(model, OutputChangeStep(dose=1.0, seed=0, budget=1e9), delta, windows)
    change = (model(windows.inputs).mean - before).square().mean().sqrt().item()
    model = network(random=True).double().eval()
    # The same in the warm-up as after it: the budget is no part of the schedule.
    moved = moved_by(
        model, OutputChangeStep(dose=dose, seed=0, budget=change / 4), delta, windows, rate_share=0.5
    )
    for name, step in moved.items():
        torch.testing.assert_close(step, delta[name] * (1 / 4) ** dose, rtol=1e-6, atol=1e-12)


def test_a_step_within_its_budget_is_untouched_to_the_last_bit(network, windows):
    plain, model = network(random=True), network(random=True)
    delta = some_step(model, 1e-3)
    with torch.no_grad():
        for name, p in plain.named_parameters():
            p.add_(delta[name])
    moved_by(model, OutputChangeStep(dose=1.0, seed=0, budget=1e9), delta, windows)
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), model.parameters(), strict=True))


@pytest.mark.parametrize(("dose", "factor"), [(1.0, 0.25), (0.5, 0.5)])
def test_updates_of_branches_alone_shrink_with_depth(network, windows, dose, factor):
    model = network(random=True, depth=4).double()
    delta = some_step(model, 0.1)
    moved = moved_by(model, DepthScaledUpdates(dose=dose, seed=0, reference=2), delta, windows)
    for name, step in moved.items():
        expected = delta[name] * (factor if name.startswith("branches.") else 1)
        torch.testing.assert_close(step, expected, rtol=1e-9, atol=1e-12)


def test_reliefs_are_changes_of_an_experiment_at_several_doses(network):
    from fints.config import Experiment, override

    for name, relief in RELIEFS.items():
        assert len(relief.doses) >= 2
        for dose in relief.doses:
            plain = override(Experiment(), {"training.keep": "last"})
            changed = override(plain, changes(name, dose))
            assert changed != plain
            intervene(network(), changed.training.interventions, seed=0)
        if relief.placebo is not None:
            assert override(Experiment(), changes(relief.placebo, 1.0)) != Experiment()
    assert {relief.cause for relief in RELIEFS.values()} == {
        "gradient",
        "representation",
        "amplification",
        "noise",
    }
    with pytest.raises(ValueError, match="unknown intervention 'warm_up'"):
        changes("warm_up", 1.0)

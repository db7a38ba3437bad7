from __future__ import annotations

import pytest
import torch

from fints.interventions import GradientEqualiser, GradientEqualiserPlacebo, intervene
from fints.interventions.base import one_cycle
from fints.interventions.passing import Passing
from fints.training import Weights, make_loss


def gradients(model, windows, schedule, name, dose, seed=0):
    """The gradients of a step and what reached each branch in it."""
    steering = intervene(model, {name: {"dose": dose}}, seed=seed)
    reached = {}
    loss = make_loss(schedule())

    def forward():
        passing = steering._passing
        forecast = model(windows.inputs)
        inner = passing.watch

        assert inner is not None
        for layer, y in enumerate(passing.outputs):
            y.register_hook(lambda g, layer=layer: reached.setdefault(layer, []).append(g.clone()))
        return loss(forecast, windows.targets)

    total, count = steering.gradients(model, forward, step=0)
    rules = {
        name: parameter.grad.clone()
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }
    return rules, reached, total / count


def plain(model, windows, schedule):
    total, count = make_loss(schedule())(model(windows.inputs), windows.targets)
    (total / count).backward()
    return {name: p.grad for name, p in model.named_parameters()}


def length(gradients):
    return torch.stack([g.norm() for n, g in gradients.items() if n.startswith("branches.")]).norm()


@pytest.mark.parametrize("residual", ["pre_norm", "post_norm", "dynamic_hyper_connections"])
def test_the_equaliser_is_its_equation_written_out(network, windows, schedule, residual):
    """Sublayer by sublayer from the top: the gradient by y_k is taken through the rescaled ones above it."""
    dose = 0.5
    model = network(random=True, residual=residual).double()
    windows.inputs, windows.targets = windows.inputs.double(), windows.targets.double()
    found, _, _ = gradients(model, windows, schedule, "gradient_equaliser", dose)

    by_hand = network(random=True, residual=residual).double()
    outputs, scales = [], torch.ones(4, dtype=torch.float64)

    def run(factors):
        """A pass whose y_k carries `factors[k]` in its gradient alone."""
        outputs.clear()
        for parameter in by_hand.parameters():
            parameter.grad = None

        def scaled(residual, state, layer, branch):
            def called(u):
                y = branch(u)
                z = y * factors[layer] + (y - y * factors[layer]).detach()
                outputs.append(z)
                return z

            return state, called

        by_hand.alteration = scaled
        total, count = make_loss(schedule())(by_hand(windows.inputs), windows.targets)
        return total / count

    norms = [g.norm() for g in torch.autograd.grad(run(scales), outputs)]
    common = torch.stack(norms).log().mean().exp()
    run(scales).backward()
    natural = length({n: p.grad for n, p in by_hand.named_parameters() if p.grad is not None})
    for layer in (3, 2, 1, 0):
        mean = run(scales)
        arriving = torch.autograd.grad(mean, outputs)[layer].norm()
        scales[layer] = (common / arriving) ** dose
    run(scales).backward()
    wanted = {n: p.grad for n, p in by_hand.named_parameters() if p.grad is not None}
    factor = natural / length(wanted)
    assert abs(factor - 1) > 1e-3
    for name, gradient in wanted.items():
        expected = gradient * factor if name.startswith("branches.") else gradient
        torch.testing.assert_close(found[name], expected, rtol=1e-8, atol=1e-12)


def test_at_dose_one_every_branch_is_reached_by_the_same_norm(network, windows, schedule):
    """The gradient of each output map's bias is the sum over tokens of what reached the branch."""
    model = network(random=True, residual="post_norm", depth=3)
    seen = []
    equaliser = GradientEqualiser(dose=1.0, seed=0)
    passing = Passing()

    def watched(residual, state, layer, branch):
        return state, passing.watch(residual, state, layer, branch)

    model.alteration = watched
    total, count = make_loss(schedule())(model(windows.inputs), windows.targets)
    before = [g.norm() for g in torch.autograd.grad(total / count, passing.outputs, retain_graph=True)]
    assert max(before) > 2 * min(before)

    class Spied(Passing):
        pass

    original = Passing.__setattr__

    def spy(self, name, value):
        if name == "rule" and value is not None:
            inner = value

            def value(layer, g):
                after = inner(layer, g)
                seen.append(after.norm())
                return after

        original(self, name, value)

    passing.__class__ = Spied
    Spied.__setattr__ = spy
    equaliser.backward(total / count, passing, Weights.of(model), retain_graph=False)
    assert len(seen) == 6
    torch.testing.assert_close(torch.stack(seen), seen[0].expand(6), rtol=1e-4, atol=0)
    torch.testing.assert_close(seen[0], torch.stack(before).log().mean().exp(), rtol=1e-4, atol=0)


@pytest.mark.parametrize("name", ["gradient_equaliser", "gradient_equaliser_placebo"])
def test_forward_and_total_length_are_those_of_the_plain_pass(network, windows, schedule, name):
    options = {"random": True, "residual": "post_norm"}
    untouched = network(**options)
    reference = plain(untouched, windows, schedule)
    found, _, value = gradients(network(**options), windows, schedule, name, 1.0)
    total, count = make_loss(schedule())(untouched(windows.inputs), windows.targets)
    assert torch.equal(value, total / count)
    torch.testing.assert_close(length(found), length(reference), rtol=1e-5, atol=0)
    head = [n for n in reference if n.startswith("head.") or n.startswith("residual.final")]
    assert all(torch.equal(found[n], reference[n]) for n in head)
    assert not torch.allclose(found["branches.0.output.weight"], reference["branches.0.output.weight"])


def test_the_placebo_uses_the_equalisers_factors_elsewhere(network, windows, schedule):
    """On a scheme without a path through lower branches' inputs the factors can be read off directly."""
    model = network(random=True)
    passing = Passing()
    model.alteration = lambda residual, state, layer, branch: (
        state,
        passing.watch(residual, state, layer, branch),
    )
    total, count = make_loss(schedule())(model(windows.inputs), windows.targets)
    used = []
    original = Passing.__setattr__

    class Spied(Passing):
        def __setattr__(self, name, value):
            if name == "rule" and value is not None:
                inner, calls = value, {}
                used.append(calls)

                def value(layer, g):
                    after = inner(layer, g)
                    calls[layer] = (after.norm() / g.norm()).item()
                    return after

            original(self, name, value)

    passing.__class__ = Spied
    placebo = GradientEqualiserPlacebo(dose=1.0, seed=3)
    placebo.backward(total / count, passing, Weights.of(model), retain_graph=False)
    equaliser, permuted = used
    cycle = one_cycle(4, *placebo.seeds)
    assert [permuted[k] for k in range(4)] == pytest.approx([equaliser[cycle[k]] for k in range(4)], rel=1e-5)


@pytest.mark.parametrize("number", [2, 3, 8, 64])
def test_no_sublayer_keeps_its_own_factor_in_the_placebo(number):
    cycle = one_cycle(number, seed=5)
    place, visited = 0, []
    for _ in range(number):
        visited.append(place)
        place = cycle[place]
    assert sorted(visited) == list(range(number))
    assert place == 0

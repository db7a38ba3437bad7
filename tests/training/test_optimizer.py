from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from fints.training import learning_rate, make_optimizer, parameter_groups

SCHEMES = ("pre_norm", "post_norm", "static_hyper_connections", "dynamic_hyper_connections")


def _names(model: nn.Module) -> tuple[set[str], set[str]]:
    decayed, plain = parameter_groups(model, 0.1)
    assert (decayed["weight_decay"], plain["weight_decay"]) == (0.1, 0.0)
    return set(decayed["names"]), set(plain["names"])


@pytest.mark.parametrize("residual", SCHEMES)
@pytest.mark.parametrize("positions", ["relative", "learned"])
def test_every_parameter_is_in_exactly_one_group(network, residual, positions):
    model = network(residual=residual, positions=positions)
    decayed, plain = parameter_groups(model, 0.1)
    grouped = [*decayed["names"], *plain["names"]]
    assert sorted(grouped) == sorted(name for name, _ in model.named_parameters())
    assert len(decayed["params"]) == len(decayed["names"])
    named = dict(model.named_parameters())
    assert all(named[n] is p for g in (decayed, plain) for n, p in zip(g["names"], g["params"], strict=True))


@pytest.mark.parametrize("residual", SCHEMES)
def test_the_weights_of_linear_maps_decay_and_biases_gains_and_position_tables_do_not(network, residual):
    for positions in ("relative", "learned"):
        model = network(residual=residual, positions=positions)
        decayed, plain = _names(model)
        linear = {
            f"{name}.weight" for name, module in model.named_modules() if isinstance(module, nn.Linear)
        } - {f"residual.{name}" for name in model.residual.no_decay()}
        assert linear <= decayed
        assert all(parameter.dim() >= 2 for name, parameter in model.named_parameters() if name in decayed)
        assert all(not name.endswith("bias") for name in decayed)
        tables = [name for name, _ in model.named_parameters() if "position" in name]
        assert tables
        assert set(tables) <= plain


@pytest.mark.parametrize("residual", ["static_hyper_connections", "dynamic_hyper_connections"])
def test_the_static_matrices_of_hyper_connections_never_decay(network, residual):
    model = network(residual=residual)
    decayed, plain = _names(model)
    exempt = {f"residual.{name}" for name in model.residual.no_decay()}
    assert exempt
    assert exempt <= plain
    # The static matrices have two axes, so a rule by shape alone would decay them.
    assert any(dict(model.named_parameters())[name].dim() >= 2 for name in exempt)
    own = {name for name in decayed if name.startswith("residual.")}
    assert bool(own) == (residual == "dynamic_hyper_connections")


def test_decay_alone_shrinks_the_decayed_and_leaves_the_rest(network, schedule):
    model = network(residual="dynamic_hyper_connections")
    decayed, _ = _names(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(1.0)
    optimizer = make_optimizer(model, schedule(weight_decay=0.5, learning_rate=0.1))
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.detach().mean().item(), 0.95 if name in decayed else 1.0)


def test_frozen_parameters_are_left_out_and_a_wholly_frozen_model_is_refused(network, schedule):
    model = network()
    model.embedding.requires_grad_(False)
    names = set().union(*_names(model))
    assert not any(name.startswith("embedding") for name in names)
    with pytest.raises(ValueError, match="needs a trainable parameter"):
        make_optimizer(network().requires_grad_(False), schedule())


def test_a_scheme_that_exempts_what_it_does_not_own_is_refused(network, monkeypatch):
    model = network()
    monkeypatch.setattr(type(model.residual), "no_decay", lambda self: {"gate"})
    with pytest.raises(ValueError, match=r"no_decay\(\) must name its own parameters; got gate"):
        parameter_groups(model, 0.1)


def test_the_learning_rate_warms_up_in_a_line_and_falls_in_a_cosine(schedule):
    config = schedule(steps=100, warmup_steps=10, learning_rate=2.0, final_learning_rate_share=0.1)
    rates = [learning_rate(step, config) for step in range(100)]
    assert rates[:10] == pytest.approx([0.2 * (step + 1) for step in range(10)])
    literal = [2.0 * (0.1 + 0.9 * (1 + math.cos(math.pi * (step - 10) / 90)) / 2) for step in range(10, 100)]
    assert rates[10:] == pytest.approx(literal)
    assert max(rates) == rates[9] == rates[10] == 2.0
    assert learning_rate(100, config) == pytest.approx(0.2)


def test_no_step_is_wasted_on_a_zero_rate(schedule):
    for config in (schedule(steps=1, warmup_steps=0), schedule(steps=5, warmup_steps=4), schedule(steps=30)):
        assert all(learning_rate(step, config) > 0 for step in range(config.steps))

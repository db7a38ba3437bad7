"""A converted network forecasts what the given one does, on weights that are not those of the start."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fints.config import ModelConfig
from fints.model import Transformer, build
from fints.model.convert import CONVERSIONS, convert, largest_difference
from fints.residual import RESIDUALS

# Options without which a scheme is no relative of Pre-Norm's.
OPTIONS = {"re_zero": {"branch_norm": "pre"}}
# Sources of which only some have a counterpart.
SOURCES = {("learnable_skip", "static_hyper_connections"): {"num_streams": 1}}


def trained(name: str, *, eps: float = 1e-12, **fields) -> tuple[Transformer, ModelConfig]:
    """A double-precision network with every parameter moved from its start."""
    options = OPTIONS.get(name, {})
    config = ModelConfig(
        residual=name, residual_options=options, width=16, depth=3, num_heads=2, norm_eps=eps, **fields
    )
    model = build(config, num_features=3, context=6, seed=0).double()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, dtype=torch.float64, generator=generator), alpha=0.3)
    return model.eval(), config


@pytest.fixture(scope="module")
def x() -> torch.Tensor:
    return torch.randn(5, 6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2))


def options_for(source: str, to: str) -> dict:
    return SOURCES.get((source, to), OPTIONS.get(to, {}))


@pytest.mark.parametrize("norm", ["layer_norm", "rms_norm"])
@pytest.mark.parametrize(("source", "to"), sorted(CONVERSIONS))
def test_the_forecasts_are_those_of_the_given_network(source, to, norm, x):
    model, config = trained(source, norm=norm)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found, changed = convert(model, config, to=to, options=options_for(source, to))
    assert largest_difference(model, found, x) < 1e-9
    assert (changed.residual, changed.residual_options) == (to, options_for(source, to))
    assert changed.width == config.width
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    # What was written is what a forecaster saved with this configuration is read into.
    again = build(changed, num_features=3, context=6, seed=9).double().eval()
    again.load_state_dict(found.state_dict())
    assert largest_difference(again, found, x) == 0


@pytest.mark.parametrize(("source", "to"), sorted(CONVERSIONS))
def test_at_the_usual_epsilon_and_precision_the_difference_is_small(source, to, x):
    model, config = trained(source, eps=1e-5)
    found, _ = convert(model.float(), config, to=to, options=options_for(source, to))
    assert largest_difference(model, found, x.float()) < 1e-4


def test_folded_gains_are_those_of_pre_norm_times_the_root_of_the_block():
    model, config = trained("pre_norm")
    found, _ = convert(model, config, to="layer_norm_scaling")
    for layer, (own, given) in enumerate(zip(found.residual.norms, model.residual.norms, strict=True)):
        for parameter, before in zip(own.parameters(), given.parameters(), strict=True):
            torch.testing.assert_close(parameter, before * (layer // 2 + 1) ** 0.5, rtol=1e-14, atol=0)
    assert torch.equal(found.residual.final_norm.weight, model.residual.final_norm.weight)


def test_two_conversions_are_chained_through_pre_norm(x):
    model, config = trained("layer_norm_scaling")
    found, changed = convert(model, config, to="dynamic_hyper_connections", options={"num_streams": 3})
    assert changed.residual_options == {"num_streams": 3}
    assert largest_difference(model, found, x) < 1e-9


def test_a_depth_scaled_network_may_become_one_that_forbids_that_start(x):
    model, config = trained("pre_norm", initialiser="depth_scaled")
    found, changed = convert(model, config, to="layer_norm_scaling")
    assert changed.initialiser == "default"
    assert largest_difference(model, found, x) < 1e-9


def test_training_goes_on_from_a_converted_network(x):
    model, config = trained("pre_norm")
    found, _ = convert(model, config, to="dynamic_hyper_connections")
    found.train()(x).mean.square().mean().backward()
    gradients = [parameter.grad for parameter in found.residual.W]
    assert all(gradient.abs().max() > 0 for gradient in gradients)


@pytest.mark.parametrize("source", RESIDUALS)
def test_anything_else_is_refused_with_the_reason(source):
    config = ModelConfig(residual=source, width=16, depth=1, num_heads=2)
    model = build(config, num_features=3, context=6, seed=0)
    reasons = set()
    for to in RESIDUALS:
        through = (source, "pre_norm") in CONVERSIONS and ("pre_norm", to) in CONVERSIONS
        if (source, to) in CONVERSIONS or through:
            continue
        with pytest.raises(ValueError, match="already" if source == to else "no exact conversion") as refused:
            convert(model, config, to=to, options=OPTIONS.get(to))
        if source != to:
            opening, reason = str(refused.value).split(": ", 1)
            assert opening == f"there is no exact conversion from {source} to {to}"
            reasons.add(reason)
    assert all(len(reason) > 60 for reason in reasons)


@pytest.mark.parametrize(
    ("source", "to", "options", "said"),
    [
        ("pre_norm", "re_zero", {}, "branch_norm=pre"),
        ("pre_norm", "dynamic_hyper_connection", {}, "Did you mean 'dynamic_hyper_connections'"),
        ("pre_norm", "static_hyper_connections", {"streams": 2}, "num_streams"),
        ("pre_norm", "manifold_hyper_connections", {"init": "mhc_lite", "mix": "permutations"}, "differ by"),
        (
            "pre_norm",
            "by_depth",
            {"segments": [["pre_norm", 1], ["peri_ln", 2]]},
            "equal Pre-Norm when fresh",
        ),
        ("static_hyper_connections", "pre_norm", {}, "another mix of what came before"),
        ("pre_norm", "post_norm", {}, "norms the trunk"),
    ],
)
def test_what_cannot_be_converted_says_what_to_do(source, to, options, said):
    model, config = trained(source)
    with pytest.raises(ValueError, match=said):
        convert(model, config, to=to, options=options)


def test_a_mistake_in_a_conversion_is_found_before_it_is_returned(monkeypatch):
    def wrong(source: nn.Module, target: nn.Module) -> None:
        target.residual.load_state_dict(source.residual.state_dict(), strict=False)
        target.residual.norms[1].weight.mul_(1 + 1e-6)

    monkeypatch.setitem(CONVERSIONS, ("pre_norm", "learnable_skip"), wrong)
    model, config = trained("pre_norm")
    with pytest.raises(ValueError, match="would differ by"):
        convert(model, config, to="learnable_skip")

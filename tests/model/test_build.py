"""What a seed determines, and where a network starts."""

from __future__ import annotations

import pytest
import torch

from fints.config import ModelConfig
from fints.model import Transformer, build, parameter_count
from fints.residual import RESIDUALS


def weights(network, *parts: str) -> dict[str, torch.Tensor]:
    return {name: value for name, value in network.state_dict().items() if name.startswith(parts)}


def fixes_the_scale(network) -> bool:
    return any(network.residual.part(layer).own_branch_scale for layer in range(len(network.branches)))


# That DeepNorm scales what it was given, and by how much: test_branch_scale.py.
@pytest.mark.parametrize("residual", [name for name in RESIDUALS if name != "deep_norm"])
@pytest.mark.parametrize("initialiser", ["default", "xavier_uniform", "depth_scaled"])
def test_every_scheme_starts_from_the_same_branches_embedding_and_head(model, residual, initialiser):
    if initialiser == "depth_scaled" and fixes_the_scale(model(residual=residual)):
        initialiser = "default"
    fields = {"initialiser": initialiser, "positions": "learned", "head": "student_t"}
    ours = weights(model(residual=residual, **fields), "branches", "embedding", "head")
    reference = weights(model(**fields), "branches", "embedding", "head")
    assert len(ours) == len(reference) == 3 * 8 + 3 + 2
    assert all(torch.equal(ours[name], value) for name, value in reference.items())


def test_another_seed_draws_every_map_anew(model):
    one, other = weights(model(seed=0), "branches"), weights(model(seed=1), "branches")
    assert all(not torch.equal(one[name], other[name]) for name in one if name.endswith("weight"))


def test_a_shallower_network_has_the_first_branches_of_a_deeper_one(model):
    shallow, deep = weights(model(depth=2), "branches"), weights(model(depth=5), "branches")
    assert len(shallow) > 0
    assert all(torch.equal(deep[name], value) for name, value in shallow.items())


def test_building_leaves_the_global_generator_as_it_was(model):
    before = torch.random.get_rng_state()
    model(residual="dynamic_hyper_connections")
    parameter_count(ModelConfig(), num_features=3, context=5)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_building_seeds_no_accelerator(model, monkeypatch):
    """Only the CPU's generator is put back afterwards, so only that one may be seeded."""

    def refuse(seed):
        raise AssertionError(f"an accelerator was seeded with {seed}")

    monkeypatch.setattr(torch.cuda, "manual_seed_all", refuse)
    monkeypatch.setattr(torch.mps, "manual_seed", refuse)
    monkeypatch.setattr(torch.xpu, "manual_seed_all", refuse)
    model(residual="dynamic_hyper_connections")


@pytest.mark.parametrize("residual", list(RESIDUALS))
def test_the_first_forecasts_are_small_but_carry_gradient_to_every_branch(residual):
    network = build(ModelConfig(residual=residual, width=64), num_features=8, context=24, seed=0)
    x = torch.randn(64, 24, 8, generator=torch.Generator().manual_seed(0))
    mean = network(x).mean
    assert 0.03 < mean.std() < 0.3
    mean.sum().backward()
    # Where the weight of every branch starts at 0, that weight alone learns in the first step.
    silent = residual in ("re_zero", "skip_init")
    assert all(
        (branch.output.weight.grad.abs().max() > 0).item() is not silent for branch in network.branches
    )


def test_tokens_start_at_unit_variance():
    network = build(ModelConfig(width=512), num_features=64, context=24, seed=0)
    x = torch.randn(64, 24, 64, generator=torch.Generator().manual_seed(0))
    assert network.embedding(x).std().item() == pytest.approx(1, rel=0.05)


@pytest.mark.parametrize(
    ("initialiser", "hidden", "output"),
    [
        ("default", (3 * 256) ** -0.5, (3 * 1024) ** -0.5),
        ("xavier_uniform", (2 / 1280) ** 0.5, (2 / 1280) ** 0.5),
        ("depth_scaled", (3 * 256) ** -0.5, (3 * 1024) ** -0.5 / 8**0.5),
    ],
)
def test_initialisers_draw_the_documented_spread(initialiser, hidden, output):
    config = ModelConfig(width=256, depth=4, initialiser=initialiser)
    network = build(config, num_features=8, context=4, seed=0)
    for branch in network.branches[1::2]:
        assert branch.hidden.weight.std().item() == pytest.approx(hidden, rel=0.02)
        assert branch.output.weight.std().item() == pytest.approx(output, rel=0.02)
        assert not branch.hidden.bias.any()
        assert not branch.output.bias.any()


@pytest.mark.parametrize("residual", list(RESIDUALS))
def test_parameters_are_counted_without_building(residual):
    config = ModelConfig(residual=residual, positions="learned")
    sizes = {"num_features": 7, "context": 24, "num_horizons": 2}
    network = build(config, **sizes, seed=0)
    assert parameter_count(config, **sizes) == sum(p.numel() for p in network.parameters())


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"residual": "pre-norm"}, "Did you mean 'pre_norm'"),
        ({"residual_options": {"num_streams": 4}}, "pre_norm has no options"),
        ({"head": "laplace"}, "head = 'laplace' is unknown. Choose one of point, gaussian, student_t"),
        ({"positions": "rotary"}, "positions = 'rotary'"),
        ({"initialiser": "he"}, "initialiser = 'he'"),
        ({"norm": "batch_norm"}, "unknown norm 'batch_norm'"),
        ({"width": 30}, "multiple of num_heads"),
        ({"depth": 0}, "depth must be at least 1; got 0"),
        ({"num_features": 0}, "num_features must be at least 1; got 0"),
    ],
)
def test_what_cannot_be_built_is_one_clear_message(fields, message):
    with pytest.raises(ValueError, match=message):
        Transformer(**{"num_features": 3, "context": 8, **fields})

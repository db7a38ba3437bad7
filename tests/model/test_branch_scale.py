"""Which scheme sets the scale of fresh branches, and which weights it touches."""

from __future__ import annotations

import pytest
import torch

from fints.config import ModelConfig
from fints.model import build
from fints.residual import RESIDUALS

SIZES = {"num_features": 5, "context": 12}


@pytest.mark.parametrize("depth", [2, 12])
@pytest.mark.parametrize("initialiser", ["default", "xavier_uniform"])
def test_deep_norm_multiplies_values_outputs_and_feed_forward_by_beta_and_nothing_else(depth, initialiser):
    shape = {"width": 16, "num_heads": 2, "depth": depth, "initialiser": initialiser}
    plain = build(ModelConfig(**shape), **SIZES, seed=4).branches
    scaled = build(ModelConfig(residual="deep_norm", **shape), **SIZES, seed=4).branches
    beta = (8 * depth) ** -0.25
    for attention, expected in zip(scaled[::2], plain[::2], strict=True):
        query, key, value = attention.query_key_value.weight.chunk(3)
        drawn = expected.query_key_value.weight.chunk(3)
        assert torch.equal(query, drawn[0])
        assert torch.equal(key, drawn[1])
        assert torch.equal(value, beta * drawn[2])
        assert torch.equal(attention.output.weight, beta * expected.output.weight)
    for feed_forward, expected in zip(scaled[1::2], plain[1::2], strict=True):
        assert torch.equal(feed_forward.hidden.weight, beta * expected.hidden.weight)
        assert torch.equal(feed_forward.output.weight, beta * expected.output.weight)


def test_the_spread_of_fresh_values_is_beta_times_that_of_queries():
    network = build(ModelConfig(residual="deep_norm", width=256, depth=6), **SIZES, seed=0)
    for attention in network.branches[::2]:
        query, _, value = attention.query_key_value.weight.chunk(3)
        assert (value.std() / query.std()).item() == pytest.approx(48**-0.25, rel=0.03)


@pytest.mark.parametrize("residual", list(RESIDUALS))
def test_a_depth_scaled_start_is_refused_where_the_scheme_sets_the_scale_itself(residual):
    config = ModelConfig(residual=residual, width=16, num_heads=2, depth=2)
    parts = build(config, **SIZES, seed=0).residual
    fixes = any(parts.part(layer).own_branch_scale for layer in range(4))
    scaled = ModelConfig(residual=residual, width=16, num_heads=2, depth=2, initialiser="depth_scaled")
    if not fixes:
        build(scaled, **SIZES, seed=0)
        return
    with pytest.raises(ValueError, match=f'"depth_scaled" cannot be used with {residual}.*Choose "default"'):
        build(scaled, **SIZES, seed=0)


def test_the_family_that_sets_its_own_scale_is_the_papers():
    own = {name for name, scheme in RESIDUALS.items() if scheme.own_branch_scale}
    assert own >= {"post_norm", "deep_norm", "admin", "resi_dual", "layer_norm_scaling"}
    assert not own & {"pre_norm", "static_hyper_connections", "dynamic_hyper_connections", "sandwich_norm"}

"""The estimate of memory against what autograd keeps."""

from __future__ import annotations

import pytest
import torch

from fints.config import ModelConfig
from fints.model import build, estimate_memory, parameter_count
from fints.model.checkpointing import segment_length
from fints.residual import RESIDUALS

SIZES = {"num_features": 7, "context": 24}
BATCH = 32


def measured(config, *, checkpointed=False, precision="float32") -> int:
    """Bytes of all storages that one forward pass keeps for its backward pass."""
    network = build(config, **SIZES, seed=0)
    network.activation_checkpointing = checkpointed
    own = {tensor.untyped_storage().data_ptr() for tensor in [*network.parameters(), *network.buffers()]}
    kept = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage
        return tensor

    x = torch.randn(BATCH, 24, 7, generator=torch.Generator().manual_seed(0))
    with (
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
        torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16"),
    ):
        output = network(x).mean
    assert output.requires_grad
    return sum(storage.nbytes() for storage in kept.values())


def estimated(config, *, checkpointed=False, precision="float32") -> int:
    """The estimate less parameters, gradients and moments."""
    total = estimate_memory(
        config, **SIZES, batch_size=BATCH, activation_checkpointing=checkpointed, precision=precision
    )
    return total - 16 * parameter_count(config, **SIZES)


@pytest.fixture(params=list(RESIDUALS))
def residual(request):
    return request.param


@pytest.mark.parametrize("depth", [2, 6])
@pytest.mark.parametrize("positions", ["relative", "learned"])
def test_the_estimate_is_what_is_kept_and_one_sublayer_more(residual, depth, positions):
    config = ModelConfig(residual=residual, depth=depth, positions=positions)
    ratio = estimated(config) / measured(config)
    assert 1 <= ratio < 1 + 1.2 / depth


def test_under_bfloat16_the_estimate_is_within_a_quarter(residual):
    config = ModelConfig(residual=residual, depth=6)
    ratio = estimated(config, precision="bfloat16") / measured(config, precision="bfloat16")
    assert 0.8 < ratio < 1.25


def test_checkpointing_keeps_states_and_one_segment(residual):
    config = ModelConfig(residual=residual, depth=6)
    kept = measured(config, checkpointed=True)
    one_sublayer = estimated(config) - measured(config)
    # At this depth segments are blocks, whatever the number of streams.
    assert {segment_length(n, 12) for n in (1, 2, 4)} == {2}
    assert kept <= estimated(config, checkpointed=True) <= 1.05 * (kept + 2 * one_sublayer)
    assert estimated(config, checkpointed=True) < 0.5 * estimated(config)


def test_a_segments_length_makes_what_is_kept_least():
    for n, num_sublayers in ((1, 96), (4, 96), (8, 400), (2, 32)):

        def kept(length, n=n, num_sublayers=num_sublayers):
            return n * num_sublayers / length + (n + 2) * length

        best = min(range(2, num_sublayers, 2), key=kept)
        assert kept(segment_length(n, num_sublayers)) <= 1.02 * kept(best)


def test_more_streams_and_more_windows_need_more():
    static = [
        estimated(ModelConfig(residual="static_hyper_connections", residual_options={"num_streams": n}))
        for n in (1, 2, 4, 8)
    ]
    assert static == sorted(set(static))
    one, two = (estimate_memory(ModelConfig(), **SIZES, batch_size=batch) for batch in (64, 128))
    weights = 16 * parameter_count(ModelConfig(), **SIZES)
    assert (two - weights) / (one - weights) == pytest.approx(2, rel=0.01)

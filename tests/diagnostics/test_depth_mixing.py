"""The depth-mixing matrix is the equation of each scheme, read as weights of what came before."""

from __future__ import annotations

import json
import math

import pytest
import torch
from torch import nn

from fints.config import ModelConfig
from fints.diagnostics import depth_mixing
from fints.diagnostics.depth_mixing import DepthMixing, compose, reach, summary
from fints.diagnostics.normed_trunk import held_scale_mixing
from fints.model import Trace, Transformer, build
from fints.residual import RESIDUALS, build_residual

NUM_SUBLAYERS = 6


def network(name: str, *, random: bool = True, **options) -> Transformer:
    config = ModelConfig(residual=name, residual_options=options, width=8, depth=3, num_heads=2)
    model = build(config, num_features=3, context=5, seed=0).double()
    if random:
        generator = torch.Generator().manual_seed(1)
        for parameter in model.parameters():
            nn.init.normal_(parameter, std=0.5, generator=generator)
    return model.eval()


@pytest.fixture(scope="module")
def x() -> torch.Tensor:
    return torch.randn(2, 5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2))


def traced(model: Transformer, x: torch.Tensor) -> tuple[Trace, list]:
    trace = Trace()
    with torch.no_grad():
        model(x, trace=trace)
        last = len(trace.outputs) - 1
        end = model.residual.step(trace.states[last], last, lambda _: trace.outputs[last])
    return trace, [*trace.states, end]


def composed(name: str, x: torch.Tensor, **options) -> torch.Tensor | None:
    model = network(name, **options)
    return compose(model.residual, traced(model, x)[1])


def is_linear(name: str) -> bool:
    return composed(name, torch.zeros(1, 2, 3, dtype=torch.float64)) is not None


LINEAR = [name for name in RESIDUALS if is_linear(name)]

# Their sources are not what the embedding and the branches gave: a factor or a norm lies between.
SCALED = {
    "layer_scale",
    "peri_ln",
    "re_zero",
    "sandwich_norm",
    "skip_init",
    "window_rescaled_pre_norm",
}


def increments(model: Transformer, trace: Trace, states: list) -> list[torch.Tensor]:
    """What each sublayer adds: the branch's output, times a factor where one stream is scaled."""
    added = []
    for layer, output in enumerate(trace.outputs):
        before, after = states[layer], states[layer + 1]
        if isinstance(before, torch.Tensor) and before.shape == output.shape:
            mixing = model.residual.mixing(before, layer)
            if mixing.carry.shape[-2:] == (1, 1):
                kept = mixing.carry[..., 0, 0].unsqueeze(-1) * before
                output = (after - kept) / mixing.write[..., 0].unsqueeze(-1)
        added.append(output)
    return added


@pytest.mark.parametrize("name", LINEAR)
def test_every_input_is_the_sum_of_what_came_before_with_the_weights_of_the_matrix(name, x):
    model = network(name)
    trace, states = traced(model, x)
    sources = torch.stack([trace.trunks[0], *increments(model, trace, states)], dim=-2)
    matrix = compose(model.residual, states).expand(2, 5, NUM_SUBLAYERS + 1, -1)
    read = torch.stack([*trace.read, model.residual.merge(states[-1], NUM_SUBLAYERS)], dim=-2)
    torch.testing.assert_close(matrix @ sources, read, rtol=1e-11, atol=1e-11)
    # Nothing is read before it was written, and the random weights tell readers and sources apart.
    assert torch.equal(matrix, matrix.tril())


@pytest.mark.parametrize("name", sorted({*LINEAR} - SCALED))
def test_one_source_at_a_time_gives_the_columns(name):
    width = NUM_SUBLAYERS + 1
    residual = build_residual(name, width=24, num_sublayers=NUM_SUBLAYERS).double()
    generator = torch.Generator().manual_seed(3)
    for parameter in residual.parameters():
        nn.init.normal_(parameter, std=0.5, generator=generator)
    # v_j is the j-th unit vector, so the features of u_k are the row of M.
    units = torch.eye(24, dtype=torch.float64)[:, None, None]
    states, read = [residual.open(units[0])], []
    for layer in range(NUM_SUBLAYERS):
        read.append(residual.read(states[-1], layer)[0, 0, :width])
        states.append(residual.step(states[-1], layer, lambda _, y=units[layer + 1]: y))
    read.append(residual.merge(states[-1], NUM_SUBLAYERS)[0, 0, :width])
    matrix = compose(residual, states)
    own = matrix if matrix.ndim == 2 else matrix[0, 0]
    torch.testing.assert_close(own, torch.stack(read), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["static_hyper_connections", "dynamic_hyper_connections"])
def test_hyper_connections_give_equation_27_of_their_paper(name, x):
    model = network(name, num_streams=3)
    _, states = traced(model, x)
    matrix = compose(model.residual, states).expand(2, 5, -1, -1)
    weights = [model.residual.weights(states[k], k) for k in range(NUM_SUBLAYERS)]
    for reader in range(NUM_SUBLAYERS):
        for source in range(reader + 1):
            # c_kj = B^j (prod_{t = j + 1}^{k - 1} A_r^t) A_m^k, the embedding written by ones.
            row = torch.ones(3, dtype=torch.float64) if source == 0 else weights[source - 1]["B"]
            for between in range(source, reader):
                row = torch.einsum("...i,...ij->...j", row, weights[between]["A_r"])
            expected = (row * weights[reader]["A_m"]).sum(-1)
            torch.testing.assert_close(
                matrix[..., reader, source], expected.expand(2, 5), rtol=1e-12, atol=1e-12
            )


def test_a_scheme_that_norms_its_trunk_is_measured_with_the_scales_held(x):
    model = network("post_norm")
    trace, _ = traced(model, x)
    mixing = depth_mixing(model, x)
    assert not mixing.composed
    held = held_scale_mixing(model.residual, model.embedding(x), trace.outputs)
    torch.testing.assert_close(mixing.mean, held.mean((0, 1)))
    assert "directional derivatives with the scales" in " ".join(summary(mixing))


@pytest.mark.parametrize("name", [name for name in LINEAR if RESIDUALS[name].equals_pre_norm_at_start])
def test_what_equals_pre_norm_at_the_start_reads_all_sources_alike(name, x):
    mixing = depth_mixing(network(name, random=False), x)
    for reader, weights in enumerate(mixing.mean):
        # A mean of the sources is as good as their sum: a norm follows.
        own = weights[: reader + 1]
        torch.testing.assert_close(own, own[0].expand_as(own), rtol=0, atol=1e-12)
    assert float(mixing.spread.max()) < 1e-12


def test_measuring_runs_each_branch_once_and_leaves_the_network_as_it_was(x):
    model = network("dynamic_hyper_connections").train()
    runs = []
    for branch in model.branches:
        branch.register_forward_hook(lambda *_: runs.append(1))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    depth_mixing(model, x)
    assert len(runs) == NUM_SUBLAYERS
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_mean_and_spread_are_over_tokens(x):
    model = network("dynamic_hyper_connections")
    mixing = depth_mixing(model, x)
    tokens = compose(model.residual, traced(model, x)[1]).reshape(10, 7, 7)
    torch.testing.assert_close(mixing.mean, tokens.mean(0))
    torch.testing.assert_close(mixing.spread, tokens.std(0, correction=0))
    rows = mixing.rows()
    json.dumps(rows, allow_nan=False)
    assert [(row["reader"], row["source"]) for row in rows] == [
        (k, j) for k in range(7) for j in range(k + 1)
    ]
    assert rows[4]["mean"] == mixing.mean[2, 1].item()


def test_reach_of_plain_sums_and_of_a_chain():
    ones = torch.ones(5, 5).tril()
    for row in reach(ones)[1:]:
        k = row["reader"]
        assert row["embedding"] == pytest.approx(1 / (k + 1))
        assert row["distance"] == pytest.approx((k + 1) / 2)
        assert row["sources"] == pytest.approx(k + 1)
        assert row["negative"] == 0
    chain = reach(-torch.eye(5))
    assert [row["distance"] for row in chain[1:]] == [1.0] * 4
    assert [row["sources"] for row in chain] == [1.0] * 5
    assert [row["negative"] for row in chain] == [1.0] * 5
    assert chain[0]["embedding"] == 1.0
    assert math.isnan(chain[0]["distance"])


def test_the_summary_says_how_far_back_and_how_much_of_the_embedding():
    mixing = DepthMixing(mean=torch.ones(5, 5).tril(), spread=torch.zeros(5, 5), composed=True)
    text = " ".join(summary(mixing))
    assert "embedding 20.0% of its weight (plain sums: 20.0%)" in text
    assert "uses 5.0 of 5 sources" in text
    assert "1.5 sublayers back on average (plain sums: 1.5)" in text
    assert "egative" not in text
    assert "token" not in text

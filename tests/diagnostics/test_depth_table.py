from __future__ import annotations

import json
import math

import pytest
import torch
from torch.nn.functional import cosine_similarity

from fints.diagnostics import depth_table, gradient_table, null_cosine, record, stream_rows, streams
from fints.diagnostics.stream_spread import (
    composite_gain,
    diversity,
    effective_streams,
    mixing_entropy,
    off_diagonal_mass,
    second_eigenvalue,
    stream_cosines,
    stream_spread,
)
from fints.model import Trace

SCHEMES = ("pre_norm", "post_norm", "static_hyper_connections", "dynamic_hyper_connections", "denseformer")


@pytest.mark.parametrize("residual", SCHEMES)
def test_a_record_holds_what_a_traced_pass_sees_and_what_branches_are_given(random_network, batch, residual):
    model = random_network(residual).eval()
    trace = Trace()
    forecast = model(batch[0], trace=trace)
    held = record(model, batch[0])
    assert torch.equal(held.forecast.mean, forecast.mean)
    for own, other in ((held.read, trace.read), (held.outputs, trace.outputs), (held.trunks, trace.trunks)):
        assert all(torch.equal(a, b) for a, b in zip(own, other, strict=False))
    assert [len(part) for part in (held.read, held.given, held.outputs, held.trunks)] == [4, 4, 4, 5]
    for branch, u, y in zip(model.branches, held.given, held.outputs, strict=True):
        assert torch.equal(branch(u), y)


@pytest.mark.parametrize("residual", SCHEMES[:4])
def test_the_mean_of_the_streams_is_the_trunk(random_network, batch, residual):
    model = random_network(residual).eval()
    held = record(model, batch[0])
    for k in range(4):
        found = streams(model.residual, held.states[k], k)
        torch.testing.assert_close(found.mean(-2), held.trunks[k])
        assert found.shape == (10, 6, 4 if "hyper" in residual else 1, 8)


@pytest.mark.parametrize("residual", SCHEMES)
def test_rows_say_tensor_null_and_initial_value_and_are_plain(random_network, batch, residual):
    model = random_network(residual)
    initial = depth_table(model, batch[0])
    rows = depth_table(model, batch[0], positions=True, initial=initial)
    json.dumps(rows, allow_nan=False)
    keys = [(row["tensor"], row["measure"], row["layer"], row["position"]) for row in rows]
    assert len(set(keys)) == len(keys)
    assert all(row["initial"] == row["value"] for row in rows if row["position"] is None)
    assert {row["position"] for row in rows} == {None, *range(6)}
    found = {(row["tensor"], row["measure"], row["layer"]): row for row in rows if row["position"] is None}
    for k in (1, 2, 3):
        null = null_cosine(k, normalises_trunk=residual == "post_norm")
        assert found["u", "adjacent_cosine", k]["null"] == null
        update = found["y", "relative_update", k]["null"]
        assert update == (1 if residual == "post_norm" else pytest.approx(1 / math.sqrt(k + 1)))


def test_each_measure_is_taken_on_the_tensor_that_its_row_names(random_network, batch):
    model = random_network("dynamic_hyper_connections").eval()
    series = torch.tensor([0] * 7 + [1] * 3)
    held = record(model, batch[0])
    rows = depth_table(model, batch[0], series=series)
    found = {(row["tensor"], row["measure"], row["layer"]): row["value"] for row in rows}

    def mean(values):
        return (values[:7].mean() + values[7:].mean()).item() / 2

    for tensor, sites in (("u", held.read), ("u_hat", held.given), ("trunk", held.trunks)):
        for k in (1, 2, 3):
            own = mean(cosine_similarity(sites[k - 1], sites[k], dim=-1))
            assert found[tensor, "adjacent_cosine", k] == pytest.approx(own)
    pair = mean(cosine_similarity(held.outputs[1], held.outputs[2], dim=-1))
    assert found["y", "increment_cosine", 2] == pytest.approx(pair)
    along = mean(cosine_similarity(held.outputs[2], held.trunks[2], dim=-1))
    assert found["y", "increment_trunk_cosine", 2] == pytest.approx(along)
    angle = cosine_similarity(held.trunks[0], held.trunks[4], dim=-1).acos() / math.pi
    assert found["trunk", "angular_distance_2", 0] == pytest.approx(mean(angle))
    assert found["trunk", "angular_distance_2_last", 0] == pytest.approx(mean(angle[:, -1]))
    assert found["sum_stream", "size", 3] == pytest.approx(4 * found["trunk", "size", 3])


def test_gradients_are_those_of_the_loss_and_summed_over_streams(random_network, batch, loss):
    """What a common move of all streams does to the loss, by central differences."""
    x, y = batch
    model = random_network("static_hyper_connections").eval()
    rows = gradient_table(model, x, y, loss=loss)
    loss(model(x), y).mean().backward()
    for k, row in enumerate(rows):
        norm = torch.cat([p.grad.flatten() for p in model.branches[k].parameters()]).norm().item()
        weight = torch.cat([p.detach().flatten() for p in model.branches[k].parameters()]).norm().item()
        assert row["gradient_norm"] == pytest.approx(norm)
        assert row["gradient_to_weight"] == pytest.approx(norm / weight)
    direction = torch.randn(10, 6, 8, generator=torch.Generator().manual_seed(3), dtype=torch.float64)

    def moved(step):
        model.alteration = lambda residual, state, layer, branch: (
            state + (step * direction if layer == 2 else 0),
            branch,
        )
        return loss(model(x), y).mean().item()

    slope = (moved(1e-5) - moved(-1e-5)) / 2e-5
    model.alteration = None
    held = record(model, x)
    mean = loss(held.forecast, y).mean()
    summed = streams(model.residual, torch.autograd.grad(mean, held.states[2])[0], 2).sum(-2)
    assert float((summed * direction).sum()) == pytest.approx(slope, rel=1e-6)
    assert rows[2]["trunk_gradient_norm"] == pytest.approx(summed.norm().item())
    assert all(
        row["trunk_gradient_norm"] is None
        for row in gradient_table(random_network("denseformer"), x, y, loss=loss)[1:]
    )


def test_stream_measures_are_their_definitions():
    held = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    token = held[1, 2]
    spread = sum((token[i] - token.mean(0)).norm() for i in range(4)) / 4 / token.mean(0).norm()
    assert stream_spread(held)[1, 2].item() == pytest.approx(spread.item())
    pair = cosine_similarity(held[..., 0, :], held[..., 3, :], dim=-1).mean().item()
    assert stream_cosines(held)[0, 3].item() == pytest.approx(pair)
    pairs = [stream_cosines(held)[i, j].item() for i in range(4) for j in range(4) if i != j]
    assert diversity(held).item() == pytest.approx(1 - sum(pairs) / 12)
    weights = torch.tensor([[1.0, -3.0], [2.0, 2.0]])
    first = -(0.25 * math.log(0.25) + 0.75 * math.log(0.75))
    assert mixing_entropy(weights).item() == pytest.approx((first + math.log(2)) / 2)


def test_matrices_that_keep_streams_apart_are_told_from_those_that_mix_or_lose_them():
    one, average = torch.eye(4), torch.full((4, 4), 0.25)
    assert off_diagonal_mass(one) == 0
    assert off_diagonal_mass(average) == 0.75
    assert second_eigenvalue(one).item() == 1
    assert second_eigenvalue(average).item() == pytest.approx(0, abs=1e-6)
    for side in ("source", "destination"):
        assert composite_gain([one, average, one], of=side).item() == pytest.approx(0, abs=1e-6)
    lossy = torch.diag(torch.tensor([0.41, 1.5, 1.5, 0.6]))
    assert composite_gain([one, lossy], of="source").item() == pytest.approx(-math.log(0.41), rel=1e-6)
    leak = torch.eye(2)
    leak[0, 1] = 1
    assert composite_gain([leak, leak], of="source").item() == pytest.approx(math.log(3))
    swapped = torch.tensor([[0.0, 1.0], [0.5, 0.0]])
    first = composite_gain([leak, swapped], of="source")
    product = leak @ swapped
    assert first.item() == pytest.approx(product.sum(1).log().abs().max().item())


def test_streams_that_are_read_in_turn_all_count_and_unread_ones_do_not():
    home = torch.eye(4)
    ones = torch.ones(4)
    assert effective_streams(list(home), [ones] * 4).item() == pytest.approx(4)
    assert effective_streams([home[1]] * 4, [ones] * 4).item() == pytest.approx(1)


def test_fresh_hyper_connections_have_equal_streams_and_the_identity(batch):
    from fints.config import ModelConfig
    from fints.model import build

    config = ModelConfig(residual="dynamic_hyper_connections", width=8, depth=2, num_heads=2)
    model = build(config, num_features=3, context=6, seed=0).eval()
    rows = stream_rows(model, record(model, batch[0].float()))
    assert [row["layer"] for row in rows] == [0, 1, 2, 3]
    for row in rows:
        assert row["spread"] == pytest.approx(0, abs=1e-6)
        assert row["diversity"] == pytest.approx(0, abs=1e-6)
        assert (row["off_diagonal"], row["second_eigenvalue"]) == (0, 1)
        assert (row["gain_source"], row["gain_destination"]) == (0, 0)
        assert row["effective_streams"] == pytest.approx(4)
        assert row["entropy_write"] == pytest.approx(row["entropy_bound"]) == math.log(4)


def test_a_scheme_of_one_stream_has_no_stream_rows(random_network, batch):
    model = random_network().eval()
    assert stream_rows(model, record(model, batch[0])) == []

from __future__ import annotations

import json
import math

import pytest
import torch
from torch import nn

from fints.config import ModelConfig, TrainingConfig
from fints.diagnostics import MEASURES, Profiler, centred, effective_rank, profile
from fints.model import Trace, build
from fints.training import fit, make_loss

SCHEMES = ("pre_norm", "post_norm", "static_hyper_connections", "dynamic_hyper_connections")


class Windows:
    def __init__(self, number: int, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.inputs = torch.randn(number, 6, 3, generator=generator)
        self.targets = self.inputs[..., 0] + torch.randn(number, 6, generator=generator)
        self.inputs[0, 2] = torch.nan
        self.targets[1, 3] = torch.nan

    def __len__(self) -> int:
        return len(self.inputs)

    def gather(self, positions):
        return self.inputs[positions], self.targets[positions]


def _build(residual="pre_norm", **changes):
    small = {"width": 8, "depth": 2, "num_heads": 2}
    return build(ModelConfig(residual=residual, **(small | changes)), num_features=3, context=6, seed=0)


def _config(**changes):
    short = {"steps": 12, "warmup_steps": 2, "batch_size": 8, "evaluate_every": 6, "device": "cpu"}
    return TrainingConfig(**(short | changes))


def _rows(model, **options):
    batch = Windows(16)
    return profile(model, batch.inputs, batch.targets, loss=make_loss(_config()), **options)


@pytest.mark.parametrize("residual", SCHEMES)
def test_rows_are_plain_and_finite_one_a_sublayer(residual):
    rows = _rows(_build(residual), step=5)
    assert [row["layer"] for row in rows] == [0, 1, 2, 3]
    assert [row["block"] for row in rows] == [0, 0, 1, 1]
    assert [row["kind"] for row in rows] == ["attention", "feed_forward"] * 2
    assert {row["step"] for row in rows} == {5}
    json.dumps(rows, allow_nan=False)
    assert all(list(row) == list(rows[0]) for row in rows)
    neighbours = {
        "adjacent_cosine",
        "adjacent_cosine_centred",
        "trunk_cosine",
        "trunk_cosine_centred",
        "increment_cosine",
    }
    for row in rows:
        missing = {name for name in MEASURES if row[name] is None}
        assert missing == (neighbours if row["layer"] == 0 else set())


@pytest.mark.parametrize("residual", SCHEMES)
def test_the_null_is_that_of_the_scheme(residual):
    null = [row["adjacent_cosine_null"] for row in _rows(_build(residual))]
    summed = [math.sqrt(1 / 2), math.sqrt(2 / 3), math.sqrt(3 / 4)]
    assert null == [None, *([math.sqrt(1 / 2)] * 3 if residual == "post_norm" else summed)]


@pytest.mark.parametrize("residual", SCHEMES)
def test_each_measure_is_taken_on_the_tensor_it_is_defined_on(residual):
    model, batch, trace = _build(residual).eval(), Windows(16), Trace()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.residual.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
    rows = _rows(model)
    error = model(batch.inputs, trace=trace).mean[..., 0] - batch.targets
    error[~batch.targets.isnan()].square().mean().backward()

    def cosine(a, b):
        return nn.functional.cosine_similarity(a, b, dim=-1).mean().item()

    for k in range(1, 4):
        u, y, trunk = (
            [stored[j].detach() for j in (k - 1, k)] for stored in (trace.read, trace.outputs, trace.trunks)
        )
        row = rows[k]
        assert row["adjacent_cosine"] == pytest.approx(cosine(*u), abs=1e-5)
        assert row["adjacent_cosine_centred"] == pytest.approx(cosine(*map(centred, u)), abs=1e-5)
        assert row["trunk_cosine"] == pytest.approx(cosine(*trunk), abs=1e-5)
        assert row["trunk_cosine_centred"] == pytest.approx(cosine(*map(centred, trunk)), abs=1e-5)
        assert row["increment_cosine"] == pytest.approx(cosine(*y), abs=1e-5)
        assert row["increment_trunk_cosine"] == pytest.approx(cosine(y[1], trunk[1]), abs=1e-5)
        ratio = (y[1].norm(dim=-1) / trunk[1].norm(dim=-1)).mean().item()
        assert row["relative_update"] == pytest.approx(ratio, rel=1e-5)
        assert row["effective_rank"] == pytest.approx(effective_rank(u[1]).item(), rel=1e-6)
        gradient = torch.cat([p.grad.flatten() for p in model.branches[k].parameters()]).norm().item()
        assert row["gradient_norm"] == pytest.approx(gradient, rel=1e-4)
    assert cosine(trace.read[2], trace.trunks[2]) == pytest.approx(1, abs=1e-6) or "hyper" in residual


def test_measuring_changes_nothing():
    model = _build(dropout=0.5).train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    torch.manual_seed(0)
    state, threads = torch.random.get_rng_state(), torch.get_num_threads()
    first = _rows(model)
    with torch.no_grad():
        assert _rows(model) == first
    assert model.training
    assert all(module.training for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.get_num_threads() == threads


def test_branches_that_write_nothing_are_measured_as_undefined_and_not_as_nan():
    model = _build()
    with torch.no_grad():
        for branch in model.branches:
            branch.output.weight.zero_()
            branch.output.bias.zero_()
    rows = _rows(model)
    json.dumps(rows, allow_nan=False)
    assert all(row["increment_trunk_cosine"] is None for row in rows)
    assert all(row["relative_update"] == 0 for row in rows)
    assert all(row["adjacent_cosine"] == pytest.approx(1) for row in rows[1:])


def test_a_network_that_has_diverged_is_measured_as_undefined():
    model = _build()
    with torch.no_grad():
        model.branches[0].output.weight.fill_(torch.inf)
    rows = _rows(model)
    json.dumps(rows, allow_nan=False)
    assert rows[3]["adjacent_cosine"] is None
    assert rows[3]["effective_rank"] is None


def test_a_fit_is_profiled_at_its_cadence_beside_the_values_at_random_initialisation():
    model, config = _build("dynamic_hyper_connections"), _config(profile_every=5)
    start = _rows(_build("dynamic_hyper_connections"))
    profiler = Profiler(*Windows(16).gather(slice(None)), config)
    result = fit(model, Windows(20), None, config, seed=0, profiler=profiler)
    rows = {(row["step"], row["layer"]): row for row in result.profiles}
    assert list(rows) == [(step, layer) for step in (0, 5, 10, 12) for layer in range(4)]
    json.dumps(result.profiles, allow_nan=False)
    for (step, layer), row in rows.items():
        for name in MEASURES:
            assert row[f"{name}_initial"] == start[layer][name]
            assert (row[name] == start[layer][name]) or step > 0
        assert (row["update_to_weight"] is None) == (step == 0)
    assert all(0 < rows[5, layer]["update_to_weight"] < 0.1 for layer in range(4))
    assert any(rows[12, layer]["relative_update"] != start[layer]["relative_update"] for layer in range(4))


def test_update_to_weight_is_that_of_one_optimiser_step():
    """The weights after a step are those after the step before plus the update that is handed over."""
    seen = {}

    def spy(model, step, update):
        weights = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
        seen[step] = (weights, {name: delta.clone() for name, delta in update.items()})
        return []

    config = _config(profile_every=1, steps=9, warmup_steps=0)
    fit(_build(), Windows(20), None, config, seed=0, profiler=spy)
    for step in range(1, 10):
        for name, delta in seen[step][1].items():
            torch.testing.assert_close(seen[step - 1][0][name] + delta, seen[step][0][name])
    assert seen[0][1] == {}


def test_profiling_changes_no_weight_of_the_fit():
    models = [_build(dropout=0.2), _build(dropout=0.2)]
    for model, every in zip(models, (0, 3), strict=True):
        config = _config(profile_every=every)
        profiler = Profiler(*Windows(16).gather(slice(None)), config) if every else None
        fit(model, Windows(20), None, config, seed=0, profiler=profiler)
    assert all(torch.equal(a, b) for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True))


def test_another_kind_of_network_is_refused():
    profiler = Profiler(*Windows(4).gather(slice(None)), _config())
    with pytest.raises(ValueError, match=r"needs a fints\.model\.Transformer; got Linear"):
        profiler(nn.Linear(2, 2), 1, {})

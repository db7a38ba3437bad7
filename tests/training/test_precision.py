"""Compiled, checkpointed, in half precision: the same fit."""

from __future__ import annotations

import json

import pytest
import torch

from fints.training import fit

# torch hides this one of its own while it captures a state that is no leaf; as an error it cannot.
pytestmark = pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"
)


def _fit(network, windows, config, **options):
    changes = {"residual": options.pop("residual", "pre_norm"), "dropout": options.pop("dropout", 0.0)}
    model = network(**changes)
    result = fit(model, windows(20), windows(9, 1), config, seed=3, **options)
    return result, {name: tensor.clone() for name, tensor in model.state_dict().items()}


@pytest.mark.parametrize("residual", ["pre_norm", "dynamic_hyper_connections"])
def test_a_compiled_fit_equals_an_eager_one(network, windows, schedule, residual):
    eager, weights = _fit(network, windows, schedule(), residual=residual)
    compiled, again = _fit(
        network, windows, schedule(compile=True), residual=residual, compile_backend="aot_eager"
    )
    assert compiled.outcome == "finished"
    for a, b in zip(eager.history, compiled.history, strict=True):
        assert a == pytest.approx(b, rel=1e-4)
    for name, tensor in weights.items():
        torch.testing.assert_close(again[name], tensor, rtol=1e-3, atol=1e-4)


def test_compiled_code_serves_every_fit_of_a_structure(network, windows, schedule):
    """One graph to train and one to evaluate: neither a partial batch nor another fit makes a third."""
    graphs = []

    def backend(graph, example_inputs):
        graphs.append(graph)
        return graph.forward

    for _ in range(10):
        _fit(network, windows, schedule(compile=True, steps=4), compile_backend=backend)
        assert len(graphs) == 2


@pytest.mark.parametrize("residual", ["pre_norm", "manifold_hyper_connections"])
def test_a_fit_on_the_fast_pass_equals_a_plain_one(network, windows, schedule, residual):
    eager, weights = _fit(network, windows, schedule(), residual=residual)
    fast, again = _fit(network, windows, schedule(compile=True), residual=residual)
    for a, b in zip(eager.history, fast.history, strict=True):
        assert a == pytest.approx(b, rel=1e-4)
    for name, tensor in weights.items():
        if name.endswith("query_key_value.bias"):
            # A key's bias does nothing: softmax takes it out. AdamW scales its gradient up from rounding.
            width = len(tensor) // 3
            tensor[width : 2 * width] = again[name][width : 2 * width]
        torch.testing.assert_close(again[name], tensor, rtol=1e-3, atol=1e-4)


# torch's own, raised while it imports its compiler: shown, but no error of ours.
@pytest.mark.filterwarnings("default:`torch.jit.script_method` is deprecated:DeprecationWarning")
@pytest.mark.slow
def test_the_compiler_itself_trains_as_well(network, windows, schedule):
    eager, _ = _fit(network, windows, schedule())
    compiled, _ = _fit(network, windows, schedule(compile=True), compile_backend="inductor")
    for a, b in zip(eager.history, compiled.history, strict=True):
        assert a == pytest.approx(b, rel=1e-3)


@pytest.mark.parametrize("residual", ["pre_norm", "post_norm", "dynamic_hyper_connections"])
def test_half_precision_stays_finite_and_near_full_precision(network, windows, schedule, residual):
    full, _ = _fit(network, windows, schedule(), residual=residual)
    half, weights = _fit(network, windows, schedule(precision="bfloat16"), residual=residual)
    assert half.outcome == "finished"
    json.dumps(half.history, allow_nan=False)
    for a, b in zip(full.history, half.history, strict=True):
        assert b["validation_loss"] == pytest.approx(a["validation_loss"], rel=0.05)
        assert b["validation_loss"] != a["validation_loss"]
    assert all(tensor.dtype == torch.float32 for tensor in weights.values() if tensor.is_floating_point())


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_recomputing_activations_changes_no_bit(network, windows, schedule, precision):
    plain = schedule(precision=precision)
    recomputed = schedule(precision=precision, activation_checkpointing=True)
    first = _fit(network, windows, plain, dropout=0.2)
    second = _fit(network, windows, recomputed, dropout=0.2)
    assert first[0].history == second[0].history
    assert all(torch.equal(tensor, second[1][name]) for name, tensor in first[1].items())


def test_the_models_own_switch_is_put_back(network, windows, schedule):
    model = network()
    seen = []
    fit(
        model,
        windows(20),
        None,
        schedule(activation_checkpointing=True),
        seed=3,
        on_row=lambda row: seen.append(model.activation_checkpointing),
    )
    assert set(seen) == {True}
    assert not model.activation_checkpointing


@pytest.mark.parametrize(("head", "loss"), [("point", "huber"), ("gaussian", "nll"), ("student_t", "nll")])
def test_every_head_trains_under_its_loss(network, windows, schedule, head, loss):
    model = network(head=head)
    config = schedule(steps=80, loss=loss, evaluate_every=10)
    result = fit(model, windows(60), windows(60, 1), config, seed=3)
    assert result.outcome == "finished"
    assert result.best_validation_loss < result.history[0]["validation_loss"]

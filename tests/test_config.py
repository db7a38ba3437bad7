"""An experiment is one tree: complete, checked, and named by its fingerprint."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fints.config import Experiment, fingerprint, override

LEAVES = [
    f"{part.name}.{leaf.name}"
    for part in dataclasses.fields(Experiment)
    for leaf in dataclasses.fields(part.default_factory)
]
# For each leaf another admissible value, with whatever else must change so that the tree stays valid.
OTHER = {
    "data.features": ["return_1"],
    "data.target": "log_return",
    "data.min_valid": 0.75,
    "model.residual": "post_norm",
    "model.residual_options": {"num_streams": 2},
    "model.num_heads": 2,
    "model.norm": "rms_norm",
    "model.norm_eps": 1e-6,
    "model.activation": "relu",
    "model.dropout": 0.25,
    "model.positions": "learned",
    "data.unscaled": ["return_1"],
    "data.window_scaled": ["return_5"],
    "model.initialiser": "xavier_uniform",
    "model.head": "gaussian",
    "model.forecast_from": "last_token",
    "model.value_residual": "learned",
    "training.loss": "huber",
    "training.betas": [0.8, 0.9],
    "training.final_learning_rate_share": 0.5,
    "training.keep": "last",
    "training.profile_at": [7],
    "training.precision": "bfloat16",
    "training.compile": True,
    "training.activation_checkpointing": True,
    "training.device": "cpu",
    "training.optimizer": "sgd",
    "training.interventions": {"gradient_equaliser": {"dose": 0.5}},
}


def leaf(experiment: Experiment, path: str) -> object:
    part, name = path.split(".")
    return getattr(getattr(experiment, part), name)


def other_value(path: str) -> object:
    if path in OTHER:
        return OTHER[path]
    value = leaf(Experiment(), path)
    return value * 2 if value else 1


@pytest.mark.parametrize("path", LEAVES)
def test_every_field_changes_the_fingerprint_and_survives_json(path: str) -> None:
    changes = {path: other_value(path)} | ({"training.loss": "nll"} if path == "model.head" else {})
    changed = override(Experiment(), changes)
    assert leaf(changed, path) != leaf(Experiment(), path)
    assert fingerprint(changed) != fingerprint(Experiment())
    assert Experiment.from_dict(json.loads(json.dumps(changed.to_dict()))) == changed


def test_a_field_that_came_later_leaves_older_experiments_as_they_were() -> None:
    older = Experiment().to_dict()
    assert "value_residual" not in older["model"]
    assert Experiment.from_dict(older).model.value_residual == "none"
    changed = override(Experiment(), {"model.value_residual": "fixed"})
    assert changed.to_dict()["model"].pop("value_residual") == "fixed"
    assert {"optimizer", "interventions"}.isdisjoint(older["training"])


def test_two_factors_may_each_add_an_intervention() -> None:
    changes = {"training.interventions.token_pull": {"dose": 0.5}}
    both = override(
        override(Experiment(), changes), {"training.interventions.decorrelation": {"dose": 1}}
    ).training.interventions
    assert both == {"token_pull": {"dose": 0.5}, "decorrelation": {"dose": 1}}
    assert Experiment().training.interventions == {}


def test_a_field_set_to_what_it_was_changes_nothing() -> None:
    same = override(Experiment(), {path: leaf(Experiment(), path) for path in LEAVES})
    assert same == Experiment()
    assert fingerprint(same) == fingerprint(Experiment())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"model.dpth": 2},
            r"unknown field model\.dpth. Did you mean model\.depth\? Known fields: residual,",
        ),
        ({"modl.depth": 2}, r"unknown field modl. Did you mean model\? Known fields: data, model, training"),
        ({"depth": 2}, "unknown field depth. Known fields"),
        ({"model.depth": "four"}, "model.depth must be a whole number; got 'four'"),
        ({"model.depth": True}, "model.depth must be a whole number; got True"),
        ({"model.depth": 2.5}, "model.depth must be a whole number; got 2.5"),
        ({"model.depth.blocks": 2}, "model.depth has no fields"),
        ({"model": 3}, "model must be a table of fields; got 3"),
        ({"model.num_heads": 5}, "divisor of model.width = 32"),
        ({"model.dropout": 1.0}, r"choose one in \[0, 1\)"),
        ({"data.features": []}, "name at least one feature"),
        ({"data.features": "return_1"}, "data.features must be a list"),
        ({"data.features": ["return_1", "return_1"]}, "each feature once"),
        ({"training.learning_rate": float("nan")}, "training.learning_rate must be a finite number"),
        ({"training.learning_rate": 0}, "choose one above 0"),
        ({"training.warmup_steps": 1000}, "below training.steps = 1000"),
        ({"training.betas": [0.9]}, "two numbers"),
        ({"training.loss": "mae"}, "Choose one of mse, huber, nll"),
        ({"model.head": "gaussian"}, 'choose "nll"'),
        ({"training.loss": "nll"}, 'choose "mse" or "huber"'),
        ({"model.norm": "layernorm"}, "did you mean 'layer_norm'"),
    ],
)
def test_a_field_that_cannot_be_used_is_named_with_a_remedy(changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        override(Experiment(), changes)
    assert "\n" not in str(caught.value)


def test_two_fields_that_must_agree_can_change_together() -> None:
    changed = override(Experiment(), {"training.loss": "nll", "model.head": "student_t"})
    assert (changed.model.head, changed.training.loss) == ("student_t", "nll")


def test_one_option_of_a_scheme_can_be_set() -> None:
    changed = override(Experiment(), {"model.residual_options.num_streams": 8})
    assert changed.model.residual_options == {"num_streams": 8}
    assert Experiment().model.residual_options == {}


@given(st.dictionaries(st.text(min_size=1), st.integers() | st.floats(allow_nan=False, allow_infinity=False)))
def test_the_order_of_keys_does_not_reach_the_fingerprint(table: dict) -> None:
    assert fingerprint(table) == fingerprint(dict(reversed(table.items())))


def test_a_nan_has_no_fingerprint() -> None:
    with pytest.raises(ValueError, match="JSON"):
        fingerprint(float("nan"))

"""What is held equal is equal: parameters to half a hidden number, time to a step."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

from fints.config import DataConfig, Experiment, ModelConfig, TrainingConfig
from fints.evaluation import WalkForward
from fints.study import Contrast, Matching, Preset, Study, Tuning
from fints.study.estimates import parameters
from fints.study.matching import comparisons

ROOT = Path(__file__).resolve().parents[2]
SCHEMES = {
    "pre_norm": {"model.residual": "pre_norm"},
    "post_norm": {"model.residual": "post_norm"},
    "re_zero": {"model.residual": "re_zero"},
    "dynamic_hyper_connections": {"model.residual": "dynamic_hyper_connections"},
}
TIMES = {"pre_norm": 1.0, "post_norm": 1.04, "re_zero": 0.8, "dynamic_hyper_connections": 2.5}
HOWS: dict[str, Any] = {"width": {}, "parameters": {}, "time": {}}


def study(**changes: Any) -> Study:
    values: dict[str, Any] = {
        "title": "Which?",
        "base": Experiment(
            data=DataConfig(context=6),
            model=ModelConfig(width=16, depth=2),
            training=TrainingConfig(steps=100, warmup_steps=10, evaluate_every=20),
        ),
        "factors": {"residual": SCHEMES, "matched": HOWS},
        "matching": Matching(over="residual", reference="pre_norm", step_times=TIMES, measured="a command"),
        "folds": WalkForward(num_folds=2, test_days=20, validation_days=20, purge=1),
        "tuning": Tuning(space={"training.learning_rate": (1e-3,)}),
        "seeds": (1,),
        "primary": Contrast(
            compare=("residual", "post_norm"), against="pre_norm", within={"matched": "width"}
        ),
        "smallest_effect": 0.001,
        "presets": {"quick": Preset()},
    }
    return Study(**{**values, **changes})


@pytest.fixture(scope="module")
def arms() -> dict[str, Any]:
    return {arm.name: arm for arm in study().arms()}


def test_an_arm_that_a_matching_does_not_change_is_not_made_twice(arms: dict[str, Any]) -> None:
    assert list(arms) == [
        "pre_norm-width",
        "post_norm-width",
        "re_zero-width",
        "re_zero-parameters",
        "re_zero-time",
        "dynamic_hyper_connections-width",
        "dynamic_hyper_connections-parameters",
        "dynamic_hyper_connections-time",
    ]


def test_parameters_are_those_of_the_reference_to_half_a_hidden_number(arms: dict[str, Any]) -> None:
    wanted = parameters(arms["pre_norm-width"].experiment)
    # A hidden number of each of two blocks: a row with its bias, and a column.
    half = 2 * (2 * 16 + 1) / 2
    for scheme in ("re_zero", "dynamic_hyper_connections"):
        wide, matched = arms[f"{scheme}-width"].experiment, arms[f"{scheme}-parameters"].experiment
        assert abs(parameters(wide) - wanted) > half
        assert abs(parameters(matched) - wanted) <= half
        assert matched.model.width == wide.model.width
        assert matched.training == wide.training
        assert matched.model.residual_options == wide.model.residual_options
    assert abs(parameters(arms["post_norm-width"].experiment) - wanted) <= half


def test_time_is_that_of_the_reference_to_half_a_step_and_the_schedule_keeps_its_shape(
    arms: dict[str, Any],
) -> None:
    for scheme, steps, warmup, every in (("re_zero", 125, 12, 25), ("dynamic_hyper_connections", 40, 4, 8)):
        training = arms[f"{scheme}-time"].experiment.training
        assert (training.steps, training.warmup_steps, training.evaluate_every) == (steps, warmup, every)
        assert abs(training.steps * TIMES[scheme] - 100) <= TIMES[scheme] / 2
        assert arms[f"{scheme}-time"].experiment.model == arms[f"{scheme}-width"].experiment.model


def test_a_comparison_has_an_arm_for_every_level_and_tells_its_time(arms: dict[str, Any]) -> None:
    whole = study()
    assert whole.matching is not None
    told = comparisons(whole.matching, whole.factors, list(arms.values()))
    assert told["comparisons"]["time"] == {
        "pre_norm": "pre_norm-width",
        "post_norm": "post_norm-width",
        "re_zero": "re_zero-time",
        "dynamic_hyper_connections": "dynamic_hyper_connections-time",
    }
    assert list(told["comparisons"]) == ["width", "parameters", "time"]
    assert set(told["time"]) == set(arms)
    assert told["time"]["dynamic_hyper_connections-width"] == 2.5
    assert told["time"]["dynamic_hyper_connections-time"] == 1.0
    assert json.loads(json.dumps(told)) == told


def test_a_size_may_change_what_is_matched_and_the_match_follows() -> None:
    sized = study(presets={"quick": Preset(changes={"training.steps": 50, "model.width": 32})}).sized("quick")
    arms = {arm.name: arm.experiment for arm in sized.arms()}
    assert arms["dynamic_hyper_connections-time"].training.steps == 20
    wanted = parameters(arms["pre_norm-width"])
    assert abs(parameters(arms["dynamic_hyper_connections-parameters"]) - wanted) <= 65


def test_a_branch_that_cannot_be_narrow_enough_is_refused() -> None:
    base = Experiment(model=ModelConfig(width=8, num_heads=2, feed_forward_ratio=0.125, depth=2))
    with pytest.raises(ValueError, match="narrow enough"):
        study(base=base).arms()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"factors": {"residual": SCHEMES}}, "unknown factor 'matched'"),
        ({"factors": {"residual": SCHEMES, "matched": {"width": {}, "cost": {}}}}, "among width, parameters"),
        (
            {"factors": {"residual": SCHEMES, "matched": {"width": {"model.width": 8}}}},
            "that change nothing",
        ),
        ({"factors": {"residual": SCHEMES, "matched": {"time": {}}}}, "needs the level 'width'"),
        (
            {
                "factors": {
                    "residual": SCHEMES,
                    "matched": HOWS,
                    "depth": {"1": {"model.depth": 1}, "2": {"model.depth": 2}},
                }
            },
            "has 2 levels",
        ),
    ],
)
def test_a_declaration_that_compares_nothing_is_refused(changes: dict[str, Any], message: str) -> None:
    within = {"matched": "width"} if "width" in changes["factors"].get("matched", {}) else {}
    contrast = Contrast(compare=("residual", "post_norm"), against="pre_norm", within=within)
    with pytest.raises(ValueError, match=message):
        study(**changes, primary=contrast)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"reference": "pre_nrm"}, "no level 'pre_nrm'"),
        ({"step_times": {"pre_norm": 1.0}}, "a time above 0 for 'post_norm'"),
        ({"step_times": {**TIMES, "pre_norm": 2.0}}, "whose own is 1"),
    ],
)
def test_times_must_be_multiples_of_the_references(changes: dict[str, Any], message: str) -> None:
    values = {"over": "residual", "reference": "pre_norm", "step_times": TIMES, "measured": "m"}
    with pytest.raises(ValueError, match=message):
        study(matching=Matching(**{**values, **changes}))


def test_the_times_of_the_study_are_those_that_were_measured() -> None:
    declared = runpy.run_path(str(ROOT / "studies" / "which_scheme.py"))["STUDY"]
    stored = json.loads((ROOT / "benchmarks" / "results" / "which_scheme.json").read_text())
    assert declared.matching.measured == stored["command"]
    model, data = declared.base.model, declared.base.data
    sizes = stored["sizes"]
    assert (sizes["width"], sizes["depth"], sizes["tokens"]) == (model.width, model.depth, data.context)
    assert sizes["batch"] == declared.base.training.batch_size
    times = {row["arm"]: row["time"] for row in stored["rows"]}
    home = times["pre_norm, compiled"]
    measured = {level: times[f"{level}, compiled"] / home for level in declared.factors["residual"]}
    assert declared.matching.step_times == {level: round(time, 2) for level, time in measured.items()}


def test_the_sealed_size_is_judged_on_sealed_dates_and_tuned_before_them() -> None:
    from fints.study.plan import make_plan

    declared = runpy.run_path(str(ROOT / "studies" / "which_scheme.py"))["STUDY"]
    plan = make_plan(declared, name="which_scheme", docstring="", preset="sealed")
    assert plan.folds[0]["validation"][1] < "2018-01-01" <= plan.folds[0]["test"][0] < "2018-01-05"
    assert plan.folds[-1]["test"][1] == "2022-12-28"
    assert plan.spec()["opens_seal"] is True
    others = [name for name in declared.presets if name != "sealed"]
    assert not any(declared.sized(name).opens_seal for name in others)
    standard = make_plan(declared, name="which_scheme", docstring="", preset="standard")
    assert standard.folds[-1]["test"][1] < "2018"

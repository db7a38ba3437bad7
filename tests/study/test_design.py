"""A study is checked when it is declared, before anything runs."""

from __future__ import annotations

from typing import Any

import pytest

from fints.config import Experiment, TrainingConfig
from fints.evaluation import WalkForward
from fints.study import Contrast, Preset, Study, Tuning


def study(**changes: Any) -> Study:
    values: dict[str, Any] = {
        "title": "A question?",
        "base": Experiment(training=TrainingConfig(steps=100)),
        "factors": {
            "residual": {
                "pre_norm": {"model.residual": "pre_norm"},
                "post_norm": {"model.residual": "post_norm"},
            },
            "depth": {"2": {"model.depth": 2}, "8": {"model.depth": 8}},
        },
        "folds": WalkForward(num_folds=3, test_days=20, validation_days=20, purge=1),
        "tuning": Tuning(space={"training.learning_rate": (1e-3, 1e-2), "training.weight_decay": (0.0, 0.1)}),
        "seeds": (1, 2),
        "primary": Contrast(compare=("residual", "post_norm"), against="pre_norm", within={"depth": "8"}),
        "smallest_effect": 0.001,
        "presets": {"smoke": Preset(), "quick": Preset()},
    }
    return Study(**values | changes)


def test_arms_are_the_product_of_the_levels_under_stable_names() -> None:
    arms = study().arms()
    assert [arm.name for arm in arms] == [
        "pre_norm-depth_2",
        "pre_norm-depth_8",
        "post_norm-depth_2",
        "post_norm-depth_8",
    ]
    assert [(arm.experiment.model.residual, arm.experiment.model.depth) for arm in arms] == [
        ("pre_norm", 2),
        ("pre_norm", 8),
        ("post_norm", 2),
        ("post_norm", 8),
    ]
    assert arms[3].levels == {"residual": "post_norm", "depth": "8"}


def test_every_arm_tries_the_same_points_in_the_same_order() -> None:
    points = study().tuning.points()
    assert points == [
        {"training.learning_rate": rate, "training.weight_decay": decay}
        for rate in (1e-3, 1e-2)
        for decay in (0.0, 0.1)
    ]


def test_a_preset_changes_the_base_and_keeps_its_levels_only() -> None:
    preset = Preset(changes={"training.steps": 60}, levels={"depth": ("8",)}, seeds=(7,), claim="none")
    sized = study(presets={"quick": preset}).sized("quick")
    assert {arm.experiment.training.steps for arm in sized.arms()} == {60}
    assert [arm.name for arm in sized.arms()] == ["pre_norm-depth_8", "post_norm-depth_8"]
    assert sized.seeds == (7,)


def test_secondary_contrasts_outside_a_preset_are_left_out() -> None:
    shallow = Contrast(compare=("residual", "post_norm"), against="pre_norm", within={"depth": "2"})
    deep = Preset(levels={"depth": ("8",)})
    whole = study(contrasts=(shallow,), presets={"all": Preset(), "deep": deep})
    assert whole.sized("all").contrasts == (shallow,)
    assert whole.sized("deep").contrasts == ()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"factors": {"depth": {"2": {"model.dpeth": 2}, "8": {}}}}, r"unknown factor 'residual'"),
        (
            {
                "factors": {
                    "residual": {"pre_norm": {"model.residul": "x"}, "post_norm": {}},
                    "depth": {"8": {}},
                }
            },
            r"unknown field model.residul. Did you mean model.residual",
        ),
        ({"tuning": Tuning(space={"training.lerning_rate": (1,)})}, r"Did you mean training.learning_rate"),
        (
            {"tuning": Tuning(space={"training.learning_rate": ("high",)})},
            r"must be a finite number; got 'high'",
        ),
        (
            {"tuning": Tuning(space={"model.depth": (1, 2)})},
            r"model.depth is set by arm .* and by the tuning space",
        ),
        ({"tuning": Tuning(space={"training.learning_rate": (1e-3,)}, folds=4)}, r"exceeds the 3 folds"),
        ({"seeds": (1, 1)}, r"distinct whole numbers"),
        ({"seeds": ()}, r"distinct whole numbers"),
        ({"seeds": (1000,)}, r"seeds \[1000\] are tuning seeds too; final fits need fresh ones"),
        ({"outcome": "r2"}, r"outcome = 'r2' is unknown"),
        ({"smallest_effect": 0.0}, r"smallest_effect must be above 0"),
        (
            {"presets": {"quick": Preset(levels={"depth": ("3",)})}},
            r"preset 'quick': factor 'depth' has no level '3'",
        ),
        ({"presets": {"quick": Preset(levels={"dept": ("2",)})}}, r"Did you mean 'depth'"),
        ({"presets": {"quick": Preset(levels={"depth": ("2",)})}}, r"primary contrast needs level depth=8"),
        ({"presets": {"quick": Preset(changes={"training.step": 5})}}, r"Did you mean training.steps"),
        ({"presets": {}}, r"at least one preset"),
        (
            {"primary": Contrast(compare=("residual", "pre_norm"), against="pre_norm")},
            r"must compare two levels",
        ),
        (
            {"primary": Contrast(compare=("residual", "post_nrm"), against="pre_norm")},
            r"no level 'post_nrm'. Did you mean 'post_norm'",
        ),
        (
            {"folds": WalkForward(num_folds=3, test_days=20, validation_days=20, purge=0)},
            r"folds.purge = 0 must be at least data.horizon = 1",
        ),
        (
            {"factors": {"residual": {"pre_norm": {}, "post_norm": {}}, "depth": {"8": {}}}},
            r"arms pre_norm-depth_8 and post_norm-depth_8 are the same experiment",
        ),
        (
            {"factors": {"residual": {"pre norm": {}}, "depth": {"8": {}}}},
            r"'pre norm' cannot name a factor or level",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused_when_it_is_declared(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        study(**changes)
    assert "\n" not in str(caught.value)


def test_a_field_that_a_factor_or_the_tuning_varies_cannot_be_set() -> None:
    with pytest.raises(ValueError, match=r"model.depth cannot be set: it is varied by factor 'depth'"):
        study().sized("quick", {"model.depth": 3})
    with pytest.raises(ValueError, match=r"learning_rate cannot be set: it is varied by the tuning space"):
        study().sized("quick", {"training.learning_rate": 1e-4})
    with pytest.raises(ValueError, match=r"preset 'quick': model.depth cannot be set: it is varied by"):
        study(presets={"quick": Preset(changes={"model.depth": 4})})


def test_an_option_below_a_field_that_a_factor_varies_cannot_be_set() -> None:
    streams = {"model.residual": "dynamic_hyper_connections", "model.residual_options": {"num_streams": 4}}
    given = study(
        factors={
            "residual": {"pre_norm": {"model.residual": "pre_norm"}, "post_norm": streams},
            "depth": {"8": {"model.depth": 8}},
        }
    )
    message = (
        r"model.residual_options.num_streams cannot be set: model.residual_options is varied by "
        r"factor 'residual' of this study"
    )
    with pytest.raises(ValueError, match=message):
        given.sized("quick", {"model.residual_options.num_streams": 8})


def test_an_unknown_preset_is_named_with_the_known_ones() -> None:
    with pytest.raises(
        ValueError, match=r"unknown preset 'quik'. Did you mean 'quick'\? Choose one of smoke, quick"
    ):
        study().sized("quik")


def test_a_study_cannot_be_changed_after_its_declaration() -> None:
    with pytest.raises(AttributeError):
        study().seeds = (3,)  # type: ignore[misc]  # What mypy forbids must fail when run, too.

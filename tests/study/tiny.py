"""Ask nothing of interest: a study small enough to be run, killed and run again in a test.

Question, hypotheses, primary outcome: none. Every fit takes a few steps of a tiny network.
"""

from __future__ import annotations

from fints.config import DataConfig, Experiment, ModelConfig, TrainingConfig
from fints.evaluation import WalkForward
from fints.study import Contrast, Preset, Study, Tuning, main

STUDY = Study(
    title="Does anything happen?",
    base=Experiment(
        data=DataConfig(features=("a", "b", "return_1"), context=6),
        model=ModelConfig(width=8, num_heads=2, depth=1),
        training=TrainingConfig(batch_size=16, steps=8, warmup_steps=2, evaluate_every=4),
    ),
    factors={
        "residual": {
            "pre_norm": {"model.residual": "pre_norm"},
            "post_norm": {"model.residual": "post_norm"},
        },
        "depth": {"1": {"model.depth": 1}, "2": {"model.depth": 2}},
    },
    folds=WalkForward(num_folds=2, test_days=20, validation_days=20, purge=1),
    tuning=Tuning(space={"training.learning_rate": (1e-3, 1e-2)}, seeds=(1000,)),
    seeds=(10,),
    primary=Contrast(compare=("residual", "post_norm"), against="pre_norm", within={"depth": "1"}),
    smallest_effect=0.01,
    presets={
        "smoke": Preset(levels={"depth": ("1",)}, claim="none"),
        "quick": Preset(),
        "chaos": Preset(levels={"depth": ("1",)}, seeds=(10, 11, 12, 13, 14), claim="none"),
        "longer": Preset(changes={"training.steps": 200}, seeds=(10, 11), claim="none"),
    },
)

if __name__ == "__main__":
    main(STUDY)

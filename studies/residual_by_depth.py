"""Ask whether the residual scheme matters as depth grows.

Question
--------
On daily returns of 20 US stocks, does the choice of residual connection change the out-of-sample
R2 of a transformer, and does it change it more in a deep network than in a shallow one?

Hypotheses
----------
H1. At depth 8 Post-Norm forecasts worse than Pre-Norm: its gradients and its updates are harder to
    control with every block.
H2. At depth 8 dynamic Hyper-Connections with four streams forecast better than Pre-Norm: their
    layers keep adding where Pre-Norm's dilute.
H3. At depth 2 no scheme differs from Pre-Norm by the smallest effect of interest.

Primary outcome
---------------
Out-of-sample R2 against zero (``r2_zero``) of next-day volatility-scaled log returns, pooled over
assets and dates of a fold; primary contrast: Post-Norm minus Pre-Norm at depth 8, paired on (fold,
seed), errors clustered by fold.

Smallest effect of interest
---------------------------
0.001 (0.1 % of R2): less than the edge of a linear model on this panel, and about the least a
trader could notice after costs.

Verdict rule
------------
Fixed before the run, in this order. "No difference that matters" if the 90 % interval of the contrast
lies within plus and minus the smallest effect (even if it excludes 0); else "differs" if its 95 %
interval excludes 0; else "undecided". Secondary contrasts are held to Holm's correction. A diverged
fit counts as the zero forecast. Every preset but `standard` is exploratory, and `smoke` claims
nothing.

What would refute it
--------------------
H1 falls if Post-Norm's interval at depth 8 lies above -0.001; H2 if that of Hyper-Connections lies
below +0.001; H3 if an interval at depth 2 excludes the band of plus and minus 0.001.

Data
----
`sp500-20` until the end of 2017; 2018 to 2022 stay sealed. Survivors only: differences between arms
are meant, levels are not.
"""

from __future__ import annotations

from fints.config import DataConfig, Experiment, ModelConfig, TrainingConfig
from fints.evaluation import WalkForward
from fints.study import Contrast, Preset, Study, Tuning, main

STUDY = Study(
    title="Does the residual scheme matter as depth grows?",
    base=Experiment(
        data=DataConfig(context=24),
        model=ModelConfig(width=32),
        training=TrainingConfig(
            batch_size=64,
            steps=1000,
            warmup_steps=50,
            evaluate_every=100,
            profile_every=100,
            # The last update is profiled, and says nothing at a rate of 0.
            final_learning_rate_share=0.1,
        ),
    ),
    factors={
        "residual": {
            "pre_norm": {"model.residual": "pre_norm"},
            "post_norm": {"model.residual": "post_norm"},
            "dynamic_hyper_connections": {
                "model.residual": "dynamic_hyper_connections",
                "model.residual_options": {"num_streams": 4},
            },
        },
        "depth": {
            "2": {"model.depth": 2},
            "8": {"model.depth": 8},
            "24": {"model.depth": 24},
        },
    },
    folds=WalkForward(num_folds=8, test_days=252, validation_days=252, purge=1),
    tuning=Tuning(space={"training.learning_rate": (3e-4, 1e-3, 3e-3)}, folds=1, seeds=(1000,)),
    seeds=(10, 11, 12),
    primary=Contrast(compare=("residual", "post_norm"), against="pre_norm", within={"depth": "8"}),
    contrasts=(
        Contrast(
            compare=("residual", "dynamic_hyper_connections"), against="pre_norm", within={"depth": "8"}
        ),
        Contrast(compare=("residual", "post_norm"), against="pre_norm", within={"depth": "2"}),
        Contrast(
            compare=("residual", "dynamic_hyper_connections"), against="pre_norm", within={"depth": "2"}
        ),
    ),
    outcome="r2_zero",
    smallest_effect=0.001,
    dataset="sp500-20",
    presets={
        "smoke": Preset(
            changes={"training.steps": 20, "training.warmup_steps": 2, "training.evaluate_every": 20},
            levels={"depth": ("2", "8")},
            folds=WalkForward(num_folds=2, test_days=63, validation_days=63, purge=1),
            tuning=Tuning(space={"training.learning_rate": (1e-3,)}, folds=1, seeds=(1000,)),
            seeds=(10,),
            claim="none",
        ),
        "quick": Preset(
            changes={"training.steps": 300, "training.warmup_steps": 30},
            levels={"depth": ("2", "8")},
            folds=WalkForward(num_folds=4, test_days=252, validation_days=252, purge=1),
            seeds=(10, 11),
        ),
        "standard": Preset(claim="answer"),
        "full": Preset(changes={"model.width": 64, "training.steps": 3000}, seeds=(10, 11, 12, 13, 14)),
    },
)

if __name__ == "__main__":
    main(STUDY)

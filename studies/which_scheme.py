"""Ask which residual scheme a practitioner should pick for a network that forecasts daily stock returns.

Question
--------
Of seven residual schemes, which forecasts the next day's returns of 20 US stocks best, out of sample, when
all have the same width, the same number of parameters, or the same time to train; and does any of them beat
what takes no network at all?

Hypotheses
----------
H1. At the same width no scheme is behind the best by the smallest effect of interest: at a signal this weak
    and a depth of four blocks, all that differs is cost, and the cheapest is to be picked.
H2. The same holds at the same parameters and at the same time.
H3. No scheme beats ridge regression, gradient boosting or DLinear.

Primary outcome
---------------
Out-of-sample R2 against zero (``r2_zero``) of next-day volatility-scaled log returns, pooled over assets
and dates of a fold, at the same width. All differences between schemes are taken at once, paired on (fold,
seed), over twelve folds of 252 days as clusters. Second, and second only: the same at the same parameters
(the hidden numbers of the feed-forward branches are set so that the counts agree) and at the same time
(each scheme gets as many optimiser steps as fit into the reference's time by measured time of a step; the
whole schedule shrinks with it; within 5 % of the reference's time nothing is changed). Beside: R2 against
the prevailing mean, rank IC, a long-short portfolio after costs, its Sharpe ratio deflated for everything
that was tried, and what each arm costs in parameters, time and memory.

Every arm tries the same twelve design points (learning rate, dropout) on validation dates before the first
judged day. All arms are fitted by the package's compiled CPU step, at which their times were measured.

Smallest effect of interest
---------------------------
0.001 (0.1 % of R2): about the whole edge of a linear model on this panel, and about the least that a trader
could notice after costs.

Verdict rule
------------
Fixed before the run (`fints.study.selection`). The 95 % intervals of all pairs of a comparison hold
together; schemes that are surely less than 0.001 behind the best, whichever that is, are good enough. (1) A
scheme that surely exceeds every other one, none of which is good enough, is to be picked. (2) Else, of those
that are good enough, the one whose step takes least time is to be picked, and of those within 5 % of that
the one with the highest outcome. (3) Without any it is undecided among those that none surely exceeds. A
scheme with a diverged fit, which counts as the zero forecast, is never to be picked. Whether a network beats
zero and the mean is told by Clark-West, Holm over the arms; whether some scheme beats a baseline by Hansen's
test of superior ability, Holm over the baselines; Hansen's model confidence set stands beside. Contrasts
with Pre-Norm alone are secondary and held to Holm's correction.

Every preset but `standard` and `sealed` is exploratory, and `smoke` claims nothing. `sealed` reads the last
five years, once, after the answer of `standard` is committed: the same arms, tuned anew on 2017, judged on
eight folds of 157 days. It may confirm or contradict the answer, and takes no other part in it.

What would refute it
--------------------
H1 falls if some scheme surely exceeds another by more than 0.001 at the same width; H2 likewise. It is left
open, not held, where a scheme may be behind by more. H3 falls if a scheme beats one of the three.

Data
----
`sp500-20` until the end of 2017, folds from 2006 on; 2018 to 2022 stay sealed but for `sealed`. Survivors
only: differences between arms are meant, levels are not. The study `residual_by_depth` has judged three of
these schemes on 2010 to 2017 before, at other sizes.
"""

from __future__ import annotations

from fints.config import DataConfig, Experiment, ModelConfig, TrainingConfig
from fints.evaluation import WalkForward
from fints.study import Contrast, Matching, Preset, Study, Tuning, main

SCHEMES = {
    "pre_norm": {"model.residual": "pre_norm"},
    "post_norm": {"model.residual": "post_norm"},
    "peri_ln": {"model.residual": "peri_ln"},
    "deep_norm": {"model.residual": "deep_norm"},
    "re_zero": {"model.residual": "re_zero"},
    "dynamic_hyper_connections": {
        "model.residual": "dynamic_hyper_connections",
        "model.residual_options": {"num_streams": 4},
    },
    "attention_residuals": {"model.residual": "attention_residuals"},
}
# Compiled steps over Pre-Norm's compiled step, one thread, at the width and depth below.
STEP_TIMES = {
    "pre_norm": 1.0,
    "post_norm": 1.0,
    "peri_ln": 1.08,
    "deep_norm": 0.97,
    "re_zero": 0.91,
    "dynamic_hyper_connections": 1.54,
    "attention_residuals": 1.24,
}
MEASURED = (
    "python benchmarks/schemes.py --threads 1 --depth 4 --width 32 --tokens 24 --times-only --rounds 41 "
    "--schemes pre_norm post_norm peri_ln deep_norm re_zero dynamic_hyper_connections attention_residuals "
    "--json benchmarks/results/which_scheme.json"
)

STUDY = Study(
    title="Which residual scheme should a practitioner pick?",
    base=Experiment(
        data=DataConfig(context=24),
        model=ModelConfig(width=32, depth=4),
        training=TrainingConfig(
            batch_size=64,
            steps=300,
            warmup_steps=30,
            evaluate_every=25,
            # The last update is profiled, and says nothing at a rate of 0.
            final_learning_rate_share=0.1,
            compile=True,
            device="cpu",
        ),
    ),
    factors={"residual": SCHEMES, "matched": {"width": {}, "parameters": {}, "time": {}}},
    matching=Matching(over="residual", reference="pre_norm", step_times=STEP_TIMES, measured=MEASURED),
    folds=WalkForward(num_folds=12, test_days=252, validation_days=252, purge=1),
    tuning=Tuning(
        space={
            "training.learning_rate": (1e-4, 3e-4, 1e-3, 3e-3),
            "model.dropout": (0.0, 0.1, 0.3),
        },
        folds=1,
        seeds=(1000,),
    ),
    seeds=(10, 11),
    primary=Contrast(
        compare=("residual", "dynamic_hyper_connections"), against="pre_norm", within={"matched": "width"}
    ),
    contrasts=tuple(
        Contrast(compare=("residual", scheme), against="pre_norm", within={"matched": "width"})
        for scheme in SCHEMES
        if scheme not in ("pre_norm", "dynamic_hyper_connections")
    ),
    outcome="r2_zero",
    smallest_effect=0.001,
    dataset="sp500-20",
    baselines=("zero", "prevailing_mean", "ar1", "ridge", "gradient_boosting", "dlinear"),
    presets={
        "smoke": Preset(
            changes={"training.steps": 20, "training.warmup_steps": 2, "training.evaluate_every": 20},
            levels={"residual": ("pre_norm", "post_norm", "dynamic_hyper_connections")},
            folds=WalkForward(num_folds=2, test_days=63, validation_days=63, purge=1),
            tuning=Tuning(space={"training.learning_rate": (1e-3,)}, folds=1, seeds=(1000,)),
            seeds=(10,),
            baselines=("zero", "prevailing_mean", "ar1", "ridge", "dlinear"),
            claim="none",
        ),
        "quick": Preset(
            levels={
                "residual": ("pre_norm", "post_norm", "re_zero", "dynamic_hyper_connections"),
                "matched": ("width", "time"),
            },
            folds=WalkForward(num_folds=8, test_days=252, validation_days=252, purge=1),
            tuning=Tuning(space={"training.learning_rate": (3e-4, 1e-3)}, folds=1, seeds=(1000,)),
            seeds=(10,),
        ),
        "standard": Preset(claim="answer"),
        "sealed": Preset(
            # Together the 1,257 sealed dates but the first, so that tuning ends before they begin.
            folds=WalkForward(num_folds=8, test_days=157, validation_days=252, purge=1),
            seeds=(20, 21, 22),
            opens_seal=True,
            claim="answer",
        ),
        # At other sizes the times are no longer measured: what is matched in time is so by the small network.
        "full": Preset(
            changes={
                "model.width": 64,
                "model.depth": 8,
                "training.steps": 1000,
                "training.device": "auto",
                "training.compile": False,
            },
            seeds=(10, 11, 12, 13, 14),
        ),
    },
)

if __name__ == "__main__":
    main(STUDY)

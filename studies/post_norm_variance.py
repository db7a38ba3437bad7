"""Ask whether Post-Norm is more stable on financial series, and whether its re-scaling of variance is why.

Question
--------
Does a transformer with Post-Norm bear a wider range of learning rates than one with Pre-Norm, on panels whose
inputs come on the scale of returns, at 4 and at 12 blocks? And if so, is it that Pre-Norm's stream keeps the
scale of its input, so that in a volatile window each block counts for less, while Post-Norm takes the scale
away at every sublayer?

Hypotheses
----------
H1. At 4 blocks Post-Norm's range is not wider by a factor of two; at 12 blocks it is narrower.
H2. Where it is wider, the mechanism is right, and all of seven predictions hold:
    - dose: the gap (Post-Norm less Pre-Norm) grows with the vol-of-vol of the noise, and with it of the
      inputs;
    - without volatility to re-scale (homoskedastic noise) there is no gap;
    - with inputs divided by their true volatility there is none either;
    - Pre-Norm whose window is re-scaled once at the entrance gains more than half of it;
    - Post-Norm that is given the window's scale back after every norm loses more than half of it;
    - multiplying the inputs of a fitted network, do(x := c x), moves Pre-Norm's forecasts more;
    - where nothing was planted the two differ in the variance of their forecasts alone: after each got its
      best scalar they are equally good.

Primary outcome
---------------
Width: the range of learning rates, in decades, whose share of oracle on later days is within 10 % of the
best one of the same panel, interpolated between the six rates of a fixed grid, a factor of two apart
(`learning_rate_range`). A diverged fit is the zero forecast, share 0; where no rate reaches a share above 0
the width is 0. Nothing is tuned: every arm is fitted at every rate on every panel, with the same branch
weights, batches and dropout. For the predictions on do(c) and on no signal each arm is read at the rate of
its lowest validation loss on that panel. Secondary: share of diverged fits, loss spikes in 1,000 steps,
spread over seeds, worst block of dates; and the same gate and predictions of the share of oracle at that
rate in place of the width, since how stably a scheme trains and how well it ends are two questions.

Smallest effect of interest
---------------------------
0.3 decades of width, a factor of two in the learning rate. For do(c): forecasts that move by a quarter more.
Without signal: 0.002 of the target's mean square, a fifth of a percentage point of R2. Of the secondary
outcome: 0.05 of the oracle.

Verdict rule
------------
Fixed before the run (`fints.evaluation.predictions`), over panels as clusters, 8 at least, Student's t.
Stage 0, at each depth (5 % over the two): "more" stable if the interval of Post-Norm's width less Pre-
Norm's lies above 0, "less" if below, "same" if two one-sided tests put it within the smallest effect. A
scheme that learns little at any rate has a wide range around its own best, and one that learns much may
have a narrow one, so "more" and "less" are said only if the difference of the ranges around the better of
both best shares has the same sign, on average. The mechanism is asked at a depth only where stage 0 says
"more" there; elsewhere it is void, whatever its numbers. A prediction of growth holds if its 95 % interval
lies above 0 and is not below the smallest effect, and fails if the interval lies below that effect; one of
nothing holds if two one-sided tests put it within the smallest effect, and fails if the interval lies
outside. "More than half" holds if the interval of what is gained less half of the gap lies above 0, and
fails if below. All must hold for the mechanism to be supported, so each is tested at 5 %; one that fails
refutes it, so failing is tested at 5 % over their number. A range that reaches an end of the grid is only a
bound: no claim is made that the truth beyond it could overturn, if more than a quarter of the panels have
one.

What would refute it
--------------------
H1 falls if stage 0 says "more" at either depth, or "same" or "more" at 12. The mechanism (H2) falls if
stage 0 says "more" and a prediction fails. Rivals: what is gained by bounded forecasts (hidden shrinkage)
is gone after each forecast got its best scalar; warm-up, heavy tails without volatility clusters, and
shallow networks are levels of their own, in the secondary presets. If a rival level shows the gap where the
mechanism has none to give, the mechanism is not needed for it.

Data
----
Simulated panels of 64 assets with the signal `memory_chain` at R2 20 %. The features that it is made of are
shown in units of returns, times the volatility of their day; the logarithm of that volatility is a feature
in every arm, so that no arm lacks information on scale, only its form. The centre: GARCH noise of vol-of-
vol 2, signal matched pooled, inputs standardised by training days, target the log return. 1,200 days to
learn from, 100 to choose by, 100 to be judged on. Each panel is drawn anew. Panels 0 to 99 were used for
design and for the spread that the power rests on (preset `pilot`); none of them is judged. One look at
panel 80, at 4 blocks, made three choices: "more" and "less" stable count only if the range around the
common best agrees in sign, since there Post-Norm reached a higher share around a narrower peak; the
predictions are read on the tuned share too, as a labelled secondary with a level of its own; and rates lie
a factor of two apart.

Not a full factorial: one thing at a time is changed from the centre. Secondary and exploratory, on panels of
their own: `deep` (the predictions at 12 blocks), `noise`, `inputs`, `targets`, `schemes`, `rivals`, `seeds`.
"""

from __future__ import annotations

from fints.config import DataConfig, Experiment, ModelConfig, TrainingConfig
from fints.study import Days, PanelPreset, PanelStudy, PanelTuning, panel_main

# A factor of two apart, which is the smallest effect of interest; deeper networks want lower ones.
RATES = ("0.00025", "0.0005", "0.001", "0.002", "0.004", "0.008", "0.016")
AT_4, AT_12 = RATES[1:], RATES[:-1]
BOTH = ("pre_norm", "post_norm")
CURES = ("window_rescaled_pre_norm", "window_scale_restoring_post_norm")
HIGH = {"simulation.noise": "garch", "simulation.vol_of_vol": 2.0}
# What is compared within the panels of a secondary preset.
CENTRE = {"residual": BOTH, "case": ("garch_high",), "depth": ("4",), "rate": AT_4}
PREDICTIONS = (
    {"residual": (*BOTH, *CURES), "case": ("garch_high",), "depth": ("4",), "rate": AT_4},
    {"residual": BOTH, "case": ("gaussian", "garch_low", "oracle_sigma"), "depth": ("4",), "rate": AT_4},
    # No width is read off these.
    {"residual": BOTH, "case": ("r2_0",), "depth": ("4",), "rate": ("0.001", "0.002", "0.004")},
)
UNTUNED = PanelTuning(space={}, panels=())

STUDY = PanelStudy(
    title="Is Post-Norm more stable on financial series, and is its re-scaling of variance why?",
    base=Experiment(
        data=DataConfig(features=("a", "b", "log_volatility"), target="log_return", context=24, clip=100.0),
        model=ModelConfig(width=32, norm_eps=1e-12),
        training=TrainingConfig(
            batch_size=32,
            steps=600,
            warmup_steps=50,
            evaluate_every=600,
            keep="last",
            device="cpu",
            # The panels of an arm, as one network with stacked parameters.
            vectorise=8,
        ),
    ),
    simulation={
        "num_assets": 64,
        "signal": "memory_chain",
        "depth_demand": 2,
        "r2": 0.20,
        "feature_scale": "proportional",
        "log_volatility_column": True,
    },
    days=Days(train=1200, validation=100, test=100),
    factors={
        "residual": {
            name: {"model.residual": name}
            for name in (
                *BOTH,
                *CURES,
                "frozen_scale_post_norm",
                "sandwich_norm",
                "deep_norm",
                "dynamic_hyper_connections",
                "attention_residuals",
            )
        },
        "case": {
            "garch_high": HIGH,
            "garch_low": HIGH | {"simulation.vol_of_vol": 0.7},
            "gaussian": {"simulation.noise": "gaussian"},
            "student_t": {"simulation.noise": "student_t"},
            "conditional": HIGH | {"simulation.signal_scale": "proportional"},
            # From the first of the test days on, or just after it.
            "shock": HIGH | {"simulation.shock_at": 0.93},
            "r2_0": HIGH | {"simulation.r2": 0.0},
            "oracle_sigma": HIGH | {"simulation.feature_scale": "constant"},
            "ewma": HIGH | {"simulation.feature_scale": "ewma"},
            "raw": HIGH | {"data.unscaled": ("a", "b")},
            "instance": HIGH | {"data.window_scaled": ("a", "b")},
            "target_scaled": HIGH | {"data.target": "volatility_scaled"},
            "target_ranked": HIGH | {"data.target": "cross_sectional"},
            "no_warmup": HIGH | {"training.warmup_steps": 0},
            "long_warmup": HIGH | {"training.warmup_steps": 200},
        },
        "depth": {depth: {"model.depth": int(depth)} for depth in ("2", "4", "12")},
        "rate": {rate: {"training.learning_rate": float(rate)} for rate in RATES},
    },
    tuning=UNTUNED,
    panels=tuple(range(100, 108)),
    watched=False,
    asked={"blocks": 5, "volatility": 0.25, "scales": (0.25, 4.0), "scaled_features": ("a", "b")},
    settings={
        "pre": "pre_norm",
        "post": "post_norm",
        "rescaled": CURES[0],
        "restored": CURES[1],
        "centre": "garch_high",
        "doses": {"gaussian": 0.0, "garch_low": 0.7, "garch_high": 2.0},
        "oracle": "oracle_sigma",
        "null": "r2_0",
        "depths": ("4", "12"),
        "smallest": {"width": 0.3, "moved": 0.223, "null": 0.002, "share": 0.05},
        # Standard deviations over panels that the preset `pilot` found: "width" of stage 0 at 4 blocks,
        # "moved" of do(c), "null" of no signal.
        "pilot_spread": {"width": 0.10, "moved": 0.14, "null": 0.00063},
    },
    answer="stability",
    presets={
        "smoke": PanelPreset(
            changes={
                "training.steps": 20,
                "training.warmup_steps": 2,
                "training.evaluate_every": 20,
                "model.width": 8,
                "data.context": 12,
            },
            grids=tuple(grid | {"rate": ("0.002", "0.016")} for grid in PREDICTIONS),
            panels=(90, 91),
            days=Days(train=120, validation=20, test=20),
            simulation={"num_assets": 8},
            claim="none",
        ),
        "quick": PanelPreset(
            grids=(CENTRE, {"residual": BOTH, "case": ("gaussian",), "depth": ("4",), "rate": AT_4}),
            panels=(110, 111, 112, 113),
        ),
        # Of panels that are never judged: the spread that the plans' power rests on.
        "pilot": PanelPreset(
            grids=(CENTRE, CENTRE | {"case": ("r2_0",), "rate": ("0.001", "0.002", "0.004")}),
            panels=(80, 81, 82, 83),
        ),
        "standard": PanelPreset(
            grids=(*PREDICTIONS, CENTRE | {"depth": ("12",), "rate": AT_12}),
            claim="answer",
        ),
        # The predictions where stage 0 finds Post-Norm more stable at 12 blocks.
        "deep": PanelPreset(
            grids=tuple(grid | {"depth": ("12",), "rate": AT_12} for grid in PREDICTIONS),
            panels=tuple(range(120, 128)),
        ),
        "noise": PanelPreset(
            grids=(
                CENTRE,
                {
                    "residual": BOTH,
                    "case": ("gaussian", "student_t", "conditional", "shock"),
                    "depth": ("4",),
                    "rate": AT_4,
                },
            ),
            panels=tuple(range(130, 138)),
        ),
        "inputs": PanelPreset(
            grids=(
                CENTRE,
                {"residual": BOTH, "case": ("raw", "ewma", "instance"), "depth": ("4",), "rate": AT_4},
            ),
            panels=tuple(range(140, 148)),
        ),
        "targets": PanelPreset(
            grids=(
                CENTRE,
                {"residual": BOTH, "case": ("target_scaled", "target_ranked"), "depth": ("4",), "rate": AT_4},
            ),
            panels=tuple(range(150, 158)),
        ),
        "schemes": PanelPreset(
            grids=({"case": ("garch_high",), "depth": ("4",), "rate": AT_4},),
            panels=tuple(range(160, 168)),
        ),
        "rivals": PanelPreset(
            grids=(
                CENTRE | {"depth": ("2", "4")},
                {"residual": BOTH, "case": ("no_warmup", "long_warmup"), "depth": ("4",), "rate": AT_4},
            ),
            panels=tuple(range(170, 178)),
        ),
        "seeds": PanelPreset(grids=(CENTRE,), panels=tuple(range(180, 188)), seeds=4),
        "full": PanelPreset(
            changes={
                "training.batch_size": 64,
                "training.steps": 3000,
                "training.evaluate_every": 3000,
                "training.device": "auto",
            },
            grids=(
                *PREDICTIONS,
                *(grid | {"depth": ("12",), "rate": AT_12} for grid in PREDICTIONS),
            ),
            panels=tuple(range(200, 224)),
        ),
    },
)

if __name__ == "__main__":
    panel_main(STUDY)

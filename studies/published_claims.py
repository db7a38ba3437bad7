"""Ask whether what is published on residual connections holds in networks that forecast returns.

Question
--------
Papers and secondary texts make claims on Pre-Norm, Post-Norm, Hyper-Connections and attention over depth,
most of them from language models, some without any source. Which of them hold in transformers of width 32
that learn a planted signal in noise as strong as that of returns?

Hypotheses
----------
H1. Claims on what a network looks like inside (growth of the stream, shrinking updates, similar neighbours)
    hold: they follow from how the scheme is built.
H2. Claims that one scheme trains better than another (faster, at higher rates, with other initial values)
    fail, or are undecided: a network this small is not short of gradient or of depth.
H3. Claims with a number taken from large models (3.2 times, 1.8 times, 0.98) fail in that number.

Primary outcome
---------------
The verdict of each row: held, failed or undecided, "at D 32, on this data". Its measure, the cells that it
is taken in and both margins are in `CLAIMS` below, its measure in words in `fints.study.published`.
"Layers" of the sources are blocks. P names a paper; S a secondary text that gives no source, shown as
folklore. Claims that are identities or counts are computed, not tested (`fints.study.published_exact`).

Smallest effect of interest
---------------------------
Its margins, row by row: an interval that the claim holds in, and one, the same or wider, that it fails
outside. For losses 0.01 (one percentage point of R2, a twentieth of what an oracle earns here) for a depth
penalty and 0.005 for a difference of schemes; for shares of oracle 0.05; for speed and rates a factor that
the source would still call faster or higher.

Verdict rule
------------
Fixed before the run (`fints.evaluation.claims`): over panels as clusters, 8 at least, Student's t, ratios
by their logarithm. Held if the number surely lies in the first interval, failed if surely outside the
second, adjusted after Holm over all rows of the size at 5 %; else undecided. Nothing is tuned before the
run: every arm is fitted at two or four learning rates on every panel, and read at the rate whose validation
loss is lowest on the other panels; arms that are compared choose among the same rates. A diverged fit is
the zero forecast.

What would refute it
--------------------
H1 falls if a row on the inside of Pre-Norm fails. H2 falls if a row on speed, rates, initial values or
mixtures is held. H3 falls if a row with a number from a large model is held.

Data
----
Simulated panels of 64 assets with the signal `memory_chain` (two links, each of which asks for a block) at
R2 20 % in homoskedastic Gaussian noise with a common factor: 1,200 days to learn from, 100 to choose by,
100 to be judged on. Each is drawn anew; panels 0 to 99 were used for design, 100 to 251 by other studies;
none of them is judged.

`standard` asks at 4 and 12 blocks. `deep` is exploratory: 24, 48 and 64 blocks on three panels, too few to
decide anything, for the claims that name such depths. `streams` is exploratory too: other numbers of
streams.
"""

from __future__ import annotations

from fints.config import DataConfig, Experiment, ModelConfig, TrainingConfig
from fints.study import Days, PanelPreset, PanelStudy, PanelTuning, panel_main

HYPER = "dynamic_hyper_connections"
STATIC = "static_hyper_connections"
LOW, HIGH = ("0.0007", "0.002"), ("0.0056", "0.016")
DEEP = "12"

# Cells: scheme, depth, case.
PRE, POST, HC, ATTENTION = (
    (name, DEEP, "plain") for name in ("pre_norm", "post_norm", HYPER, "attention_residuals")
)
PRE_4, HC_4 = ("pre_norm", "4", "plain"), (HYPER, "4", "plain")
ZHU, XIONG, KIMI = "P (arXiv 2409.19606)", "P (arXiv 2002.04745)", "P (arXiv 2603.15031)"

CLAIMS = (
    {
        "name": "cosine_pre_norm",
        "claim": "neighbouring layers of Pre-Norm have a cosine of 0.95 to 0.99",
        "source": f"S (shape: {ZHU}, figure 3)",
        "measure": "late_cosine",
        "cells": (PRE,),
        "held": (0.95, 0.99),
        "failed": (0.95, 0.99),
    },
    {
        "name": "cosine_hyper",
        "claim": "those of Hyper-Connections have one of 0.35 to 0.75",
        "source": f"S (shape: {ZHU}, figure 3)",
        "measure": "late_cosine",
        "cells": (HC,),
        "held": (0.35, 0.75),
        "failed": (0.35, 0.75),
    },
    {
        "name": "cosine_64",
        "claim": "a Pre-Norm network of 64 layers has a cosine of about 0.98",
        "source": "S",
        "measure": "late_cosine",
        "cells": (("pre_norm", "64", "plain"),),
        "held": (0.97, 0.99),
        "failed": (0.96, 1.0),
    },
    {
        "name": "late_blocks_pre_norm",
        "claim": "layers of Pre-Norm add little after about the 20th",
        "source": "S",
        "measure": "late_blocks",
        "cells": (("pre_norm", "48", "plain"),),
        "held": (None, 0.25),
        "failed": (None, 0.5),
    },
    {
        "name": "late_blocks_hyper",
        "claim": "those of Hyper-Connections keep adding",
        "source": "S",
        "measure": "late_blocks",
        "cells": ((HYPER, "48", "plain"),),
        "held": (0.5, None),
        "failed": (0.25, None),
    },
    {
        "name": "penalty_12",
        "claim": "collapse does not matter up to 12 layers: Pre-Norm is no worse with 12 than with 4",
        "source": "S",
        "measure": "excess",
        "cells": (PRE, PRE_4),
        "held": (None, 0.01),
        "failed": (None, 0.01),
    },
    {
        "name": "hyper_at_48",
        "claim": "from 48 layers on Hyper-Connections must be considered: they are better there",
        "source": "S",
        "measure": "gain",
        "cells": ((HYPER, "48", "plain"), ("pre_norm", "48", "plain")),
        "held": (0.005, None),
        "failed": (0.005, None),
    },
    {
        "name": "faster_40_percent",
        "claim": "Hyper-Connections converge 40 % faster",
        "source": "S",
        "measure": "steps_ratio",
        "cells": (HC, PRE),
        "held": (None, 0.8),
        "failed": (None, 0.9),
        "log": True,
    },
    {
        "name": "faster_1.8_times",
        "claim": "Hyper-Connections converge 1.8 times as fast",
        "source": f"{ZHU}, OLMoE",
        "measure": "steps_ratio",
        "cells": (HC, PRE),
        "held": (None, 0.65),
        "failed": (None, 0.8),
        "log": True,
    },
    {
        "name": "gradient_variance",
        "claim": "the gradient's variance under Hyper-Connections is 3.2 times Pre-Norm's",
        "source": "S",
        "measure": "variance_ratio",
        "cells": (HC, PRE),
        "held": (2.5, 4.0),
        "failed": (2.0, 5.0),
        "log": True,
    },
    {
        "name": "healthy_ratio",
        "claim": "a healthy ratio of gradients is 0.8 to 1.2 (first over last block: the source is silent)",
        "source": "S",
        "measure": "gradient_ends",
        "cells": (HC,),
        "held": (0.8, 1.2),
        "failed": (0.8, 1.2),
        "log": True,
    },
    {
        "name": "twice_the_rate",
        "claim": "Hyper-Connections bear about twice the learning rate",
        "source": "S",
        "measure": "rate_ratio",
        "cells": (HC_4, PRE_4),
        "held": (1.5, None),
        "failed": (1.5, None),
        "log": True,
    },
    {
        "name": "needs_clipping",
        "claim": "Hyper-Connections need clipping at 1.0",
        "source": "S",
        "measure": "lost_without",
        "cells": (HC_4, (HYPER, "4", "no_clipping")),
        "held": (0.05, None),
        "failed": (0.05, None),
    },
    {
        "name": "wants_xavier",
        "claim": "Hyper-Connections want Xavier-uniform initial values",
        "source": "S",
        "measure": "gain",
        "cells": ((HYPER, "4", "xavier"), HC_4),
        "held": (0.005, None),
        "failed": (0.005, None),
    },
    {
        "name": "more_dropout",
        "claim": "Hyper-Connections want 20 % more dropout (0.12 for 0.10)",
        "source": "S",
        "measure": "gain",
        "cells": ((HYPER, "4", "dropout_12"), (HYPER, "4", "dropout_10")),
        "held": (0.005, None),
        "failed": (0.005, None),
    },
    {
        "name": "diversity",
        "claim": "the diversity of streams should be above 0.6",
        "source": "S",
        "measure": "diversity",
        "cells": (HC,),
        "held": (0.6, None),
        "failed": (0.6, None),
    },
    {
        "name": "one_stream",
        "claim": "one stream is not enough: with n = 1 nothing is gained over Pre-Norm",
        "source": ZHU,
        "measure": "gain",
        "cells": (("hyper_1", "4", "plain"), PRE_4),
        "held": (None, 0.005),
        "failed": (None, 0.005),
    },
    {
        "name": "four_streams",
        "claim": "four streams are better than one",
        "source": ZHU,
        "measure": "gain",
        "cells": (HC_4, ("hyper_1", "4", "plain")),
        "held": (0.005, None),
        "failed": (0.005, None),
    },
    {
        "name": "dynamic_better",
        "claim": "dynamic weights are better than static ones",
        "source": ZHU,
        "measure": "gain",
        "cells": (HC_4, (STATIC, "4", "plain")),
        "held": (0.005, None),
        "failed": (0.005, None),
    },
    {
        "name": "mixture",
        "claim": "Pre-Norm below and Hyper-Connections above is the better order of a mixture",
        "source": "S",
        "measure": "gain",
        "cells": (("hyper_above", "4", "plain"), ("hyper_below", "4", "plain")),
        "held": (0.005, None),
        "failed": (0.005, None),
    },
    {
        "name": "stream_grows",
        "claim": "the stream of Pre-Norm grows with depth (dilution)",
        "source": f"{XIONG}, {KIMI}",
        "measure": "size_slope",
        "cells": (PRE,),
        "held": (0.25, None),
        "failed": (0.1, None),
    },
    {
        "name": "updates_shrink",
        "claim": "each layer's share of the stream shrinks with depth (dilution)",
        "source": KIMI,
        "measure": "share_slope",
        "cells": (PRE,),
        "held": (None, -0.25),
        "failed": (None, -0.1),
    },
    {
        "name": "attention_cures",
        "claim": "attention over depth cures it: its layers' shares do not shrink",
        "source": KIMI,
        "measure": "share_slope",
        "cells": (ATTENTION,),
        "held": (-0.1, None),
        "failed": (-0.25, None),
    },
    {
        "name": "attention_attributes",
        "claim": "its weights tell which layers matter",
        "source": "S",
        "measure": "attribution",
        "cells": (ATTENTION,),
        "held": (0.5, None),
        "failed": (0.2, None),
    },
    {
        "name": "post_norm_starves",
        "claim": "under Post-Norm the first layers starve: their gradient is small before training",
        "source": XIONG,
        "measure": "gradient_ends_initial",
        "cells": (POST,),
        "held": (None, 0.5),
        "failed": (None, 0.8),
        "log": True,
    },
    {
        "name": "post_norm_spikes",
        "claim": "Post-Norm's loss spikes more often than Pre-Norm's",
        "source": XIONG,
        "measure": "spikes",
        "cells": (POST, PRE),
        "held": (0.5, None),
        "failed": (0.5, None),
    },
    {
        "name": "post_norm_warm_up",
        "claim": "Post-Norm needs warm-up",
        "source": XIONG,
        "measure": "lost_without",
        "cells": (POST, ("post_norm", DEEP, "no_warmup")),
        "held": (0.05, None),
        "failed": (0.05, None),
    },
    {
        "name": "tune_again",
        "claim": "whoever moves from Pre-Norm to Hyper-Connections must tune the learning rate again",
        "source": "S",
        "measure": "lost_at_the_others_rate",
        "cells": (HC_4, PRE_4),
        "held": (0.05, None),
        "failed": (0.05, None),
    },
)
ASKED = (
    {
        "residual": ("pre_norm", "post_norm", HYPER, "attention_residuals"),
        "depth": (DEEP,),
        "case": ("plain",),
        "rate": LOW,
    },
    {"residual": ("post_norm",), "depth": (DEEP,), "case": ("no_warmup",), "rate": LOW},
    {"residual": ("pre_norm", HYPER), "depth": ("4",), "case": ("plain",)},
    {"residual": (HYPER,), "depth": ("4",), "case": ("no_clipping",), "rate": HIGH},
    {"residual": (HYPER,), "depth": ("4",), "case": ("xavier", "dropout_10", "dropout_12"), "rate": LOW},
    {
        "residual": ("hyper_1", STATIC, "hyper_above", "hyper_below"),
        "depth": ("4",),
        "case": ("plain",),
        "rate": LOW,
    },
)

STUDY = PanelStudy(
    title="Do the published claims on residual connections hold in networks that forecast returns?",
    base=Experiment(
        data=DataConfig(features=("a", "b"), target="log_return", context=24),
        model=ModelConfig(width=32),
        training=TrainingConfig(
            batch_size=32,
            steps=500,
            warmup_steps=50,
            evaluate_every=500,
            profile_every=25,
            keep="last",
            device="cpu",
            # The panels of an arm, as one network with stacked parameters.
            vectorise=8,
        ),
    ),
    simulation={"num_assets": 64, "signal": "memory_chain", "depth_demand": 2, "r2": 0.20},
    days=Days(train=1200, validation=100, test=100),
    factors={
        "residual": {
            "pre_norm": {"model.residual": "pre_norm"},
            "post_norm": {"model.residual": "post_norm"},
            HYPER: {"model.residual": HYPER, "model.residual_options": {"num_streams": 4}},
            "attention_residuals": {"model.residual": "attention_residuals"},
            STATIC: {"model.residual": STATIC, "model.residual_options": {"num_streams": 4}},
            **{
                f"hyper_{n}": {"model.residual": HYPER, "model.residual_options": {"num_streams": n}}
                for n in (1, 2, 8)
            },
            "static_1": {"model.residual": STATIC, "model.residual_options": {"num_streams": 1}},
            "learnable_skip": {"model.residual": "learnable_skip"},
            "hyper_above": {
                "model.residual": "by_depth",
                "model.residual_options": {"segments": [["pre_norm", 2], [HYPER, 2]]},
            },
            "hyper_below": {
                "model.residual": "by_depth",
                "model.residual_options": {"segments": [[HYPER, 2], ["pre_norm", 2]]},
            },
        },
        "depth": {depth: {"model.depth": int(depth)} for depth in ("4", DEEP, "24", "48", "64")},
        "case": {
            "plain": {},
            "no_clipping": {"training.clip_norm": 1e9},
            "no_warmup": {"training.warmup_steps": 0},
            "xavier": {"model.initialiser": "xavier_uniform"},
            "dropout_10": {"model.dropout": 0.10},
            "dropout_12": {"model.dropout": 0.12},
        },
        "rate": {rate: {"training.learning_rate": float(rate)} for rate in (*LOW, *HIGH)},
    },
    tuning=PanelTuning(space={}, panels=()),
    panels=tuple(range(300, 308)),
    watched=False,
    asked={"inside": True, "curve": True},
    settings={"claims": CLAIMS},
    answer="published",
    presets={
        "smoke": PanelPreset(
            changes={
                "training.steps": 12,
                "training.warmup_steps": 2,
                "training.evaluate_every": 12,
                "training.profile_every": 4,
                "model.width": 8,
                "data.context": 12,
            },
            grids=(
                {
                    "residual": ("pre_norm", HYPER, "attention_residuals"),
                    "depth": ("4", DEEP),
                    "case": ("plain",),
                    "rate": ("0.002",),
                },
            ),
            panels=(300, 301),
            days=Days(train=120, validation=20, test=20),
            simulation={"num_assets": 8},
            claim="none",
        ),
        "quick": PanelPreset(
            grids=(
                {
                    "residual": ("pre_norm", HYPER),
                    "depth": ("4", DEEP),
                    "case": ("plain",),
                    "rate": ("0.002",),
                },
            ),
            panels=(310, 311, 312),
        ),
        "standard": PanelPreset(grids=ASKED, claim="answer"),
        "deep": PanelPreset(
            grids=(
                {
                    "residual": ("pre_norm", HYPER),
                    "depth": ("24", "48"),
                    "case": ("plain",),
                    "rate": ("0.0007",),
                },
                {"residual": ("pre_norm",), "depth": ("64",), "case": ("plain",), "rate": ("0.0007",)},
            ),
            panels=(320, 321, 322),
        ),
        "streams": PanelPreset(
            grids=(
                {
                    "residual": (
                        "pre_norm",
                        HYPER,
                        STATIC,
                        "hyper_1",
                        "hyper_2",
                        "hyper_8",
                        "static_1",
                        "learnable_skip",
                    ),
                    "depth": ("4",),
                    "case": ("plain",),
                    "rate": LOW,
                },
            ),
            panels=tuple(range(330, 338)),
        ),
        "full": PanelPreset(
            changes={
                "training.batch_size": 64,
                "training.steps": 3000,
                "training.evaluate_every": 3000,
                "training.profile_every": 150,
                "training.device": "auto",
            },
            grids=(
                *ASKED,
                {
                    "residual": ("pre_norm", HYPER),
                    "depth": ("48", "64"),
                    "case": ("plain",),
                    "rate": LOW,
                },
            ),
            panels=tuple(range(340, 356)),
        ),
    },
)

if __name__ == "__main__":
    panel_main(STUDY)

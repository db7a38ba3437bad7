"""Ask what limits deep return forecasters: collapse, vanishing gradients, noise or amplification.

Question
--------
Does a transformer of 16 blocks forecast worse than one of 4, on panels whose signal asks for depth,
and if so, what is it that the depth spoils: the representations of the tokens (they collapse), the
gradients of the first blocks (they vanish), the fit (it learns noise), or the steps (a small change of
the weights changes the forecast more and more)?

Hypotheses
----------
H1. Pre-Norm has no depth penalty of the smallest size of interest at R2 20 %.
H2. Post-Norm has one at R2 20 %, and it is one of optimisation: its training loss is worse too.
H3. What causes it is amplification: a relief of the step's effect on the output removes more than half
    of the penalty, and more than the reliefs of gradients and of representations do.
H4. At R2 0.5 % any penalty is one of generalisation, and its cause is the fitting of noise.

Primary outcome
---------------
The depth penalty of a cell (scheme, tier): loss on later days of the network of 16 blocks less that of 4
blocks, the fixed reference, on the same panel with the same branch weights, batches and dropout. The loss
is the mean squared distance to the planted signal: the squared error less the noise, which is the same
for all networks of a panel. Unit: the mean square of the training targets, so 0.01 is one percentage
point of R2. It is the sum of an optimisation part (training loss less that of the reference) and a
generalisation part (the rest). All fits take the same number of steps, none stops early, and all losses
are of the last weights in evaluation mode; a diverged fit is the zero forecast. The learning rate of every
combination of scheme, depth, tier and relief is chosen from the same grid by its mean validation loss on
panels that are not judged, two where a verdict is at stake; warm-up is fixed.

Smallest effect of interest
---------------------------
0.01 at R2 20 % and 0.001 at R2 0.5 %: a twentieth and a fifth of what an oracle could earn.

Verdict rule
------------
Fixed before the run (`fints.evaluation.causes`), over panels as clusters, 8 at least.

First the gate: a penalty, if its 95 % interval lies above the smallest effect; none, if its one-sided 95 %
bound lies below; else undecided.

Then each relief, applied to both depths: the share of the penalty that it removes, by a bootstrap over
panels. A cause dominates if the lower bound of its share is above one half and those of its differences to
every rival and to its placebo are above 0; "several causes", "none of these" and "undecided, needs N more
panels" are verdicts too. Noise dominates only if it also does after every forecast got its best scalar,
chosen on validation days: a relief that merely shrinks gains nothing. A penalty under a relief is counted
from the better of the two references, the plain and the relieved one, so that spoiling the reference cures
nothing.

Each relief acts on one suspect, at one dose for both depths. Representations: sublayers whose tokens are more
alike than a healthy network's ever are get a pull that pushes them apart (a hinge); its placebo is as strong,
at the same sublayers and times, with coordinates permuted. Gradients: what reaches each sublayer gets a
common norm; its placebo has the factors of other sublayers. Noise: the weights of the best validation loss.
Amplification: every branch's update is shrunk by 4 blocks over its network's, so 16 blocks take a quarter of
the step in each, and the reference is untouched. That is more than a smaller rate only where the plain
network has one of its own, as here.

A relief carries a verdict only if its manipulation check passes, against the plain network at the relief's
own learning rate, which is fitted on the judged panels for that. In the deep network, at a moment before the
penalty shows, one of the mediators it aims at moved by at least 50 %, the way that relieves (the gap of noise
fitting is of the end): once a network has fallen ill it differs from a cured one in every mediator,
whatever the cause. And in the reference, where there is little to cure, every other cause's moved by less
than 10 % over all of training. Sizes are without what chance moves (`fints.diagnostics.move`). The penalty
shows from the moment on at which the deep network is farther from the planted signal than the reference, on
training windows, by at least half of what it is at the end.

Where no relief decides, what was seen counts as seen: a penalty points to a suspect if it alone is present
before the penalty shows, of those that no relief acquits by surely removing less than half. Present is a
suspect one of whose mediators has its 95 % interval beyond a quarter worse than in the reference, absent
one of which all lie below; the norms of gradients count under SGD alone, since AdamW divides by them. Noise
fitting is present where the generalisation part surely is more than half of the penalty
(`fints.study.presence`).

Each of the four cells is a question of its own, so nothing is adjusted for their number.

What would refute it
--------------------
H1 falls if Pre-Norm's interval at R2 20 % lies above 0.01. H2 falls if Post-Norm's bound lies below 0.01,
or its optimisation part is below half of the penalty. H3 falls if another cause dominates, if none of the
causes tested removes half, if the placebo of another relief removes as much, or if amplification is absent
before the penalty shows. H4 falls if the optimisation part is more than half of a penalty at R2 0.5 %, or
another cause dominates. A relief whose check fails neither supports nor refutes anything.

Data
----
Simulated panels of 64 assets with the signal `memory_chain` (two links, each of which asks for a block) in
homoskedastic Gaussian noise with a common factor: 1,200 days to learn from, 100 to choose by, 100 to be
judged on. Each panel is drawn anew, so panels are independent. Panels 0 to 99 were used when signal, doses
and budget were designed; none of them is judged.

Further sizes are secondary and exploratory, on panels of their own: `shared_rate` (every network at one rate,
at which 16 blocks of Post-Norm were seen to die on design panels: what kills them is then a question of its
own, also where tuning finds a way around it), `doses` (weaker reliefs at that rate), `few_days` (150 days to
learn from, so that every window comes three times: elsewhere none comes twice, and little can be learnt by
heart), `two_by_two` (both reliefs of gradients and representations at once), `controls` (the simple signal,
which both schemes should find to 90 % at 4 blocks, and no signal at all), `sgd` (the gradient relief where
the size of a gradient sets the step) and `depths` (2 to 32 blocks, with a tier of R2 2 %). Of these
`controls`, `depths` and `shared_rate` had been seen before the first fit of `standard`. In the first half of
the last a budget for each step's effect (`output_change_step`) hardly ever shortened one, which is why
updates are shrunk by depth; and a penalty on tokens that are alike at all times (`decorrelation`) cured
Post-Norm's 16 blocks and moved much in the healthy 4, so that its check failed: hence the hinge, and the
check at one moment. In its second half both of them removed most of the penalty.
"""

from __future__ import annotations

from fints.config import DataConfig, Experiment, ModelConfig, TrainingConfig
from fints.interventions import DOSES, changes
from fints.study import Days, PanelPreset, PanelStudy, PanelTuning, Yoked, panel_main

RATES = (7e-4, 2e-3, 5.6e-3)
# Where a verdict is at stake no arm's best rate may lie at an edge, nor hang on one panel: with those three
# on one, 4 blocks of Pre-Norm took the highest, 16 of Post-Norm the lowest, and 2 blocks came out above 4.
WIDER = PanelTuning(space={"training.learning_rate": (2.5e-4, *RATES, 1.6e-2)}, panels=(90, 91))
# Close together where networks were seen to fall ill, from the end of the warm-up to a quarter of training.
CLOSER = {
    "training.profile_at": (10, 20, 30, 50, 75, 100, 150, 200, 300, 400, 500, 600, 800),
    "training.evaluate_every": DOSES["best_weights"],
}
SGD_RATES = (3e-3, 1e-2, 3e-2)
CHAIN = "memory_chain"
DEPTHS = ("4", "16")
CAUSES = {
    "representation": "hinged_decorrelation",
    "gradient": "gradient_equaliser",
    "noise": "best_weights",
    "amplification": "depth_scaled_updates",
}
PLACEBOS = {"representation": "hinged_decorrelation_placebo", "gradient": "gradient_equaliser_placebo"}
# At other doses, and what acts on the same cause in another way: checked and shown, without a verdict.
WEAKER = {
    "hinged_decorrelation_0.1": ("representation", changes("hinged_decorrelation", 0.1)),
    "hinged_decorrelation_0.03": ("representation", changes("hinged_decorrelation", 0.03)),
    "decorrelation_0.003": ("representation", changes("decorrelation", 0.003)),
    "gradient_equaliser_0.5": ("gradient", changes("gradient_equaliser", 0.5)),
    "depth_scaled_updates_0.5": ("amplification", changes("depth_scaled_updates", 0.5)),
}
PRIMARY = {
    "tier": ("r2_20", "r2_0.5"),
    "depth": DEPTHS,
    "relief": ("none", *CAUSES.values(), *PLACEBOS.values()),
}
# A rate at which 16 blocks of Post-Norm die.
SHARED = {**CLOSER, "training.learning_rate": 2e-3}
UNTUNED = PanelTuning(space={}, panels=())
GRADIENTS = ("none", "gradient_equaliser", "gradient_equaliser_placebo")

STUDY = PanelStudy(
    title="What limits deep forecasters: collapse, vanishing gradients, noise or amplification?",
    base=Experiment(
        data=DataConfig(features=("a", "b"), target="log_return", context=24),
        model=ModelConfig(width=32),
        training=TrainingConfig(
            batch_size=32,
            steps=800,
            warmup_steps=50,
            evaluate_every=800,
            # The warm-up, where a network falls ill, and the rest of training.
            profile_at=(10, 20, 30, 40, 50, 100, 200, 300, 400, 500, 600, 700, 800),
            keep="last",
            # The last update is measured, and says nothing at a rate of 0.
            final_learning_rate_share=0.1,
            device="cpu",
            # Fits of an arm as one network with stacked parameters.
            vectorise=8,
        ),
    ),
    simulation={"num_assets": 64, "depth_demand": 2},
    days=Days(train=1200, validation=100, test=100),
    factors={
        "residual": {
            "pre_norm": {"model.residual": "pre_norm"},
            "post_norm": {"model.residual": "post_norm"},
        },
        "tier": {
            "r2_20": {"simulation.r2": 0.20, "simulation.signal": CHAIN},
            "r2_2": {"simulation.r2": 0.02, "simulation.signal": CHAIN},
            "r2_0.5": {"simulation.r2": 0.005, "simulation.signal": CHAIN},
            "simple_20": {"simulation.r2": 0.20, "simulation.signal": "linear"},
            "r2_0": {"simulation.r2": 0.0, "simulation.signal": CHAIN},
        },
        "depth": {depth: {"model.depth": int(depth)} for depth in ("2", "4", "8", "16", "32")},
        "relief": {
            "none": {},
            **{name: changes(name, dose) for name, dose in DOSES.items() if name != "best_weights"},
            # How often they are looked for is the preset's.
            "best_weights": {"training.keep": "best"},
            **{name: changed for name, (_, changed) in WEAKER.items()},
            "both": {
                **changes(CAUSES["gradient"], DOSES[CAUSES["gradient"]]),
                **changes(CAUSES["representation"], DOSES[CAUSES["representation"]]),
            },
        },
    },
    tuning=PanelTuning(space={"training.learning_rate": RATES}, panels=(90,)),
    panels=tuple(range(100, 108)),
    yoked=Yoked(factor="relief", plain="none", levels=tuple(CAUSES.values())),
    settings={
        "reference": "4",
        "deep": "16",
        "causes": CAUSES,
        "placebos": PLACEBOS,
        "further": {
            "decorrelation": "representation",
            "output_change_step": "amplification",
            **{name: cause for name, (cause, _) in WEAKER.items()},
        },
        "both": "both",
        "smallest": {"r2_20": 0.01, "r2_2": 0.002, "r2_0.5": 0.001, "simple_20": 0.01, "r2_0": 0.001},
        # Standard deviation of the penalty over panels, guessed: no pilot was large enough to tell.
        "pilot_spread": {"r2_20": 0.01, "r2_2": 0.002, "r2_0.5": 0.001, "simple_20": 0.01, "r2_0": 0.001},
    },
    answer="causes",
    presets={
        "smoke": PanelPreset(
            changes={
                "training.steps": 12,
                "training.warmup_steps": 2,
                "training.evaluate_every": 12,
                "training.profile_at": (1, 2, 6, 12),
                "model.width": 8,
                "data.context": 12,
            },
            levels={
                "residual": ("post_norm",),
                "tier": ("r2_20",),
                "depth": DEPTHS,
                "relief": ("none", "gradient_equaliser"),
            },
            panels=(100, 101),
            tuning=PanelTuning(space={"training.learning_rate": (2e-3,)}, panels=(90,)),
            days=Days(train=120, validation=20, test=20),
            simulation={"num_assets": 8},
            claim="none",
        ),
        "quick": PanelPreset(
            levels={
                "residual": ("post_norm",),
                "tier": ("r2_20",),
                "depth": DEPTHS,
                "relief": ("none", "output_change_step"),
            },
            panels=(108, 109, 110),
            tuning=PanelTuning(space={"training.learning_rate": (7e-4,)}, panels=(91,)),
        ),
        "standard": PanelPreset(changes=CLOSER, levels=PRIMARY, tuning=WIDER, claim="answer"),
        # Secondary, each on panels of its own: all at one rate; the same at weaker doses; windows that come
        # again; two reliefs at once; what any network should find, and what none can; gradients where their
        # size sets the step; other depths.
        "shared_rate": PanelPreset(
            changes=SHARED,
            levels={"tier": ("r2_20",), "depth": DEPTHS, "relief": ("none", *DOSES)},
            panels=tuple(range(190, 198)),
            tuning=UNTUNED,
        ),
        "doses": PanelPreset(
            changes=SHARED,
            levels={
                "residual": ("post_norm",),
                "tier": ("r2_20",),
                "depth": DEPTHS,
                "relief": ("none", *WEAKER),
            },
            panels=tuple(range(210, 218)),
            tuning=UNTUNED,
        ),
        "few_days": PanelPreset(
            changes={**CLOSER, "training.learning_rate": 7e-4},
            levels={
                "tier": ("r2_20", "r2_0.5"),
                "depth": DEPTHS,
                "relief": ("none", "best_weights"),
            },
            panels=tuple(range(220, 228)),
            tuning=UNTUNED,
            days=Days(train=150, validation=100, test=100),
        ),
        "two_by_two": PanelPreset(
            levels={
                "residual": ("post_norm",),
                "tier": ("r2_20",),
                "depth": DEPTHS,
                "relief": ("none", CAUSES["gradient"], CAUSES["representation"], "both"),
            },
            panels=tuple(range(200, 208)),
            changes=CLOSER,
            tuning=WIDER,
        ),
        "controls": PanelPreset(
            levels={"tier": ("simple_20", "r2_0"), "depth": DEPTHS, "relief": ("none",)},
            panels=tuple(range(160, 168)),
        ),
        "sgd": PanelPreset(
            changes={"training.optimizer": "sgd"},
            levels={**PRIMARY, "tier": ("r2_20",), "relief": GRADIENTS},
            panels=tuple(range(170, 178)),
            tuning=PanelTuning(space={"training.learning_rate": SGD_RATES}, panels=(94,)),
        ),
        "depths": PanelPreset(
            levels={"tier": ("r2_20", "r2_2"), "relief": ("none",)},
            panels=tuple(range(180, 188)),
        ),
        "full": PanelPreset(
            changes={
                "training.batch_size": 64,
                "training.steps": 3000,
                "training.evaluate_every": 300,
                "training.profile_at": (10, 20, 30, 50, 75, 100, 200, 400, 800, 1500, 3000),
                "training.device": "auto",
            },
            levels=PRIMARY,
            panels=tuple(range(120, 152)),
            tuning=WIDER,
        ),
    },
)

if __name__ == "__main__":
    panel_main(STUDY)

"""Ask nothing of interest of simulated panels: small enough to be run again and again in a test.

Question, hypotheses, primary outcome: none. Every fit takes a few steps of a tiny network.
"""

from __future__ import annotations

from fints.config import DataConfig, Experiment, ModelConfig, TrainingConfig
from fints.study import Days, PanelPreset, PanelStudy, PanelTuning, panel_main

STUDY = PanelStudy(
    title="Does anything happen?",
    base=Experiment(
        data=DataConfig(features=("a", "b"), target="log_return", context=4),
        model=ModelConfig(width=8, num_heads=2, depth=1),
        training=TrainingConfig(
            batch_size=8,
            steps=4,
            warmup_steps=1,
            evaluate_every=4,
            profile_every=2,
            keep="last",
            device="cpu",
        ),
    ),
    simulation={"num_assets": 2, "signal": "linear"},
    days=Days(train=24, validation=8, test=8),
    factors={
        "residual": {"post_norm": {"model.residual": "post_norm"}},
        "tier": {"r2_20": {"simulation.r2": 0.2}},
        "depth": {"1": {"model.depth": 1}, "2": {"model.depth": 2}},
        "relief": {"none": {}, "dropout": {"model.dropout": 0.2}},
    },
    tuning=PanelTuning(space={"training.learning_rate": (1e-3, 1e-2)}, panels=(90,)),
    panels=(100, 101),
    presets={
        "smoke": PanelPreset(claim="none"),
        "fails": PanelPreset(claim="none", changes={"data.horizon": 2}),
    },
    answer="causes",
    settings={
        "reference": "1",
        "deep": "2",
        "causes": {"noise": "dropout"},
        "placebos": {},
        "smallest": {"r2_20": 0.01},
        "pilot_spread": {"r2_20": 0.01},
    },
)

if __name__ == "__main__":
    panel_main(STUDY)

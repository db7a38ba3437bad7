"""A forecaster is trained, saved and loaded with the interventions that its experiment names."""

from __future__ import annotations

import polars as pl
import pytest

from fints import Forecaster, load
from fints.config import Experiment, fingerprint, override
from fints.data import simulate

SMALL = {
    "model.width": 8,
    "model.depth": 2,
    "model.num_heads": 2,
    "data.context": 6,
    "data.features": ["return_1", "return_5"],
    "data.target": "log_return",
    "training.steps": 8,
    "training.warmup_steps": 1,
    "training.evaluate_every": 8,
    "training.device": "cpu",
}


@pytest.mark.slow
def test_a_planted_disease_is_part_of_the_forecaster_also_after_saving(tmp_path):
    panel = simulate(num_assets=3, num_days=200, r2=0.2, signal="linear", seed=1).panel
    healthy = override(Experiment(), SMALL)
    sick = override(healthy, {"training.interventions.low_rank_outputs": {"dose": 1.0, "rank": 1}})
    assert fingerprint(sick) != fingerprint(healthy)
    tables = {}
    for name, experiment in (("healthy", healthy), ("sick", sick)):
        forecaster = Forecaster(experiment, seed=3).fit(panel)
        tables[name] = forecaster.predict(panel)
        forecaster.save(tmp_path / name)
        again = load(tmp_path / name).predict(panel)
        assert again["forecast"].equals(tables[name]["forecast"])
        assert len(forecaster.result_.losses) == 8
    assert not tables["sick"]["forecast"].equals(tables["healthy"]["forecast"])
    assert tables["sick"].select(pl.col("forecast").is_not_null().any()).item()
    with pytest.raises(ValueError, match="an altered network"):
        load(tmp_path / "sick").converted("static_hyper_connections")


def test_an_unknown_intervention_is_refused_before_training():
    panel = simulate(num_assets=3, num_days=200, r2=0.2, signal="linear", seed=1).panel
    wrong = override(Experiment(), {**SMALL, "training.interventions": {"token_pul": {"dose": 1.0}}})
    with pytest.raises(ValueError, match="Did you mean 'token_pull'"):
        Forecaster(wrong).fit(panel)

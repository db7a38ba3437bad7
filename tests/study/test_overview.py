"""What a person reads before and after a run states what it assumes."""

from __future__ import annotations

import runpy
from datetime import date, timedelta
from pathlib import Path

import polars as pl
import pytest

from fints.data import simulate, targets
from fints.evaluation import contrast_power, effective_assets, paired_r2_sd
from fints.study.notes import arm_note
from fints.study.overview import plan_lines
from fints.study.plan import Plan, make_plan
from fints.study.restore import Kept
from fints.study.store import StudyFolder

TINY = runpy.run_path(str(Path(__file__).parent / "tiny.py"))["STUDY"]


def planned(folder: Path, frame: pl.DataFrame) -> tuple[Plan, str]:
    path = folder / "prices.parquet"
    frame.write_parquet(path)
    plan = make_plan(TINY, name="tiny", docstring="Words.", preset="quick", data=str(path))
    kept = Kept(plan, StudyFolder(folder, "tiny", "quick"))
    return plan, "\n".join(plan_lines(kept, workers=1, commit="not a git checkout"))


def power_of(text: str) -> str:
    return text[text.index("power  ") :]


def test_the_power_is_told_for_arms_that_agree_more_or_less(tmp_path):
    frame = simulate(num_assets=5, num_days=160, common_share=0.6, seed=2).panel.frame
    plan, text = planned(tmp_path, frame)
    first_test = date.fromisoformat(plan.folds[0]["test"][0])
    seen = targets(plan.dataset.panel[: first_test - timedelta(days=1)], "volatility_scaled", 1)
    assets = effective_assets(seen, column="target")
    assert 1 < assets < 4.5
    assert f"5 assets that count as {assets:.1f}" in text
    for agreement in (0.5, 0.9, 0.97):
        sd = paired_r2_sd(0.01, agreement=agreement, dates=20, assets=assets)
        assert f"{agreement:g}: {contrast_power(0.01, sd=sd, clusters=2):.0%}" in text
    assert "at most" not in text


def test_no_test_date_is_read_to_plan(tmp_path):
    frame = simulate(num_assets=5, num_days=160, seed=2).panel.frame
    plan, before = planned(tmp_path, frame)
    first_test = date.fromisoformat(plan.folds[0]["test"][0])
    moved = pl.when(pl.col("date") >= first_test).then(pl.col("close") * 2).otherwise(pl.col("close"))
    assert power_of(planned(tmp_path, frame.with_columns(close=moved))[1]) == power_of(before)


def test_a_failed_fit_enters_an_arms_mean_as_it_was_scored():
    spec = {"outcome": "r2_zero"}
    row = {"role": "final", "point": {}, "fold": 0, "validation_loss": 1.0, "parameters": 5, "seconds": 1.0}
    rows = [
        row | {"seed": 0, "outcome": "finished", "metrics": {"r2_zero": -0.02}},
        row | {"seed": 1, "outcome": "diverged", "metrics": {"r2_zero": 0.0}},
    ]
    note, best = arm_note(spec, "arm", rows)
    assert best["test/r2_zero"] == pytest.approx(-0.01)
    assert "1 of 2 fits **diverged**; a final one is scored as the zero forecast" in note

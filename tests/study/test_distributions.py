"""A study of distributional heads shows how good the distributions are."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from fints.data import simulate
from fints.evaluation import coverage, crps, log_score
from fints.study.analysis import analyse
from fints.study.verdict import number


@pytest.mark.slow
@pytest.mark.parametrize("head", ["gaussian", "student_t"])
def test_log_score_crps_and_coverage_of_a_run_are_those_of_its_stored_forecasts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_study: Callable[..., Any], head: str
):
    prices = tmp_path / "prices.parquet"
    simulate(num_assets=4, num_days=160, seed=3).panel.frame.write_parquet(prices)
    run = run_study(monkeypatch, tmp_path, prices, changes={"model.head": head, "training.loss": "nll"})
    assert run.outcome.failures == []
    folder, analysis, report = run.folder.path, run.analysis(), run.report()
    stored = pl.read_parquet(folder / "forecasts.parquet")
    for arm in analysis.arms.iter_rows(named=True):
        parts = [stored.filter(arm=arm["arm"], fold=fold).drop("arm", "fold", "seed") for fold in (0, 1)]
        scores = [log_score(part) for part in parts]
        assert arm["log_score"] == pytest.approx(sum(scores) / 2, rel=1e-12)
        assert arm["crps"] == pytest.approx(sum(map(crps, parts)) / 2, rel=1e-12)
        assert arm["coverage_90"] == pytest.approx(sum(coverage(part, 0.9) for part in parts) / 2, rel=1e-12)
        assert 0.5 < arm["coverage_90"] <= 1
        assert number(sum(scores) / 2, 4) in report
    metrics = json.loads(next(folder.glob("fits/*/metrics.json")).read_text(encoding="utf-8"))
    assert metrics == {} or "log_score" in metrics


def test_arms_with_a_distribution_stand_beside_arms_without_one(make_study, tmp_path):
    spec, folder = make_study(tmp_path)
    path = folder / "forecasts.parquet"
    arm = pl.col("arm")
    normal, student = arm == "pre_norm-depth_8", arm == "post_norm-depth_8"
    pl.read_parquet(path).with_columns(
        log_scale=pl.when(normal | student).then(-0.1), degrees=pl.when(student).then(6.0)
    ).write_parquet(path)
    arms = {row["arm"]: row for row in analyse(spec, folder).arms.iter_rows(named=True)}
    assert {name for name, row in arms.items() if row["log_score"] is not None} == {
        "pre_norm-depth_8",
        "post_norm-depth_8",
    }
    rows = pl.read_parquet(path).filter(normal, fold=0, seed=0).drop("arm", "fold", "seed", "degrees")
    cells = analyse(spec, folder).cells.filter(normal, fold=0, seed=0)
    assert cells["crps"][0] == pytest.approx(crps(rows), rel=1e-12)

"""A study on simulated data shows what could be forecast, and how much of it each arm recovers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from fints.data import simulate, store_simulation
from fints.evaluation import share_of_oracle

TINY = Path(__file__).parent / "tiny.py"


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results root of a user who keeps a simulation as the dataset "planted"."""
    root = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FINTS_HOME", str(root))
        store_simulation(simulate(num_assets=4, num_days=160, r2=0.3, seed=3), "planted")
    return root


def run(root: Path) -> tuple[dict, Path, str]:
    """A run as a user starts it: the worker, a process of its own, finds the signal of the dataset."""
    command = [sys.executable, str(TINY), "run", "--preset", "smoke", "--data", "planted", "--workers", "1"]
    said = subprocess.run(
        command,
        env={**os.environ, "FINTS_HOME": str(root)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert said.returncode == 0, said.stdout + said.stderr
    folder = max((root / "tiny").iterdir(), key=lambda path: path.stat().st_mtime_ns)
    spec = json.loads((folder / "study.json").read_text(encoding="utf-8"))
    return spec, folder, (folder / "report.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_report_shows_the_share_of_the_oracle_that_each_arm_recovers(planted: Path) -> None:
    spec, folder, report = run(planted)
    assert spec["simulated"] is True
    baselines = pl.read_parquet(folder / "baselines.parquet")
    oracle = baselines.filter(baseline="oracle").select("fold", "date", "asset", oracle="forecast")
    assert oracle.height == baselines.filter(baseline="zero").height
    forecasts = pl.read_parquet(folder / "forecasts.parquet")
    judged = forecasts.join(oracle, on=["fold", "date", "asset"])
    assert judged.height == forecasts.height
    shares = [
        share_of_oracle(judged.filter(arm="pre_norm-depth_1", fold=fold))
        for fold in range(len(spec["folds"]))
    ]
    shown = next(line for line in report.splitlines() if line.startswith("| pre_norm"))
    assert f"{100 * sum(shares) / len(shares):.1f}".replace("-", "−") in shown
    assert "share of oracle" in report
    assert "| oracle " in report
    assert (folder / "figures" / "oracle.svg").is_file()


@pytest.mark.slow
def test_where_the_signal_is_not_the_expectation_of_the_target_the_report_says_so(
    planted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_study: Callable[..., Any]
) -> None:
    monkeypatch.setenv("FINTS_HOME", str(planted))
    made = run_study(monkeypatch, tmp_path, "planted", changes={"data.target": "cross_sectional"})
    assert made.outcome.failures == []
    assert made.plan.spec()["simulated"] is True
    assert "oracle" not in set(pl.read_parquet(made.folder.path / "baselines.parquet")["baseline"])
    assert "The oracle is not shown" in made.report()
    assert not (made.folder.path / "figures" / "oracle.svg").exists()

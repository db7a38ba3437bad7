"""A report is of what its tables were made from, and says what is missing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from fints.data import simulate
from fints.study.assemble import table_spec
from fints.study.fits import Cell


@pytest.fixture
def panel(tmp_path: Path) -> Path:
    path = tmp_path / "prices.parquet"
    simulate(num_assets=3, num_days=160, seed=3).panel.frame.write_parquet(path)
    return path


def test_a_report_after_an_interrupted_run_is_of_the_run_before(
    panel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_study: Callable[..., Any]
) -> None:
    run = run_study(monkeypatch, tmp_path, panel)
    report = run.report()
    other = {**run.plan.spec(), "checksum": "0" * 16, "span": ["1900-01-01", "1900-12-31"]}
    (run.folder.path / "study.json").write_text(json.dumps(other))
    assert run.report() == report
    assert table_spec(run.folder.path)["checksum"] == run.plan.dataset.checksum
    # Tables that were half replaced.
    tables = pl.read_parquet(run.folder.path / "forecasts.parquet")
    tables.head(10).write_parquet(run.folder.path / "forecasts.parquet")
    with pytest.raises(ValueError, match=r"forecasts.parquet is not the one that the last run wrote"):
        run.report()
    (run.folder.path / "tables.json").unlink()
    with pytest.raises(ValueError, match="no run has ended in"):
        run.report()


def test_a_cell_that_fails_four_times_is_left_out_and_the_verdict_says_so(
    panel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_study: Callable[..., Any]
) -> None:
    def fault(cell: Cell) -> str:
        hit = cell.role == "final" and cell.fold == 1 and cell.arm.startswith("post_norm")
        return "MemoryError: too little" if hit else ""

    run = run_study(monkeypatch, tmp_path, panel, fault=fault)
    assert run.said.count("it will be tried again") == 3
    assert run.outcome.failures == ["post_norm-depth_1 final fold 1 seed 10: MemoryError: too little"]
    assert run.outcome.assembled
    assert run.analysis().verdict.startswith("Incomplete: 1 of 4 final fits are missing.")
    assert "1 not run" in run.report()
    whole = run_study(monkeypatch, tmp_path, panel)
    assert whole.outcome.failures == []
    assert "Incomplete" not in whole.report()


def test_an_arm_whose_tuning_failed_is_missing_as_a_whole(
    panel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_study: Callable[..., Any]
) -> None:
    def fault(cell: Cell) -> str:
        hit = cell.arm.startswith("post_norm") and cell.point.get("training.learning_rate") == 1e-2
        return "OSError: disk full" if hit else ""

    run = run_study(monkeypatch, tmp_path, panel, fault=fault)
    assert len(run.outcome.failures) == 1
    verdict = run.analysis().verdict
    assert verdict.startswith("Incomplete: 2 of 4 final fits and 1 of 4 tuning fits are missing.")
    assert "2 not run" in run.report()


def test_a_report_can_lack_the_baselines_of_a_fold(
    panel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_study: Callable[..., Any]
) -> None:
    run = run_study(
        monkeypatch,
        tmp_path,
        panel,
        fault=lambda cell: "OSError: disk full" if cell.role == "baseline" and cell.fold == 0 else "",
    )
    assert run.outcome.failures == ["baselines fold 0: OSError: disk full"]
    assert "ridge" in run.report()


def test_without_any_final_fit_there_are_no_tables(
    panel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_study: Callable[..., Any]
) -> None:
    run = run_study(
        monkeypatch, tmp_path, panel, fault=lambda cell: "OSError: disk full" if cell.role == "final" else ""
    )
    assert len(run.outcome.failures) == 4
    assert not run.outcome.assembled
    assert not (run.folder.path / "tables.json").exists()

"""A report is of what its tables were made from, and says what is missing."""

from __future__ import annotations

import json
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from fints.data import simulate
from fints.study import cli
from fints.study.assemble import table_spec
from fints.study.design import DEFAULT_BASELINES
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
    assert run.outcome.failures == [
        f"baseline {name} fold 0: OSError: disk full" for name in DEFAULT_BASELINES
    ]
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


@pytest.mark.parametrize(
    ("role", "told"), [("final", "no final fit was finished, so there is no report"), ("tuning", "report   ")]
)
def test_a_run_with_failures_names_them_and_exits_with_1(
    panel: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    run_study: Callable[..., Any],
    role: str,
    told: str,
) -> None:
    def fault(cell: Cell) -> str:
        hit = cell.role == role and (role == "final" or cell.arm.startswith("post_norm"))
        return "MemoryError: too little" if hit else ""

    run_study.replace(monkeypatch, fault)
    tiny = Path(__file__).parent / "tiny.py"
    words = ["run", "--preset", "smoke", "--data", str(panel), "--root", str(tmp_path), "--workers", "1"]
    with pytest.raises(SystemExit) as stopped:
        cli.main(runpy.run_path(str(tiny))["STUDY"], words, file=tiny)
    said = capsys.readouterr().out
    assert stopped.value.code == 1
    assert said.count("failed for good: ") == (4 if role == "final" else 2)
    assert told in said
    pages = [page.read_text(encoding="utf-8") for page in tmp_path.glob("tiny/*/report.md")]
    assert ["Incomplete: 2 of 4 final fits and 2 of 4 tuning" in page for page in pages] == (
        [] if role == "final" else [True]
    )


def test_more_memory_than_there_is_is_refused_before_anything_runs(
    panel: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny = Path(__file__).parent / "tiny.py"
    words = ["run", "--preset", "smoke", "--data", str(panel), "--root", str(tmp_path)]
    with pytest.raises(SystemExit) as stopped:
        cli.main(runpy.run_path(str(tiny))["STUDY"], [*words, "--set", "model.width=100000"], file=tiny)
    said = capsys.readouterr()
    assert stopped.value.code == 2
    assert said.err.count("\n") == 1
    assert "error: a fit of arm pre_norm-depth_1 needs about" in said.err
    assert not list(tmp_path.glob("tiny/*/fits"))

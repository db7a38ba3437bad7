"""The tracking benchmark reads what runs wrote of themselves: calls beside fits, models apart."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).resolve().parents[2] / "benchmarks" / "tracking.py"


@pytest.mark.parametrize(("calls", "code"), [(0.5, 0), (3.0, 1)])
def test_calls_count_in_runs_that_fitted_and_models_are_told_apart(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    calls: float,
    code: int,
) -> None:
    runs = [(8, 100.0, calls), (0, 1.0, 0.9)]
    lines = [
        {
            "fits": fits,
            "wall_seconds": wall,
            "waited_for_tracking_seconds": 0.25,
            "tracking_seconds": {"calls": seconds, "imports": 2.0},
        }
        for fits, wall, seconds in runs
    ]
    (tmp_path / "runs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "models.jsonl").write_text(json.dumps({"models": 6, "seconds": 4.5}) + "\n")
    monkeypatch.setattr(sys, "argv", ["tracking.py", str(tmp_path)])
    assert runpy.run_path(str(BENCHMARK))["main"]() == code
    told = capsys.readouterr().out
    assert f"largest share of a run with fits: {calls / 100:.2%}" in told
    assert "models logged and registered: 6 in 4.50 s, 4.50% of the runs with fits" in told

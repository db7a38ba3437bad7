"""Killed at random moments and run again, a study ends as if nothing had happened, byte for byte."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_killed_run_ends_like_an_undisturbed_one(mlflow_tables: Path) -> None:
    """A driver and a worker of one, then of two."""
    script = Path(__file__).parent / "kill_many.py"
    command = [sys.executable, str(script), "--times", "4", "--workers", "1", "2", "--seed", "1"]
    command += ["--tables", str(mlflow_tables)]
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stdout + told.stderr
    assert told.stdout.count("equal") == 4

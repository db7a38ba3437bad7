"""Whatever fails around a shared study, each fit counts once and the tables are those of a calm run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_a_study_survives_a_killed_worker_a_stopped_one_and_a_database_that_restarts(postgres: Any) -> None:
    # The script has servers of its own; the fixture tells whether they can be had.
    script = Path(__file__).parent / "chaos.py"
    faults = "kill,stop,postgres,parquet,clock"
    command = [sys.executable, str(script), "--rounds", "3", "--preset", "smoke", "--steps", "60"]
    told = subprocess.run([*command, "--faults", faults], capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stdout + told.stderr
    assert "every fit counts once, tables equal" in told.stdout

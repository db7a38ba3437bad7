"""Whatever fails around a shared study, each fit counts once and the tables are those of a calm run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_a_study_survives_every_fault_at_random_times(postgres: Any) -> None:
    # The script has servers of its own; the fixture tells whether they can be had. Long fits and twenty
    # rounds are for its command.
    script = Path(__file__).parent / "chaos.py"
    command = [sys.executable, str(script), "--rounds", "2", "--preset", "smoke", "--steps", "500"]
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stdout + told.stderr
    assert told.stdout.count("every fit counts once, tables equal") == 2

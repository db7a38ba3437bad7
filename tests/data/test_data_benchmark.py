"""The benchmark of a large panel runs whole at a small size, and its features are those of pandas."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).resolve().parents[2] / "benchmarks" / "data.py"


@pytest.mark.slow
def test_the_data_benchmark_ends_well_at_its_small_size_and_agrees_with_pandas(tmp_path: Path) -> None:
    command = [sys.executable, str(BENCHMARK), "--small", "--folder", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "features lie in a store mapped into memory" in done.stdout
    numbers = [
        int(text.replace(",", "")) for text in re.findall(r"([\d,]+) of ([\d,]+) windows", done.stdout)[0]
    ]
    # Every window once; the last batch is filled up from the next epoch.
    assert 0 <= numbers[0] - numbers[1] < 64
    difference = re.search(r"Largest difference from ours: (\S+) deviations", done.stdout)
    assert difference is not None
    assert float(difference[1]) < 1e-5
    assert list(tmp_path.iterdir()) == []

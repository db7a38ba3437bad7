"""What was planted is found walk-forward to four fifths, and where nothing was the reports say so.

At 8 days of context and two refits; `python benchmarks/planted_oracle.py` does it at the defaults.
"""

from __future__ import annotations

import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest

from fints.config import Experiment, override
from fints.evaluation import judge, r2_interval

BENCHMARK = Path(__file__).resolve().parent.parent / "benchmarks" / "planted_oracle.py"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def benchmark() -> SimpleNamespace:
    return SimpleNamespace(**runpy.run_path(str(BENCHMARK)))


@pytest.fixture(scope="module")
def experiment(benchmark: SimpleNamespace) -> Experiment:
    steps = {"training.steps": 300, "training.warmup_steps": 15, "data.context": 8}
    return override(Experiment(), benchmark.SIMULATED | steps)


def test_a_simple_signal_at_r2_5_percent_is_found_to_four_fifths_of_the_oracle_walk_forward(
    benchmark: SimpleNamespace, experiment: Experiment
) -> None:
    assert experiment.model.depth == 4
    made = benchmark.draw(0.05, 900)
    assert len(made.panel.assets) == 40
    assert made.panel.dates.len() == 2520
    shares = benchmark.refit_shares(made, benchmark.walk_forward(made, experiment, 8, 900))
    assert shares["fold"].to_list() == [0, 1]
    assert shares["share"].mean() >= benchmark.WANTED


def test_without_a_signal_r2_is_within_its_error_of_zero_or_below_and_the_verdict_says_nothing_found(
    benchmark: SimpleNamespace, experiment: Experiment
) -> None:
    made = benchmark.draw(0.0, 900)
    frame = benchmark.walk_forward(made, experiment, 8, 900)
    interval = r2_interval(frame)
    assert interval is not None
    assert interval[0] <= 0
    verdict = judge(benchmark.with_mean(made, experiment, frame)).verdict
    assert verdict.startswith("Nothing found: the forecasts do not beat both zero and the prevailing mean")


def test_the_report_of_a_study_of_a_panel_without_a_signal_says_nothing_found(
    benchmark: SimpleNamespace, tmp_path: Path
) -> None:
    said = benchmark.null_study(tmp_path, seed=900)
    assert said.startswith("**Nothing found:** no arm forecasts better than both zero and the prevailing")
    assert "would be found four times in five; a smaller one may be there." in said

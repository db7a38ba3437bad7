"""The calibration command: its null is a null, its signal has the R2 it says, it prints what it measured."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import polars as pl
import pytest

from fints.data import Panel, load
from fints.evaluation import r2_zero

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def parts() -> tuple[ModuleType, ModuleType]:
    sys.path.insert(0, str(BENCHMARKS))
    try:
        return importlib.import_module("calibration"), importlib.import_module("calibration_tests")
    finally:
        sys.path.remove(str(BENCHMARKS))


@pytest.fixture(scope="module")
def panel() -> Panel:
    return load("sp500-20")["2003-01-01":"2006-12-31"]


def test_the_null_keeps_every_size_of_return_and_gives_each_date_one_sign(parts, panel):
    options = {"r2": 0.0, "dates": 200, "assets": 4, "horizon": 1}
    one = parts[1].draw(panel, **options, seed=1)
    assert one.outcomes.height == 800
    real = panel.frame.sort("asset", "date").with_columns(
        real=(pl.col("close").shift(-1) / pl.col("close")).log().over("asset")
    )
    both = one.outcomes.join(real, on=["date", "asset"])
    assert both["realised"].abs().to_numpy() == pytest.approx(both["real"].abs().to_numpy(), abs=1e-12)
    signs = both.filter(pl.col("real").abs() > 1e-9).with_columns(
        sign=(pl.col("realised") / pl.col("real")).round()
    )
    assert signs.group_by("date").agg(pl.col("sign").n_unique())["sign"].max() == 1
    assert set(signs["sign"]) == {-1.0, 1.0}
    again = parts[1].draw(panel, **options, seed=1)
    assert again.outcomes.equals(one.outcomes)
    assert again.noise()[0].equals(one.noise()[0])


def test_the_planted_signal_has_the_r2_it_says_and_is_the_best_forecast(parts, panel):
    draws = [
        parts[1].draw(panel, r2=0.02, dates=400, assets=8, horizon=1, seed=seed).outcomes
        for seed in range(12)
    ]
    found = [r2_zero(one.with_columns(forecast=pl.col("signal"))) for one in draws]
    assert np.mean(found) == pytest.approx(0.02, abs=3 * np.std(found) / np.sqrt(12) + 0.002)
    assert np.mean(
        [one["signal"].std() ** 2 / (one["realised"] ** 2).mean() for one in draws]
    ) == pytest.approx(0.02, rel=0.1)


@pytest.mark.slow
def test_the_command_prints_its_tables_and_puts_them_into_a_document(parts, tmp_path, capsys):
    document = tmp_path / "page.md"
    document.write_text("before\n<!-- calibration: begin -->\nstale text\n<!-- calibration: end -->\nafter\n")
    options = ["--simulations", "2", "--dates", "240", "--long-dates", "240", "--assets", "4"]
    parts[0].main([*options, "--write", str(document)])
    printed, written = capsys.readouterr().out, document.read_text()
    assert max(map(len, printed.splitlines()[1:])) <= 80
    for text in ("Clark-West, zero", "model confidence set", "rank IC, Newey-West with h - 1 lags"):
        assert text in printed
        assert text in written
    assert "stale text" not in written
    assert written.startswith("before\n")
    assert written.endswith("after\n")
    assert "Printed by `python benchmarks/calibration.py --simulations 2 --dates 240" in written
    document.write_text("no marks\n")
    with pytest.raises(SystemExit, match="needs the lines"):
        parts[0].write(document, "new")

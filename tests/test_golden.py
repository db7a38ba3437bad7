"""Numbers that must not move unless someone means it.

``python tests/test_golden.py`` writes them anew; the commit that does so says why. Comparison is to
1e-4: another processor rounds in another order, but no change of a formula is that small.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from fints import Forecaster
from fints.config import Experiment, fingerprint, override
from fints.data import features, load, simulate, targets
from fints.residual import RESIDUALS

GOLDEN = Path(__file__).parent / "golden.json"
FITTED = {
    "model.width": 16,
    "model.depth": 2,
    "model.num_heads": 2,
    "data.context": 8,
    "data.features": ["return_1", "log_volatility_21", "rank_return_1"],
    "training.steps": 30,
    "training.warmup_steps": 3,
    "training.evaluate_every": 10,
}


def summary(column: pl.Series) -> dict[str, float]:
    """Few numbers that move when any value or the order of values does."""
    values = column.drop_nulls().cast(pl.Float64)
    weights = pl.Series(range(len(values))).cast(pl.Float64) / len(values)
    return {
        "count": len(values),
        "mean": float(values.mean()),
        "std": float(values.std()),
        "moment": float((values * weights).mean()),
    }


def data_numbers() -> dict[str, Any]:
    panel = load("sp500-20")
    names = ["return_1", "return_21", "log_volatility_21", "momentum_252_21", "rank_return_5"]
    found: dict[str, Any] = {"checksum": panel.checksum, "rows": len(panel.frame)}
    frame = features(panel, names)
    found |= {name: summary(frame[name]) for name in names}
    for name in ("log_return", "volatility_scaled", "cross_sectional"):
        found[name] = summary(targets(panel, name, 5)["target"])
    return found


def simulation_numbers(signal: str) -> dict[str, Any]:
    simulation = simulate(num_assets=5, num_days=400, r2=0.2, signal=signal, seed=7)
    return {
        "oracle_r2": simulation.oracle_r2,
        "realised_oracle_r2": simulation.realised_oracle_r2,
        "signal": summary(simulation.signal["signal"]),
        "close": summary(simulation.panel.frame["close"]),
    }


def fit_numbers(scheme: str) -> dict[str, Any]:
    panel = load("sp500-20")["2005-01-01":"2007-12-31"]
    forecaster = Forecaster(override(Experiment(), FITTED), residual=scheme, seed=11).fit(panel)
    return {
        "parameters": forecaster.parameter_count_,
        "history": forecaster.result_.history,
        "profile": [
            {name: row[name] for name in ("layer", "adjacent_cosine", "relative_update", "gradient_norm")}
            for row in forecaster.result_.profiles
        ],
        "forecast": summary(forecaster.predict(panel)["forecast"]),
    }


def numbers() -> dict[str, Any]:
    """Every golden number, computed now."""
    found = {"fingerprint of the default experiment": fingerprint(Experiment()), "sp500-20": data_numbers()}
    found |= {f"simulate {signal}": simulation_numbers(signal) for signal in ("linear", "gated_filter")}
    found |= {f"fit {scheme}": fit_numbers(scheme) for scheme in RESIDUALS}
    return found


def assert_close(actual: Any, expected: Any, where: str) -> None:
    if isinstance(expected, dict):
        assert actual.keys() == expected.keys(), where
        for key, value in expected.items():
            assert_close(actual[key], value, f"{where}, {key}")
    elif isinstance(expected, list):
        assert len(actual) == len(expected), where
        for place, value in enumerate(expected):
            assert_close(actual[place], value, f"{where}, {place}")
    elif isinstance(expected, float):
        assert actual == pytest.approx(expected, rel=1e-4, abs=1e-9), where
    else:
        assert actual == expected, where


EXPECTED = json.loads(GOLDEN.read_text(encoding="utf-8")) if GOLDEN.exists() else {}


def test_every_scheme_has_golden_numbers() -> None:
    assert {name.removeprefix("fit ") for name in EXPECTED if name.startswith("fit ")} == set(RESIDUALS)


def test_the_default_experiment_keeps_its_fingerprint() -> None:
    name = "fingerprint of the default experiment"
    assert fingerprint(Experiment()) == EXPECTED[name]


def test_the_bundled_panel_keeps_its_features_and_targets() -> None:
    assert_close(data_numbers(), EXPECTED["sp500-20"], "sp500-20")


@pytest.mark.parametrize("signal", ["linear", "gated_filter"])
def test_the_simulator_keeps_its_numbers(signal: str) -> None:
    assert_close(simulation_numbers(signal), EXPECTED[f"simulate {signal}"], signal)


@pytest.mark.parametrize("scheme", RESIDUALS)
def test_a_short_fit_keeps_its_losses_profile_and_forecasts(scheme: str) -> None:
    assert_close(fit_numbers(scheme), EXPECTED[f"fit {scheme}"], scheme)


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(numbers(), indent=1) + "\n", encoding="utf-8")

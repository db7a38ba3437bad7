"""On what scale a simulated panel shows its features."""

from __future__ import annotations

import math

import numpy as np
import polars as pl
import pytest

from fints.data import Simulation, simulate

DIALS = {"noise": "garch", "r2": 0.2, "num_assets": 3, "num_days": 200, "seed": 8, "volatility_daily": 0.02}


def of(made: Simulation, name: str) -> np.ndarray:
    return made.panel.frame[name].to_numpy().reshape(200, 3)


def shown(scale: str, **changes: object) -> Simulation:
    return simulate(feature_scale=scale, log_volatility_column=True, **{**DIALS, **changes})  # type: ignore[arg-type]


def test_proportional_features_are_those_drawn_times_the_volatility_that_is_shown() -> None:
    plain, scaled = shown("constant"), shown("proportional")
    relative = np.exp(of(scaled, "log_volatility"))
    assert relative.std() > 0.1
    for name in ("a", "b"):
        np.testing.assert_allclose(of(scaled, name), of(plain, name) * 0.02 * relative, rtol=1e-12)
    volatility = scaled.volatility["volatility"].to_numpy().reshape(200, 3)
    np.testing.assert_allclose(relative, volatility / 0.02, rtol=1e-12)
    # What is planted does not depend on what is shown.
    assert scaled.signal.equals(plain.signal)
    assert (of(scaled, "close") == of(plain, "close")).all()


def test_the_moving_average_is_that_of_the_returns_anyone_has_seen() -> None:
    plain, scaled = shown("proportional"), shown("ewma")
    returns = np.diff(np.log(of(scaled, "close")), axis=0)
    known = np.empty((200, 3))
    for asset in range(3):
        variance = 0.02**2
        known[0, asset] = variance
        for t in range(1, 200):
            variance = 0.94 * variance + 0.06 * returns[t - 1, asset] ** 2
            known[t, asset] = variance
    for name in ("a", "b"):
        expected = of(plain, name) / np.sqrt(known)
        np.testing.assert_allclose(of(scaled, name), expected, rtol=1e-9)


@pytest.mark.parametrize("scale", ["constant", "proportional", "ewma"])
def test_a_later_shock_is_in_no_feature_before_it(scale: str) -> None:
    quiet, loud = shown(scale), shown(scale, shock_at=0.5)
    before = pl.col("date") < quiet.panel.dates[100]
    assert quiet.panel.frame.filter(before).equals(loud.panel.frame.filter(before))
    ratio = of(loud, "a")[100:] / of(quiet, "a")[100:]
    assert ratio[0] == pytest.approx(1.0 if scale == "constant" else 4.0)
    assert of(loud, "log_volatility")[100] - of(quiet, "log_volatility")[100] == pytest.approx(math.log(4))


def test_an_unknown_scale_is_refused() -> None:
    with pytest.raises(ValueError, match=r"feature_scale = 'raw' is unknown\. Choose one of constant"):
        shown("raw")

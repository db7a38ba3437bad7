"""Simulated panels: the oracle's R2 is what was asked for, and the panel suffices to reach it."""

from __future__ import annotations

import math

import numpy as np
import polars as pl
import pytest

import fints.data
from fints.data import Simulation, features, simulate, targets
from fints.data.synthetic_signals import SIGNALS, planted_g


def wide(frame: pl.DataFrame, column: str) -> np.ndarray:
    """(days, assets) of a long frame in (date, asset) order."""
    return frame[column].to_numpy().reshape(frame["date"].n_unique(), -1)


def of(simulation: Simulation, column: str) -> np.ndarray:
    return wide(simulation.panel.frame, column)


def step(simulation: Simulation) -> np.ndarray:
    return np.diff(np.log(of(simulation, "close")), axis=0)


@pytest.mark.parametrize("signal", SIGNALS)
@pytest.mark.parametrize("noise", ["gaussian", "student_t", "garch"])
@pytest.mark.parametrize("signal_scale", ["constant", "proportional"])
def test_the_realised_oracle_lies_within_its_error_of_the_r2_asked_for(signal, noise, signal_scale):
    realised = [
        simulate(
            r2=0.2,
            signal=signal,
            noise=noise,
            signal_scale=signal_scale,
            num_assets=10,
            num_days=800,
            seed=seed,
        ).realised_oracle_r2
        for seed in range(12)
    ]
    error = np.std(realised, ddof=1) / math.sqrt(len(realised))
    assert error < 0.01
    assert abs(np.mean(realised) - 0.2) < 4 * error


def test_a_small_r2_is_met_too():
    realised = [
        simulate(r2=0.005, noise="garch", num_assets=50, num_days=2500, seed=s).realised_oracle_r2
        for s in range(8)
    ]
    error = np.std(realised, ddof=1) / math.sqrt(8)
    assert error < 0.0005
    assert abs(np.mean(realised) - 0.005) < 4 * error


def test_no_signal_is_exactly_none():
    simulation = simulate(r2=0, num_days=100)
    assert (simulation.oracle_r2, simulation.realised_oracle_r2) == (0.0, 0.0)
    assert simulation.signal["signal"].unique().to_list() == [0.0]


@pytest.mark.parametrize("noise", ["student_t", "garch"])
def test_without_a_signal_no_column_forecasts_the_return_beyond_its_error(noise):
    """F statistics of the next return on the features, their products and lags, one panel a seed."""
    ratios = []
    for seed in range(20):
        made = simulate(r2=0.0, noise=noise, num_assets=10, num_days=400, common_share=0.0, seed=seed)
        r, a, b = step(made)[3:].ravel(), of(made, "a"), of(made, "b")
        columns = [x[3 - k : 399 - k] for x in (a, b, a * b) for k in range(4)]
        columns.append(step(made)[2:-1])
        design = np.column_stack([c.ravel() for c in columns])
        fitted = design @ np.linalg.lstsq(design, r, rcond=None)[0]
        explained = (fitted**2).sum() / design.shape[1]
        ratios.append(explained / (((r - fitted) ** 2).sum() / (len(r) - design.shape[1])))
    error = np.std(ratios, ddof=1) / math.sqrt(20)
    assert error < 0.2
    assert abs(np.mean(ratios) - 1) < 3.5 * error


def test_the_same_seed_gives_the_same_panel_and_another_does_not():
    first, again, other = (
        simulate(signal="gated_filter", noise="garch", num_days=200, seed=s) for s in (5, 5, 6)
    )
    assert first.panel.checksum == again.panel.checksum
    assert first.signal.equals(again.signal)
    assert first.panel.checksum != other.panel.checksum


def test_signal_noise_and_r2_leave_the_features_of_a_seed_alone():
    base = simulate(num_days=200, seed=1)
    for changes in ({"signal": "gated_filter"}, {"noise": "garch"}, {"noise": "student_t"}, {"r2": 0.01}):
        other = simulate(num_days=200, seed=1, **changes)
        assert np.array_equal(of(base, "a"), of(other, "a"))
        assert np.array_equal(of(base, "b"), of(other, "b"))
    quiet, loud = (simulate(num_days=200, seed=1, r2=r2) for r2 in (0.0, 0.2))
    noise = step(loud) - wide(loud.signal, "signal")[:-1]
    np.testing.assert_allclose(noise, step(quiet), atol=1e-13)


def test_the_panels_target_is_the_return_the_signal_forecasts():
    simulation = simulate(num_assets=5, num_days=400, noise="garch", seed=2)
    joined = targets(simulation.panel, "log_return", 1).join(simulation.signal, on=["date", "asset"])
    known = joined.filter(pl.col("target").is_not_null())
    assert known.height == 5 * 399
    error = ((known["target"] - known["signal"]) ** 2).sum() / (known["target"] ** 2).sum()
    assert 1 - error == pytest.approx(simulation.realised_oracle_r2, abs=1e-12)


def test_the_linear_oracle_is_one_multiple_of_feature_a():
    simulation = simulate(r2=0.2, volatility_daily=0.02, num_days=100)
    a = features(simulation.panel, ["a"])["a"].to_numpy()
    np.testing.assert_allclose(simulation.signal["signal"], 0.02 * math.sqrt(0.25) * a, rtol=1e-12)


def test_the_interaction_oracle_is_the_product_and_no_line_reaches_it():
    simulation = simulate(r2=0.2, signal="interaction", num_days=2000, seed=3)
    a, b, s = of(simulation, "a"), of(simulation, "b"), wide(simulation.signal, "signal")
    np.testing.assert_allclose(s, 0.01 * 0.5 * a * b, rtol=1e-12)
    for x in (a, b):
        assert abs(np.corrcoef(x.ravel(), s.ravel())[0, 1]) < 4 / math.sqrt(s.size)


def test_the_gated_filter_is_its_equation_in_each_stage():
    simulation = simulate(r2=0.5, signal="gated_filter", num_assets=3, num_days=60, seed=4)
    a, b, s = of(simulation, "a"), of(simulation, "b"), wide(simulation.signal, "signal")

    def sign(x: float) -> float:
        return math.copysign(1.0, x) if x else 0.0

    first, second = np.full(a.shape, np.nan), np.full(a.shape, np.nan)
    for t in range(2, 60):
        for i in range(3):
            recalled = 0.8 * a[t - 1, i] * sign(a[t - 2, i] + 0.3)
            first[t, i] = math.tanh(1.5 * (math.tanh(2 * b[t - 1, i]) * a[t, i] + recalled)) / 0.6
    for t in range(5, 60):
        for i in range(3):
            recalled = 0.8 * first[t - 3, i] * sign(first[t - 1, i] + 0.3)
            second[t, i] = math.tanh(1.5 * (math.tanh(2 * b[t - 2, i]) * first[t, i] + recalled)) / 0.6
    slope, level = np.polyfit(second[5:].ravel(), s[5:].ravel(), 1)
    np.testing.assert_allclose(s[5:], slope * second[5:] + level, atol=1e-14)
    large = simulate(r2=0.5, signal="gated_filter", num_assets=50, num_days=4000, seed=5)
    standardised = wide(large.signal, "signal") / 0.01
    assert abs(standardised.mean()) < 0.01
    assert abs(standardised.std() - 1) < 0.01


def test_a_line_in_the_recent_features_reaches_little_of_the_gated_filter():
    simulation = simulate(r2=0.5, signal="gated_filter", num_assets=20, num_days=3000, seed=6)
    s = wide(simulation.signal, "signal")[8:]
    lagged = [of(simulation, name)[8 - k : 3000 - k].ravel() for name in "ab" for k in range(8)]
    design = np.column_stack([np.ones(s.size), *lagged])
    fitted = design @ np.linalg.lstsq(design, s.ravel(), rcond=None)[0]
    assert 1 - ((s.ravel() - fitted) ** 2).sum() / (s**2).sum() < 0.3


def test_the_unconditional_variance_is_the_same_at_every_dose_of_vol_of_vol():
    for dial in (0.0, 0.5, 1.0):
        variances = [
            np.var(step(simulate(r2=0, noise="garch", vol_of_vol=dial, num_days=3000, num_assets=20, seed=s)))
            for s in range(6)
        ]
        error = np.std(variances, ddof=1) / math.sqrt(6)
        assert abs(np.mean(variances) - 1e-4) < 4 * error + 1e-7


def test_dose_zero_is_constant_volatility_and_the_dial_is_the_variation_of_the_variance():
    flat = simulate(noise="garch", vol_of_vol=0, num_days=300, seed=7)
    assert flat.panel.checksum == simulate(noise="gaussian", num_days=300, seed=7).panel.checksum
    assert np.ptp(flat.volatility["volatility"].to_numpy()) < 1e-15
    # Without a common factor the conditional variance is each asset's own GARCH variance.
    found = []
    for dial in (0.25, 0.5):
        variance = np.concatenate(
            [
                simulate(
                    noise="garch", vol_of_vol=dial, common_share=0, num_assets=100, num_days=2000, seed=s
                ).volatility["volatility"]
                ** 2
                for s in range(2)
            ]
        )
        found.append(variance.std() / variance.mean())
    np.testing.assert_allclose(found, [0.25, 0.5], rtol=0.1)


def test_the_volatility_frame_standardises_the_noise():
    simulation = simulate(r2=0.1, noise="garch", num_assets=30, num_days=2000, seed=8)
    noise = step(simulation) - wide(simulation.signal, "signal")[:-1]
    scaled = noise / wide(simulation.volatility, "volatility")[:-1]
    assert scaled.std() == pytest.approx(1, abs=0.02)
    squares = scaled**2 - 1
    clustering = (squares[1:] * squares[:-1]).mean() / (squares**2).mean()
    raw = noise**2 - (noise**2).mean()
    assert abs(clustering) < 0.02 < (raw[1:] * raw[:-1]).mean() / (raw**2).mean()


@pytest.mark.slow
def test_half_a_percent_is_realised_as_half_a_percent():
    realised = [
        simulate(r2=0.005, noise="garch", num_assets=50, num_days=2520, seed=100 + s).realised_oracle_r2
        for s in range(40)
    ]
    assert 0.00494 < np.mean(realised) < 0.00520
    assert 0.0003 < np.std(realised, ddof=1) < 0.0006


@pytest.mark.parametrize("signal_scale", ["constant", "proportional"])
@pytest.mark.parametrize("signal", SIGNALS)
def test_the_panels_columns_up_to_t_are_enough_to_make_the_oracle(signal, signal_scale):
    made = simulate(
        r2=0.2,
        signal=signal,
        noise="garch",
        signal_scale=signal_scale,
        volatility_column=True,
        volatility_daily=0.02,
        num_assets=4,
        num_days=300,
        depth_demand=3,
        seed=3,
    )
    columns = features(made.panel, ["a", "b", "volatility"])
    a, b, sigma = (wide(columns, name) for name in ("a", "b", "volatility"))
    scale = sigma if signal_scale == "proportional" else np.full_like(a, 0.02)
    oracle = math.sqrt(0.25) * scale * planted_g(signal, a, b, depth_demand=3)
    # What happened before the panel began is forgotten by then.
    np.testing.assert_allclose(oracle[150:], wide(made.signal, "signal")[150:], atol=1e-14)


def test_the_future_of_the_noise_is_in_no_column_and_not_in_the_signal():
    dials = {"noise": "garch", "signal": "memory_chain", "r2": 0.2, "volatility_column": True, "seed": 4}
    quiet, loud = simulate(num_days=300, **dials), simulate(num_days=300, shock_at=0.5, **dials)
    before = pl.col("date") < quiet.panel.dates[150]
    for one, two in ((quiet.panel.frame, loud.panel.frame), (quiet.signal, loud.signal)):
        assert one.filter(before).equals(two.filter(before))
    # The close of the day on which the shock begins is the last that it does not move.
    assert (of(quiet, "close")[150] == of(loud, "close")[150]).all()
    assert (of(quiet, "close")[151] != of(loud, "close")[151]).all()


@pytest.mark.parametrize("signal_scale", ["constant", "proportional"])
def test_a_shock_multiplies_the_noise_from_its_day_on_and_a_proportional_signal_with_it(signal_scale):
    dials = {"noise": "garch", "r2": 0.2, "signal_scale": signal_scale, "num_days": 400, "seed": 5}
    quiet, loud = simulate(**dials), simulate(shock_at=0.75, shock_factor=4.0, **dials)
    factor = np.where(np.arange(400) < 300, 1.0, 4.0)[:, None]
    signal = factor if signal_scale == "proportional" else 1.0
    np.testing.assert_allclose(wide(loud.signal, "signal"), wide(quiet.signal, "signal") * signal, rtol=1e-13)
    np.testing.assert_allclose(
        wide(loud.volatility, "volatility"), wide(quiet.volatility, "volatility") * factor, rtol=1e-13
    )
    noises = [step(x) - wide(x.signal, "signal")[:-1] for x in (quiet, loud)]
    np.testing.assert_allclose(noises[1], noises[0] * factor[:-1], atol=1e-13)
    expected = 0.25 / (0.25 + (0.75 + 0.25 * 16)) if signal_scale == "constant" else 0.2
    assert loud.oracle_r2 == pytest.approx(expected)


@pytest.mark.parametrize(
    "dials",
    [
        {"drift": "slow"},
        {"drift": "broken", "break_at": 0.3, "break_factor": -0.5},
        {"shock_at": 0.6},
        {"shock_at": 0.6, "signal_scale": "proportional"},
        {"noise": "garch", "degrees": 4.0, "news": "score", "leverage": 0.8, "signal_scale": "proportional"},
        {"regime_ratio": 1.5, "jump_share": 0.2},
        {"signal": "memory_chain", "depth_demand": 3},
    ],
    ids=str,
)
def test_under_every_dial_the_oracle_realises_what_it_has_by_construction(dials):
    made = [simulate(r2=0.2, num_assets=10, num_days=800, seed=seed, **dials) for seed in range(12)]
    gaps = [x.realised_oracle_r2 - x.oracle_r2 for x in made]
    error = np.std(gaps, ddof=1) / math.sqrt(12)
    assert error < 0.01
    assert abs(np.mean(gaps)) < 4 * error


def test_a_drift_multiplies_the_signal_day_by_day_and_is_in_no_column():
    still, moving = (simulate(num_days=300, drift=drift, seed=6) for drift in ("constant", "slow"))
    m = moving.drift["drift"].to_numpy()
    assert m.std() > 0.05
    ratio = wide(moving.signal, "signal") / wide(still.signal, "signal")
    np.testing.assert_allclose(ratio, np.broadcast_to(m[:, None], ratio.shape), rtol=1e-9)
    assert moving.panel.feature_columns == ["a", "b"]
    assert still.drift["drift"].unique().to_list() == [1.0]


def test_the_recipe_is_a_call_that_makes_the_same_panel():
    made = simulate(num_days=60, noise="garch", vol_of_vol=0.5, drift="broken", break_factor=0.0, seed=8)
    again = eval(made.recipe, {"fints": fints})
    assert again.panel.checksum == made.panel.checksum
    assert again.signal.equals(made.signal)


def test_the_common_share_is_the_mean_correlation_of_the_noise():
    for share in (0.0, 0.3, 0.6):
        noise = step(simulate(r2=0, common_share=share, num_assets=30, num_days=4000, seed=10))
        correlation = np.corrcoef(noise.T)
        mean = correlation[~np.eye(30, dtype=bool)].mean()
        assert mean == pytest.approx(share, abs=0.05)


def test_student_noise_has_fat_tails_and_the_same_variance():
    noise = step(
        simulate(r2=0, noise="student_t", degrees=8, common_share=0, num_assets=50, num_days=4000, seed=11)
    )
    assert noise.var() == pytest.approx(1e-4, rel=0.03)
    assert ((noise / noise.std()) ** 4).mean() == pytest.approx(3 + 6 / 4, rel=0.15)


def test_a_simulation_may_have_one_asset():
    assert simulate(num_assets=1, num_days=50).panel.assets == ["S00"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"drift": "sudden"}, "drift = 'sudden' is unknown. Choose one of constant, slow, broken"),
        ({"news": "cube", "noise": "garch"}, "news = 'cube' is unknown"),
        ({"leverage": 0.5}, 'leverage = 0.5 needs noise = "garch"'),
        ({"depth_demand": 9}, "depth_demand from 1 to 8; got 9"),
        ({"break_at": 1.0}, r"break_at in \(0, 1\); got 1.0"),
        ({"break_factor": math.nan}, "a finite break_factor"),
        ({"shock_at": 1.0}, r"shock_at in \(0, 1\) or None; got 1.0"),
        ({"shock_factor": 0.0}, "shock_factor above 0"),
        ({"signal": "quadratic"}, "signal = 'quadratic' is unknown. Choose one of linear"),
        ({"noise": "levy"}, "noise = 'levy' is unknown"),
        ({"signal_scale": "x"}, "signal_scale = 'x' is unknown"),
        ({"vol_of_vol": 0.5}, 'needs noise = "garch"'),
        ({"r2": 1.0}, r"r2 in \[0, 1\); got 1.0"),
        ({"noise": "garch", "degrees": 4}, "degrees above 4"),
        ({"noise": "student_t", "degrees": 2}, "degrees above 2"),
        ({"common_share": 1.0}, "common_share"),
        ({"num_days": 1}, "at least 1 asset and 2 days; got 20 and 1"),
        ({"seed": -1}, "seed of at least 0"),
        ({"volatility_daily": 0.0}, "volatility_daily above 0"),
        ({"noise": "garch", "vol_of_vol": -1.0}, "vol_of_vol of at least 0"),
    ],
)
def test_impossible_arguments_are_refused(arguments, said):
    with pytest.raises(ValueError, match=said):
        simulate(**arguments)

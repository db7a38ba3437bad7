"""A judgement says what the metrics and tests say, and its verdict follows the rule."""

from __future__ import annotations

import json
import math

import numpy as np
import polars as pl
import pytest

from fints.evaluation import (
    clark_west,
    detectable_r2,
    forecast_power,
    judge,
    mean_interval,
    median_r2_interval,
    metrics,
    r2_interval,
)
from fints.evaluation.figure import draw

R2 = 0.006


def world(
    seed: int = 0, *, days: int = 1200, assets: int = 6, r2: float = R2
) -> tuple[np.ndarray, np.ndarray]:
    """Outcomes of 1 % a day and the part of them that could be known."""
    rng = np.random.default_rng(seed)
    signal = math.sqrt(r2) * 0.01 * rng.standard_normal((days, assets))
    return signal + math.sqrt(1 - r2) * 0.01 * rng.standard_normal((days, assets)), signal


def framed(forecasts, y: np.ndarray, p: np.ndarray) -> pl.DataFrame:
    return forecasts(y, p).with_columns(prevailing_mean=pl.lit(1e-4))


def prices_of(frame: pl.DataFrame) -> pl.DataFrame:
    """Closes whose next log return is the outcome."""
    path = pl.col("realised").shift(1, fill_value=0.0).cum_sum().over("asset", order_by="date").exp()
    return frame.select("date", "asset", close=path)


def test_a_true_signal_is_found_and_noise_is_not(forecasts):
    y, signal = world()
    found = judge(framed(forecasts, y, signal))
    assert found.decision == "found"
    assert found.verdict.startswith("Found: the forecasts beat zero and the prevailing mean (Clark-West, p <")
    y, _ = world(0, days=250, assets=4)
    noise = [judge(framed(forecasts, y, world(seed, days=250, assets=4)[1])) for seed in range(1, 13)]
    # The level is 5 %: 0.6 of 12 on average, more than 3 in one of 400 such tests.
    assert sum(one.decision != "nothing" for one in noise) <= 3
    assert any(one.verdict.startswith("Nothing found: ") for one in noise)


def test_information_in_the_wrong_size_is_told_from_a_forecast_fit_for_use(forecasts):
    y, signal = world()
    found = judge(framed(forecasts, y, 3 * signal))
    assert found.decision == "scaled_wrong"
    assert found.estimates["r2_zero"].value < 0
    slope = (y * 3 * signal).sum() / (9 * signal**2).sum()
    assert found.estimates["slope"].value == pytest.approx(slope, rel=1e-9)
    assert f"Multiplied by {slope:.2g}" in found.verdict


def test_both_benchmarks_must_be_beaten(forecasts):
    rng = np.random.default_rng(2)
    y = 0.002 + 0.01 * rng.standard_normal((1200, 6))
    frame = forecasts(y, np.full_like(y, 0.002)).with_columns(prevailing_mean=pl.lit(0.002))
    found = judge(frame.with_columns(pl.col("forecast") + 1e-6 * pl.Series(rng.standard_normal(7200))))
    assert found.tests["clark_west_zero"].p < 0.001
    assert found.decision == "nothing"


def test_more_than_can_be_known_is_a_suspected_leak(forecasts):
    y, _ = world()
    leaked = y + 0.04 * np.random.default_rng(3).standard_normal(y.shape)
    found = judge(framed(forecasts, y, 0.05 * leaked))
    assert found.decision == "suspected_leak"
    assert found.verdict.startswith("Suspected leak")
    assert any(text.startswith("Suspected leak: the mean rank IC is 0.2") for text in found.warnings)
    assert judge(framed(forecasts, *world())).warnings == []


def test_a_score_is_judged_by_its_ranks_alone(forecasts):
    y, signal = world(r2=0.005)
    found = judge(framed(forecasts, y, 1e4 * signal))
    assert found.decision == "found"
    assert set(found.tests) == {"pesaran_timmermann", "rank_ic"}
    assert not {"r2_zero", "slope"} & set(found.estimates)
    assert judge(framed(forecasts, y, -1e4 * signal)).verdict.startswith("Found, with the wrong sign")


def test_too_few_dates_give_no_verdict(forecasts):
    y, signal = world(days=20)
    found = judge(framed(forecasts, y, signal), horizon=5)
    assert found.decision == "undecided"
    assert any("4 outcomes that do not overlap" in text for text in found.warnings)


def test_the_numbers_are_those_of_the_metrics_and_tests(forecasts):
    y, signal = world(4)
    frame = framed(forecasts, y, signal).with_columns(variance=pl.lit(1e-4))
    found, expected = judge(frame, horizon=2), metrics(frame, horizon=2)
    for name in ("r2_zero", "r2_mean", "r2_precision", "r2_median_asset", "ic", "rank_ic"):
        one = found.estimates[name]
        assert one.value == expected[name]
        assert one.low < one.value < one.high
    assert found.tests["clark_west_zero"] == clark_west(frame, horizon=2)
    assert found.detectable_r2 == detectable_r2(dates=600, assets=found.effective_assets)
    json.dumps(found.to_dict(), allow_nan=False)


def test_an_r2_interval_is_the_spread_of_r2_over_samples(forecasts):
    values, halves = [], []
    for seed in range(60):
        y, signal = world(seed, days=300)
        frame = forecasts(y, signal)
        low, high = r2_interval(frame)
        values.append((low + high) / 2)
        halves.append((high - low) / 2)
        if seed == 0:
            assert values[0] == pytest.approx(metrics(frame)["r2_zero"], abs=1e-12)
    assert np.mean(halves) == pytest.approx(1.96 * np.std(values), rel=0.25)


def test_intervals_of_two_ways_agree(forecasts):
    y, signal = world(5, days=900, assets=1)
    frame = forecasts(y, signal)
    one, other = r2_interval(frame), median_r2_interval(frame)
    # With one asset the median R2 is the R2; the one is linear in the dates, the other resamples them.
    assert other == pytest.approx(one, abs=0.25 * (one[1] - one[0]))
    plain = mean_interval(np.random.default_rng(0).standard_normal(5000))
    assert plain[1] - plain[0] == pytest.approx(2 * 1.96 / math.sqrt(5000), rel=0.1)
    assert mean_interval(np.zeros(5)) is None


def test_portfolios_are_deflated_for_all_trials(forecasts):
    y, signal = world(6, days=500)
    frame = framed(forecasts, y, signal)
    one = judge(frame, prices=prices_of(frame), execution="same_close", cost_bps=1.0)
    many = judge(frame, prices=prices_of(frame), execution="same_close", cost_bps=1.0, trials=1000)
    assert [row["portfolio"] for row in one.portfolios] == ["long_short", "decile", "volatility_targeted"]
    first, tried = one.portfolios[0], many.portfolios[0]
    assert first["sharpe_low"] < first["sharpe_net"] < first["sharpe_high"]
    assert first["sharpe_net"] < first["sharpe_gross"]
    assert first["deflated_sharpe"] == first["probabilistic_sharpe"] > 0.95 > tried["deflated_sharpe"]
    assert "(deflated for 1,000 trials:" in many.verdict
    with pytest.raises(ValueError, match="trials counts at least"):
        judge(frame, trials=0)


def test_a_picture_is_drawn_of_every_kind_of_judgement(forecasts, tmp_path):
    y, signal = world(7, days=120)
    frame = framed(forecasts, y, signal)
    draw(judge(frame, prices=prices_of(frame), execution="same_close"), frame, tmp_path / "a.png")
    score = frame.with_columns(1e5 * pl.col("forecast")).drop("prevailing_mean")
    draw(judge(score), score, tmp_path / "b.svg")
    svg = (tmp_path / "b.svg").read_bytes()
    draw(judge(score), score, tmp_path / "b.svg")
    assert (tmp_path / "b.svg").read_bytes() == svg
    assert (tmp_path / "a.png").stat().st_size > 20_000
    with pytest.raises(ValueError, match=r"is \.png or \.svg"):
        draw(judge(score), score, tmp_path / "b.pdf")


@pytest.mark.parametrize("test", ["clark_west", "diebold_mariano", "rank_ic"])
def test_the_power_of_a_forecast_is_what_simulation_finds(forecasts, test: str):
    from fints.evaluation import diebold_mariano, ic_series, newey_west_t

    found = 0
    for seed in range(150):
        y, signal = world(seed, days=150, assets=8, r2=0.008)
        frame = forecasts(y, signal)
        if test == "clark_west":
            found += clark_west(frame).p < 0.05
        elif test == "rank_ic":
            found += abs(newey_west_t(ic_series(frame)["rank_ic"].to_numpy())) > 1.96
        else:
            found += diebold_mariano(frame, frame.with_columns(forecast=0.0)).p < 0.05
    expected = forecast_power(test, 0.008, dates=150, assets=8)
    assert found / 150 == pytest.approx(expected, abs=3 * math.sqrt(expected * (1 - expected) / 150) + 0.02)


def test_power_is_the_level_without_a_signal_and_inverts_to_the_detectable_r2():
    for test in (
        "clark_west",
        "diebold_mariano",
        "giacomini_white",
        "pesaran_timmermann",
        "rank_ic",
        "long_short",
    ):
        assert forecast_power(test, 0.0, dates=500, assets=5) == pytest.approx(0.05, abs=1e-12)
        assert forecast_power(test, 0.5, dates=5000, assets=5) == pytest.approx(1.0, abs=1e-9)
    smallest = detectable_r2(dates=500, assets=5)
    assert forecast_power("clark_west", smallest, dates=500, assets=5) == pytest.approx(0.8, abs=1e-9)
    with pytest.raises(ValueError, match="unknown test 'f'"):
        forecast_power("f", 0.1, dates=10, assets=1)
    with pytest.raises(ValueError, match="need 0 <= r2 < 1"):
        forecast_power("clark_west", 1.0, dates=10, assets=1)


def test_a_constant_forecast_finds_nothing_however_much_returns_rose(forecasts):
    y, _ = world()
    found = judge(framed(forecasts, y + 0.003, np.full_like(y, 0.0005)))
    assert found.tests["clark_west_zero"].p < 0.001
    assert found.decision == "nothing"
    assert "all forecasts are the same number" in found.verdict
    assert any("same number" in warning for warning in found.warnings)


@pytest.mark.parametrize(("r2", "useless"), [(0.0003, False), (0.0003, True), (0.005, False), (0.02, False)])
def test_forecasts_in_percent_are_called_so_whatever_their_width(forecasts, r2, useless):
    """From 1.7 times as wide as the outcomes on, where the width alone does not make them a score.

    What is wider and useless cannot be told from a score, and is called one.
    """
    y, signal = world(6, r2=r2)
    if useless:
        signal = np.roll(signal, 1, axis=0)
    found = judge(framed(forecasts, y, 100 * signal))
    said = [text for text in found.warnings if text.startswith("Are the forecasts in percent?")]
    assert len(said) == 1
    assert f"{100 * np.std(signal) / np.std(y):.3g} times as wide" in said[0]
    assert not [text for text in judge(framed(forecasts, y, signal)).warnings if "in percent" in text]


def test_outcomes_in_percent_are_called_so_too(forecasts):
    y, signal = world(7, r2=0.01)
    assert any(
        t.startswith("Are the outcomes in percent?")
        for t in judge(framed(forecasts, 100 * y, signal)).warnings
    )


@pytest.mark.parametrize("factor", [0.1, 0.5, 3.0, 20.0, 300.0, 1e4])
def test_forecasts_of_another_wrong_size_are_not_called_percent(forecasts, factor):
    y, signal = world(8, r2=0.02)
    assert not [text for text in judge(framed(forecasts, y, factor * signal)).warnings if "percent" in text]

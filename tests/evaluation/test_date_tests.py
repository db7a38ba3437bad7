"""Tests on the series of dates against statsmodels and simulation."""

from __future__ import annotations

import math

import numpy as np
import polars as pl
import pytest
import statsmodels.api as sm
from scipy import stats
from scipy.fft import dct
from statsmodels.tsa.stattools import diebold_mariano_test

from fints.evaluation import clark_west, diebold_mariano


def test_diebold_mariano_of_one_asset_is_that_of_statsmodels(forecasts):
    rng = np.random.default_rng(0)
    y, a, b = rng.standard_normal((3, 200, 1))
    expected = diebold_mariano_test(y.ravel(), a.ravel(), b.ravel(), harvey_adj=True, horizon=1)
    found = diebold_mariano(forecasts(y, a), forecasts(y, b))
    assert found.statistic == pytest.approx(expected.statistic, rel=1e-10)
    assert found.p == pytest.approx(expected.pvalue, rel=1e-8)
    assert found.dates == 200


def test_overlapping_outcomes_have_the_errors_of_the_lowest_frequencies(forecasts):
    rng = np.random.default_rng(8)
    y, a, b = rng.standard_normal((3, 200, 2))
    series = ((y - a) ** 2 - (y - b) ** 2).mean(axis=1)
    # 200 dates at horizon 5: min(0.4 T^(2/3), T / 4h) = min(13.7, 10) terms of a discrete cosine transform.
    waves = dct(series, type=2, norm="ortho")[1:11]
    t = series.mean() * math.sqrt(200) / math.sqrt(np.mean(waves**2))
    found = diebold_mariano(forecasts(y, a), forecasts(y, b), horizon=5)
    assert found.statistic == pytest.approx(t, rel=1e-10)
    assert found.p == pytest.approx(2 * stats.t.sf(abs(t), 10), rel=1e-10)
    half = stats.t.ppf(0.975, 10) * series.mean() / t
    assert (found.low, found.high) == pytest.approx((series.mean() - half, series.mean() + half), rel=1e-10)
    nested = clark_west(forecasts(y, a), horizon=5)
    adjusted = (2 * y * a).mean(axis=1)
    waves = dct(adjusted, type=2, norm="ortho")[1:11]
    t = adjusted.mean() * math.sqrt(200) / math.sqrt(np.mean(waves**2))
    assert (nested.statistic, nested.p) == pytest.approx((t, stats.t.sf(t, 10)), rel=1e-10)


def test_diebold_mariano_averages_over_assets_before_it_tests(forecasts):
    rng = np.random.default_rng(1)
    y, a, b = rng.standard_normal((3, 100, 4))
    # The same asset four times is no more evidence than once.
    once = diebold_mariano(forecasts(y[:, :1], a[:, :1]), forecasts(y[:, :1], b[:, :1]))
    repeated = [np.repeat(values[:, :1], 4, axis=1) for values in (y, a, b)]
    four = diebold_mariano(forecasts(repeated[0], repeated[1]), forecasts(repeated[0], repeated[2]))
    assert four.p == pytest.approx(once.p, rel=1e-9)
    found = diebold_mariano(forecasts(y, a), forecasts(y, b))
    assert found.estimate == pytest.approx(np.mean((y - a) ** 2 - (y - b) ** 2), abs=1e-14)


def test_swapping_the_forecasts_flips_the_sign_and_keeps_p(forecasts):
    rng = np.random.default_rng(2)
    y, a, b = rng.standard_normal((3, 60, 3))
    one, other = forecasts(y, a), forecasts(y, b)
    forward, backward = diebold_mariano(one, other), diebold_mariano(other.reverse(), one)
    assert forward.statistic == pytest.approx(-backward.statistic, rel=1e-10)
    assert forward.p == pytest.approx(backward.p, rel=1e-10)
    assert diebold_mariano(one, one).p == 1.0


def test_a_comparison_of_different_outcomes_is_refused(forecasts):
    rng = np.random.default_rng(3)
    y, a, b = rng.standard_normal((3, 60, 3))
    with pytest.raises(ValueError, match="different outcomes"):
        diebold_mariano(forecasts(y, a), forecasts(b, a))
    with pytest.raises(ValueError, match="share no"):
        diebold_mariano(forecasts(y, a), forecasts(y, a).with_columns(asset=pl.lit("z")).unique("date"))


@pytest.mark.parametrize("benchmark", [None, "prevailing_mean"])
def test_clark_west_is_the_hac_t_of_its_adjusted_series(forecasts, benchmark: str | None):
    rng = np.random.default_rng(4)
    y, p1, p0 = rng.standard_normal((3, 150, 3)) * np.array([1.0, 0.2, 0.1]).reshape(3, 1, 1)
    base = p0 if benchmark else np.zeros_like(p0)
    series = ((y - base) ** 2 - ((y - p1) ** 2 - (base - p1) ** 2)).mean(axis=1)
    lags = math.floor(4 * (150 / 100) ** (2 / 9))
    fit = sm.OLS(series, np.ones(150)).fit(
        cov_type="HAC", cov_kwds={"maxlags": lags, "use_correction": False}
    )
    found = clark_west(
        forecasts(y, p1).with_columns(prevailing_mean=pl.Series(p0.ravel())), benchmark=benchmark
    )
    assert found.statistic == pytest.approx(float(fit.tvalues[0]), rel=1e-10)
    assert found.p == pytest.approx(float(stats.norm.sf(fit.tvalues[0])), rel=1e-10)


def test_a_short_or_flat_series_has_no_statistic_instead_of_a_nan(forecasts):
    rng = np.random.default_rng(5)
    y, a = rng.standard_normal((2, 5, 3))
    assert clark_west(forecasts(y, a)).p is None
    assert clark_west(forecasts(y, np.zeros_like(y))).p == 1.0
    assert diebold_mariano(forecasts(y, a), forecasts(y, 0 * a)).p is None


def test_clark_west_finds_a_nested_signal_that_diebold_mariano_misses(forecasts):
    rng = np.random.default_rng(6)
    found = {"clark_west": 0, "diebold_mariano": 0}
    for _ in range(60):
        signal = math.sqrt(0.01) * rng.standard_normal((1000, 1))
        y = signal + rng.standard_normal((1000, 1))
        # A fitted model: the signal and as much estimation noise.
        p = signal + math.sqrt(0.01) * rng.standard_normal((1000, 1))
        frame = forecasts(y, p)
        found["clark_west"] += clark_west(frame).p < 0.05
        against_zero = diebold_mariano(frame, frame.with_columns(forecast=0.0))
        found["diebold_mariano"] += against_zero.p < 0.05 and against_zero.estimate < 0
    assert found["clark_west"] > 45
    assert found["diebold_mariano"] < 8

"""Tests and power against statsmodels, closed forms and simulation."""

from __future__ import annotations

import datetime as dt
import itertools
import math

import numpy as np
import polars as pl
import pytest
import statsmodels.api as sm
from scipy import stats
from statsmodels.stats.power import TTestPower
from statsmodels.stats.weightstats import DescrStatsW
from statsmodels.tsa.stattools import diebold_mariano_test

from fints.evaluation import (
    Contrast,
    clark_west,
    clustered_mean,
    clusters_needed,
    contrast_power,
    diebold_mariano,
    effective_assets,
    equivalence,
    holm,
    minimum_detectable_effect,
    paired_contrast,
    paired_r2_sd,
    r2_power,
    r2_standard_error,
)


def forecasts(realised: np.ndarray, forecast: np.ndarray) -> pl.DataFrame:
    days, assets = realised.shape
    dates = [dt.date(2000, 1, 1) + dt.timedelta(days=day) for day in range(days)]
    return pl.DataFrame(
        {
            "date": [day for day in dates for _ in range(assets)],
            "asset": [f"a{number}" for number in range(assets)] * days,
            "forecast": forecast.ravel(),
            "realised": realised.ravel(),
        }
    )


def cells(values: np.ndarray) -> pl.DataFrame:
    """(folds, seeds) -> one row a cell."""
    folds, seeds = values.shape
    return pl.DataFrame(
        {
            "fold": np.repeat(np.arange(folds), seeds),
            "seed": np.tile(np.arange(seeds), folds),
            "difference": values.ravel(),
        }
    )


@pytest.mark.parametrize("horizon", [1, 5])
def test_diebold_mariano_of_one_asset_is_that_of_statsmodels(horizon: int):
    rng = np.random.default_rng(0)
    y, a, b = rng.standard_normal((3, 200, 1))
    expected = diebold_mariano_test(y.ravel(), a.ravel(), b.ravel(), harvey_adj=True, horizon=horizon)
    found = diebold_mariano(forecasts(y, a), forecasts(y, b), horizon=horizon)
    assert found.statistic == pytest.approx(expected.statistic, rel=1e-10)
    assert found.p == pytest.approx(expected.pvalue, rel=1e-8)
    assert found.dates == 200


def test_diebold_mariano_averages_over_assets_before_it_tests():
    rng = np.random.default_rng(1)
    y, a, b = rng.standard_normal((3, 100, 4))
    # The same asset four times is no more evidence than once.
    once = diebold_mariano(forecasts(y[:, :1], a[:, :1]), forecasts(y[:, :1], b[:, :1]))
    repeated = [np.repeat(values[:, :1], 4, axis=1) for values in (y, a, b)]
    four = diebold_mariano(forecasts(repeated[0], repeated[1]), forecasts(repeated[0], repeated[2]))
    assert four.p == pytest.approx(once.p, rel=1e-9)
    found = diebold_mariano(forecasts(y, a), forecasts(y, b))
    assert found.estimate == pytest.approx(np.mean((y - a) ** 2 - (y - b) ** 2), abs=1e-14)


def test_swapping_the_forecasts_flips_the_sign_and_keeps_p():
    rng = np.random.default_rng(2)
    y, a, b = rng.standard_normal((3, 60, 3))
    one, other = forecasts(y, a), forecasts(y, b)
    forward, backward = diebold_mariano(one, other), diebold_mariano(other.reverse(), one)
    assert forward.statistic == pytest.approx(-backward.statistic, rel=1e-10)
    assert forward.p == pytest.approx(backward.p, rel=1e-10)
    assert diebold_mariano(one, one).p == 1.0


def test_a_comparison_of_different_outcomes_is_refused():
    rng = np.random.default_rng(3)
    y, a, b = rng.standard_normal((3, 60, 3))
    with pytest.raises(ValueError, match="different outcomes"):
        diebold_mariano(forecasts(y, a), forecasts(b, a))
    with pytest.raises(ValueError, match="share no"):
        diebold_mariano(forecasts(y, a), forecasts(y, a).with_columns(asset=pl.lit("z")).unique("date"))


@pytest.mark.parametrize("benchmark", [None, "prevailing_mean"])
def test_clark_west_is_the_hac_t_of_its_adjusted_series(benchmark: str | None):
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


def test_a_short_or_flat_series_has_no_statistic_instead_of_a_nan():
    rng = np.random.default_rng(5)
    y, a = rng.standard_normal((2, 5, 3))
    assert clark_west(forecasts(y, a)).p is None
    assert clark_west(forecasts(y, np.zeros_like(y))).p == 1.0
    assert diebold_mariano(forecasts(y, a), forecasts(y, 0 * a)).p is None


def test_clark_west_finds_a_nested_signal_that_diebold_mariano_misses():
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


def test_balanced_cells_give_the_t_test_on_fold_means():
    values = np.random.default_rng(7).standard_normal((6, 3)) + 0.4
    found = paired_contrast(cells(values))
    expected = DescrStatsW(values.mean(axis=1))
    low, high = expected.tconfint_mean(0.05)
    assert found.estimate == pytest.approx(values.mean(), abs=1e-14)
    assert (found.low, found.high) == pytest.approx((low, high), abs=1e-12)
    assert found.p == pytest.approx(expected.ttest_mean(0)[1], rel=1e-10)
    assert found.sd == pytest.approx(values.mean(axis=1).std(ddof=1), rel=1e-12)
    assert (found.clusters, found.cells) == (6, 18)


def test_unbalanced_cells_give_the_clustered_error_of_statsmodels():
    frame = cells(np.random.default_rng(8).standard_normal((5, 4))).filter(
        ~((pl.col("fold") == 1) & (pl.col("seed") > 0))
    )
    fit = sm.OLS(frame["difference"].to_numpy(), np.ones(frame.height)).fit(
        cov_type="cluster", cov_kwds={"groups": frame["fold"].to_numpy(), "use_correction": False}
    )
    assert paired_contrast(frame).se == pytest.approx(float(fit.bse[0]) * math.sqrt(5 / 4), rel=1e-10)


def test_seeds_of_the_same_fold_are_not_independent_evidence():
    by_fold = np.random.default_rng(9).standard_normal((5, 1)) + 1
    once, ten_times = paired_contrast(cells(by_fold)), paired_contrast(cells(np.repeat(by_fold, 10, axis=1)))
    assert ten_times.p == pytest.approx(once.p, rel=1e-10)
    assert (ten_times.low, ten_times.high) == pytest.approx((once.low, once.high), rel=1e-10)


def test_pairing_removes_what_both_arms_share():
    rng = np.random.default_rng(10)
    shared = 10 * rng.standard_normal((8, 2))
    frame = (
        cells(shared)
        .rename({"difference": "b"})
        .with_columns(a=pl.col("b") + 0.1 + 0.01 * pl.Series(rng.standard_normal(16)))
    )
    assert paired_contrast(frame).p < 1e-6
    assert clustered_mean(frame, "a").p > 0.05


def test_one_fold_gives_an_estimate_and_no_error():
    found = paired_contrast(cells(np.array([[0.1, 0.2]])))
    assert found.estimate == pytest.approx(0.15)
    assert found.se is found.p is found.low is found.sd is None
    assert not equivalence(found, 10.0).equivalent


def test_a_repeated_or_missing_cell_is_refused():
    frame = cells(np.ones((3, 2)))
    with pytest.raises(ValueError, match="must appear once"):
        paired_contrast(pl.concat([frame, frame]))
    with pytest.raises(ValueError, match="needs a value"):
        paired_contrast(frame.with_columns(difference=pl.when(pl.col("fold") > 0).then(pl.col("difference"))))


def test_identical_arms_differ_by_nothing_with_p_one():
    found = paired_contrast(cells(np.zeros((4, 2))))
    assert (found.estimate, found.se, found.p) == (0.0, 0.0, 1.0)


@pytest.mark.parametrize("folds", [4, 8])
def test_the_paired_test_keeps_its_size_with_correlated_seeds(folds: int):
    rng = np.random.default_rng(11)
    rejected = 0
    for _ in range(2000):
        values = rng.standard_normal((folds, 1)) + 0.5 * rng.standard_normal((folds, 3))
        means = values.mean(axis=1)
        t = means.mean() / (means.std(ddof=1) / math.sqrt(folds))
        rejected += 2 * stats.t.sf(abs(t), folds - 1) < 0.05
    assert 0.035 < rejected / 2000 < 0.065
    # The shortcut above is the very test: one draw through the front door.
    assert paired_contrast(cells(values)).p == pytest.approx(2 * stats.t.sf(abs(t), folds - 1), rel=1e-9)


def test_holm_steps_down_and_counts_what_could_not_be_tested():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.01, None, 0.03]) == [pytest.approx(0.03), None, pytest.approx(0.06)]
    assert holm([]) == []


def test_equivalence_is_the_ninety_percent_interval_inside_the_margin():
    rng = np.random.default_rng(12)
    for _ in range(50):
        values = 0.3 * rng.standard_normal((6, 2)) + 0.1
        contrast = paired_contrast(cells(values))
        found = equivalence(contrast, 0.4)
        low, high = DescrStatsW(values.mean(axis=1)).tconfint_mean(0.10)
        assert (found.low, found.high) == pytest.approx((low, high), abs=1e-12)
        assert found.equivalent == (low > -0.4 and high < 0.4)
        expected = DescrStatsW(values.mean(axis=1)).ttost_mean(-0.4, 0.4)[0]
        assert found.p == pytest.approx(expected, rel=1e-9)


def test_no_evidence_is_not_evidence_of_no_difference():
    wide = Contrast(estimate=0.0, se=1.0, low=-3.2, high=3.2, p=1.0, clusters=4, cells=8)
    assert not equivalence(wide, 0.1).equivalent
    with pytest.raises(ValueError, match="above 0"):
        equivalence(wide, 0.0)


@pytest.mark.parametrize("clusters", [2, 4, 8, 30, 1000])
@pytest.mark.parametrize("ratio", [0.0, 0.1, 0.5, 1.0])
def test_power_is_that_of_the_t_test_in_statsmodels(clusters: int, ratio: float):
    expected = TTestPower().power(ratio, clusters, 0.05)
    assert contrast_power(ratio * 3.0, sd=3.0, clusters=clusters) == pytest.approx(expected, abs=1e-7)


def test_power_grows_with_the_effect_and_never_leaves_zero_to_one():
    for clusters in (2, 3, 5, 100):
        powers = [contrast_power(effect, sd=1.0, clusters=clusters) for effect in np.linspace(0, 60, 241)]
        assert all(0 <= power <= 1 for power in powers)
        assert all(later >= earlier - 1e-3 for earlier, later in itertools.pairwise(powers))
        assert powers[-1] > 0.99


def test_the_detectable_effect_and_the_clusters_needed_invert_the_power():
    effect = minimum_detectable_effect(sd=0.7, clusters=6)
    assert contrast_power(effect, sd=0.7, clusters=6) == pytest.approx(0.8, abs=1e-6)
    needed = clusters_needed(0.3, sd=0.7)
    assert (
        contrast_power(0.3, sd=0.7, clusters=needed) >= 0.8 > contrast_power(0.3, sd=0.7, clusters=needed - 1)
    )
    assert clusters_needed(1e-9, sd=1.0) is None
    assert minimum_detectable_effect(sd=1.0, clusters=1) is None
    assert contrast_power(1.0, sd=1.0, clusters=1) == 0.0


def test_the_standard_error_of_r2_gives_the_t_values_of_ten_daily_years():
    assert 0.001 / r2_standard_error(0.001, dates=2520, assets=1) == pytest.approx(0.8, abs=0.01)
    assert 0.001 / r2_standard_error(0.001, dates=2520, assets=20) == pytest.approx(3.5, abs=0.06)
    assert r2_power(0.001, dates=2520, assets=20) == pytest.approx(0.97, abs=0.01)


def test_the_standard_error_of_r2_and_of_its_difference_match_simulation():
    rng = np.random.default_rng(13)
    r2, dates, assets, agreement = 0.02, 400, 4, 0.6
    single, difference = [], []
    for _ in range(600):
        noise = rng.standard_normal((3, dates, assets))
        common = math.sqrt(agreement) * noise[0]
        a, b = (math.sqrt(r2) * (common + math.sqrt(1 - agreement) * noise[place]) for place in (1, 2))
        # Both are calibrated: each is the conditional mean given itself.
        y = (a + b) / (1 + agreement) + rng.standard_normal((dates, assets))
        total = (y**2).sum()
        found = [1 - ((y - p) ** 2).sum() / total for p in (a, b)]
        single.append(found[0])
        difference.append(found[0] - found[1])
    assert np.std(single) == pytest.approx(r2_standard_error(r2, dates=dates, assets=assets), rel=0.12)
    expected = paired_r2_sd(r2, agreement=agreement, dates=dates, assets=assets)
    assert np.std(difference) == pytest.approx(expected, rel=0.12)


@pytest.mark.parametrize(
    ("correlation", "expected"), [(0.0, 10.0), (1.0, 1.0), (0.5, 100 / (10 + 90 * 0.25))]
)
def test_effective_assets_fall_from_all_to_one_with_correlation(correlation: float, expected: float):
    rng = np.random.default_rng(14)
    common = rng.standard_normal((20_000, 1))
    y = math.sqrt(correlation) * common + math.sqrt(1 - correlation) * rng.standard_normal((20_000, 10))
    assert effective_assets(forecasts(y, y)) == pytest.approx(expected, rel=0.03)


def test_a_panel_of_one_or_of_flat_assets_counts_as_one():
    y = np.random.default_rng(15).standard_normal((30, 1))
    assert effective_assets(forecasts(y, y)) == 1.0
    assert effective_assets(forecasts(np.zeros((30, 3)), np.zeros((30, 3)))) == 1.0

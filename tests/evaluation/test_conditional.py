"""Giacomini-White and Pesaran-Timmermann against literal formulas, a library and planted differences."""

from __future__ import annotations

import math

import numpy as np
import polars as pl
import pytest
import statsmodels.api as sm
from scipy import stats
from statsmodels.stats.api import pesaran_timmermann as library

from fints.evaluation import giacomini_white, pesaran_timmermann


def known_volatility(y: np.ndarray, horizon: int) -> np.ndarray:
    """Root mean square outcome of the last 21 dates known on each date; NaN before the first."""
    square = (y**2).mean(axis=1)
    out = np.full(len(y), np.nan)
    for t in range(horizon, len(y)):
        out[t] = math.sqrt(square[max(0, t - horizon - 20) : t - horizon + 1].mean())
    return out


@pytest.mark.parametrize("horizon", [1, 3])
def test_giacomini_white_is_the_wald_statistic_of_its_moments(forecasts, horizon: int):
    rng = np.random.default_rng(0)
    y, a, b = rng.standard_normal((3, 750, 4)) * np.array([1.0, 0.4, 0.3]).reshape(3, 1, 1)
    found = giacomini_white(forecasts(y, a), forecasts(y, b), horizon=horizon)
    d, v = ((y - a) ** 2 - (y - b) ** 2).mean(axis=1)[::horizon], known_volatility(y, horizon)[::horizon]
    d, v = d[np.isfinite(v)], v[np.isfinite(v)]
    z = np.column_stack([np.ones(len(d) - 1), d[:-1], v[:-1]]) * d[1:, None]
    # The paper's own way to compute it: n R2 (uncentred) of the regression of 1 on z.
    fit = sm.OLS(np.ones(len(z)), z).fit()
    assert found.dates == len(z)
    assert found.statistic == pytest.approx(len(z) * (1 - fit.ssr / len(z)), rel=1e-9)
    assert found.p == pytest.approx(stats.chi2.sf(found.statistic, 3), rel=1e-12)


def test_giacomini_white_tells_who_wins_when_volatility_is_high(forecasts):
    rng = np.random.default_rng(1)
    wild = np.repeat(rng.random(100) < 0.5, 12)[:, None]
    signal = rng.standard_normal((1200, 5))
    y = np.where(wild, 3.0, 1.0) * rng.standard_normal((1200, 5)) + 0.8 * signal
    # The first forecast knows the signal on calm days, the second on wild ones; neither is better overall.
    a, b = np.where(wild, 0.0, 0.8) * signal, np.where(wild, 0.8, 0.0) * signal
    dates = forecasts(y, a)["date"].unique().sort()
    volatility = pl.DataFrame({"date": dates, "volatility": np.roll(np.where(wild, 3.0, 1.0)[:, 0], -1)})
    found = giacomini_white(forecasts(y, a), forecasts(y, b), volatility=volatility)
    assert found.p < 1e-4
    assert found.calm < 0 < found.wild
    assert found.first_preferred == pytest.approx(1 - wild.mean(), abs=0.1)
    swapped = giacomini_white(forecasts(y, b), forecasts(y, a), volatility=volatility)
    assert swapped.statistic == pytest.approx(found.statistic, rel=1e-9)
    assert swapped.calm == pytest.approx(-found.calm, rel=1e-9)


def test_giacomini_white_says_nothing_where_it_cannot(forecasts):
    y, a, b = np.random.default_rng(2).standard_normal((3, 190, 3))
    assert giacomini_white(forecasts(y, a), forecasts(y, b)).p is None
    assert giacomini_white(forecasts(y, a), forecasts(y, a)).p == 1.0
    short = pl.DataFrame({"date": forecasts(y, a)["date"].unique().sort()[:-1], "volatility": 1.0})
    with pytest.raises(ValueError, match="every date needs a volatility"):
        giacomini_white(forecasts(y, a), forecasts(y, b), volatility=short)
    with pytest.raises(ValueError, match="horizon must be at least 1"):
        giacomini_white(forecasts(y, a), forecasts(y, b), horizon=0)


def test_pesaran_timmermann_of_one_asset_is_that_of_statsmodels_to_first_order(forecasts):
    rng = np.random.default_rng(3)
    y = 0.4 + rng.standard_normal((4000, 1))
    p = 0.3 + 0.1 * y + rng.standard_normal((4000, 1))
    found, expected = pesaran_timmermann(forecasts(y, p)), library(y.ravel(), p.ravel(), alternative="larger")
    assert found.statistic == pytest.approx(expected.statistic, rel=0.05)
    assert found.estimate == pytest.approx(expected.res_store.p_hat - expected.res_store.p_ind, rel=1e-9)


def test_a_forecast_that_always_rises_gets_no_credit_for_a_rising_market(forecasts):
    rng = np.random.default_rng(4)
    y = 1.0 + rng.standard_normal((600, 5))
    up = np.where(rng.random((600, 5)) < 0.9, 1.0, -1.0)
    assert (np.sign(y) == up).mean() > 0.75
    assert abs(pesaran_timmermann(forecasts(y, up)).statistic) < 3
    assert pesaran_timmermann(forecasts(y, np.ones_like(y))).p is None


def test_the_same_asset_five_times_is_no_more_evidence_of_direction_than_once(forecasts):
    rng = np.random.default_rng(5)
    y, p = rng.standard_normal((2, 300, 1))
    once = pesaran_timmermann(forecasts(y, p))
    five = pesaran_timmermann(forecasts(np.repeat(y, 5, axis=1), np.repeat(p, 5, axis=1)))
    assert five.statistic == pytest.approx(once.statistic, rel=1e-9)

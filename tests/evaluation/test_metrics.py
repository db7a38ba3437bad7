"""Every metric against a naive loop, a closed form or a library."""

from __future__ import annotations

import datetime as dt
import math

import numpy as np
import polars as pl
import pytest
import statsmodels.api as sm
from scipy import integrate, stats

from fints.evaluation import (
    coverage,
    crps,
    ic_series,
    log_score,
    metrics,
    newey_west_t,
    prevailing_mean,
    r2_by_asset,
    r2_mean,
    r2_precision,
    r2_zero,
    share_of_oracle,
)


def panel(days: int = 40, assets: int = 5, seed: int = 0, **columns) -> pl.DataFrame:
    rng = np.random.default_rng(seed)
    dates = [dt.date(2020, 1, 1) + dt.timedelta(days=day) for day in range(days)]
    rows = days * assets
    return pl.DataFrame(
        {
            "date": [day for day in dates for _ in range(assets)],
            "asset": [f"a{number}" for number in range(assets)] * days,
            "forecast": 0.3 * rng.standard_normal(rows),
            "realised": rng.standard_normal(rows),
        }
        | {name: make(rng, rows) for name, make in columns.items()}
    )


def shuffled(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.sample(fraction=1.0, shuffle=True, seed=3)


def test_pooled_r2_is_the_ratio_of_two_sums():
    frame = panel()
    error = sum((r - p) ** 2 for p, r in frame.select("forecast", "realised").rows())
    total = sum(r**2 for r in frame["realised"])
    assert r2_zero(frame) == pytest.approx(1 - error / total, abs=1e-14)
    assert r2_zero(frame.with_columns(forecast=0.0)) == 0.0
    assert r2_zero(frame.with_columns(forecast=pl.col("realised"))) == 1.0


def test_r2_against_the_mean_uses_each_rows_own_benchmark():
    frame = panel(prevailing_mean=lambda rng, rows: 0.5 * rng.standard_normal(rows))
    benchmark = sum((r - m) ** 2 for r, m in frame.select("realised", "prevailing_mean").rows())
    error = sum((r - p) ** 2 for p, r in frame.select("forecast", "realised").rows())
    assert r2_mean(frame) == pytest.approx(1 - error / benchmark, abs=1e-14)
    perfect = frame.with_columns(forecast=pl.col("prevailing_mean"))
    assert r2_mean(perfect) == 0.0


def test_a_row_without_a_prevailing_mean_counts_in_neither_sum():
    frame = panel(prevailing_mean=lambda rng, rows: 0.5 * rng.standard_normal(rows))
    first = frame["date"].min()
    late = frame.filter(pl.col("date") > first)
    holed = frame.with_columns(
        pl.when(pl.col("date") > first).then(pl.col("prevailing_mean")).alias("prevailing_mean")
    )
    assert r2_mean(holed) == r2_mean(late)


def test_precision_weights_make_two_volatility_regimes_count_alike():
    rng = np.random.default_rng(1)
    calm, wild = panel(seed=1), panel(seed=2)
    wild = wild.with_columns(
        date=pl.col("date") + dt.timedelta(days=365),
        forecast=10 * pl.col("forecast"),
        realised=10 * pl.col("realised"),
    )
    both = pl.concat([calm.with_columns(variance=1.0), wild.with_columns(variance=100.0)])
    unscaled = pl.concat(
        [calm, wild.with_columns(forecast=pl.col("forecast") / 10, realised=pl.col("realised") / 10)]
    )
    assert r2_precision(both) == pytest.approx(r2_zero(unscaled), abs=1e-12)
    assert abs(r2_zero(both) - r2_zero(wild)) < abs(r2_precision(both) - r2_zero(wild))
    with pytest.raises(ValueError, match="above 0"):
        r2_precision(both.with_columns(variance=pl.Series(rng.standard_normal(both.height))))


def test_r2_by_asset_is_the_pooled_r2_of_each_asset_alone():
    frame = panel()
    table = r2_by_asset(shuffled(frame))
    assert table["asset"].to_list() == ["a0", "a1", "a2", "a3", "a4"]
    for asset, value, rows in table.rows():
        assert value == pytest.approx(r2_zero(frame.filter(pl.col("asset") == asset)), abs=1e-14)
        assert rows == 40
    assert metrics(frame)["r2_median_asset"] == np.median(table["r2_zero"])


def test_ic_is_pearson_and_rank_ic_spearman_date_by_date_ties_included():
    frame = panel(assets=7).with_columns(pl.col("forecast").round(1), pl.col("realised").round(0))
    table = ic_series(shuffled(frame))
    for (day,), rows in frame.partition_by("date", as_dict=True).items():
        row = table.row(by_predicate=pl.col("date") == day, named=True)
        p, r = rows["forecast"].to_numpy(), rows["realised"].to_numpy()
        assert row["ic"] == pytest.approx(stats.pearsonr(p, r).statistic, abs=1e-12)
        assert row["rank_ic"] == pytest.approx(stats.spearmanr(p, r).statistic, abs=1e-12)


@pytest.mark.parametrize("side", ["forecast", "realised"])
def test_a_constant_day_has_no_ic_and_counts_as_missing_never_as_zero(side: str):
    frame = panel(days=10)
    days = frame["date"].unique().sort()
    # Not exactly constant: a float32 network returns the same number up to rounding.
    flat = pl.lit(0.1) + 1e-9 * pl.col("realised")
    broken = frame.with_columns(
        pl.when(pl.col("date") <= days[3]).then(flat).otherwise(pl.col(side)).alias(side)
    )
    table = ic_series(broken)
    assert table["ic"].null_count() == table["rank_ic"].null_count() == 4
    found = metrics(broken)
    assert (found["days"], found["missing_days"]) == (6, 4)
    assert found["ic"] == pytest.approx(ic_series(frame)["ic"][4:].mean(), abs=1e-14)


def test_a_forecast_that_is_constant_throughout_has_no_ic_at_all():
    found = metrics(panel().with_columns(forecast=0.25))
    assert found["ic"] is found["rank_ic"] is found["rank_ic_t"] is found["ic_ir"] is None
    assert (found["days"], found["missing_days"]) == (0, 40)


def test_one_asset_has_an_r2_but_no_ic():
    found = metrics(panel(assets=1))
    assert found["r2_zero"] is not None
    assert found["rank_ic"] is None
    assert found["missing_days"] == 40


def test_tiny_returns_do_not_underflow_the_ic():
    frame = panel()
    tiny = frame.with_columns(pl.col("forecast", "realised") * 1e-160)
    assert ic_series(tiny)["ic"].to_list() == pytest.approx(ic_series(frame)["ic"].to_list(), abs=1e-12)


@pytest.mark.parametrize("lags", [0, 1, 4, 12])
def test_newey_west_agrees_with_statsmodels(lags: int):
    rng = np.random.default_rng(5)
    series = 0.1 + np.convolve(rng.standard_normal(310), np.ones(10) / 10, mode="valid")
    fit = sm.OLS(series, np.ones(len(series))).fit(
        cov_type="HAC", cov_kwds={"maxlags": lags, "use_correction": False}
    )
    assert newey_west_t(series, lags=lags) == pytest.approx(float(fit.tvalues[0]), rel=1e-10)


def test_overlapping_outcomes_raise_the_lags_to_the_horizon():
    series = np.convolve(np.random.default_rng(6).standard_normal(400), np.ones(21), mode="valid")
    assert newey_west_t(series, horizon=21) == newey_west_t(series, lags=20)
    assert newey_west_t([0.1] * 50) is None
    assert newey_west_t([0.1]) is None


def naive_prevailing_mean(frame: pl.DataFrame) -> list[float | None]:
    rows = frame.rows(named=True)
    means = []
    for now in rows:
        known = [
            row["realised"]
            for row in rows
            if row["asset"] == now["asset"]
            and row["realised"] is not None
            and row["label_end"] is not None
            and row["label_end"] <= now["date"]
        ]
        means.append(sum(known) / len(known) if known else None)
    return means


@pytest.mark.parametrize("horizon", [1, 5])
def test_the_prevailing_mean_knows_only_outcomes_that_have_ended(horizon: int):
    frame = (
        panel(days=30, assets=3)
        .sort("asset", "date")
        .with_columns(
            label_end=pl.col("date").shift(-horizon).over("asset"),
        )
    )
    frame = frame.with_columns(realised=pl.when(pl.col("label_end").is_not_null()).then(pl.col("realised")))
    # One asset has gaps: its labels end later than `horizon` calendar days.
    frame = shuffled(frame.filter((pl.col("asset") != "a1") | (pl.col("date").dt.day() % 3 != 0)))
    expected = naive_prevailing_mean(frame)
    assert prevailing_mean(frame).to_list() == pytest.approx(expected, abs=1e-12, nan_ok=False)
    without = panel(days=30, assets=3)
    dated = without.sort("asset", "date").with_columns(label_end=pl.col("date") + dt.timedelta(days=horizon))
    by_rows = prevailing_mean(dated.drop("label_end"), horizon=horizon).to_list()
    assert by_rows == pytest.approx(prevailing_mean(dated).to_list(), abs=1e-12)


def test_a_later_outcome_changes_no_earlier_prevailing_mean():
    frame = panel(days=30, assets=3).sort("asset", "date")
    cut = dt.date(2020, 1, 20)
    shocked = frame.with_columns(
        pl.when(pl.col("date") >= cut).then(1e6).otherwise(pl.col("realised")).alias("realised")
    )
    before = frame["date"] <= cut
    assert prevailing_mean(frame).filter(before).equals(prevailing_mean(shocked).filter(before))


def test_the_share_of_oracle_is_one_for_the_oracle_and_zero_for_zero():
    frame = panel(oracle=lambda rng, rows: rng.standard_normal(rows))
    assert share_of_oracle(frame.with_columns(forecast=pl.col("oracle"))) == 1.0
    assert share_of_oracle(frame.with_columns(forecast=0.0)) == 0.0
    assert share_of_oracle(frame.with_columns(forecast=0.5 * pl.col("oracle"))) == pytest.approx(0.75)
    assert share_of_oracle(frame.with_columns(oracle=0.0)) is None


@pytest.mark.parametrize("degrees", [None, 3.0, 8.0])
def test_distribution_scores_match_their_definitions(degrees: float | None):
    frame = panel(days=4, log_scale=lambda rng, rows: 0.3 * rng.standard_normal(rows))
    if degrees:
        frame = frame.with_columns(degrees=degrees)
    scores, densities, inside = [], [], []
    for row in frame.rows(named=True):
        scale = math.exp(row["log_scale"])
        law = stats.t(degrees, row["forecast"], scale) if degrees else stats.norm(row["forecast"], scale)
        low, _ = integrate.quad(lambda x, law=law: law.cdf(x) ** 2, -np.inf, row["realised"])
        high, _ = integrate.quad(lambda x, law=law: law.sf(x) ** 2, row["realised"], np.inf)
        scores.append(low + high)
        densities.append(law.logpdf(row["realised"]))
        inside.append(law.ppf(0.25) <= row["realised"] <= law.ppf(0.75))
    assert crps(frame) == pytest.approx(np.mean(scores), abs=1e-7)
    assert log_score(frame) == pytest.approx(np.mean(densities), abs=1e-12)
    assert coverage(frame, 0.5) == np.mean(inside)


def test_a_constant_price_gives_metrics_without_a_nan():
    found = metrics(panel().with_columns(realised=0.0))
    assert found["r2_zero"] is None
    assert found["rank_ic"] is None
    assert all(value is None or math.isfinite(value) for value in found.values())


def test_rows_without_outcome_or_forecast_do_not_count_and_are_counted():
    frame = panel()
    holed = frame.with_columns(
        forecast=pl.when(pl.col("asset") == "a0").then(float("nan")).otherwise(pl.col("forecast")),
        realised=pl.when(pl.col("date") < dt.date(2020, 1, 3)).then(None).otherwise(pl.col("realised")),
    )
    kept = frame.filter((pl.col("asset") != "a0") & (pl.col("date") >= dt.date(2020, 1, 3)))
    assert metrics(holed) | {"missing_rows": 0} == metrics(kept)
    assert metrics(holed)["missing_rows"] == frame.height - kept.height


def test_row_order_changes_no_bit_of_any_metric():
    frame = panel(
        days=60,
        assets=9,
        prevailing_mean=lambda rng, rows: rng.standard_normal(rows),
        unit_scale=lambda rng, rows: rng.uniform(0.01, 0.03, rows),
    )
    assert metrics(frame) == metrics(shuffled(frame))


def test_a_frame_that_cannot_be_judged_is_refused_with_the_reason():
    frame = panel()
    with pytest.raises(ValueError, match="lacks realised"):
        metrics(frame.drop("realised"))
    with pytest.raises(ValueError, match="must be unique"):
        metrics(pl.concat([frame, frame]))
    with pytest.raises(ValueError, match="finite"):
        metrics(frame.with_columns(forecast=float("inf")))
    with pytest.raises(ValueError, match="no row has both"):
        metrics(frame.with_columns(realised=pl.lit(None, pl.Float64)))

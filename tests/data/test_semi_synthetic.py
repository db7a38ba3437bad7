"""The semi-synthetic tier: real sizes, a conditional mean of exactly zero, a planted signal of known R2."""

from __future__ import annotations

import datetime as dt
import math

import numpy as np
import polars as pl
import pytest

from fints.data import Panel, features, load, semi_synthetic, targets
from fints.data.semi_synthetic import OWN_SIGNALS, flip_returns
from fints.data.synthetic_signals import planted_g

EXOGENOUS = ("linear", "interaction", "gated_filter", "memory_chain")


def returns(panel: Panel) -> pl.DataFrame:
    return features(panel, ["return_1"])


@pytest.fixture(scope="module")
def real() -> Panel:
    return load("sp500-20")["2015":"2017"]


def test_the_null_keeps_the_size_of_every_return_and_every_product_of_two_on_a_date(real):
    null = semi_synthetic(real, seed=3).panel
    before, after = (
        returns(panel).pivot(on="asset", index="date", values="return_1").drop("date").to_numpy()[1:]
        for panel in (real, null)
    )
    np.testing.assert_allclose(np.abs(after), np.abs(before), atol=1e-12)
    products = [x[:, :, None] * x[:, None, :] for x in (before, after)]
    np.testing.assert_allclose(products[1], products[0], atol=1e-12)
    assert not np.allclose(after, before)


def test_over_the_two_signs_of_a_date_each_return_averages_to_zero_given_the_same_past(ragged):
    panel = ragged(seed=1)
    generator = np.random.default_rng(0)
    count = len(panel.dates)
    signs = 2 * generator.integers(0, 2, count) - 1
    for day in generator.integers(1, count, 20):
        other = signs.copy()
        other[day] *= -1
        one, two = flip_returns(panel, signs), flip_returns(panel, other)
        past = pl.col("date") < panel.dates[int(day)]
        assert one.frame.filter(past).equals(two.frame.filter(past))
        on = pl.col("date") == panel.dates[int(day)]
        a, b = (returns(p).filter(on)["return_1"].drop_nulls().to_numpy() for p in (one, two))
        assert len(a) == len(b)
        np.testing.assert_allclose(a, -b, atol=1e-13)


def test_signs_are_those_of_the_date_on_which_a_return_ends_halts_and_late_listings_included(ragged):
    panel = ragged(seed=2)
    null = semi_synthetic(panel, seed=5).panel
    ratio = (
        returns(panel)
        .join(returns(null), on=["date", "asset"], suffix="_null")
        .drop_nulls()
        .select("date", sign=pl.col("return_1_null") / pl.col("return_1"))
    )
    assert ratio.height == panel.frame.height - len(panel.assets)
    np.testing.assert_allclose(ratio["sign"].abs(), 1, atol=1e-9)
    assert ratio.group_by("date").agg(pl.col("sign").round(6).n_unique())["sign"].max() == 1
    assert null.frame.select("date", "asset").equals(panel.frame.select("date", "asset"))
    assert null.frame["volume"].equals(panel.frame["volume"])


def test_the_null_has_no_signal_and_a_seed_has_its_signs_whatever_the_signal(real):
    null = semi_synthetic(real, seed=1)
    assert (null.oracle_r2, null.realised_oracle_r2) == (0.0, 0.0)
    assert null.signal["signal"].unique().to_list() == [0.0]
    for signal in (*EXOGENOUS, *OWN_SIGNALS):
        planted = semi_synthetic(real, signal=signal, r2=1e-9, seed=1).panel
        joined = returns(null.panel).join(returns(planted), on=["date", "asset"], suffix="_planted")
        gap = (joined["return_1"] - joined["return_1_planted"]).abs()
        assert gap.max() < 1e-5
    assert semi_synthetic(real, seed=2).panel.checksum != null.panel.checksum


def test_a_realised_oracle_is_near_the_r2_asked_for(real):
    for signal in ("memory_chain", "reversal"):
        made = semi_synthetic(real, r2=0.05, signal=signal, seed=9)
        assert made.oracle_r2 == 0.05
        assert made.realised_oracle_r2 == pytest.approx(0.05, abs=0.015)


@pytest.mark.parametrize("signal_scale", ["constant", "proportional"])
def test_late_listings_and_halts_leave_the_r2_as_asked_for(ragged, signal_scale):
    realised = [
        semi_synthetic(ragged(300, seed=s), r2=0.2, signal_scale=signal_scale, seed=s).realised_oracle_r2
        for s in range(12)
    ]
    error = np.std(realised, ddof=1) / math.sqrt(12)
    assert error < 0.012
    assert abs(np.mean(realised) - 0.2) < 3 * error


def test_autocorrelation_of_the_real_panel_is_gone_under_the_null(real):
    correlations = []
    for seed in range(20):
        x = returns(semi_synthetic(real, seed=seed).panel)["return_1"].to_numpy().reshape(-1, 20)[1:]
        correlations.append((x[1:] * x[:-1]).sum() / (x**2).sum())
    error = np.std(correlations, ddof=1) / math.sqrt(20)
    assert abs(np.mean(correlations)) < 3.5 * error


@pytest.mark.slow
@pytest.mark.parametrize("signal", [*EXOGENOUS, *OWN_SIGNALS])
@pytest.mark.parametrize("signal_scale", ["constant", "proportional"])
def test_the_realised_oracle_lies_within_its_error_of_the_r2_asked_for(real, signal, signal_scale):
    realised = [
        semi_synthetic(real, r2=0.02, signal=signal, signal_scale=signal_scale, seed=seed).realised_oracle_r2
        for seed in range(8)
    ]
    error = np.std(realised, ddof=1) / math.sqrt(8)
    assert error < 0.002
    assert abs(np.mean(realised) - 0.02) < 4.5 * error


def test_the_panels_target_is_the_return_the_signal_forecasts(ragged):
    made = semi_synthetic(ragged(seed=4), r2=0.3, seed=6)
    joined = targets(made.panel, "log_return", 1).join(made.signal, on=["date", "asset"])
    known = joined.drop_nulls("target")
    assert known.height == made.panel.frame.height - len(made.panel.assets)
    error = ((known["target"] - known["signal"]) ** 2).sum() / (known["target"] ** 2).sum()
    assert 1 - error == pytest.approx(made.realised_oracle_r2, abs=1e-12)


@pytest.mark.parametrize("signal", [*EXOGENOUS, *OWN_SIGNALS])
@pytest.mark.parametrize("signal_scale", ["constant", "proportional"])
def test_the_panels_columns_up_to_t_are_enough_to_make_the_oracle(ragged, signal, signal_scale):
    made = semi_synthetic(ragged(400, seed=7), r2=0.3, signal=signal, signal_scale=signal_scale, seed=8)
    frame = made.panel.frame.join(made.signal, on=["date", "asset"])
    frame = frame.join(returns(made.panel), on=["date", "asset"])
    found, wanted = [], []
    for _, rows in frame.group_by("asset", maintain_order=True):
        r = rows["return_1"].fill_null(0.0).to_numpy()
        weights = 0.5 ** (np.arange(63) / 21)
        sigma = np.full(len(r), np.nan)
        for t in range(63, len(r)):
            sigma[t] = math.sqrt((weights * r[t - 62 : t + 1][::-1] ** 2).sum() / weights.sum())
        if signal in EXOGENOUS:
            a, b = (rows[name].to_numpy()[:, None] for name in "ab")
            g = planted_g(signal, a, b)[:, 0]
        else:
            z = np.tanh(r / sigma)
            before = np.concatenate([[0.0], z[:-1]])
            g = -z if signal == "reversal" else -z * np.nan_to_num(before)
        scale = sigma if signal_scale == "proportional" else np.ones(len(r))
        found.append(np.nan_to_num(scale * g))
        wanted.append(rows["signal"].to_numpy())
    x, s = np.concatenate(found), np.concatenate(wanted)
    k = (x * s).sum() / (x**2).sum()
    np.testing.assert_allclose(s, k * x, atol=1e-9 * np.abs(s).max())
    assert np.abs(s).max() > 0


def test_the_future_of_the_real_panel_reaches_no_column_and_no_sign(ragged):
    panel = ragged(200, seed=9)
    cut = panel.dates[150]
    shocked = Panel(
        panel.frame.with_columns(
            close=pl.when(pl.col("date") > cut).then(pl.col("close") * 1000).otherwise("close")
        )
    )
    one, two = (semi_synthetic(p, seed=1).panel.frame.filter(pl.col("date") <= cut) for p in (panel, shocked))
    assert one.equals(two)


def test_sealed_dates_are_left_out_whatever_the_panel_is_called():
    whole = load("sp500-20")
    copy = Panel(whole.frame.filter(pl.col("asset") != "AAPL"), name="mine")
    for panel in (whole, copy):
        assert semi_synthetic(panel).panel.dates[-1] == dt.date(2017, 12, 29)
    with pytest.raises(ValueError, match="every date of sp500-20 is sealed from 2018-01-01 on"):
        semi_synthetic(whole["2018":])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"signal": "trend"}, "signal = 'trend' is unknown. Choose one of linear"),
        ({"signal_scale": "x"}, "signal_scale = 'x' is unknown"),
        ({"r2": 1.0}, r"r2 in \[0, 1\); got 1.0"),
        ({"seed": -1}, "seed of at least 0"),
    ],
)
def test_impossible_arguments_are_refused(ragged, arguments, said):
    with pytest.raises(ValueError, match=said):
        semi_synthetic(ragged(), **arguments)


def test_panels_that_cannot_carry_the_signal_are_refused_with_the_remedy(ragged, one_asset):
    with pytest.raises(ValueError, match="has a column 'a'"):
        semi_synthetic(Panel(ragged().frame.rename({"volume": "a"})))
    with pytest.raises(ValueError, match="nothing to sign"):
        semi_synthetic(one_asset([100.0, 100.0, 100.0]))
    with pytest.raises(ValueError, match="too short for this signal"):
        semi_synthetic(one_asset([100.0, 101.0, 100.5]), r2=0.1, signal="reversal")
    with pytest.raises(ValueError, match="signs must be 1 or -1, one for each of the 3 dates"):
        flip_returns(one_asset([100.0, 101.0, 100.5]), np.array([1.0, 0.0, 1.0]))

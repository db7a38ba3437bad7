"""The oracle by volatility, and targets without their noise."""

from __future__ import annotations

import math

import numpy as np
import polars as pl
import pytest

from fints.data import noise_free_targets, oracle_by_volatility, semi_synthetic, simulate, targets


def quintiles(scale: str, column: str, seeds: range) -> np.ndarray:
    """(seeds, 5) of a column of `oracle_by_volatility` at R2 0.5 %."""
    return np.array(
        [
            oracle_by_volatility(
                simulate(r2=0.005, noise="garch", signal_scale=scale, num_assets=50, num_days=2500, seed=seed)
            )[column].to_list()
            for seed in seeds
        ]
    )


def test_a_constant_signal_has_a_quarter_of_a_percent_in_wild_days_and_one_percent_in_calm_ones():
    found = quintiles("constant", "oracle_r2", range(3)).mean(axis=0)
    assert found[0] == pytest.approx(0.0103, abs=0.0003)
    assert found[4] == pytest.approx(0.0025, abs=0.0003)
    assert (np.diff(found) < 0).all()


def test_a_proportional_signal_has_the_same_r2_at_every_volatility():
    found = quintiles("proportional", "oracle_r2", range(3)).mean(axis=0)
    np.testing.assert_allclose(found, 0.005, atol=0.0002)


@pytest.mark.slow
@pytest.mark.parametrize("scale", ["constant", "proportional"])
def test_what_the_oracle_realises_by_volatility_is_what_was_constructed(scale):
    known, realised = (quintiles(scale, name, range(12)) for name in ("oracle_r2", "realised_oracle_r2"))
    gaps = realised - known
    errors = gaps.std(axis=0, ddof=1) / math.sqrt(12)
    assert (errors < 0.0008).all()
    assert (np.abs(gaps.mean(axis=0)) < 4 * errors).all()


def test_the_bins_are_equal_share_every_known_row_and_pool_to_the_whole():
    made = simulate(r2=0.1, noise="garch", num_assets=7, num_days=101, seed=2)
    table = oracle_by_volatility(made, bins=4)
    assert table["bin"].to_list() == [1, 2, 3, 4]
    assert table["rows"].sum() == 700
    assert table["rows"].max() - table["rows"].min() <= 1
    assert (table["volatility_from"][1:] >= table["volatility_to"][:-1]).all()
    (one,) = oracle_by_volatility(made, bins=1).iter_rows(named=True)
    assert one["realised_oracle_r2"] == pytest.approx(made.realised_oracle_r2, abs=1e-12)
    with pytest.raises(ValueError, match="no more than rows with an outcome, 700; got 0"):
        oracle_by_volatility(made, bins=0)


@pytest.mark.parametrize("name", ["log_return", "volatility_scaled"])
def test_a_noise_free_target_is_the_signal_in_the_targets_units_where_the_target_is_known(ragged, name):
    made = semi_synthetic(ragged(300, seed=1), r2=0.2, seed=2)
    noisy, clean = targets(made.panel, name, 1), noise_free_targets(made.panel, made.signal, name)
    assert clean.select("date", "asset").equals(noisy.select("date", "asset"))
    assert clean["target"].is_null().equals(noisy["target"].is_null())
    assert clean["label_end"].equals(noisy["label_end"])
    joined = clean.join(made.signal, on=["date", "asset"]).drop_nulls("target")
    assert joined.height > 100
    np.testing.assert_allclose(joined["target"] * joined["scale"], joined["signal"], rtol=1e-12)


def test_noise_is_what_a_target_has_beyond_the_noise_free_one():
    made = simulate(r2=0.3, num_assets=30, num_days=2000, signal="memory_chain", seed=3)
    both = targets(made.panel, "log_return", 1).join(
        noise_free_targets(made.panel, made.signal, "log_return"), on=["date", "asset"], suffix="_clean"
    )
    noise = (both["target"] - both["target_clean"]).drop_nulls().to_numpy()
    clean = both["target_clean"].drop_nulls().to_numpy()
    assert noise.std() == pytest.approx(0.01, rel=0.02)
    assert abs(np.corrcoef(noise, clean)[0, 1]) < 0.02


def test_without_a_known_expectation_there_is_no_noise_free_target():
    made = simulate(num_days=80)
    with pytest.raises(ValueError, match="expectation of log_return and volatility_scaled only"):
        noise_free_targets(made.panel, made.signal, "cross_sectional")
    early = made.signal.filter(pl.col("date") < made.panel.dates[10])
    assert noise_free_targets(made.panel, early, "log_return")["target"].drop_nulls().len() == 200

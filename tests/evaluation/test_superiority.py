"""Comparisons of many forecasts: what arch says on the daily losses, all dates resampled jointly."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from arch.bootstrap import MCS, SPA, StepM, optimal_block_length

from fints.evaluation import (
    block_length,
    bootstrap_interval,
    loss_table,
    model_confidence_set,
    stepwise_superior,
    superior_ability,
)


def table(seed: int = 0, *, dates: int = 300) -> pl.DataFrame:
    rng = np.random.default_rng(seed)
    market = rng.standard_normal((dates, 1)) ** 2
    losses = market + 0.3 * rng.standard_normal((dates, 4)) + np.array([0.0, -0.15, 0.02, 0.2])
    days = pl.date_range(pl.date(2000, 1, 1), pl.date(2000, 1, 1) + pl.duration(days=dates - 1), eager=True)
    return pl.DataFrame({"date": days, **dict(zip("abcd", losses.T, strict=True))})


def test_losses_are_means_over_assets_on_the_rows_that_all_have(forecasts):
    rng = np.random.default_rng(1)
    y, a, b = rng.standard_normal((3, 40, 3))
    frames = {"a": forecasts(y, a), "b": forecasts(y, b)}
    found = loss_table(frames)
    assert found["a"].to_numpy() == pytest.approx(((y - a) ** 2).mean(axis=1), rel=1e-12)
    fewer = loss_table({"a": frames["a"].reverse(), "b": frames["b"].filter(pl.col("asset") != "a1")})
    assert fewer["a"].to_numpy() == pytest.approx(((y - a) ** 2)[:, [0, 2]].mean(axis=1), rel=1e-12)
    with pytest.raises(ValueError, match="other outcomes"):
        loss_table({"a": frames["a"], "b": forecasts(y + 1, b)})
    with pytest.raises(ValueError, match="two forecasts or more"):
        loss_table({"a": frames["a"]})
    with pytest.raises(ValueError, match="share no"):
        loss_table({"a": frames["a"], "b": frames["b"].with_columns(asset=pl.lit("z")).unique("date")})


def test_the_three_are_those_of_arch_on_the_same_blocks():
    losses = table()
    values = losses.drop("date").to_numpy()
    found = model_confidence_set(losses, reps=300, seed=7)
    theirs = MCS(values, 0.05, reps=300, block_size=found.block, method="max", bootstrap="stationary", seed=7)
    theirs.compute()
    assert found.included == tuple("abcd"[place] for place in sorted(theirs.included)) == ("b",)
    assert [found.p[name] for name in "abcd"] == theirs.pvalues["Pvalue"].sort_index().to_list()
    block = block_length(_centred(values[:, [0]] - values[:, 1:]))
    spa = SPA(values[:, 0], values[:, 1:], block_size=block, reps=300, bootstrap="stationary", seed=7)
    spa.compute()
    assert superior_ability(losses, "a", reps=300, seed=7) == spa.pvalues["consistent"] < 0.01
    step = StepM(
        values[:, 0], values[:, 1:], 0.05, block_size=block, reps=300, bootstrap="stationary", seed=7
    )
    step.compute()
    assert [("b", "c", "d")[place] for place in step.superior_models] == ["b"]
    assert stepwise_superior(losses, "a", reps=300, seed=7) == ("b",)
    assert stepwise_superior(losses, "b", reps=300) == ()


def _centred(values: np.ndarray) -> np.ndarray:
    return values - values.mean(axis=1, keepdims=True)


def test_the_best_of_many_worthless_forecasts_is_not_superior():
    rng = np.random.default_rng(3)
    losses = pl.DataFrame({"date": range(250)} | {f"m{i}": rng.standard_normal(250) for i in range(30)})
    best = min(losses.columns[1:], key=lambda name: losses[name].mean())
    others = losses.drop(best).columns[1:]
    against_mean = losses.with_columns(base=pl.mean_horizontal(others))
    alone = superior_ability(against_mean.select("date", "base", best), "base", reps=300)
    assert alone < 0.05 < superior_ability(against_mean, "base", reps=300)


def test_blocks_grow_with_dependence_and_with_overlap():
    rng = np.random.default_rng(4)
    noise = rng.standard_normal(2000)
    lasting = np.convolve(rng.standard_normal(2100), np.ones(60))[60:2060]
    assert block_length(noise) < 6
    expected = float(optimal_block_length(lasting)["stationary"].iloc[0])
    assert block_length(lasting) == int(np.ceil(expected)) > 30
    assert block_length(np.column_stack([noise, lasting])) == block_length(lasting)
    assert block_length(noise, horizon=21) == 42
    assert block_length(noise[:100], horizon=21) == 10


def test_a_bootstrap_interval_resamples_columns_together_and_finds_the_error_of_a_mean():
    rng = np.random.default_rng(5)
    x = rng.standard_normal(800)
    low, high = bootstrap_interval(x, np.mean)
    assert high - low == pytest.approx(2 * 1.96 * x.std() / np.sqrt(800), rel=0.15)
    # The difference of two equal columns is 0 on every resample only if dates stay whole.
    twice = np.column_stack([x, x])
    assert bootstrap_interval(twice, lambda v: float(v[:, 0].mean() - v[:, 1].mean())) == (0.0, 0.0)
    with pytest.raises(ValueError, match="20 dates"):
        bootstrap_interval(x[:19], np.mean)


def test_what_cannot_be_compared_is_said():
    with pytest.raises(ValueError, match="unknown benchmark 'z'"):
        superior_ability(table(), "z")
    with pytest.raises(ValueError, match="20 dates"):
        model_confidence_set(table(dates=19))
    with pytest.raises(ValueError, match="1 loss not finite"):
        model_confidence_set(
            table().with_columns(
                a=pl.when(pl.col("a") == pl.col("a").max())
                .then(None)
                .otherwise("a")
                .cast(pl.Float64)
                .fill_null(float("nan"))
            )
        )

"""Small networks as baselines: literal equations, causality, and that they learn what is there."""

from __future__ import annotations

import datetime as dt

import numpy as np
import polars as pl
import pytest
import torch

from fints.config import TrainingConfig
from fints.deep_baselines import DEEP_BASELINES, deep_baseline_forecasts
from fints.evaluation import WalkForward, r2_zero
from fints.model import MLP, DLinear

DAYS, ASSETS, CONTEXT = 420, 3, 6
DATES = [dt.date(2010, 1, 1) + dt.timedelta(days=day) for day in range(DAYS)]
FOLD = WalkForward(num_folds=1, test_days=80, validation_days=60, purge=1).split(DATES)[0]
TRAINING = TrainingConfig(steps=100, warmup_steps=5, evaluate_every=20)


def tables(seed: int = 0) -> tuple[pl.DataFrame, pl.DataFrame]:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((DAYS, ASSETS))
    target = 0.5 * rng.standard_normal((DAYS, ASSETS))
    target[2:] += 0.6 * x[:-2]
    keys = pl.DataFrame({"date": [day for day in DATES for _ in "abc"], "asset": list("abc") * DAYS})
    targets = keys.with_columns(target=pl.Series(target.ravel()), scale=pl.lit(0.02)).with_columns(
        label_end=pl.col("date").shift(-1).over("asset")
    )
    targets = targets.with_columns(pl.when(pl.col("label_end").is_not_null()).then("target").alias("target"))
    return targets, keys.with_columns(x=pl.Series(x.ravel()), y=pl.Series(rng.standard_normal(x.size)))


def forecast(name: str, targets: pl.DataFrame, features: pl.DataFrame) -> pl.DataFrame:
    return deep_baseline_forecasts(
        name,
        features=features,
        targets=targets,
        fold=FOLD,
        feature_names=["x", "y"],
        context=CONTEXT,
        training=TRAINING,
    )


def randomise(model: torch.nn.Module) -> None:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))


def test_dlinear_is_two_linear_maps_of_the_average_and_of_the_rest():
    model = DLinear(2, 7, kernel=3)
    randomise(model)
    x = torch.randn(4, 7, 2, generator=torch.Generator().manual_seed(1))
    x[1, 2, 0] = torch.nan
    known = x.nan_to_num().numpy().astype(float)
    padded = np.concatenate([known[:, :1], known, known[:, -1:]], axis=1)
    average = (padded[:, :-2] + padded[:, 1:-1] + padded[:, 2:]) / 3
    w, v, b = (part.detach().numpy() for part in (model.trend.weight, model.rest.weight, model.trend.bias))
    expected = (
        np.einsum("bft,ft->b", average.transpose(0, 2, 1), w[0].reshape(2, 7))
        + np.einsum("bft,ft->b", (known - average).transpose(0, 2, 1), v[0].reshape(2, 7))
        + b
    )
    found = model(x).mean[..., 0].detach().numpy()
    assert found == pytest.approx(np.repeat(expected[:, None], 7, axis=1), abs=1e-4)
    with pytest.raises(ValueError, match="kernel must be odd"):
        DLinear(2, 7, kernel=4)


def test_the_perceptron_is_its_three_maps_and_sees_what_is_missing():
    model = MLP(2, 3, width=5).eval()
    randomise(model)
    x = torch.randn(4, 3, 2, generator=torch.Generator().manual_seed(2))
    x[0, 1, 1] = torch.nan
    first, second = model.layers[0], model.layers[3]
    window = torch.cat([x.nan_to_num(), x.isnan().float()], dim=-1).reshape(4, -1)
    hidden = torch.nn.functional.gelu(window @ first.weight.T + first.bias)
    hidden = torch.nn.functional.gelu(hidden @ second.weight.T + second.bias)
    expected = hidden @ model.head.weight.T + model.head.bias
    torch.testing.assert_close(model(x).mean, expected[:, None].expand(4, 3, 1))
    filled = model(x.nan_to_num()).mean
    assert not torch.equal(filled[0], model(x).mean[0])
    assert torch.equal(filled[1:], model(x).mean[1:])


@pytest.mark.parametrize("name", DEEP_BASELINES)
def test_a_network_learns_a_signal_in_its_window(name: str):
    found = forecast(name, *tables())
    expected = FOLD.select(tables()[0], "test").drop_nulls("target").sort("date", "asset")
    assert found.select("date", "asset").equals(expected.select("date", "asset"))
    assert found["realised"].to_list() == expected["target"].to_list()
    assert r2_zero(found) > 0.25


@pytest.mark.slow
@pytest.mark.parametrize("name", DEEP_BASELINES)
def test_no_test_outcome_and_no_later_feature_changes_a_forecast(name: str):
    targets, features = tables()
    cut = DATES[-30]
    late = pl.col("date") >= FOLD.test[0]
    other = targets.with_columns(pl.when(late).then(1e6).otherwise("target").alias("target"))
    shocked = features.with_columns(pl.when(pl.col("date") > cut).then(1e6).otherwise("x").alias("x"))
    before = pl.col("date") <= cut
    one, two = forecast(name, targets, features), forecast(name, other, shocked)
    assert one.filter(before)["forecast"].equals(two.filter(before)["forecast"])
    assert one.filter(before).height > 100


def test_what_cannot_be_forecast_is_said():
    targets, features = tables()
    with pytest.raises(ValueError, match="Known: dlinear, mlp"):
        forecast("lstm", targets, features)
    with pytest.raises(ValueError, match="no train row has an outcome"):
        forecast("mlp", targets.filter(pl.col("date") > FOLD.train[1]), features)
    with pytest.raises(ValueError, match="no validation row has a window of 6 days"):
        forecast("mlp", targets, features.filter(~pl.col("date").is_between(*FOLD.validation)))

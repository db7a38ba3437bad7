"""Small networks as baselines: DLinear and a perceptron, on the windows and folds of the transformer.

They stand above `fints.evaluation`, which trains nothing: they use the windows of `fints.data` and the one
training loop of `fints.training`, so that a transformer and its baselines differ in the network alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import polars as pl
import torch
from torch import nn

from fints.config import TrainingConfig
from fints.data import StandardScaler, Windows
from fints.evaluation import Fold
from fints.model.plain import MLP, DLinear
from fints.training import derive, fit, predict

__all__ = ["DEEP_BASELINES", "deep_baseline_forecasts"]

DEEP_BASELINES: dict[str, Callable[[int, int], nn.Module]] = {"dlinear": DLinear, "mlp": MLP}
LEARNING_RATES = (3e-4, 1e-3, 3e-3)


def deep_baseline_forecasts(
    name: str,
    *,
    features: pl.DataFrame,
    targets: pl.DataFrame,
    fold: Fold,
    feature_names: Sequence[str],
    context: int = 24,
    min_valid: float = 0.5,
    clip: float = 10.0,
    training: TrainingConfig | None = None,
    seed: int = 0,
) -> pl.DataFrame:
    """Return the forecasts of a fold's test rows by a small network.

    The scaler is fitted and the weights are trained on the fold's training dates; its validation dates
    choose the learning rate (3e-4, 1e-3 or 3e-3) and, by the loop, the step whose weights are kept.

    Parameters
    ----------
    name
        "dlinear" or "mlp".
    features, targets
        As of `fints.data.features` and `fints.data.targets`, all dates.
    fold
        Its periods are purged already.
    feature_names, context, min_valid, clip
        As in `fints.config.DataConfig`.
    training
        Everything but the learning rate; default 600 steps.
    seed
        Determines weights, batch order and dropout, alike for every learning rate.

    Returns
    -------
    DataFrame
        `date`, `asset`, `forecast`, `realised`, `unit_scale`, as `fints.evaluation.baseline_forecasts`; the
        test rows with a window and an outcome.

    Raises
    ------
    ValueError
        If the name is unknown, a period has no window with an outcome, or every fit diverged.
    """
    if name not in DEEP_BASELINES:
        raise ValueError(f"unknown deep baseline {name!r}. Known: {', '.join(DEEP_BASELINES)}.")
    config = training or TrainingConfig(steps=600)
    labels = targets.select(
        "date", "asset", pl.col("target").cast(pl.Float64).fill_nan(None), "scale", "label_end"
    )
    learnt = fold.select(labels, "train").drop_nulls("target")["target"]
    if not len(learnt):
        raise ValueError(f"fold {fold.index}: no train row has an outcome; check the dates.")
    unit = float((learnt.to_numpy() ** 2).mean() ** 0.5) or 1.0
    names = list(feature_names)
    scaler = StandardScaler(clip=clip).fit(fold.select(features, "train"), names)
    windows = Windows.build(
        scaler.transform(features),
        labels.with_columns(pl.col("target") / unit),
        names,
        context=context,
        min_valid=min_valid,
    )
    train, validation = (
        windows.select(*fold.period(part), labelled=True) for part in ("train", "validation")
    )
    test = windows.select(*fold.period("test"), labelled=False)
    for part, chosen in (("train", train), ("validation", validation), ("test", test)):
        if not len(chosen):
            raise ValueError(
                f"fold {fold.index}: no {part} row has a window of {context} days; check the dates."
            )
    best_loss, best = float("inf"), None
    for rate in LEARNING_RATES:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive(seed, "model"))
            model = DEEP_BASELINES[name](len(names), context)
        result = fit(
            model,
            train,
            validation,
            dataclasses.replace(config, learning_rate=rate),
            seed=derive(seed, "training"),
        )
        loss = result.best_validation_loss
        if result.outcome in ("finished", "stopped_early") and loss is not None and loss < best_loss:
            best_loss, best = loss, model
    if best is None:
        raise ValueError(f"{name} diverged at every learning rate of {LEARNING_RATES}; check the features.")
    mean = predict(best, test)["mean"][:, 0].double().numpy() * unit
    return (
        test.keys()
        .with_columns(forecast=pl.Series(mean))
        .join(labels, on=["date", "asset"], how="inner")
        .drop_nulls("target")
        .select("date", "asset", "forecast", realised="target", unit_scale="scale")
        .sort("date", "asset")
    )

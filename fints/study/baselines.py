"""The baselines of a study: which there are, and one of them on one fold, on the data of the arms."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from fints.config import Experiment

if TYPE_CHECKING:
    import polars as pl

    from fints.data import Panel

__all__ = ["KNOWN", "NETWORKS", "SOURCES", "check_baselines", "forecast_baseline"]

KNOWN = {
    "zero": "no move",
    "prevailing_mean": "each asset's mean of all outcomes known",
    "ar1": "regression on the latest outcome",
    "ar1_by_asset": "the same, one an asset",
    "arma_garch": "ARMA(1, 1) by asset with GARCH(1, 1) errors",
    "ridge": "ridge regression on the window",
    "elastic_net": "elastic net on the window",
    "gradient_boosting": "boosted trees on the window",
    "dlinear": "two linear maps of the window, of its moving average and of the rest",
    "mlp": "perceptron with two hidden layers on the window",
}
# Fitted on the features of a window; the others see outcomes alone.
REGRESSIONS = ("ridge", "elastic_net", "gradient_boosting")
# Trained by the loop of the arms, so their numbers depend on the device and on torch.
NETWORKS = ("dlinear", "mlp")
# Their expectation over one day is the planted signal in their own units.
ORACLE_TARGETS = ("log_return", "volatility_scaled")
# What a baseline's forecasts run through beside `fints.study.fingerprint.AFFECTS_BASELINES`.
SOURCES: Mapping[str, tuple[str, ...]] = {
    "arma_garch": ("evaluation/arma_garch.py",),
    "elastic_net": ("evaluation/regressions.py",),
    "gradient_boosting": ("evaluation/regressions.py",),
    **dict.fromkeys(NETWORKS, ("deep_baselines.py", "config.py", "model", "residual", "training")),
}


def check_baselines(names: Sequence[str], base: Experiment) -> None:
    """Refuse baselines that no fold could be forecast with.

    Raises
    ------
    ValueError
        If a name is unknown or twice there, the prevailing mean is not, or the target is none for it.
    """
    for name in names:
        if name not in KNOWN:
            near = difflib.get_close_matches(name, KNOWN, n=1)
            hint = f"Did you mean {near[0]!r}? " if near else ""
            raise ValueError(f"unknown baseline {name!r}. {hint}Choose among {', '.join(KNOWN)}.")
    if len(set(names)) < len(names):
        raise ValueError(f"baselines must be distinct; got {', '.join(names)}.")
    if "prevailing_mean" not in names:
        raise ValueError(
            "baselines must hold prevailing_mean, a benchmark of every report; got "
            f"{', '.join(names) or 'none'}."
        )
    if "arma_garch" in names and base.data.target == "cross_sectional":
        raise ValueError(
            "baseline arma_garch forecasts returns, which data.target = 'cross_sectional' is not; leave it "
            "out, or choose another target."
        )


def forecast_baseline(
    name: str,
    panel: Panel,
    *,
    experiment: Experiment,
    fold: int,
    dates: Mapping[str, Sequence[str]],
    seed: int,
    signal: pl.DataFrame | None,
) -> pl.DataFrame:
    """Forecast a fold's test dates with one baseline, on the features and the target of `experiment`.

    The zero forecast comes with the oracle where the planted signal is known and is the target's
    expectation. A network gets the budget of the arms, squared error where their loss needs a
    distribution, and learning rates of its own.

    Parameters
    ----------
    name
        One of `KNOWN`.
    panel
        All dates that the study may see.
    experiment
        The base of the study.
    fold, dates
        Index, and first and last date (ISO) of "train", "validation" and "test".
    seed
        Of a network's weights and batches.
    signal
        What was planted in a simulated panel.

    Returns
    -------
    DataFrame
        `baseline`, `date`, `asset`, `forecast`, `realised`, `unit_scale`; of a distribution also its law.
    """
    import polars as pl

    from fints.data import features, targets
    from fints.evaluation import Fold, baseline_forecasts, oracle_forecasts

    data = experiment.data
    place = Fold.from_dict({"index": fold, **dates})
    labels = targets(panel, data.target, data.horizon)
    if name in NETWORKS:
        from fints.deep_baselines import deep_baseline_forecasts

        training = experiment.training
        found = deep_baseline_forecasts(
            name,
            features=features(panel, data.features),
            targets=labels,
            fold=place,
            feature_names=data.features,
            context=data.context,
            min_valid=data.min_valid,
            clip=data.clip,
            training=dataclasses.replace(
                training,
                loss="mse" if training.loss == "nll" else training.loss,
                compile=False,
                activation_checkpointing=False,
                profile_every=0,
                profile_at=(),
            ),
            seed=seed,
        )
    else:
        returns = None
        if name == "arma_garch":
            returns = features(panel, ["return_1"]).rename({"return_1": "return"})
        found = baseline_forecasts(
            name,
            targets=labels,
            fold=place,
            features=features(panel, data.features) if name in REGRESSIONS else None,
            feature_names=list(data.features),
            context=data.context,
            returns=returns,
            horizon=data.horizon,
        )
    frames = {name: found}
    if name == "zero" and signal is not None and data.horizon == 1 and data.target in ORACLE_TARGETS:
        frames["oracle"] = oracle_forecasts(signal, targets=labels, fold=place)
    return pl.concat(
        (frame.select(pl.lit(key).alias("baseline"), pl.all()) for key, frame in frames.items()),
        how="diagonal_relaxed",
    )

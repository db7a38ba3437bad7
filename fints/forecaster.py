"""The forecaster: fit on a panel, predict a tidy table, save and load without pickle."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import polars as pl
import torch
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from fints.config import Experiment, override
from fints.data import Panel, StandardScaler, WindowSet
from fints.data.decisions import Day, as_date
from fints.fitting import Material, Start, material, start
from fints.forecasting import FittedNetwork, scaled_windows, tables
from fints.interventions import intervene
from fints.model import Transformer, build, convert
from fints.saved import read_folder, write_folder
from fints.training import FitResult, derive, fit, fit_together, resolve_device

__all__ = ["Forecaster", "fit_all", "load", "predict_all"]


class Forecaster(BaseEstimator):
    """Forecast each asset's return over the next `horizon` days with a causal transformer.

    A forecast p(t, i) is made with rows dated t or earlier and concerns (t, t + h]. It is in log
    return for the targets "log_return" and "volatility_scaled" (there the network forecasts
    r / sigma_t and the table holds sigma_t times that), and in cross-sectional standard deviations
    for "cross_sectional".

    Parameters
    ----------
    experiment : Experiment, optional
        Everything that can be set; `Experiment()` if not given.
    residual, residual_options, depth, width : optional
        Fields of `experiment.model` to replace.
    features, target, context, horizon : optional
        Fields of `experiment.data` to replace.
    learning_rate, steps, device : optional
        Fields of `experiment.training` to replace.
    seed : int
        Determines initial weights, batch order and dropout: same seed, same machine, same bits.

    Attributes
    ----------
    experiment_ : Experiment
        What was fitted.
    result_ : FitResult
        Outcome ("finished", "stopped_early", "diverged", "out_of_memory"), history, profiles.
    model_as_of_ : date
        Last date whose outcome the weights may know.
    parameter_count_ : int
        Trainable numbers of the network.

    Examples
    --------
    >>> from fints import Forecaster
    >>> from fints.data import simulate
    >>> panel = simulate(num_assets=3, num_days=200, seed=0).panel
    >>> forecaster = Forecaster(
    ...     residual="dynamic_hyper_connections", depth=1, width=8, context=8, features=("a", "b"), steps=5
    ... )
    >>> table = forecaster.fit(panel[:"2000-08-31"]).predict(panel, start="2000-10-05")
    >>> table.select("decision_time", "asset", "horizon", "model_as_of").rows()[:2]
    [(datetime.date(2000, 10, 5), 'S00', 1, datetime.date(2000, 8, 31)), ...]
    """

    def __init__(
        self,
        experiment: Experiment | None = None,
        *,
        residual: str | None = None,
        residual_options: dict[str, Any] | None = None,
        depth: int | None = None,
        width: int | None = None,
        features: Sequence[str] | None = None,
        target: str | None = None,
        context: int | None = None,
        horizon: int | None = None,
        learning_rate: float | None = None,
        steps: int | None = None,
        device: str | None = None,
        seed: int = 0,
    ) -> None:
        self.experiment = experiment
        self.residual = residual
        self.residual_options = residual_options
        self.depth = depth
        self.width = width
        self.features = features
        self.target = target
        self.context = context
        self.horizon = horizon
        self.learning_rate = learning_rate
        self.steps = steps
        self.device = device
        self.seed = seed

    def resolve(self) -> Experiment:
        """Return the experiment with this forecaster's named fields put in.

        Raises
        ------
        ValueError
            If a field or a combination cannot be used.
        """
        named = {
            "model.residual": self.residual,
            "model.residual_options": self.residual_options,
            "model.depth": self.depth,
            "model.width": self.width,
            "data.features": self.features,
            "data.target": self.target,
            "data.context": self.context,
            "data.horizon": self.horizon,
            "training.learning_rate": self.learning_rate,
            "training.steps": self.steps,
            "training.device": self.device,
        }
        changes = {path: value for path, value in named.items() if value is not None}
        base = self.experiment if self.experiment is not None else Experiment()
        steps: Any = self.steps
        if isinstance(steps, numbers.Integral):
            # A short fit keeps its warm-up a twentieth of its steps rather than failing on a default.
            changes["training.warmup_steps"] = min(base.training.warmup_steps, int(steps) // 20)
        return override(base, changes)

    def fit(
        self,
        panel: Panel,
        *,
        train: tuple[Day | None, Day | None] | None = None,
        validation: tuple[Day, Day] | float = 0.15,
        checkpoint: str | Path | None = None,
        on_row: Callable[[dict[str, Any]], None] | None = None,
    ) -> Forecaster:
        """Fit the scaler and the network on decision dates of `panel`.

        Parameters
        ----------
        panel : Panel
            Rows after the last training or validation outcome are not used.
        train : (date or None, date or None), optional
            First and last decision date to learn from; earlier rows serve as context only.
        validation : (date, date) or float
            Decision dates, or the last share of them, that choose the kept weights and stop early;
            0 uses none. Training decisions whose outcome falls into it are purged.
        checkpoint : path, optional
            File from which an interrupted fit resumes exactly, and to which it saves its state.
        on_row : callable, optional
            Receives one dictionary at each evaluation.

        Returns
        -------
        Forecaster
            Itself. A diverged or out-of-memory fit does not raise: see `result_.outcome`.

        Raises
        ------
        ValueError
            If the panel is too short, a feature is unknown, or the dates of `train` and `validation` overlap.
        """
        experiment = self.resolve()
        begun = start(
            experiment, material(panel, experiment, train=train, validation=validation), seed=self.seed
        )
        result = fit(
            begun.model,
            begun.material.training,
            begun.material.validation,
            experiment.training,
            seed=derive(self.seed, "training"),
            checkpoint=None if checkpoint is None else Path(checkpoint),
            on_row=on_row,
            profiler=begun.profiler,
            estimated_bytes=begun.estimated_bytes,
            steering=begun.steering,
        )
        self._take(begun, result)
        return self

    def predict(self, panel: Panel, *, start: Day | None = None, end: Day | None = None) -> pl.DataFrame:
        """Forecast every row of `panel` dated in [start, end].

        With `start` one more day costs the same however long the panel is.

        Returns
        -------
        polars.DataFrame
            One row a date and asset, sorted: `decision_time`, `asset`, `horizon` (days), `forecast`,
            with a distributional head also `scale`, `q05`, `q50`, `q95`; `model_as_of`, and
            `available_at`, the first date on which this forecast could have been made (later than
            `decision_time` for rows that the fit itself has seen). `forecast` is null only for want
            of history.

        Raises
        ------
        NotFittedError
            If `fit` was not called.
        ValueError
            If `panel` is no panel, or the fit ran out of memory before it began.
        """
        return predict_all([self], panel, start, end)[0]

    def evaluate_frame(self, panel: Panel, start: Day | None = None, end: Day | None = None) -> pl.DataFrame:
        """Return forecasts beside outcomes, both in units of the target.

        Returns
        -------
        polars.DataFrame
            `date`, `asset`, `forecast`, `realised`, `unit_scale` (log return of one target unit; null
            where there is none), with a distributional head also `log_scale` (natural log of the
            scale) and, for Student's t, `degrees`. Only rows with a forecast and an outcome.
        """
        return self._fitted().outcomes(panel, as_date(start), as_date(end))

    def windows(self, panel: Panel, start: Day | None = None, end: Day | None = None) -> WindowSet:
        """Return the scaled windows that this forecaster would forecast from, for diagnostics."""
        check_is_fitted(self)
        return scaled_windows(panel, self.scaler_, self.experiment_.data, as_date(start), as_date(end))

    def converted(self, residual: str, residual_options: Mapping[str, Any] | None = None) -> Forecaster:
        """Return a forecaster that forecasts the same with a network of another residual scheme.

        See `fints.model.convert.convert`: weights are converted, no state of the optimiser is.

        Raises
        ------
        NotFittedError
            If `fit` was not called.
        ValueError
            If there is no exact conversion, with the reason.
        """
        network = self._network()
        model, config = convert(network, self.experiment_.model, to=residual, options=residual_options)
        experiment = replace(self.experiment_, model=config)
        other = Forecaster(experiment, seed=self.seed)
        other.experiment_ = experiment
        other.model_ = model.to(next(network.parameters()).device)
        other.scaler_ = self.scaler_
        other.target_std_ = self.target_std_
        other.result_ = None
        other.parameter_count_ = sum(p.numel() for p in model.parameters())
        other.model_as_of_ = self.model_as_of_
        return other

    def save(self, path: str | Path) -> Path:
        """Write a folder of two files, JSON and safetensors, that `fints.load` reads.

        The folder appears whole or not at all. An older forecaster at `path` is replaced.

        Raises
        ------
        NotFittedError
            If `fit` was not called.
        ValueError
            If `path` exists and is not a saved forecaster, or the fit ran out of memory before it began.
        """
        model = self._network()
        spec = {
            "experiment": self.experiment_.to_dict(),
            "seed": self.seed,
            "scaler": self.scaler_.to_dict(),
            "target_std": self.target_std_,
            "model_as_of": self.model_as_of_.isoformat(),
        }
        return write_folder(Path(path), spec, model.state_dict())

    def _take(self, begun: Start, result: FitResult) -> None:
        """Hold what a fit has come to."""
        learning = begun.material.learning
        self.experiment_ = begun.experiment
        self.model_ = begun.model
        self.scaler_ = learning.scaler
        self.target_std_ = learning.target_std
        self.result_: FitResult | None = result
        self.parameter_count_ = sum(p.numel() for p in begun.model.parameters())
        self.model_as_of_: date = learning.as_of

    def _network(self) -> Transformer:
        check_is_fitted(self)
        model: Transformer = self.model_
        if next(model.parameters()).is_meta:
            reason = "" if self.result_ is None else self.result_.reason
            raise ValueError(f"the fit ended without a network, so there is nothing to use: {reason}")
        return model

    def _fitted(self) -> FittedNetwork:
        return FittedNetwork(
            network=self._network(),
            experiment=self.experiment_,
            scaler=self.scaler_,
            target_std=self.target_std_,
            as_of=self.model_as_of_,
        )


def predict_all(
    forecasters: Sequence[Forecaster], panel: Panel, start: Day | None = None, end: Day | None = None
) -> list[pl.DataFrame]:
    """Return what each forecaster predicts, with windows made once for those that see the same.

    Raises what `Forecaster.predict` raises.
    """
    return tables([one._fitted() for one in forecasters], panel, as_date(start), as_date(end))


def fit_all(
    forecasters: Sequence[Forecaster],
    panels: Sequence[Panel],
    *,
    train: Sequence[tuple[Day | None, Day | None]],
    validation: Sequence[tuple[Day, Day]],
) -> None:
    """Fit several forecasters at once; each is then as `Forecaster.fit` leaves it, to rounding.

    Windows are made once for those with the same panel, dates and features. See
    `fints.training.fit_together` for what the experiments may differ in.

    Raises
    ------
    ValueError
        As `Forecaster.fit`, or if they cannot be fitted together.
    """
    made: dict[tuple[object, ...], Material] = {}
    starts = []
    for one, panel, first, second in zip(forecasters, panels, train, validation, strict=True):
        experiment = one.resolve()
        seen = (id(panel), str(experiment.data), experiment.model.forecast_from, first, second)
        if seen not in made:
            made[seen] = material(panel, experiment, train=first, validation=second)
        starts.append(start(experiment, made[seen], seed=one.seed))
    results = fit_together([begun.member() for begun in starts])
    for one, begun, result in zip(forecasters, starts, results, strict=True):
        one._take(begun, result)


def load(path: str | Path) -> Forecaster:
    """Load a forecaster written by `Forecaster.save`.

    Nothing is unpickled: the folder holds JSON and safetensors, and any other kind is refused.

    Raises
    ------
    ValueError
        If the folder is missing, foreign, damaged, or of a newer format.
    """
    spec, state = read_folder(Path(path))
    experiment = Experiment.from_dict(spec["experiment"])
    forecaster = Forecaster(experiment, seed=spec["seed"])
    model = build(
        experiment.model,
        num_features=len(experiment.data.features),
        context=experiment.data.context,
        seed=0,
    )
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        raise ValueError(f"the weights in {path} do not fit the experiment beside them: {error}") from error
    intervene(model, experiment.training.interventions, seed=derive(forecaster.seed, "interventions"))
    forecaster.experiment_ = experiment
    forecaster.model_ = model.eval().to(_device_or_cpu(experiment.training.device))
    forecaster.scaler_ = StandardScaler.from_dict(spec["scaler"])
    forecaster.target_std_ = float(spec["target_std"])
    forecaster.result_ = None
    forecaster.parameter_count_ = sum(p.numel() for p in model.parameters())
    forecaster.model_as_of_ = date.fromisoformat(spec["model_as_of"])
    return forecaster


def _device_or_cpu(name: str) -> torch.device:
    """Return the device, or the CPU: a forecaster trained on a GPU also predicts where there is none."""
    try:
        return resolve_device(name)
    except ValueError:
        return torch.device("cpu")

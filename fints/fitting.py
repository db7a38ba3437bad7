"""What a fit of a forecaster starts from: its windows, drawn network, intervention and profile."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass

import torch

from fints.config import Experiment
from fints.data import Panel, WindowSet
from fints.data.decisions import Day, show
from fints.data.learning import Learning, prepare
from fints.diagnostics import Profiler
from fints.forecasting import check_panel
from fints.interventions import Applied, intervene
from fints.model import Transformer, build, estimate_memory
from fints.training import Member, derive, free_bytes, resolve_device, sharing

__all__ = ["Material", "Start", "material", "start"]

_PROBE_WINDOWS = 64


@dataclass(frozen=True, kw_only=True)
class Material:
    """What is learnt from: a scaled panel, and its windows to train on and to validate with."""

    learning: Learning
    training: WindowSet
    validation: WindowSet | None


@dataclass(frozen=True, kw_only=True)
class Start:
    """A fit before its first step."""

    experiment: Experiment
    seed: int
    material: Material
    model: Transformer
    steering: Applied | None
    profiler: Profiler
    estimated_bytes: int

    def member(self) -> Member:
        """Return the fit as one of several that are made together."""
        return Member(
            model=self.model,
            train=self.material.training,
            validation=self.material.validation,
            config=self.experiment.training,
            seed=derive(self.seed, "training"),
            profiler=self.profiler,
            estimated_bytes=self.estimated_bytes,
            steering=self.steering,
        )


def material(
    panel: Panel,
    experiment: Experiment,
    *,
    train: tuple[Day | None, Day | None] | None,
    validation: tuple[Day, Day] | float,
) -> Material:
    """Return the windows of a panel that an experiment trains and validates on.

    Raises
    ------
    ValueError
        As `fints.Forecaster.fit` says.
    """
    check_panel(panel)
    data = experiment.data
    learning = prepare(panel, data, train=train, validation=validation)
    windows, train_range, validation_range = learning.windows, learning.train, learning.validation
    training_set = windows.select(
        *train_range, labelled=True, every_token=experiment.model.forecast_from == "every_token"
    )
    if len(training_set) == 0:
        raise ValueError(
            f"no window of {data.context} days with an outcome ends in the training dates "
            f"{show(train_range)}; give a longer panel or a smaller data.context."
        )
    validation_set = None if validation_range is None else windows.select(*validation_range, labelled=True)
    if validation_set is not None and len(validation_set) == 0:
        raise ValueError(
            f"no window with an outcome ends in the validation dates {show(validation_range)}; "
            f"give more dates, or validation=0 to train without."
        )
    return Material(learning=learning, training=training_set, validation=validation_set)


def start(experiment: Experiment, found: Material, *, seed: int) -> Start:
    """Draw the network of a fit and what measures it, all from one seed."""
    data = experiment.data
    device = resolve_device(experiment.training.device)
    needed = estimate_memory(
        experiment.model,
        num_features=len(data.features),
        context=data.context,
        batch_size=-(-experiment.training.batch_size // sharing()),
        activation_checkpointing=experiment.training.activation_checkpointing,
        precision=experiment.training.precision,
    )
    free = free_bytes(device)
    # A network that cannot fit is not drawn either: on the meta device it has shapes and no numbers.
    drawn = free is None or needed <= free
    with nullcontext() if drawn else torch.device("meta"):
        model = build(
            experiment.model,
            num_features=len(data.features),
            context=data.context,
            seed=derive(seed, "model"),
        )
    steering = intervene(model, experiment.training.interventions, seed=derive(seed, "interventions"))
    # No more than a batch: what a step has memory for, its profile has too.
    most = min(_PROBE_WINDOWS, experiment.training.batch_size)
    probe = found.training.gather(_probe_positions(len(found.training), most, seed))
    return Start(
        experiment=experiment,
        seed=seed,
        material=found,
        model=model,
        steering=steering,
        profiler=Profiler(*probe, experiment.training),
        estimated_bytes=needed,
    )


def _probe_positions(count: int, most: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(derive(seed, "probe"))
    return torch.randperm(count, generator=generator)[:most]

"""What a study will cost, before it runs: time, memory and disk, from stated formulas."""

from __future__ import annotations

import json
from collections.abc import Iterable, Set
from functools import cache
from typing import TYPE_CHECKING

from fints.config import Experiment, override
from fints.study.grouping import why_alone
from fints.words import counted

if TYPE_CHECKING:
    from fints.study.plan import Plan

__all__ = [
    "disk_bytes",
    "duration",
    "fit_bytes",
    "fit_seconds",
    "memory_shortage",
    "parameters",
    "size",
    "study_seconds",
    "weight_bytes",
]

# Measured on one thread of a 2-core x86 machine with D 32, T 24, B 64: 300 Pre-Norm steps take 6 s at
# depth 2 and 23 s at depth 8. Larger widths use a core better, so their estimate is high.
OPERATIONS_A_SECOND = 13e9
# Time of one step relative to Pre-Norm, measured at the same size.
SCHEME_FACTORS = {"dynamic_hyper_connections": 3.0, "static_hyper_connections": 2.0}
# Time of a fit that is made with others at once, relative to one by itself (benchmarks/vectorised.py).
AT_ONCE_FACTOR = 0.5
# Reading features, evaluating and forecasting, beside the optimiser steps.
OVERHEAD_SHARE, OVERHEAD_SECONDS = 0.4, 1.5
# Measured: compressed parquet bytes a forecast row, and files a fit beside the forecasts.
BYTES_A_FORECAST, BYTES_A_FIT = 24, 40_000
STORES_BYTES = 3_000_000
BYTES_A_WEIGHT = 4


def fit_seconds(experiment: Experiment) -> float:
    """Return a rough time of one fit on one CPU thread, in seconds.

    steps x 6 x tokens a batch x (weights of a block + attention) x depth / operations a second; half of that
    where fits are made several at once.
    """
    model, data, training = experiment.model, experiment.data, experiment.training
    tokens = training.batch_size * data.context
    weights = model.width**2 * (4 + 2 * model.feed_forward_ratio)
    attention = 2 * data.context * model.width
    step = 6 * tokens * (weights + attention) * model.depth / OPERATIONS_A_SECOND
    factor = SCHEME_FACTORS.get(model.residual, 1.0)
    if training.vectorise > 1 and why_alone(experiment) is None:
        factor *= AT_ONCE_FACTOR
    return training.steps * step * factor * (1 + OVERHEAD_SHARE) + OVERHEAD_SECONDS


def study_seconds(plan: Plan, *, workers: int, done: Iterable[str] = ()) -> float:
    """Return a rough wall time of the fits of a plan that are not done yet."""
    finished = set(done)
    total = 0.0
    for arm in plan.arms:
        # Which point an arm is fitted at is known after its tuning; its fits cost about the same at each.
        points = plan.study.tuning.points()[: None if finished else 1]
        final = max(
            (plan.final_cells(arm, point) for point in points),
            key=lambda cells: sum(cell.key in finished for cell in cells),
        )
        cells = [*plan.tuning_cells(arm), *final]
        total += sum(cell.seconds for cell in cells if cell.key not in finished)
    return total / workers


def disk_bytes(plan: Plan) -> int:
    """Return a rough size of the study's folder: its forecasts twice (by fit and assembled), and the rest."""
    import polars as pl

    dates = pl.Series(plan.dataset.panel.dates)
    rows = 0
    for fold in plan.folds:
        first, last = (pl.lit(day).str.to_date() for day in fold["test"])
        days = len(dates.to_frame("date").filter(pl.col("date").is_between(first, last)))
        rows += days * len(plan.dataset.panel.assets)
    forecasts = rows * len(plan.arms) * len(plan.study.seeds)
    return 2 * forecasts * BYTES_A_FORECAST + sum(plan.num_fits().values()) * BYTES_A_FIT + STORES_BYTES


def weight_bytes(plan: Plan) -> int:
    """Return the size of the weights that all final fits keep, in bytes."""
    fits = len(plan.folds) * len(plan.study.seeds)
    return sum(parameters(arm.experiment) for arm in plan.arms) * fits * BYTES_A_WEIGHT


def fit_bytes(experiment: Experiment) -> int:
    """Return the memory one fit needs for weights, optimiser and activations, in bytes."""
    return _fit_bytes(_written(experiment))


# Networks are built to be counted, and a plan asks several times for each.
@cache
def _fit_bytes(written: str) -> int:
    from fints.model import estimate_memory

    experiment = Experiment.from_dict(json.loads(written))
    return int(
        estimate_memory(
            experiment.model,
            num_features=len(experiment.data.features),
            context=experiment.data.context,
            batch_size=experiment.training.batch_size,
            activation_checkpointing=experiment.training.activation_checkpointing,
            precision=experiment.training.precision,
        )
    )


def memory_shortage(plan: Plan, *, workers: int, done: Set[str] = frozenset()) -> str:
    """Return why the fits of a plan that are not done have too little memory, "" where they have enough.

    The dearest fit of an arm counts, as often as fits are made at a time. Where nothing tells how much
    is free there is no shortage.

    Raises
    ------
    ValueError
        If the device of an arm is not there.
    """
    from fints.training import free_bytes, resolve_device

    vectorise = plan.study.base.training.vectorise
    at_once = min(workers * vectorise, sum(plan.num_fits().values()))
    known: dict[str, int] = {}
    for arm in plan.arms:
        points = plan.study.tuning.points()
        tuned = all(cell.key in done for cell in plan.tuning_cells(arm))
        if tuned and any(all(cell.key in done for cell in plan.final_cells(arm, point)) for point in points):
            continue
        for point in points:
            experiment = override(arm.experiment, point)
            training = experiment.training
            # What the estimate depends on: most points differ in other fields.
            name = f"{experiment.model} {experiment.data} {training.batch_size} {training.precision}"
            name += f" {training.activation_checkpointing}"
            needed = known[name] = known[name] if name in known else fit_bytes(experiment)
            device = resolve_device(training.device)
            free = free_bytes(device)
            if free is not None and needed * at_once > free:
                kind = "worker" if vectorise == 1 else "fit"
                together = f", {counted(at_once, kind)} {size(needed * at_once)}" if at_once > 1 else ""
                fewer = ", or give fewer --workers" if needed <= free and at_once > 1 else ""
                if fewer and vectorise > 1:
                    fewer += " or a smaller --vectorise"
                return (
                    f"a fit of arm {arm.name} needs about {size(needed)} of memory{together}, and "
                    f"{size(free)} is free on {device}; lower model.width or training.batch_size{fewer}."
                )
    return ""


def parameters(experiment: Experiment) -> int:
    """Return the number of trainable numbers of an arm."""
    return _parameters(_written(experiment))


@cache
def _parameters(written: str) -> int:
    from fints.model import parameter_count

    experiment = Experiment.from_dict(json.loads(written))
    data = experiment.data
    return parameter_count(experiment.model, num_features=len(data.features), context=data.context)


def _written(experiment: Experiment) -> str:
    return json.dumps(experiment.to_dict(), sort_keys=True)


def duration(seconds: float) -> str:
    """Return a time in words a person reads at a glance.

    >>> duration(42), duration(600), duration(9000)
    ('42 s', '10 min', '2.5 h')
    """
    if seconds < 90:
        return f"{max(seconds, 0):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def size(count: int) -> str:
    """Return a number of bytes in words a person reads at a glance.

    >>> size(20_000_000), size(1_500_000_000)
    ('20 MB', '1.5 GB')
    """
    return f"{count / 1e9:,.1f} GB" if count >= 1e9 else f"{max(count / 1e6, 1):.0f} MB"

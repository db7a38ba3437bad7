"""What a study will cost, before it runs: time, memory and disk, from stated formulas."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from fints.config import Experiment

if TYPE_CHECKING:
    from fints.study.plan import Plan

__all__ = ["disk_bytes", "duration", "fit_bytes", "fit_seconds", "parameters", "study_seconds"]

# Measured on one thread of a 2-core x86 machine with D 32, T 24, B 64: 300 Pre-Norm steps take 6 s at
# depth 2 and 23 s at depth 8. Larger widths use a core better, so their estimate is high.
OPERATIONS_A_SECOND = 13e9
# Time of one step relative to Pre-Norm, measured at the same size.
SCHEME_FACTORS = {"dynamic_hyper_connections": 3.0, "static_hyper_connections": 2.0}
# Reading features, evaluating and forecasting, beside the optimiser steps.
OVERHEAD_SHARE, OVERHEAD_SECONDS = 0.4, 1.5
# Measured: compressed parquet bytes a forecast row, and files a fit beside the forecasts.
BYTES_A_FORECAST, BYTES_A_FIT = 24, 40_000
STORES_BYTES = 3_000_000


def fit_seconds(experiment: Experiment) -> float:
    """Return a rough time of one fit on one CPU thread, in seconds.

    steps x 6 x tokens a batch x (weights of a block + attention) x depth / operations a second.
    """
    model, data, training = experiment.model, experiment.data, experiment.training
    tokens = training.batch_size * data.context
    weights = model.width**2 * (4 + 2 * model.feed_forward_ratio)
    attention = 2 * data.context * model.width
    step = 6 * tokens * (weights + attention) * model.depth / OPERATIONS_A_SECOND
    factor = SCHEME_FACTORS.get(model.residual, 1.0)
    return training.steps * step * factor * (1 + OVERHEAD_SHARE) + OVERHEAD_SECONDS


def study_seconds(plan: Plan, *, workers: int, done: Iterable[str] = ()) -> float:
    """Return a rough wall time of the fits of a plan that are not done yet."""
    finished = set(done)
    total = 0.0
    for arm in plan.arms:
        point = plan.study.tuning.points()[0]
        cells = [*plan.tuning_cells(arm), *plan.final_cells(arm, point)]
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


def fit_bytes(experiment: Experiment) -> int:
    """Return the memory one fit needs for weights, optimiser and activations, in bytes."""
    from fints.model import estimate_memory

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


def parameters(experiment: Experiment) -> int:
    """Return the number of trainable numbers of an arm."""
    from fints.model import parameter_count

    data = experiment.data
    return parameter_count(experiment.model, num_features=len(data.features), context=data.context)


def duration(seconds: float) -> str:
    """Return a time in words a person reads at a glance.

    >>> duration(42), duration(600), duration(9000)
    ('42 s', '10 min', '2.5 h')
    """
    if seconds < 90:
        return f"{max(seconds, 0):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"

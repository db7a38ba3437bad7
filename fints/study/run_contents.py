"""What a fit's run holds in MLflow: names of metrics and of runs, values as text."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fints.study.fits import Cell
from fints.study.store import fit_json, fit_table

__all__ = ["PROFILE", "arm_title", "fit_metrics", "run_name", "short", "text"]

HISTORY = {
    "train_loss": "train/loss",
    "validation_loss": "validation/loss",
    "learning_rate": "train/learning_rate",
    "gradient_norm": "gradient/norm",
}
PROFILE = {
    "adjacent_cosine": "similarity/adjacent_cosine_by_sublayer",
    "adjacent_cosine_centred": "similarity/adjacent_cosine_centred_by_sublayer",
    "adjacent_cosine_null": "similarity/adjacent_cosine_null_by_sublayer",
    "effective_rank": "similarity/effective_rank_by_sublayer",
    "relative_update": "similarity/relative_update_by_sublayer",
    "gradient_norm": "gradient/norm_by_sublayer",
    "update_to_weight": "gradient/update_to_weight_by_sublayer",
}


def fit_metrics(folder: Path, result: Mapping[str, Any]) -> Iterator[tuple[str, float, int]]:
    """Yield (name, value, step) of one fit, finite values only; the step of a profile is its sublayer."""
    import polars as pl

    history = fit_table(folder, "history.parquet")
    if history is not None:
        for row in history.iter_rows(named=True):
            for column, name in HISTORY.items():
                if row.get(column) is not None:
                    yield name, float(row[column]), int(row["step"])
    summary = {
        "validation/best_loss": result["validation_loss"],
        "train/best_step": result["best_step"],
        "train/steps": result["steps"],
        "train/parameters": result["parameters"],
    }
    summary["train/seconds"] = fit_json(folder, "timing.json")["seconds"]
    scores = fit_json(folder, "metrics.json")
    summary |= {f"test/{name}": value for name, value in scores.items()}
    for name, value in summary.items():
        if value is not None and math.isfinite(value):
            yield name, float(value), 0
    frame = fit_table(folder, "profile.parquet")
    if frame is not None:
        if "step" in frame.columns:
            frame = frame.filter(pl.col("step") == pl.col("step").max())
        for row in frame.iter_rows(named=True):
            for column, name in PROFILE.items():
                if row.get(column) is not None:
                    yield name, float(row[column]), int(row["layer"])


def arm_title(levels: Mapping[str, str]) -> str:
    """Return an arm's levels, numbers first: MLflow's table shows the first letters only."""
    numbers_first = sorted(levels.items(), key=lambda item: not item[1].isdigit())
    return ", ".join(f"{name} {level}" if level.isdigit() else level for name, level in numbers_first)


def run_name(cell: Cell) -> str:
    """Return what a fit's run is called."""
    if cell.role == "final":
        return f"final fold {cell.fold} seed {cell.seed}"
    point = " ".join(f"{short(name)} {text(value)}" for name, value in cell.point.items())
    return f"tuning {point} fold {cell.fold}"


def short(field: str) -> str:
    """Return the last part of a dotted field."""
    return field.rsplit(".", 1)[-1]


def text(value: Any) -> str:
    """Return a value as a parameter shows it."""
    return f"{value:g}" if isinstance(value, float) else str(value)

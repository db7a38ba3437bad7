"""What runs hold in MLflow: their names, parameters, data and metrics, and the notes beside them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from fints.study.fits import Cell
from fints.study.notes import arm_note, experiment_note
from fints.study.store import fit_json, fit_table

__all__ = ["Contents", "Data", "FitsInTime", "Fitted", "arm_title", "short", "text"]

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


@dataclass(frozen=True, kw_only=True)
class Data:
    """What a run was given, as MLflow tells it; `source` and `profile` are JSON-able."""

    name: str
    digest: str
    source: Mapping[str, Any] = field(default_factory=dict)
    profile: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        """Return name and digest, as a parameter shows them."""
        return f"{self.name}@{self.digest[:8]}"


class Fitted(Protocol):
    """A fit as a tracker knows it: what fits in time and fits on panels have alike."""

    @property
    def key(self) -> str:
        """Names the fit and its folder."""

    @property
    def arm(self) -> str:
        """Name of its arm."""

    @property
    def role(self) -> str:
        """One of "tuning" and "final"."""

    @property
    def point(self) -> Mapping[str, Any]:
        """Its design point, by dotted field."""

    @property
    def experiment(self) -> Mapping[str, Any]:
        """What is fitted, as `Experiment.to_dict` gives it."""


class Contents(Protocol):
    """What the runs of one kind of study hold; each is made from the spec of a study."""

    def note(self) -> str:
        """Return the words beside all runs."""

    def data(self) -> Data:
        """Return what the study as a whole is given."""

    def data_of(self, cell: Any) -> Data:
        """Return what a fit is given."""

    def place(self, cell: Any) -> dict[str, str]:
        """Return by name where a fit of an arm stands: on which part of the data, from which seed."""

    def name(self, cell: Any) -> str:
        """Return what a fit's run is called."""

    def metrics(self, folder: Path, result: Mapping[str, Any]) -> Iterator[tuple[str, float, int]]:
        """Yield (name, value, step) of one fit, finite values only."""

    def arm_note(self, arm: str, rows: Sequence[Mapping[str, Any]]) -> tuple[str, dict[str, float]]:
        """Return an arm's words, and numbers of all its fits."""

    def profile(self, means: Mapping[str, Sequence[tuple[int, float]]]) -> Iterator[tuple[str, float, int]]:
        """Yield (name, value, sublayer) of an arm's means by sublayer."""


class FitsInTime:
    """Runs of a study on the folds of one dataset; see `Contents`."""

    def __init__(self, spec: Mapping[str, Any]) -> None:
        self._spec = spec

    def note(self) -> str:
        """Return the words beside all runs."""
        return experiment_note(self._spec)

    def data(self) -> Data:
        """Return what the study as a whole is given."""
        spec = self._spec
        return Data(
            name=spec["dataset"]["name"],
            digest=spec["checksum"],
            source={"dataset": spec["dataset"]["reference"]},
            profile={"span": spec["span"], "assets": spec["num_assets"]},
        )

    def data_of(self, cell: Cell) -> Data:
        """Return what a fit is given."""
        return self.data()

    def place(self, cell: Cell) -> dict[str, str]:
        """Return by name where a fit of an arm stands."""
        return {"fold": str(cell.fold), "seed": str(cell.seed)}

    def name(self, cell: Cell) -> str:
        """Return what a fit's run is called."""
        if cell.role == "final":
            return f"final fold {cell.fold} seed {cell.seed}"
        return f"tuning {point_text(cell.point)} fold {cell.fold}"

    def metrics(self, folder: Path, result: Mapping[str, Any]) -> Iterator[tuple[str, float, int]]:
        """Yield (name, value, step) of one fit, finite values only."""
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

    def arm_note(self, arm: str, rows: Sequence[Mapping[str, Any]]) -> tuple[str, dict[str, float]]:
        """Return an arm's words, and numbers of all its fits."""
        return arm_note(self._spec, arm, rows)

    def profile(self, means: Mapping[str, Sequence[tuple[int, float]]]) -> Iterator[tuple[str, float, int]]:
        """Yield (name, value, sublayer) of an arm's means by sublayer."""
        for column, points in means.items():
            if column in PROFILE:
                yield from ((PROFILE[column], value, layer) for layer, value in points)


def arm_title(levels: Mapping[str, str], among: Sequence[Mapping[str, str]]) -> str:
    """Return the levels of one arm among others: MLflow's table shows the first letters only.

    So what is the same in all arms stands last, and numbers, which are short, first.
    """

    def place(item: tuple[str, str]) -> tuple[bool, bool]:
        name, level = item
        return len({other.get(name) for other in among}) == 1 < len(among), not level.isdigit()

    ordered = sorted(levels.items(), key=place)
    return ", ".join(f"{name} {level}" if level.isdigit() else level for name, level in ordered)


def point_text(point: Mapping[str, Any]) -> str:
    """Return a design point in a few words."""
    return " ".join(f"{short(name)} {text(value)}" for name, value in point.items())


def short(field: str) -> str:
    """Return the last part of a dotted field."""
    return field.rsplit(".", 1)[-1]


def text(value: Any) -> str:
    """Return a value as a parameter shows it."""
    return f"{value:g}" if isinstance(value, float) else str(value)

"""The fits of a study from its spec alone, so that a machine without the study's file can go on with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fints.config import Experiment, fingerprint, override
from fints.study.estimates import fit_seconds
from fints.study.fingerprint import device_type, fit_key
from fints.study.fits import Cell

__all__ = ["Planned", "choose", "fit_of_an_arm"]


def fit_of_an_arm(
    experiment: Experiment,
    point: Mapping[str, Any],
    *,
    arm: str,
    role: str,
    fold: Mapping[str, Any],
    seed: int,
    checksum: str,
    until: str | None,
    sources: str,
    torch: str,
) -> Cell:
    """Return one tuning or final fit.

    Parameters
    ----------
    experiment : Experiment
        Of the arm, without the design point.
    point : mapping
        The design point, put into it.
    arm, role, fold, seed
        Which fit this is; `fold` as in the spec.
    checksum, until, sources, torch
        As `fints.study.fingerprint.fit_key` has them.
    """
    pointed = override(experiment, dict(point))
    dates = {name: list(fold[name]) for name in ("train", "validation", "test")}
    key = fit_key(
        pointed,
        role=role,
        fold=dates,
        seed=seed,
        checksum=checksum,
        until=until,
        sources=sources,
        device=device_type(pointed.training.device),
        torch=torch,
    )
    return Cell(
        key=key,
        arm=arm,
        role=role,
        fold=int(fold["index"]),
        seed=seed,
        point=dict(point),
        dates=dates,
        experiment=pointed.to_dict(),
        seconds=fit_seconds(pointed),
    )


def choose(tuning: Sequence[Cell], losses: Mapping[str, float]) -> dict[str, Any]:
    """Return the design point with the lowest mean validation loss; of equals the first declared.

    Parameters
    ----------
    tuning : sequence of Cell
        All tuning fits of one arm, in order.
    losses : mapping
        Key of each to its validation loss, infinite if it diverged.
    """
    totals: dict[str, tuple[float, dict[str, Any]]] = {}
    for cell in tuning:
        name = fingerprint(cell.point)
        total = totals.get(name, (0.0, cell.point))[0]
        totals[name] = (total + losses[cell.key], cell.point)
    return min(totals.values(), key=lambda entry: entry[0])[1]


@dataclass(frozen=True)
class Planned:
    """The fits that the spec of a study (study.json) plans, equal to those of its plan."""

    spec: Mapping[str, Any]

    @property
    def arms(self) -> list[str]:
        """Names of the arms, in the order of the plan."""
        return [arm["name"] for arm in self.spec["arms"]]

    @property
    def total(self) -> int:
        """Number of tuning and final fits."""
        tuning = self.spec["tuning"]
        an_arm = len(tuning["points"]) * int(tuning["folds"]) * len(tuning["seeds"])
        return len(self.arms) * (an_arm + len(self.spec["folds"]) * len(self.spec["seeds"]))

    @property
    def seconds(self) -> float:
        """A rough time of all fits on one CPU thread."""
        an_arm = self.total // len(self.arms)
        return sum(an_arm * self.tuning_cells(arm)[0].seconds for arm in self.arms)

    def tuning_cells(self, arm: str) -> list[Cell]:
        """Return the design points of one arm on the tuning folds and seeds, in order."""
        tuning = self.spec["tuning"]
        return [
            self._cell(arm, "tuning", fold, seed, point)
            for point in tuning["points"]
            for fold in self.spec["folds"][: tuning["folds"]]
            for seed in tuning["seeds"]
        ]

    def final_cells(self, arm: str, point: Mapping[str, Any]) -> list[Cell]:
        """Return one arm at its chosen design point on all folds and final seeds, in order."""
        return [
            self._cell(arm, "final", fold, seed, point)
            for fold in self.spec["folds"]
            for seed in self.spec["seeds"]
        ]

    def _cell(
        self, arm: str, role: str, fold: Mapping[str, Any], seed: int, point: Mapping[str, Any]
    ) -> Cell:
        experiment = next(entry["experiment"] for entry in self.spec["arms"] if entry["name"] == arm)
        return fit_of_an_arm(
            Experiment.from_dict(experiment),
            point,
            arm=arm,
            role=role,
            fold=fold,
            seed=seed,
            checksum=self.spec["checksum"],
            until=self.spec["sealed_from"],
            sources=self.spec["sources"],
            torch=self.spec["torch"],
        )

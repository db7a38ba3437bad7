"""A study at one size on one dataset: its arms, folds, cells and the spec that travels with them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import Any

from fints.config import fingerprint, override
from fints.study.baselines import NETWORKS, SOURCES
from fints.study.cells import FINISHED
from fints.study.claims import FULL
from fints.study.dataset import Dataset, open_dataset
from fints.study.design import DEFAULT_BASELINES, Arm, Contrast, Study
from fints.study.experiments import check_experiment
from fints.study.fingerprint import (
    AFFECTS_BASELINES,
    device_type,
    fit_key,
    sources_hash,
    torch_version,
)
from fints.study.fits import Cell
from fints.study.matching import comparisons
from fints.study.planned import choose, fit_of_an_arm

__all__ = ["Plan", "loss_or_infinity", "make_plan"]

SPEC_FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What `run` will do; nothing in it depends on when or where it runs.

    `larger` runs the study at its full size, empty where this is it or there is none.
    """

    study: Study
    name: str
    docstring: str
    preset: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    dataset: Dataset
    arms: list[Arm]
    folds: list[dict[str, Any]]
    sources: str
    larger: str = ""

    @property
    def label(self) -> str:
        """Name of the study's folder: preset and dataset, and a hash of `--set` changes if any.

        A panel that is no dataset has digits of its checksum there.
        """
        tail = f"-set-{fingerprint(dict(self.changes))[:8]}" if self.changes else ""
        return f"{self.preset}-{self.dataset.label}{tail}"

    def tuning_cells(self, arm: Arm) -> list[Cell]:
        """Return the design points of one arm on the tuning folds and seeds, in order."""
        tuning = self.study.tuning
        return [
            self._cell(arm, "tuning", fold, seed, point)
            for point in tuning.points()
            for fold in self.folds[: tuning.folds]
            for seed in tuning.seeds
        ]

    def final_cells(self, arm: Arm, point: Mapping[str, Any]) -> list[Cell]:
        """Return one arm at its chosen design point on all folds and final seeds, in order."""
        return [
            self._cell(arm, "final", fold, seed, dict(point))
            for fold in self.folds
            for seed in self.study.seeds
        ]

    def baseline_cells(self) -> list[Cell]:
        """Return one cell a fold and baseline; they are no fits of an arm, so counted apart."""
        until = None if self.dataset.until is None else self.dataset.until.isoformat()
        return [
            self._baseline_cell(fold, name, until) for name in self.study.baselines for fold in self.folds
        ]

    def choose(self, arm: Arm, losses: Mapping[str, float]) -> dict[str, Any]:
        """Return the design point with the lowest mean validation loss; of equals the first declared.

        Parameters
        ----------
        arm : Arm
            Whose tuning has ended.
        losses : mapping
            Key of each tuning cell to its validation loss, infinite if it diverged.
        """
        return choose(self.tuning_cells(arm), losses)

    def num_fits(self) -> dict[str, int]:
        """Return the number of tuning and of final fits."""
        tuning = self.study.tuning
        return {
            "tuning": len(self.arms) * len(tuning.points()) * tuning.folds * len(tuning.seeds),
            "final": len(self.arms) * len(self.folds) * len(self.study.seeds),
        }

    def spec(self) -> dict[str, Any]:
        """Return study.json: everything a worker or a report needs of the study, JSON-able.

        The same plan gives the same spec, whenever it runs.
        """
        study = self.study
        dates = self.dataset.panel.dates
        tuning = study.tuning
        return {
            "format": SPEC_FORMAT,
            "name": self.name,
            "title": study.title,
            "docstring": self.docstring,
            "preset": self.preset,
            "claim": study.presets[self.preset].claim,
            "changes": dict(self.changes),
            "dataset": self.dataset.describe(),
            "checksum": self.dataset.checksum,
            "sealed_from": None if self.dataset.until is None else self.dataset.until.isoformat(),
            "opens_seal": study.opens_seal,
            "simulated": self.dataset.signal is not None,
            "span": [dates[0].isoformat(), dates[-1].isoformat()],
            "num_assets": len(self.dataset.panel.assets),
            "factors": {factor: list(levels) for factor, levels in study.factors.items()},
            "arms": [
                {"name": arm.name, "levels": arm.levels, "experiment": arm.experiment.to_dict()}
                for arm in self.arms
            ],
            "folds": self.folds,
            "seeds": list(study.seeds),
            "tuning": {
                "space": {name: list(values) for name, values in tuning.space.items()},
                "points": tuning.points(),
                "folds": tuning.folds,
                "seeds": list(tuning.seeds),
            },
            "primary": _contrast(study.primary),
            "contrasts": [_contrast(contrast) for contrast in study.contrasts],
            "outcome": study.outcome,
            "smallest_effect": study.smallest_effect,
            "sources": self.sources,
            "device": device_type(study.base.training.device),
            "torch": torch_version(),
            **({"larger": self.larger} if self.larger else {}),
            # A study from before the choice, and one that leaves it, has the same spec.
            **({} if study.baselines == DEFAULT_BASELINES else {"baselines": list(study.baselines)}),
            **(
                {}
                if study.matching is None
                else {"matching": comparisons(study.matching, study.factors, self.arms)}
            ),
        }

    def design(self, cell: Cell) -> str:
        """Return what names a fit of this plan whatever code, torch and device made it.

        It is all that its key has beside those.
        """
        dataset = self.dataset
        baseline = cell.role == "baseline"
        return fingerprint(
            cell.experiment,
            cell.point["baseline"] if baseline else cell.role,
            cell.dates,
            cell.seed,
            dataset.checksum,
            None if dataset.until is None else dataset.until.isoformat(),
            *([dataset.signal_checksum] if baseline else []),
        )

    def _cell(self, arm: Arm, role: str, fold: Mapping[str, Any], seed: int, point: dict[str, Any]) -> Cell:
        until = None if self.dataset.until is None else self.dataset.until.isoformat()
        return fit_of_an_arm(
            arm.experiment,
            point,
            arm=arm.name,
            role=role,
            fold=fold,
            seed=seed,
            checksum=self.dataset.checksum,
            until=until,
            sources=self.sources,
            torch=torch_version(),
        )

    def _baseline_cell(self, fold: Mapping[str, Any], baseline: str, until: str | None) -> Cell:
        experiment = self.study.base
        dates = {name: list(fold[name]) for name in ("train", "validation", "test")}
        entries = (*AFFECTS_BASELINES, *SOURCES.get(baseline, ()))
        trained = baseline in NETWORKS
        key = fit_key(
            experiment,
            role=baseline,
            fold=dates,
            seed=0,
            checksum=self.dataset.checksum,
            until=until,
            sources=sources_hash(entries=entries) + self.dataset.signal_checksum,
            device=device_type(experiment.training.device) if trained else "",
            torch=torch_version() if trained else "",
        )
        return Cell(
            key=key,
            arm="baselines",
            role="baseline",
            fold=int(fold["index"]),
            seed=0,
            point={"baseline": baseline},
            dates=dates,
            experiment=experiment.to_dict(),
        )


def make_plan(
    study: Study,
    *,
    name: str,
    docstring: str,
    preset: str,
    data: str | None = None,
    changes: Mapping[str, Any] | None = None,
) -> Plan:
    """Resolve a study to a plan.

    Raises
    ------
    ValueError
        If the preset, the dataset, a changed field or an arm's network cannot be used, the panel is
        too short for the folds or has dates from which nothing can be learnt, or tuning would see a
        judged outcome.
    """
    sized = study.sized(preset, changes)
    dataset = open_dataset(data or study.dataset, opens_seal=sized.opens_seal)
    folds = [fold.to_dict() for fold in sized.folds.split(dataset.panel.dates.to_list())]
    _check_tuning(sized, folds)
    _check_arms(sized, dataset)
    _check_outcomes(sized, dataset, folds)
    return Plan(
        study=sized,
        name=name,
        docstring=docstring,
        preset=preset,
        changes=dict(changes or {}),
        dataset=dataset,
        arms=sized.arms(),
        folds=folds,
        sources=sources_hash(),
        larger=f"python studies/{name}.py run --preset {FULL}"
        if FULL in study.presets and preset != FULL
        else "",
    )


def _check_tuning(study: Study, folds: list[dict[str, Any]]) -> None:
    """Refuse design points chosen on outcomes that are judged later."""
    first = folds[0]["test"][0]
    for fold in folds[: study.tuning.folds]:
        start, end = fold["validation"]
        if end >= first:
            raise ValueError(
                f"tuning.folds = {study.tuning.folds} cannot be used: the validation dates of fold "
                f"{fold['index']}, {start} to {end}, reach into the judged dates, which begin on {first}; "
                "tune on fewer folds."
            )


def _check_arms(study: Study, dataset: Dataset) -> None:
    """Refuse what only a fit would find: an unknown feature, an option its scheme does not have."""
    from fints.data import features

    dates = dataset.panel.dates
    # Names are checked, and values belong to the fits: few days will do.
    few = dataset.panel[: dates[min(5, len(dates)) - 1]]
    checked = set()
    for arm in study.arms():
        for point in study.tuning.points():
            experiment = override(arm.experiment, point)
            training = experiment.training
            name = f"{experiment.model} {experiment.data} {training.device} {training.interventions}"
            if name in checked:
                continue
            checked.add(name)
            try:
                features(few, experiment.data.features)
                check_experiment(experiment)
            except ValueError as error:
                raise ValueError(f"arm {arm.name}: {error}") from error


def _check_outcomes(study: Study, dataset: Dataset, folds: list[dict[str, Any]]) -> None:
    """Refuse a panel that has no outcome, or always the same one, in the dates of a fold.

    Or no window in the first fold's training dates, which have the shortest history.
    """
    import polars as pl

    from fints.data import targets
    from fints.data.learning import has_window

    experiments = [override(arm.experiment, point) for arm in study.arms() for point in study.tuning.points()]
    for data in {str(one.data): one.data for one in experiments}.values():
        name = data.target
        labels = targets(dataset.panel, name, data.horizon)
        known = labels.select("date", "target").drop_nulls()
        for fold in folds:
            for part, role in (("train", "training"), ("validation", "validation"), ("test", "test")):
                first, last = (date.fromisoformat(day) for day in fold[part])
                here = known.filter(pl.col("date").is_between(first, last))["target"]
                if here.is_empty():
                    fault = f"hold no outcome of target {name!r}"
                elif here.min() == here.max():
                    fault = f"hold one outcome of target {name!r} only, {here[0]:g}"
                else:
                    continue
                raise ValueError(
                    f"no fit can learn from panel {dataset.name!r}: the {role} dates of fold "
                    f"{fold['index']}, {first} to {last}, {fault}; give a panel whose prices are there and "
                    "move on those dates, or another data.target."
                )
        first, last = (date.fromisoformat(day) for day in folds[0]["train"])
        if not has_window(dataset.panel, data, first, last):
            raise ValueError(
                f"no fit can learn from panel {dataset.name!r}: no window of {data.context} days with "
                f"features and an outcome ends in the training dates of fold 0, {first} to {last}; give a "
                "longer panel, a smaller data.context or features of a shorter history."
            )


def _contrast(contrast: Contrast) -> dict[str, Any]:
    return {"compare": list(contrast.compare), "against": contrast.against, "within": dict(contrast.within)}


def loss_or_infinity(result: Mapping[str, Any]) -> float:
    """Return a fit's validation loss as tuning judges it: infinite unless it ended well."""
    loss = result["validation_loss"]
    return math.inf if loss is None or result["outcome"] not in FINISHED else float(loss)

"""A panel study at one size: its arms, its fits and the spec that is kept with them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from inspect import signature
from typing import Any

from fints.config import Experiment, fingerprint, override
from fints.data import simulate
from fints.study.cells import FINISHED
from fints.study.estimates import fit_seconds
from fints.study.experiments import check_experiment
from fints.study.fingerprint import device_type, sources_hash, torch_version
from fints.study.panel_cells import PANEL_SOURCES, PanelFit
from fints.study.panel_design import PanelArm, PanelStudy

__all__ = ["PanelPlan", "make_panel_plan"]

# Time of a fit relative to the plain one, counted from its further passes forward and backward; for the plan
# alone, which a measurement would make exacter.
INTERVENTION_FACTORS = {
    "gradient_equaliser": 1.6,
    "gradient_equaliser_placebo": 2.2,
    "decorrelation": 2.0,
    "decorrelation_placebo": 2.8,
    "hinged_decorrelation": 1.7,
    "hinged_decorrelation_placebo": 2.3,
    "output_change_step": 1.6,
    "depth_scaled_updates": 1.1,
}
# Watching a fit at one step, in training steps of the same network by itself: 16 blocks, D 32, batches of 32.
WATCH_STEPS = 12
# Between the seeds of one panel; panels have smaller numbers.
SEED_STEP = 100_000


@dataclass(frozen=True, kw_only=True)
class PanelPlan:
    """What `run` will do; nothing in it depends on when or where it runs."""

    study: PanelStudy
    name: str
    docstring: str
    preset: str
    arms: list[PanelArm]
    sources: str
    changes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """Name of the study's folder: preset, and a hash of `--set` changes if any."""
        return self.preset + (f"-set-{fingerprint(dict(self.changes))[:8]}" if self.changes else "")

    def tuning_cells(self, arm: PanelArm) -> list[PanelFit]:
        """Return the design points of one arm on the tuning panels, in order."""
        tuning = self.study.tuning
        return [cell for point in tuning.points() for cell in self._fits(arm, "tuning", tuning.panels, point)]

    def final_cells(self, arm: PanelArm, point: Mapping[str, Any]) -> list[PanelFit]:
        """Return one arm at its chosen design point on every judged panel, in order."""
        return self._fits(arm, "final", self.study.panels, point, seeds=self.study.seeds)

    def yoked_cells(self, chosen: Mapping[str, Mapping[str, Any]]) -> list[list[PanelFit]]:
        """Return the fits of plain arms at points that arms compared with them chose.

        Those of one arm at one point are a list.

        Parameters
        ----------
        chosen
            The design point by arm. Where one of a pair is not there yet, its fits are left out.
        """
        found = {
            (plain.name, fingerprint(chosen[arm.name])): self.cells_at(plain, chosen[arm.name])
            for arm in self.arms
            if (plain := self.plain_of(arm)) is not None and {arm.name, plain.name} <= chosen.keys()
            if chosen[arm.name] != chosen[plain.name]
        }
        return list(found.values())

    def cells_at(self, plain: PanelArm, point: Mapping[str, Any]) -> list[PanelFit]:
        """Return a plain arm at a design point that another arm chose, on every judged panel."""
        return self._fits(plain, "yoked", self.study.panels, point, seeds=self.study.seeds)

    def plain_of(self, arm: PanelArm) -> PanelArm | None:
        """Return the arm that `arm` is compared with at equal design points; None where it is with none."""
        yoked = self.study.yoked
        if yoked is None or arm.levels[yoked.factor] not in yoked.levels:
            return None
        levels = {**arm.levels, yoked.factor: yoked.plain}
        return next((one for one in self.arms if one.levels == levels), None)

    def choose(self, arm: PanelArm, losses: Mapping[str, float]) -> dict[str, Any]:
        """Return the design point with the lowest mean validation loss; of equals the first declared.

        Where nothing was tuned it is the first.
        """
        totals: dict[str, tuple[float, dict[str, Any]]] = {}
        for cell in self.tuning_cells(arm):
            name = fingerprint(cell.point)
            totals[name] = (totals.get(name, (0.0, {}))[0] + losses[cell.key], cell.point)
        if not totals:
            return self.study.tuning.points()[0]
        return min(totals.values(), key=lambda entry: entry[0])[1]

    def num_fits(self) -> dict[str, int]:
        """Return the number of tuning and of final fits; how many are yoked is known after tuning only."""
        tuning = self.study.tuning
        return {
            "tuning": len(self.arms) * len(tuning.points()) * len(tuning.panels),
            "final": len(self.arms) * len(self.study.panels) * self.study.seeds,
        }

    def most_yoked(self) -> list[PanelFit]:
        """Return the most fits that may be yoked: those of plain arms at every point but their own."""
        compared = {plain.name: plain for arm in self.arms if (plain := self.plain_of(arm)) is not None}
        further = self.study.tuning.points()[1:]
        return [
            cell for plain in compared.values() for point in further for cell in self.cells_at(plain, point)
        ]

    def seconds(self) -> float:
        """Return a rough time of all tuning and final fits, one after another."""
        point = self.study.tuning.points()[0]
        return sum(
            cell.seconds
            for arm in self.arms
            for cell in (*self.tuning_cells(arm), *self.final_cells(arm, point))
        )

    def spec(self) -> dict[str, Any]:
        """Return what a report needs of the study, JSON-able; the same plan gives the same."""
        study = self.study
        return {
            "name": self.name,
            "title": study.title,
            "docstring": self.docstring,
            "preset": self.preset,
            "claim": study.presets[self.preset].claim,
            "changes": dict(self.changes),
            "simulation": dict(study.simulation),
            "days": asdict(study.days),
            "factors": {factor: list(levels) for factor, levels in study.factors.items()},
            "arms": [
                {"name": arm.name, "levels": arm.levels, "experiment": arm.experiment.to_dict()}
                for arm in self.arms
            ],
            "panels": list(study.panels),
            "seeds": study.seeds,
            "asked": dict(study.asked),
            **({} if study.yoked is None else {"yoked": asdict(study.yoked)}),
            "tuning": {
                "space": {name: list(values) for name, values in study.tuning.space.items()},
                "panels": list(study.tuning.panels),
            },
            "settings": dict(study.settings),
            "sources": self.sources,
            "device": device_type(study.base.training.device),
            "torch": torch_version(),
        }

    def _fits(
        self, arm: PanelArm, role: str, panels: Sequence[int], point: Mapping[str, Any], *, seeds: int = 1
    ) -> list[PanelFit]:
        experiment = override(arm.experiment, point)
        days = asdict(self.study.days)
        watched = role != "tuning" and self.study.watched
        asked = dict(self.study.asked) if role != "tuning" else {}
        assets = arm.simulation.get("num_assets", signature(simulate).parameters["num_assets"].default)
        looked_at = self.study.days.validation * assets
        tree = experiment.to_dict()
        seconds = _seconds(experiment, watched=watched, asked=asked, looked_at=looked_at)
        # Parts that came later are left out where they say nothing, as fields of an experiment are.
        design = fingerprint(tree, role, arm.simulation, days, watched, *([asked] if asked else []))
        device = device_type(experiment.training.device)
        return [
            PanelFit(
                key=fingerprint(design, *own, self.sources, device, torch_version()),
                design=fingerprint(design, *own),
                arm=arm.name,
                role=role,
                panel=panel,
                seed=own[-1],
                point=dict(point),
                experiment=tree,
                simulation=dict(arm.simulation),
                days=days,
                sources=self.sources,
                watched=watched,
                asked=asked,
                seconds=seconds,
            )
            for panel in panels
            for own in [(panel,), *((panel, panel + further * SEED_STEP) for further in range(1, seeds))]
        ]


def make_panel_plan(
    study: PanelStudy, *, name: str, docstring: str, preset: str, changes: Mapping[str, Any] | None = None
) -> PanelPlan:
    """Resolve a panel study to a plan.

    Raises
    ------
    ValueError
        If the preset or a changed field cannot be used.
    """
    sized = study.sized(preset, changes)
    checked = set()
    for arm in sized.arms():
        if (known := str(arm.experiment)) not in checked:
            checked.add(known)
            try:
                check_experiment(arm.experiment)
            except ValueError as error:
                raise ValueError(f"arm {arm.name}: {error}") from error
    return PanelPlan(
        study=sized,
        name=name,
        docstring=docstring,
        preset=preset,
        arms=sized.arms(),
        sources=sources_hash(entries=PANEL_SOURCES),
        changes=dict(changes or {}),
    )


def loss_or_infinity(result: Mapping[str, Any]) -> float:
    """Return a fit's validation loss as tuning judges it: infinite unless it ended well."""
    return float(result["validation_loss"]) if result["outcome"] in FINISHED else math.inf


def _seconds(experiment: Experiment, *, watched: bool, asked: Mapping[str, Any], looked_at: int) -> float:
    """Return the time of a fit; `looked_at` windows are evaluated whenever its weights may be the best."""
    training = experiment.training
    factor = math.prod(INTERVENTION_FACTORS.get(name, 1.0) for name in training.interventions)
    # What is measured in a fit is measured of each by itself, also where fits are made at once.
    moments = 2 + sum(training.profiled(step) for step in range(1, training.steps))
    steps = float(watched * WATCH_STEPS * moments)
    if asked.get("inside") or asked.get("curve"):
        from fints.study.panel_inside import windows_seen

        # A pass forward is a third of a step.
        steps += windows_seen(asked, experiment) / training.batch_size / 3
    looks = training.steps // training.evaluate_every if training.keep == "best" else 0
    # A pass forward is a third of a step; several fits make it at once, as they make their steps.
    factor += looks * looked_at / training.batch_size / 3 / training.steps
    alone = fit_seconds(override(experiment, {"training.vectorise": 1}))
    return fit_seconds(experiment) * factor + alone * steps / training.steps

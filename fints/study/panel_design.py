"""A study whose clusters are simulated panels: factors, panels, tuning, presets, as values.

What is asked of networks, not of markets, is asked of panels whose signal is known: each is drawn anew, so
clusters are independent and as many as one can pay for. `fints.study.design` is for one panel in time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

from fints.config import Experiment, override
from fints.study.factors import (
    Factors,
    check_changes,
    check_factors,
    chosen_levels,
    crossed,
    design_points,
    nearest,
    resized,
)
from fints.study.panel_cells import Days, check_asked

if TYPE_CHECKING:
    from pathlib import Path

    from fints.study.document import Block
    from fints.study.panel_store import Fits

__all__ = [
    "ANSWERS",
    "SIMULATION",
    "Answer",
    "PanelArm",
    "PanelPreset",
    "PanelStudy",
    "PanelTuning",
    "Yoked",
]

# What a dotted field of a level begins with if it is of the panel and not of the experiment.
SIMULATION = "simulation."
# Where a kind of answer is made: its module, which is loaded when needed, its function and that of its power.
ANSWERS = {
    "causes": ("fints.study.cause_report", "answer_causes", "power_of_causes"),
    "published": ("fints.study.published_report", "answer_published", "power_of_published"),
    "stability": ("fints.study.stability_report", "answer_stability", "power_of_stability"),
}


@dataclass(frozen=True, kw_only=True)
class PanelTuning:
    """The design points that every arm tries on panels of their own, judged by validation loss alone.

    Without panels nothing is tuned, and the space has one point: the base experiment's, if it is empty.
    """

    space: Mapping[str, Sequence[Any]]
    panels: tuple[int, ...]

    def points(self) -> list[dict[str, Any]]:
        """Return the design points in a fixed order."""
        return design_points(self.space)


@dataclass(frozen=True, kw_only=True)
class Yoked:
    """What is compared at equal design points although every arm chose one of its own.

    Each arm is tuned by itself. So two arms that differ in one level may differ in what was tuned as well,
    and what is seen inside them may come of that. A yoked control gets what the other one got: where an arm
    at one of `levels` of `factor` chose another point than the arm that has `plain` in its place, the latter
    is fitted at that point too, on the judged panels (role "yoked"). Those fits tell what a level does at
    equal points; an arm is judged by its final ones alone.
    """

    factor: str
    plain: str
    levels: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class PanelPreset:
    """One size of a study; what is not given is as the study says. `claim` is as in `Preset`.

    `grids` are combinations of levels: those within one of them are the arms. A factor that a grid does not
    name has all its levels there.
    """

    changes: Mapping[str, Any] = field(default_factory=dict)
    levels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    grids: tuple[Mapping[str, tuple[str, ...]], ...] = ()
    panels: tuple[int, ...] | None = None
    seeds: int = 1
    tuning: PanelTuning | None = None
    days: Days | None = None
    simulation: Mapping[str, Any] = field(default_factory=dict)
    claim: str = "exploratory"

    def __post_init__(self) -> None:
        if self.claim not in ("none", "exploratory", "answer"):
            raise ValueError(f'claim must be "none", "exploratory" or "answer"; got {self.claim!r}.')


@dataclass(frozen=True, kw_only=True)
class PanelArm:
    """One combination of levels: its experiment, and the panels it is fitted on."""

    name: str
    levels: dict[str, str]
    experiment: Experiment
    simulation: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What the finished fits say: the finding in a sentence, the report, and tables as rows by name.

    `undecided` names each verdict that is open, with how many further panels would decide it at these
    estimates; None where no number of them would.
    """

    sentence: str
    blocks: list[Block]
    tables: dict[str, list[dict[str, Any]]]
    undecided: dict[str, int | None] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class PanelStudy:
    """A question to networks, asked on independent simulated panels.

    Parameters
    ----------
    title : str
        The question in one line.
    base : Experiment
        What all arms share.
    simulation : mapping
        What all panels share, for `fints.data.simulate`; its seed is the panel's number.
    days : Days
        How a panel's days are used.
    factors : mapping
        Factor -> level -> changes: dotted fields of the experiment, or ``simulation.NAME``.
    tuning : PanelTuning
        Same space in every arm, on panels that are not judged.
    panels : tuple of int
        The judged ones: the clusters. The seed of a fit is the number of its panel.
    presets : mapping
        Name to size.
    answer : str
        Name in `ANSWERS` of what makes a report of the fits, and of what its plan says of power.
    settings : mapping
        Numbers of the rule that answers, such as the smallest effect of interest; JSON-able.
    watched : bool
        Whether final fits store mediators, profiles and probes.
    asked : mapping
        What else final fits are asked (`fints.study.panel_measures`); JSON-able.
    yoked : Yoked, optional
        Which levels of a factor are compared at equal design points.
    grids, seeds : set by `sized`
        As of the preset: which combinations of levels are arms, and fits of an arm on one panel.

    Raises
    ------
    ValueError
        If a field, a level or a panel cannot be used.
    """

    title: str
    base: Experiment
    simulation: Mapping[str, Any]
    days: Days
    factors: Factors
    tuning: PanelTuning
    panels: tuple[int, ...]
    presets: Mapping[str, PanelPreset]
    answer: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    watched: bool = True
    asked: Mapping[str, Any] = field(default_factory=dict)
    yoked: Yoked | None = None
    grids: tuple[Mapping[str, tuple[str, ...]], ...] = ()
    seeds: int = 1
    # As `fints.study.design.Study` has them: what a run must find committed.
    baselines: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.answer not in ANSWERS:
            raise ValueError(f"answer = {self.answer!r} is unknown. {nearest(self.answer, ANSWERS)}")
        check_factors(self.factors)
        self._check_yoked()
        for name in self.presets:
            try:
                self.sized(name)._check()
            except ValueError as error:
                raise ValueError(f"preset {name!r}: {error}") from error

    def sized(self, preset: str, changes: Mapping[str, Any] | None = None) -> PanelStudy:
        """Return the study at the size of `preset`, with `changes` put on its base experiment.

        Raises
        ------
        ValueError
            If the preset is unknown or something in it cannot be used.
        """
        if preset not in self.presets:
            raise ValueError(f"unknown preset {preset!r}. {nearest(preset, self.presets)}")
        size = self.presets[preset]
        factors, tuning = chosen_levels(self.factors, size.levels), size.tuning or self.tuning
        grids = tuple(chosen_levels(factors, grid) for grid in size.grids)
        if grids:
            factors = {
                factor: {
                    level: own for level, own in levels.items() if any(level in g[factor] for g in grids)
                }
                for factor, levels in factors.items()
            }
        check_changes([*size.changes, *(changes or {})], factors, tuning.space)
        values = {
            "base": override(self.base, {**size.changes, **(changes or {})}),
            "simulation": {**self.simulation, **size.simulation},
            "days": size.days or self.days,
            "factors": factors,
            "tuning": tuning,
            "panels": size.panels or self.panels,
            "grids": grids,
            "seeds": size.seeds,
            "presets": {preset: size},
        }
        return resized(self, values)

    def arms(self) -> list[PanelArm]:
        """Return every combination of levels, those of the grids if any, in the order of declaration."""
        arms = []
        for name, levels, changes in crossed(self.factors):
            grids = self.grids
            if grids and not any(all(levels[factor] in own for factor, own in g.items()) for g in grids):
                continue
            own = {n.removeprefix(SIMULATION): v for n, v in changes.items() if n.startswith(SIMULATION)}
            plain = {n: v for n, v in changes.items() if not n.startswith(SIMULATION)}
            arms.append(
                PanelArm(
                    name=name,
                    levels=levels,
                    experiment=override(self.base, plain),
                    simulation={**self.simulation, **own},
                )
            )
        return arms

    def answered(self, fits: Fits, folder: Path) -> Answer:
        """Return what the finished fits say; figures are drawn into `folder`."""
        home, answer, _ = ANSWERS[self.answer]
        found: Answer = getattr(import_module(home), answer)(self, fits, folder)
        return found

    def power(self) -> list[str]:
        """Return the lines of a plan on what this study can find."""
        home, _, power = ANSWERS[self.answer]
        lines: list[str] = getattr(import_module(home), power)(self)
        return lines

    def _check_yoked(self) -> None:
        if self.yoked is None:
            return
        own = self.factors.get(self.yoked.factor, {})
        unknown = [level for level in (self.yoked.plain, *self.yoked.levels) if level not in own]
        if unknown or self.yoked.plain in self.yoked.levels:
            raise ValueError(
                "yoked must name a factor, one of its levels, and others to compare with that; got "
                f"{self.yoked.factor!r} with {', '.join((self.yoked.plain, *self.yoked.levels))}."
            )

    def _check(self) -> None:
        shared = set(self.panels) & set(self.tuning.panels)
        if shared:
            raise ValueError(f"panels {sorted(shared)} are tuning panels too; judged ones must be fresh.")
        if len(set(self.panels)) < len(self.panels) or not self.panels:
            raise ValueError(f"panels must be distinct, one or more; got {self.panels}.")
        if self.seeds < 1:
            raise ValueError(f"seeds must be at least 1; got {self.seeds}.")
        if not self.tuning.panels and len(self.tuning.points()) > 1:
            raise ValueError(
                "several design points need tuning panels to choose by; give some, or one point."
            )
        arms = self.arms()
        for arm in arms:
            check_asked(self.asked, arm.experiment.data.features)
        for point in self.tuning.points():
            override(arms[0].experiment, point)
        seen: dict[str, str] = {}
        for arm in arms:
            same = f"{arm.experiment} {arm.simulation}"
            if same in seen:
                raise ValueError(f"arms {seen[same]} and {arm.name} are the same; change a level.")
            seen[same] = arm.name

"""Which fits of a study are made at once, as one network with stacked parameters (`training.vectorise`).

What is grouped follows from the plan alone, never from what is finished or who is free: a fit's last bits may
depend on the fits that it is made with, and a study must give the same bytes whoever runs it, and however
often it is interrupted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar, cast

from fints.config import Experiment, fingerprint
from fints.words import counted

__all__ = ["grouping_lines", "jobs_of", "why_alone"]


class Fit(Protocol):
    """One training, of a study in time or on panels: a frozen dataclass with `members` beside these."""

    @property
    def key(self) -> str: ...

    @property
    def arm(self) -> str: ...

    @property
    def role(self) -> str: ...

    @property
    def experiment(self) -> dict[str, Any]: ...

    @property
    def seconds(self) -> float: ...

    def to_dict(self) -> dict[str, Any]:
        """Return its fields, JSON-able."""
        ...


AnyFit = TypeVar("AnyFit", bound=Fit)


def jobs_of(cells: Sequence[AnyFit]) -> list[AnyFit]:
    """Return what workers are handed: cells as they are, and in the place of several one that holds them.

    The fits of one arm and role that have one structure go together, in the order of the plan and as many as
    `training.vectorise` says; a last one that is left over is made by itself.
    """
    filling: dict[str, list[AnyFit]] = {}
    made: list[list[AnyFit]] = []
    for cell in cells:
        most = cell.experiment["training"].get("vectorise", 1)
        alone = most == 1 or cell.role == "baseline"
        if alone or why_alone(Experiment.from_dict(cell.experiment)) is not None:
            made.append([cell])
            continue
        kind = fingerprint(_structure(cell.experiment), cell.arm, cell.role)
        if kind not in filling or len(filling[kind]) == most:
            filling[kind] = []
            made.append(filling[kind])
        filling[kind].append(cell)
    return [bunch[0] if len(bunch) == 1 else _together(bunch) for bunch in made]


def grouping_lines(arms: Mapping[str, Experiment]) -> list[str]:
    """Return what a plan says of the fits that are made at once, nothing where none are."""
    most = max(experiment.training.vectorise for experiment in arms.values())
    if most == 1:
        return []
    reasons = Counter(reason for reason in map(why_alone, arms.values()) if reason is not None)
    lines = [f"at once  up to {most} fits of an arm, as one network with stacked parameters"]
    return lines + [f"         but {counted(n, 'arm')} one by one: {why}" for why, n in reasons.items()]


def why_alone(experiment: Experiment) -> str | None:
    """Return why fits of an experiment are made one by one, None if they need not be."""
    from fints.interventions import cannot_be_stacked
    from fints.training import cannot_be_vectorised

    training = experiment.training
    return cannot_be_vectorised(training) or cannot_be_stacked(training.interventions, experiment.model)


def _structure(experiment: Mapping[str, Any]) -> dict[str, Any]:
    """Return the experiment less what may differ between fits that are made at once."""
    from fints.training import MAY_DIFFER

    training = {name: value for name, value in experiment["training"].items() if name not in MAY_DIFFER}
    return {**experiment, "training": training}


def _together(cells: Sequence[AnyFit]) -> AnyFit:
    job: AnyFit = replace(
        cast(Any, cells[0]),
        key=fingerprint("together", [cell.key for cell in cells]),
        members=tuple(cell.to_dict() for cell in cells),
        seconds=sum(cell.seconds for cell in cells),
    )
    return job

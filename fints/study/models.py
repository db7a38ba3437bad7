"""An arm as a forecaster that a backtest loads: its final fits, each for the dates it may forecast.

Forecasts dated within a fold come from the fits of that fold, averaged over seeds, so the loaded model
gives the study's own out-of-sample forecasts again; later ones come from the last fold's fits.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fints.config import Experiment
from fints.study.cells import FINISHED
from fints.study.fits import WEIGHTS
from fints.study.origin import origin_of

if TYPE_CHECKING:
    from fints.study.design import Arm
    from fints.study.plan import Plan
    from fints.study.store import StudyFolder
    from fints.walk_forward import WalkForwardForecaster

__all__ = ["CHAMPION", "CHAMPION_RULE", "Choice", "arm_forecaster", "champion", "model_name"]

CHAMPION = "champion"
CHAMPION_RULE = (
    "The champion is the arm with the lowest mean validation loss over its final fits, of equals the first "
    "declared, among the arms whose final fits all ended well and that the verdict on the primary contrast "
    "does not declare beaten. Test outcomes choose nothing beyond that one verdict, whose rule was fixed "
    "before the run."
)


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The champion's arm, None where there is none, and why."""

    arm: str | None
    reason: str


def model_name(plan: Plan) -> str:
    """Return what the models of a plan are registered as: study, preset and dataset, like its folder."""
    return f"{plan.name}-{plan.label}"


def arm_forecaster(
    plan: Plan, folder: StudyFolder, arm: Arm, fits: Sequence[Mapping[str, Any]]
) -> WalkForwardForecaster:
    """Return one arm's final fits as a walk-forward forecaster.

    Parameters
    ----------
    plan : Plan
        Whose arm it is.
    folder : StudyFolder
        Where the fits lie.
    arm : Arm
        The arm.
    fits : sequence of mapping
        Its rows of ``fits.parquet`` with role "final".

    Raises
    ------
    ValueError
        If a fold has no fit that ended well, or a fit kept no weights.
    """
    from fints.forecaster import Forecaster, load
    from fints.walk_forward import Refit, WalkForwardForecaster

    dates = plan.dataset.panel.dates
    refits: list[Refit] = []
    members: dict[dt.date, list[Forecaster]] = {}
    for row in sorted(fits, key=lambda row: (row["fold"], row["seed"])):
        first = dt.date.fromisoformat(plan.folds[row["fold"]]["test"][0])
        refits.append(
            Refit(
                first=first,
                as_of=dates[dates.search_sorted(first) - 1],
                seed=row["seed"],
                outcome=row["outcome"],
                reason=row["reason"],
            )
        )
        fitted = members.setdefault(first, [])
        if row["outcome"] not in FINISHED:
            continue
        place = folder.fit(row["key"]) / WEIGHTS
        if not place.is_dir():
            if origin_of(place.parent) is not None:
                raise ValueError("its weights are not committed: run --anew makes its fits here, with them")
            raise ValueError("its fits kept no weights: they were made with --no-models")
        fitted.append(load(place))
    wanted = {dt.date.fromisoformat(fold["test"][0]) for fold in plan.folds}
    if without := sorted(first for first in wanted if not members.get(first)):
        raise ValueError(f"no fit that ended well forecasts from {without[0]} on")
    folds = plan.study.folds
    validated = plan.folds[-1]["validation"]
    learnt = dates.is_between(
        dt.date.fromisoformat(plan.folds[-1]["train"][0]), dt.date.fromisoformat(validated[1])
    ).sum()
    walk = WalkForwardForecaster(
        Forecaster(members[max(members)][0].experiment_, seed=refits[0].seed),
        refit_every=folds.test_days,
        train_days=None if folds.train_days is None else int(learnt),
        validation=round(folds.validation_days / int(learnt), 4),
        num_seeds=len(plan.study.seeds),
    )
    walk.refits_ = refits
    walk.members_ = members
    return walk


def champion(spec: Mapping[str, Any], fits: Sequence[Mapping[str, Any]], decision: str) -> Choice:
    """Choose by `CHAMPION_RULE`.

    Parameters
    ----------
    spec : mapping
        The study, as in study.json.
    fits : sequence of mapping
        Rows of ``fits.parquet``.
    decision : str
        What the verdict says of the primary contrast: "better" and "worse" declare a level beaten.
    """
    measured = {_unit_of_loss(arm["experiment"]) for arm in spec["arms"]}
    if len(measured) > 1:
        return Choice(arm=None, reason="the arms' validation losses are not in the same units")
    planned = len(spec["folds"]) * len(spec["seeds"])
    losses: dict[str, float] = {}
    for arm in spec["arms"]:
        own = [row for row in fits if row["role"] == "final" and row["arm"] == arm["name"]]
        whole = len(own) == planned and all(row["outcome"] in FINISHED for row in own)
        if whole and not (spec["claim"] != "none" and _beaten(spec["primary"], arm["levels"], decision)):
            losses[arm["name"]] = math.fsum(float(row["validation_loss"]) for row in own) / planned
    if not losses:
        return Choice(arm=None, reason="no arm's final fits all ended well")
    best = min(losses, key=lambda name: losses[name])
    return Choice(arm=best, reason=f"lowest mean validation loss, {losses[best]:.5g}")


def _beaten(primary: Mapping[str, Any], levels: Mapping[str, str], decision: str) -> bool:
    factor, level = primary["compare"]
    loser = {"better": primary["against"], "worse": level}.get(decision)
    here = all(levels[name] == wanted for name, wanted in primary["within"].items())
    return here and levels[factor] == loser


def _unit_of_loss(tree: Mapping[str, Any]) -> tuple[Any, ...]:
    one = Experiment.from_dict(tree)
    return (
        one.data.target,
        one.data.horizon,
        one.model.head,
        one.training.loss,
        one.training.huber_delta if one.training.loss == "huber" else None,
    )

"""Each arm's forecaster in MLflow: logged under the arm's run, registered, the champion under its alias."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fints.study.models import CHAMPION, CHAMPION_RULE, Choice, arm_forecaster, champion, model_name
from fints.study.store import fit_json
from fints.words import counted

if TYPE_CHECKING:
    from fints.study.analysis import Analysis
    from fints.study.plan import Plan
    from fints.study.store import StudyFolder
    from fints.study.tracking import Tracker

__all__ = ["LoggedModels", "log_models"]


@dataclass
class LoggedModels:
    """What stands in the registry after a run.

    `versions` maps an arm to its version of the registered model `name`, `without` an arm to why it has
    none; `elsewhere` is the store's address where `fints.load` would not look by itself.
    """

    name: str
    choice: Choice
    elsewhere: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    without: dict[str, str] = field(default_factory=dict)

    def lines(self) -> list[str]:
        """Return what a person reads of it."""
        told = [f"models   {len(self.versions)} in MLflow, one an arm"] if self.versions else []
        reasons = set(self.without.values())
        if len(reasons) == 1 and not self.versions:
            told += [f"models   none of {counted(len(self.without), 'arm')}: {reasons.pop()}"]
        else:
            told += [f"         none of arm {arm}: {reason}" for arm, reason in self.without.items()]
        if self.choice.arm in self.versions:
            where = f', tracking_uri="{self.elsewhere}"' if self.elsewhere else ""
            told += [
                f"champion {self.choice.arm}",
                f"         ({self.choice.reason}); in Python:",
                f'fints.load("models:/{self.name}@{CHAMPION}"{where})',
            ]
        elif self.versions:
            told += [f"         no champion: {self.choice.reason}"]
        return told


def log_models(plan: Plan, folder: StudyFolder, analysis: Analysis, tracker: Tracker) -> LoggedModels:
    """Log and register every arm's forecaster and set the alias ``champion``.

    What stands there already is left as it is, so this may be killed and repeated. The alias is taken from
    an older version where there is no champion now. How long it took is a line of ``models.jsonl`` in the
    study's folder.

    Parameters
    ----------
    plan : Plan
        All of whose final fits have been made.
    folder : StudyFolder
        With its tables.
    analysis : Analysis
        Of the same tables, for the verdict.
    tracker : Tracker
        That of the run, which has written the arms' runs.
    """
    import polars as pl

    from fints.registry import default_tracking_uri, log
    from fints.study.store import append_line

    clock = time.perf_counter()
    fits = pl.read_parquet(folder.path / "fits.parquet").to_dicts()
    final = [row for row in fits if row["role"] == "final"]
    made = LoggedModels(model_name(plan), champion(analysis.spec, fits, analysis.decision))
    made.elsewhere = "" if tracker.uri == default_tracking_uri() else tracker.uri
    for arm in plan.arms:
        own = [row for row in final if row["arm"] == arm.name]
        try:
            forecaster = arm_forecaster(plan, folder, arm, own)
        except ValueError as error:
            made.without[arm.name] = str(error)
            continue
        made.versions[arm.name] = log(
            forecaster,
            made.name,
            client=tracker.client,
            experiment_id=tracker.experiment_id,
            run_id=tracker.arm_runs[arm.name],
            title=arm.name,
            tags={**tracker.tags(arm.name, "model"), "fints.preset": plan.preset},
            description=_note(plan, arm.name, analysis),
            metrics=_mean_metrics(folder, own),
        ).version
    _name_champion(tracker.client, made)
    seconds = time.perf_counter() - clock
    append_line(folder.path / "models.jsonl", {"models": len(made.versions), "seconds": seconds})
    return made


def _name_champion(client: Any, made: LoggedModels) -> None:
    if not made.versions:
        return
    held = client.get_registered_model(made.name).aliases.get(CHAMPION)
    wanted = None if made.choice.arm is None else made.versions.get(made.choice.arm)
    if wanted is None and held is not None:
        client.delete_registered_model_alias(made.name, CHAMPION)
    elif wanted is not None and str(held) != wanted:
        client.set_registered_model_alias(made.name, CHAMPION, wanted)
        client.set_model_version_tag(made.name, wanted, "fints.chosen", made.choice.reason)


def _note(plan: Plan, arm: str, analysis: Analysis) -> str:
    """Return a version's description in Markdown."""
    folds, seeds = len(plan.folds), len(plan.study.seeds)
    return (
        f"Arm **{arm}** of the study **{plan.name}**, preset {plan.preset}, on {plan.dataset.name}: "
        f"{folds} x {seeds} final fits (folds x seeds). Dates within a fold are forecast by that fold's "
        f"fits, averaged over seeds; dates after the last fold by the last fold's.\n\n"
        f"Verdict of the study: {analysis.verdict}\n\n{CHAMPION_RULE}\n\n"
        f'Load it with `fints.load("models:/{model_name(plan)}@{CHAMPION}")` or by its version.'
    )


def _mean_metrics(folder: StudyFolder, fits: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the mean over an arm's final fits of each number that all of them have."""
    rows = []
    for fit in fits:
        scores = fit_json(folder.fit(fit["key"]), "metrics.json")
        rows.append({**scores, "validation_loss": fit["validation_loss"]})
    shared = [name for name in rows[0] if all(row.get(name) is not None for row in rows)]
    # One slash makes a section of charts.
    means = {f"model/{name}": math.fsum(row[name] for row in rows) / len(rows) for name in shared}
    return {name: value for name, value in means.items() if math.isfinite(value)}

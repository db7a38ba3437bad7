"""The lines a person reads before a run and after it."""

from __future__ import annotations

import math
import statistics
import textwrap
from collections.abc import Mapping
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any

from fints.study.cells import FAILED
from fints.study.claims import CLAIM_WORDS
from fints.study.estimates import (
    disk_bytes,
    duration,
    fit_bytes,
    memory_shortage,
    parameters,
    size,
    study_seconds,
    weight_bytes,
)
from fints.study.grouping import grouping_lines
from fints.words import counted

if TYPE_CHECKING:
    from pathlib import Path

    from fints.study.plan import Plan
    from fints.study.restore import Kept
    from fints.study.runner import Outcome
    from fints.study.store import StudyFolder

__all__ = ["finished_lines", "mlflow_lines", "plan_lines", "power_of", "shortage"]

# How much two arms agree is known after a pilot; until then a range, for power depends on it most.
AGREEMENTS = (0.5, 0.9, 0.97)


def plan_lines(kept: Kept, *, workers: int, commit: str, models: bool = True) -> list[str]:
    """Return what a run would do, cost and be able to find; `models` as its option says.

    `kept` says what is there already, `commit` which commit results will name, or why none.
    """
    plan, folder = kept.plan, kept.folder
    study, dates = plan.study, plan.dataset.panel.dates
    fits, there = plan.num_fits(), kept.cells()
    done = {cell.key for cell in there}
    committed = kept.num_committed(there)
    width = max(len(arm.name) for arm in plan.arms)
    lines = [
        f"{plan.name}: {study.title}",
        f"preset {plan.preset} {CLAIM_WORDS[study.presets[plan.preset].claim]}",
        "",
        f"{'arm':{width}} {'parameters':>10} {'memory a fit':>12} {'time a fit':>10} {'fits':>5}",
    ]
    a_arm = sum(fits.values()) // len(plan.arms)
    for arm in plan.arms:
        seconds = plan.tuning_cells(arm)[0].seconds
        lines.append(
            f"{arm.name:{width}} {parameters(arm.experiment):>10,} {size(fit_bytes(arm.experiment)):>12} "
            f"{duration(seconds):>10} {a_arm:>5}"
        )
    arms = counted(len(plan.arms), "arm")
    num_tuning_folds, points = study.tuning.folds, study.tuning.points()
    lines += [
        "",
        f"tuning   {arms} x {counted(len(points), 'point')} x {counted(num_tuning_folds, 'fold')} x "
        f"{counted(len(study.tuning.seeds), 'seed')} = {counted(fits['tuning'], 'fit')}, by validation loss",
        f"final    {arms} x {counted(len(plan.folds), 'fold')} x {counted(len(study.seeds), 'seed')}"
        f" = {counted(fits['final'], 'fit')}",
        *_baselines(plan),
        f"in all   {counted(sum(fits.values()), 'fit')}; there already: "
        f"{sum(cell.role != 'baseline' for cell in there)}"
        + (f", {committed} of them committed" if committed else ""),
        *grouping_lines({arm.name: arm.experiment for arm in plan.arms}),
        f"data     {plan.dataset.name}, {counted(len(plan.dataset.panel.assets), 'asset')}, {dates[0]} to "
        f"{dates[-1]}" + (f" (sealed from {plan.dataset.until})" if plan.dataset.until else ""),
    ]
    lines += [f"fold {fold['index']}   test {fold['test'][0]} to {fold['test'][1]}" for fold in plan.folds]
    left = study_seconds(plan, workers=workers, done=done)
    lines += [
        f"time     about {duration(left)} with {counted(workers, 'worker')} (a rough estimate)",
        f"disk     about {size(disk_bytes(plan) + (2 * weight_bytes(plan) if models else 0))}",
        f"models   one an arm for fints.load: {size(weight_bytes(plan))} in MLflow, as much in the folder"
        if models
        else "models   none: --no-models",
        f"commit   {commit}",
        "folder",
        f"  {folder.path}",
        *_power(plan),
        *_warning(plan, workers, done),
    ]
    return lines


def finished_lines(
    plan: Plan, folder: StudyFolder, outcome: Outcome, page: Any, *, tracking_uri: str | None
) -> list[str]:
    """Return a table of the arms, and where report and MLflow pages are."""
    name = plan.study.outcome
    width = max(len(arm.name) for arm in plan.arms)
    tuned = ", ".join(field.rsplit(".", 1)[-1] for field in plan.study.tuning.space)
    lines = ["", f"{'arm':{width}}  {tuned:<13} {name:>10} {'diverged':>9} {'time':>6}"]
    for arm, rows in outcome.rows.items():
        final = [row for row in rows if row["role"] == "final"]
        values = [row["metrics"][name] for row in final if name in row["metrics"]]
        mean = f"{statistics.fmean(values):.5f}" if values else "-"
        point = ", ".join(str(value) for value in final[0]["point"].values())
        diverged = sum(row["outcome"] in FAILED for row in rows)
        seconds = sum(row["seconds"] for row in rows)
        lines.append(
            f"{arm:{width}}  {point:<{max(13, len(tuned))}} {mean:>10} "
            f"{f'{diverged}/{len(rows)}':>9} {duration(seconds):>6}"
        )
    lines += [
        "",
        f"Mean {name} over folds and seeds; a diverged fit counts as the zero forecast.",
        f"Preset {plan.preset} {CLAIM_WORDS[plan.study.presets[plan.preset].claim]}.",
        "",
        f"report   {page}",
        "",
        *mlflow_lines(folder.root, outcome.link, tracking_uri=tracking_uri),
    ]
    return lines


def mlflow_lines(root: Path, link: str, *, tracking_uri: str | None) -> list[str]:
    """Return where a study's MLflow pages are; `link` is the fragment of that which compares the arms."""
    uri = "" if tracking_uri else f" --root {root}"
    server = tracking_uri if tracking_uri and tracking_uri.startswith("http") else "http://127.0.0.1:5000"
    return [
        f"MLflow   start its pages with: fints ui{uri}"
        if not (tracking_uri or "").startswith("http")
        else "MLflow",
        "compare  the arms side by side (the pages open in the GenAI view:",
        "         choose 'Model training' at the top left once):",
        f"{server.rstrip('/')}/{link}",
    ]


def _baselines(plan: Plan) -> list[str]:
    lines = textwrap.wrap(", ".join(plan.study.baselines) + ", each once a fold", 70)
    return [f"{'' if place else 'beside':9}{line}" for place, line in enumerate(lines)]


def shortage(plan: Plan, workers: int, done: set[str]) -> str:
    """Return why a run of the plan would be refused on this machine, empty if it would not."""
    try:
        return memory_shortage(plan, workers=workers, done=done)
    except ValueError as error:
        # A plan may be made on a machine without the device of its run.
        return str(error)


def _warning(plan: Plan, workers: int, done: set[str]) -> list[str]:
    reason = shortage(plan, workers, done)
    return ["", f"warning: a run here would be refused: {reason}"] if reason else []


def power_of(plan: Plan) -> dict[str, Any]:
    """Return the power of the primary contrast from sampling error alone, by how much two arms agree.

    `by_agreement` maps the correlation of two arms' forecasts to the power; it is None where one fold gives
    no error to judge by, or the outcome's error is known after a pilot only.
    """
    from fints.data import targets
    from fints.evaluation import contrast_power, effective_assets, paired_r2_sd

    study, panel = plan.study, plan.dataset.panel
    effect, clusters = study.smallest_effect, len(plan.folds)
    told: dict[str, Any] = {"outcome": study.outcome, "effect": effect, "folds": clusters}
    if not study.outcome.startswith("r2") or clusters < 2:
        return told | {"effective_assets": None, "by_agreement": None}
    data = study.base.data
    before = date.fromisoformat(plan.folds[0]["test"][0]) - timedelta(days=1)
    seen = targets(panel[:before], data.target, data.horizon)
    assets = effective_assets(seen, column="target")
    dates = max(1, study.folds.test_days // data.horizon)
    sds = {at: paired_r2_sd(effect, agreement=at, dates=dates, assets=assets) for at in AGREEMENTS}
    powers = {f"{at:g}": contrast_power(effect, sd=sd, clusters=clusters) for at, sd in sds.items()}
    told |= {"effective_assets": assets, "by_agreement": powers}
    if study.matching is None:
        return told
    pairs = math.comb(len(study.factors[study.matching.over]), 2)
    together = {
        f"{at:g}": contrast_power(effect, sd=sd, clusters=clusters, alpha=0.05 / pairs)
        for at, sd in sds.items()
    }
    return told | {"pairs": pairs, "all_pairs_by_agreement": together}


def _told(powers: Mapping[str, float]) -> str:
    return ",  ".join(f"{agreement}: {power:.0%}" for agreement, power in powers.items())


def _power(plan: Plan) -> list[str]:
    """Power of the primary contrast from sampling error alone, for arms that agree more or less."""
    study, told = plan.study, power_of(plan)
    at = f"power    to find a difference of {told['effect']:g} in {told['outcome']}"
    if not study.outcome.startswith("r2"):
        return [f"{at}: known after a pilot"]
    if told["by_agreement"] is None:
        return [f"{at}: none, one fold gives no error to judge by"]
    num_assets = len(plan.dataset.panel.assets)
    powers = _told(told["by_agreement"])
    together = []
    if "pairs" in told:
        together = [
            f"         each of {told['pairs']} pairs, all of them together (Bonferroni):",
            f"         {_told(told['all_pairs_by_agreement'])}",
        ]
    return [
        at,
        f"         with {told['folds']} folds of {counted(study.folds.test_days, 'day')} and "
        f"{counted(num_assets, 'asset')} that {'counts' if num_assets == 1 else 'count'} as "
        f"{told['effective_assets']:.1f},",
        "         between two arms of that R2 whose forecasts correlate by",
        f"         {powers}",
        *together,
        "         (sampling error alone: noise of training comes on top)",
    ]

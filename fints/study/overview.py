"""The lines a person reads before a run and after it."""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING, Any

from fints.study.estimates import disk_bytes, duration, fit_bytes, parameters, study_seconds

if TYPE_CHECKING:
    from fints.study.plan import Plan
    from fints.study.runner import Outcome
    from fints.study.store import StudyFolder

__all__ = ["finished_lines", "plan_lines"]

# Two arms fitted to the same data agree about so much; a pilot replaces it once there is one.
AGREEMENT = 0.5
# Correlated stocks count for fewer: of the bundled 20, about half (effective_assets).
EFFECTIVE_SHARE = 0.5


def plan_lines(plan: Plan, folder: StudyFolder, *, workers: int, commit: str | None) -> list[str]:
    """Return what a run would do, cost and be able to find."""
    study, dates = plan.study, plan.dataset.panel.dates
    fits = plan.num_fits()
    done = {path.name for path in folder.fits.iterdir()} if folder.fits.is_dir() else set()
    tuning = [cell for arm in plan.arms for cell in plan.tuning_cells(arm)]
    kept = sum(cell.key in done for cell in tuning)
    width = max(len(arm.name) for arm in plan.arms)
    lines = [
        f"{plan.name}: {study.title}",
        f"preset {plan.preset} ({_claims(study.presets[plan.preset].claim)})",
        "",
        f"{'arm':{width}} {'parameters':>10} {'memory a fit':>12} {'time a fit':>10} {'fits':>5}",
    ]
    a_arm = sum(fits.values()) // len(plan.arms)
    for arm in plan.arms:
        seconds = plan.tuning_cells(arm)[0].seconds
        lines.append(
            f"{arm.name:{width}} {parameters(arm.experiment):>10,} {_size(fit_bytes(arm.experiment)):>12} "
            f"{duration(seconds):>10} {a_arm:>5}"
        )
    num_tuning_folds, points = study.tuning.folds, study.tuning.points()
    lines += [
        "",
        f"tuning   {len(plan.arms)} arms x {len(points)} points x {num_tuning_folds} folds x "
        f"{len(study.tuning.seeds)} seeds = {fits['tuning']} fits, by validation loss",
        f"final    {len(plan.arms)} arms x {len(plan.folds)} folds x {len(study.seeds)} seeds"
        f" = {fits['final']} fits",
        f"in all   {sum(fits.values())} fits; tuning fits kept from before: {kept}",
        f"data     {plan.dataset.name}, {len(plan.dataset.panel.assets)} assets, {dates[0]} to {dates[-1]}"
        + (f" (sealed from {plan.dataset.until})" if plan.dataset.until else ""),
    ]
    lines += [f"fold {fold['index']}   test {fold['test'][0]} to {fold['test'][1]}" for fold in plan.folds]
    left = study_seconds(plan, workers=workers, done=done)
    lines += [
        f"time     about {duration(left)} with {workers} worker{'s' * (workers > 1)} (a rough estimate)",
        f"disk     about {_size(disk_bytes(plan))}",
        f"commit   {commit or 'none: not a git checkout'}",
        "folder",
        f"  {folder.path}",
        *_power(plan),
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
        diverged = sum(row["outcome"] == "diverged" for row in rows)
        seconds = sum(row["seconds"] for row in rows)
        lines.append(
            f"{arm:{width}}  {point:<{max(13, len(tuned))}} {mean:>10} "
            f"{f'{diverged}/{len(rows)}':>9} {duration(seconds):>6}"
        )
    uri = "" if tracking_uri else f" --root {folder.root}"
    server = tracking_uri if tracking_uri and tracking_uri.startswith("http") else "http://127.0.0.1:5000"
    lines += [
        "",
        f"Mean {name} over folds and seeds. {_claims(plan.study.presets[plan.preset].claim).capitalize()}.",
        "",
        f"report   {page}",
        "",
        f"MLflow   start its pages with: fints ui{uri}"
        if not (tracking_uri or "").startswith("http")
        else "MLflow",
        "compare  the arms side by side (the pages open in the GenAI view:",
        "         choose 'Model training' at the top left once):",
        f"{server.rstrip('/')}/{outcome.link}",
    ]
    return lines


def _power(plan: Plan) -> list[str]:
    """Power of the primary contrast, from sampling error alone: a ceiling until a pilot exists."""
    effect = plan.study.smallest_effect
    if not plan.study.outcome.startswith("r2"):
        return [f"power    at a difference of {effect:g} in {plan.study.outcome}: known after a pilot"]
    from fints.evaluation import contrast_power, paired_r2_sd

    assets = max(1.0, EFFECTIVE_SHARE * len(plan.dataset.panel.assets))
    days = plan.study.folds.test_days
    clusters = len(plan.folds)
    sd = paired_r2_sd(effect, agreement=AGREEMENT, dates=days, assets=assets)
    found = contrast_power(effect, sd=sd, clusters=clusters) if clusters > 1 and sd > 0 else math.nan
    told = f"{found:.0%}" if math.isfinite(found) else "none (one fold)"
    return [
        f"power    {told} at most, at a difference of {effect:g} in {plan.study.outcome}",
        f"         ({clusters} folds of {days} days, arms whose forecasts correlate by {AGREEMENT:g};",
        "         noise of training comes on top)",
    ]


def _claims(claim: str) -> str:
    return {
        "none": "checks the path and claims nothing",
        "exploratory": "exploratory",
        "answer": "may answer the question",
    }[claim]


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{max(count / 1e6, 1):.0f} MB"

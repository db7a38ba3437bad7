"""What the verbs of a study tell a program: the keys are an interface and only grow."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fints.study.analysis import Analysis
    from fints.study.panel_plan import PanelPlan
    from fints.study.plan import Plan
    from fints.study.restore import Kept
    from fints.study.store import StudyFolder

__all__ = ["panel_plan_told", "panel_report_told", "plan_told", "report_told"]


def plan_told(kept: Kept, *, workers: int, commit: str | None, models: bool = True) -> dict[str, Any]:
    """Return what `fints.study.overview.plan_lines` says, for a program."""
    from fints.study.estimates import disk_bytes, fit_bytes, parameters, study_seconds, weight_bytes
    from fints.study.overview import power_of, shortage

    plan, there = kept.plan, kept.cells()
    done = {cell.key for cell in there}
    dates = plan.dataset.panel.dates
    tuning = [cell for arm in plan.arms for cell in plan.tuning_cells(arm)]
    fits = plan.num_fits()
    return {
        **_head(plan),
        "dataset": {
            "name": plan.dataset.name,
            "checksum": plan.dataset.checksum,
            "assets": len(plan.dataset.panel.assets),
            "from": dates[0].isoformat(),
            "to": dates[-1].isoformat(),
            "sealed_from": None if plan.dataset.until is None else plan.dataset.until.isoformat(),
        },
        "arms": [
            {
                "arm": arm.name,
                "levels": dict(arm.levels),
                "parameters": parameters(arm.experiment),
                "memory_bytes": fit_bytes(arm.experiment),
                "fit_seconds": plan.tuning_cells(arm)[0].seconds,
            }
            for arm in plan.arms
        ],
        "folds": plan.folds,
        "fits": {
            **fits,
            "total": sum(fits.values()),
            "tuning_kept": sum(cell.key in done for cell in tuning),
            "kept": sum(cell.role != "baseline" for cell in there),
            "committed": kept.num_committed(there),
        },
        "workers": workers,
        "seconds": study_seconds(plan, workers=workers, done=done),
        "disk_bytes": disk_bytes(plan) + (2 * weight_bytes(plan) if models else 0),
        "power": power_of(plan),
        "commit": commit,
        "folder": str(kept.folder.path),
        "refused": shortage(plan, workers, done) or None,
    }


def panel_plan_told(
    plan: PanelPlan, folder: StudyFolder, *, kept: int, seconds: float, workers: int, commit: str | None
) -> dict[str, Any]:
    """Return what the plan of a panel study says, for a program.

    `kept` fits are there already, the others take `seconds` of one worker.
    """
    from fints.study.estimates import parameters

    fits = plan.num_fits()
    return {
        **_head(plan),
        "panels": list(plan.study.panels),
        "arms": [
            {
                "arm": arm.name,
                "levels": dict(arm.levels),
                "parameters": parameters(arm.experiment),
                "fit_seconds": plan.final_cells(arm, plan.study.tuning.points()[0])[0].seconds,
            }
            for arm in plan.arms
        ],
        "fits": {**fits, "total": sum(fits.values()), "kept": kept},
        "yoked_at_most": len(plan.most_yoked()),
        "workers": workers,
        "seconds": seconds / workers,
        "power": plan.study.power(),
        "commit": commit,
        "folder": str(folder.path),
    }


def report_told(analysis: Analysis, page: Path, *, left_out: Sequence[str] = ()) -> dict[str, Any]:
    """Return the answer of a study for a program, and where its report is.

    `left_out` names fits that could not be read from a shared storage.
    """
    spec, found = analysis.spec, analysis.found
    return {
        "study": spec["name"],
        "preset": spec["preset"],
        "claim": analysis.claim,
        "title": spec["title"],
        "dataset": spec["dataset"]["name"],
        "outcome": spec["outcome"],
        "decision": analysis.decision,
        "verdict": _plain_words(analysis.verdict),
        "found": {
            "kind": found.kind,
            "arms": list(found.arms),
            "detectable_r2": found.detectable,
            "sentence": _plain_words(found.sentence),
        },
        **_picked(analysis),
        "arms": analysis.arms.to_dicts(),
        "contrasts": analysis.contrasts.to_dicts(),
        "baselines": analysis.baselines.to_dicts(),
        "left_out": list(left_out),
        "commit": spec.get("commit"),
        "report": str(page),
        "markdown": str(page.with_suffix(".md")),
    }


def _picked(analysis: Analysis) -> dict[str, Any]:
    """Return what is to be picked in each comparison of a study that matches its arms."""
    if analysis.selection is None:
        return {}
    return {
        "comparisons": [
            {
                "matched": one.how,
                "decision": one.kind,
                "pick": one.pick,
                "folds_needed": one.folds_needed,
                "levels": [dict(row) for row in one.rows],
            }
            for one in analysis.selection.comparisons
        ]
    }


def panel_report_told(plan: PanelPlan, page: Path, sentence: str, *, missing: int) -> dict[str, Any]:
    """Return the answer of a panel study for a program, and where its report is."""
    return {
        **_head(plan),
        "sentence": _plain_words(sentence),
        "missing": missing,
        "report": str(page),
        "markdown": str(page.with_suffix(".md")),
    }


def _head(plan: Plan | PanelPlan) -> dict[str, Any]:
    return {
        "study": plan.name,
        "preset": plan.preset,
        "claim": plan.study.presets[plan.preset].claim,
        "title": plan.study.title,
        "changes": dict(plan.changes),
    }


def _plain_words(markdown: str) -> str:
    return markdown.replace("**", "").replace("`", "")

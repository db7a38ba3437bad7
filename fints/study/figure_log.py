"""The figures and the report of a study in MLflow, under the run of each arm that they show."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from fints.study.tracking import Tracker

__all__ = ["log_figures"]


def log_figures(folder: Path, tracker: Tracker) -> int:
    """Log ``figures/*.png`` and ``report.html`` of a study's folder to each arm's run.

    PNG, since MLflow shows it beside the list of artifacts; the report is one page that needs no network.
    What an earlier run logged under the same name is replaced.

    Returns
    -------
    int
        The number of figures.
    """
    figures = sorted((folder / "figures").glob("*.png"))
    for run_id in tracker.arm_runs.values():
        for figure in figures:
            tracker.client.log_artifact(run_id, str(figure), artifact_path="figures")
        tracker.client.log_artifact(run_id, str(folder / "report.html"), artifact_path="report")
    return len(figures)

"""The figures and the report of a study in MLflow, under the arms that they show or a run of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from fints.study.tracking import Tracker

__all__ = ["log_answer", "log_figures"]


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
        _log(folder, figures, tracker, run_id)
    return len(figures)


def log_answer(folder: Path, tracker: Tracker, sentence: str) -> int:
    """Log the same to one run of their own, with the finding as its note: where arms are many.

    Returns
    -------
    int
        The number of figures.
    """
    figures = sorted((folder / "figures").glob("*.png"))
    _log(
        folder,
        figures,
        tracker,
        tracker.answer_run(f"{sentence}\n\nFigures and report are among the artifacts."),
    )
    return len(figures)


def _log(folder: Path, figures: Sequence[Path], tracker: Tracker, run_id: str) -> None:
    for figure in figures:
        tracker.client.log_artifact(run_id, str(figure), artifact_path="figures")
    tracker.client.log_artifact(run_id, str(folder / "report.html"), artifact_path="report")

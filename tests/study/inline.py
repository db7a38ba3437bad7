"""A study run in one process: real fits, queue and tables, without worker processes and MLflow."""

from __future__ import annotations

import io
import runpy
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from rich.console import Console

from fints.study import Study, figures, runner, scale
from fints.study.analysis import Analysis, analyse
from fints.study.assemble import table_spec
from fints.study.dataset import open_dataset
from fints.study.fits import Cell, run_job
from fints.study.plan import Plan, make_plan
from fints.study.progress import Report
from fints.study.published_fits import NOTHING, Committed
from fints.study.report import write_report
from fints.study.store import StudyFolder

TINY = runpy.run_path(str(Path(__file__).parent / "tiny.py"))["STUDY"]
Fault = Callable[[Cell], str]


class Inline:
    """Stands in for the pool: one worker in this process; `fault` says why a cell fails, if it does."""

    fault: Fault = staticmethod(lambda cell: "")

    def __init__(self, num_workers: int, start: dict[str, Any], logs: Path) -> None:
        self.busy: dict[int, Any] = {}
        self._folder = Path(start["folder"])
        self._dataset = open_dataset(start["dataset"], opens_seal=False)

    def idle(self) -> list[int]:
        return [] if self.busy else [0]

    def starting(self) -> bool:
        return False

    def send(self, slot: int, cell: Cell, claim: Any) -> None:
        self.busy[slot] = claim

    def next_event(self, timeout: float = 0.5) -> tuple[int, dict[str, Any]] | None:
        if not self.busy:
            return None
        cell = self.busy[0].cell
        if error := self.fault(cell):
            return 0, {"event": "failed", "key": cell.key, "error": error}
        places = {"tmp": self._folder / "tmp", "fits": self._folder / "fits"}
        run_job(cell, self._dataset.panel, signal=self._dataset.signal, **places)
        return 0, {"event": "done", "key": cell.key}

    def silent(self, seconds: float) -> dict[int, int]:
        return {}

    def stop(self) -> None:
        return None


class Untracked:
    """Stands in for tracking and its thread."""

    served = False
    link = error = ""
    seconds: dict[str, float] = {}  # noqa: RUF012

    def __init__(self, *arguments: Any, **more: Any) -> None:
        self.checked = 0

    def check(self) -> None:
        self.checked += 1

    def close(self, status: str) -> float:
        return 0.0

    def leave(self) -> float:
        return 0.0

    def exclusive(self) -> AbstractContextManager[None]:
        return nullcontext()

    open = start = finish = kill = close_arm = lambda self, *arguments: None


class Run:
    """One run of the tiny study, or of another, on a panel file; `fault` as in `Inline`.

    With a `storage` it is run as one of the machines that share it.
    """

    def __init__(
        self,
        patch: pytest.MonkeyPatch,
        root: Path,
        panel: Path,
        *,
        fault: Fault = lambda cell: "",
        changes: dict[str, Any] | None = None,
        preset: str = "smoke",
        study: Study = TINY,
        storage: str = "",
        committed: Committed = NOTHING,
    ) -> None:
        self.replace(patch, fault)
        self.plan: Plan = make_plan(
            study, name="tiny", docstring="Words.", preset=preset, data=str(panel), changes=changes
        )
        self.folder = StudyFolder(root, "tiny", self.plan.label)
        said = io.StringIO()
        total = sum(self.plan.num_fits().values())
        with Report(Console(file=said, width=200), total=total, work=1.0, workers=1) as report:
            if storage:
                self.outcome = scale.run_shared(
                    self.plan,
                    self.folder,
                    report,
                    workers=1,
                    storage=storage,
                    interval=5.0,
                    committed=committed,
                )
            else:
                self.outcome = runner.run(self.plan, self.folder, report, workers=1, committed=committed)
        self.said = said.getvalue()

    @staticmethod
    def replace(patch: pytest.MonkeyPatch, fault: Fault) -> None:
        """Let whatever runs a study do so in this process, without tracking."""
        Run.work_here(patch, fault)
        for module in (runner, scale):
            patch.setattr(module, "Tracker", Untracked)
            patch.setattr(module, "Recorder", Untracked)

    @staticmethod
    def work_here(patch: pytest.MonkeyPatch, fault: Fault = lambda cell: "") -> None:
        """Let fits be made in this process."""
        for module in (runner, scale):
            patch.setattr(module, "Pool", type("Faulty", (Inline,), {"fault": staticmethod(fault)}))

    def analysis(self) -> Analysis:
        return analyse(table_spec(self.folder.path), self.folder.path)

    def report(self) -> str:
        """Return the report's words; its pictures are composed but left blank, for drawing takes longest."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(figures, "write_figure", lambda _, path: Path(f"{path}.svg").touch())
            page = write_report(self.analysis(), self.folder.path)
        return page.with_suffix(".md").read_text(encoding="utf-8")

    def fits(self) -> pl.DataFrame:
        return pl.read_parquet(self.folder.path / "fits.parquet")

    def final_fit(self) -> Path:
        """Return the folder of a finished final fit."""
        return self.folder.fit(self.fits().filter(role="final")["key"][0])

"""The driver of a panel study: hands fits to workers until every arm is tuned and fitted on every panel.

It may be killed at any moment: a fit counts when its folder is there, and the next run goes on from those.
"""

from __future__ import annotations

import heapq
import itertools
import json
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fints.study.grouping import jobs_of
from fints.study.panel_cells import PanelFit
from fints.study.panel_contents import last_by_sublayer
from fints.study.panel_design import PanelArm
from fints.study.panel_plan import PanelPlan, loss_or_infinity
from fints.study.panel_store import Fits, gather
from fints.study.pool import PANEL_WORKER, Pool
from fints.study.progress import Report
from fints.study.recorder import NoRecord, Recorder, patience_with
from fints.study.store import StudyFolder, append_line, fit_json, write_json
from fints.study.tracking import Tracker

__all__ = ["PanelOutcome", "collect", "run_panels"]

MOST_TRIES = 3


@dataclass
class PanelOutcome:
    """How a run ended: fits that failed too often, each with its error, and how many are there.

    `link` is the fragment of MLflow's compare page; `untracked` says why MLflow lacks something, empty if it
    does not.
    """

    failures: list[str] = field(default_factory=list)
    finished: int = 0
    link: str = ""
    untracked: str = ""


def run_panels(
    plan: PanelPlan,
    folder: StudyFolder,
    report: Report,
    *,
    workers: int,
    known: Mapping[str, Mapping[str, Any]],
    commit: str | None = None,
    command: str = "",
    tracker: Tracker | None = None,
) -> PanelOutcome:
    """Run all fits of a plan that are neither in the folder nor among the committed ones (`known`).

    The tracker, if one is given, is told of every fit in the folder; committed ones have no run of their own
    and stand in the tables of their arms.

    Raises
    ------
    ValueError
        If another driver holds the folder.
    RuntimeError
        If workers do not start.
    KeyboardInterrupt
        If stopped; what is finished is kept.
    """
    outcome = PanelOutcome()
    clock = time.perf_counter()
    with folder.held():
        write_json(folder.path / "study.json", {**plan.spec(), "commit": commit, "command": command})
        for line in folder.set_aside_damaged():
            report.say(line)
        recorder: Recorder | NoRecord = NoRecord()
        if tracker is not None:
            recorder = Recorder(tracker, folder.fits, report.say, patience=patience_with(tracker))
        status, waited = "KILLED", 0.0
        try:
            work = _Work(plan, folder, known, report, recorder)
            there = len(work.losses)
            if work.left:
                start = {"folder": str(folder.path)}
                pool = Pool(workers, start, folder.logs, module=PANEL_WORKER)
                try:
                    _serve(pool, work, outcome, report, recorder)
                finally:
                    pool.stop()
            if tracker is not None:
                _close_arms(recorder, collect(plan, folder, known))
            status = "FAILED" if outcome.failures else "FINISHED"
        finally:
            waited = recorder.close(status)
        outcome.finished, outcome.untracked = len(work.losses), recorder.error
        if tracker is not None:
            outcome.link = tracker.link
            append_line(
                folder.path / "runs.jsonl",
                {
                    "command": command,
                    "commit": commit,
                    "workers": workers,
                    "status": status,
                    "fits": len(work.losses) - there,
                    "wall_seconds": time.perf_counter() - clock,
                    "waited_for_tracking_seconds": waited,
                    "tracking_seconds": tracker.seconds,
                },
            )
    return outcome


def _close_arms(recorder: Recorder | NoRecord, found: Fits) -> None:
    """Tell of each arm that has fits what they say together; those at other arms' points are not its own."""
    import polars as pl

    if not found.table.height:
        return
    rows: dict[str, list[dict[str, Any]]] = {}
    for row in found.table.filter(pl.col("role") != "yoked").iter_rows(named=True):
        rows.setdefault(row["arm"], []).append({**row, "point": json.loads(row["point"])})
    arms = {row["key"]: arm for arm, own in rows.items() for row in own}
    values: dict[str, dict[str, dict[int, list[float]]]] = {}
    for one in last_by_sublayer(found.rows.filter(pl.col("key").is_in(list(arms))).iter_rows(named=True)):
        by_layer = values.setdefault(arms[one["key"]], {}).setdefault(one["measure"], {})
        by_layer.setdefault(one["layer"], []).append(one["value"])
    for arm, own in rows.items():
        means = {
            measure: [(layer, statistics.fmean(by_layer[layer])) for layer in sorted(by_layer)]
            for measure, by_layer in values.get(arm, {}).items()
        }
        recorder.close_arm(arm, own, means)


def _serve(
    pool: Pool, work: _Work, outcome: PanelOutcome, report: Report, recorder: Recorder | NoRecord
) -> None:
    tries: dict[str, int] = {}
    while work.waiting or pool.busy:
        for slot in pool.idle():
            if work.waiting:
                job = work.next()
                pool.send(slot, job, job)
                for cell in job.cells():
                    report.started(cell)
                    recorder.start(cell)
        found = pool.next_event()
        if found is None:
            continue
        slot, event = found
        if event["event"] not in ("done", "failed", "gone") or slot not in pool.busy:
            continue
        job = pool.busy.pop(slot)
        if work.take(job):
            continue
        error = event.get("error", f"its worker was killed (code {event.get('code')})")
        tries[job.key] = tries.get(job.key, 0) + 1
        again = tries[job.key] < MOST_TRIES
        report.failed(job, error, again=again)
        if again:
            work.add(job)
        else:
            outcome.failures.append(f"{job}: {error}")
            for cell in job.cells():
                recorder.kill(cell, "FAILED", error)


class _Work:
    """What is left to do: tuning first, then panel by panel, so that a cluster is whole as soon as can be."""

    def __init__(
        self,
        plan: PanelPlan,
        folder: StudyFolder,
        known: Mapping[str, Mapping[str, Any]],
        report: Report,
        recorder: Recorder | NoRecord,
    ) -> None:
        self._plan, self._folder, self._known = plan, folder, known
        self._report, self._recorder = report, recorder
        self._order = itertools.count()
        self._heap: list[tuple[bool, int, float, int, PanelFit]] = []
        self._untuned: dict[str, PanelArm] = {arm.name: arm for arm in plan.arms}
        self._chosen: dict[str, dict[str, Any]] = {}
        self._yoked: set[str] = set()
        self.losses: dict[str, float] = {}
        for arm in plan.arms:
            self._add_all(plan.tuning_cells(arm))
        self._advance()

    @property
    def waiting(self) -> bool:
        """Whether a fit can be handed out now."""
        return bool(self._heap)

    @property
    def left(self) -> bool:
        """Whether anything is left to fit."""
        return bool(self._heap or self._untuned)

    def _add_all(self, cells: list[PanelFit]) -> None:
        """Count those fits that are there, and let the jobs of the others wait."""
        for cell in cells:
            if self.is_there(cell):
                self._finish(cell, told=False)
        for job in jobs_of(cells):
            self.add(job)

    def add(self, job: PanelFit) -> None:
        """Let a job wait, unless all its fits are there."""
        if not all(cell.key in self.losses for cell in job.cells()):
            place = (job.role != "tuning", job.panel, -job.seconds, next(self._order))
            heapq.heappush(self._heap, (*place, job))

    def next(self) -> PanelFit:
        """Return the next job."""
        return heapq.heappop(self._heap)[-1]

    def take(self, job: PanelFit) -> bool:
        """Count those fits of a job that are there; return whether all are."""
        cells = [cell for cell in job.cells() if cell.key not in self.losses]
        there = [cell for cell in cells if self.is_there(cell)]
        for cell in there:
            self._finish(cell, told=True)
        return len(there) == len(cells)

    def is_there(self, cell: PanelFit) -> bool:
        """Tell whether a fit is finished, here or in what was committed."""
        return self._folder.finished(cell.key) or cell.design in self._known

    def _finish(self, cell: PanelFit, *, told: bool) -> None:
        """Count a finished fit; the last tuning fit of an arm opens its final ones."""
        path = self._folder.fit(cell.key)
        if path.is_dir():
            result = fit_json(path, "result.json")
            self._recorder.finish(cell)
        else:
            result = self._known[cell.design]["result"]
        self.losses[cell.key] = loss_or_infinity(result)
        if told:
            seconds = fit_json(path, "timing.json")["seconds"]
            self._report.finished(cell, result, seconds)
            self._advance()
        else:
            self._report.kept(cell)

    def _advance(self) -> None:
        for name, arm in list(self._untuned.items()):
            tuning = self._plan.tuning_cells(arm)
            if all(cell.key in self.losses for cell in tuning):
                del self._untuned[name]
                self._chosen[name] = self._plan.choose(arm, self.losses)
                self._add_all(self._plan.final_cells(arm, self._chosen[name]))
                self._add_yoked()

    def _add_yoked(self) -> None:
        """Let those fits wait that follow from two arms' choices: none of them was counted before."""
        for cells in self._plan.yoked_cells(self._chosen):
            if cells[0].key not in self._yoked:
                self._yoked.add(cells[0].key)
                self._report.further(cells)
                # By themselves: what is made at once must not depend on which arm was tuned first.
                self._add_all(cells)


def collect(plan: PanelPlan, folder: StudyFolder, known: Mapping[str, Mapping[str, Any]]) -> Fits:
    """Return every finished fit of a plan, from its folder or from what was committed."""
    cells: list[PanelFit] = []
    chosen: dict[str, dict[str, Any]] = {}
    unknown = 0
    for arm in plan.arms:
        tuning = plan.tuning_cells(arm)
        cells += tuning
        losses: dict[str, float] = {}
        for cell in tuning:
            if folder.finished(cell.key):
                losses[cell.key] = loss_or_infinity(fit_json(folder.fit(cell.key), "result.json"))
            elif cell.design in known:
                losses[cell.key] = loss_or_infinity(known[cell.design]["result"])
        if len(losses) == len(tuning):
            chosen[arm.name] = plan.choose(arm, losses)
            cells += plan.final_cells(arm, chosen[arm.name])
        else:
            unknown += len(plan.study.panels)
    yoked = itertools.chain.from_iterable(plan.yoked_cells(chosen))
    found = gather([*cells, *yoked], folder.fits, known)
    return Fits(table=found.table, rows=found.rows, missing=found.missing + unknown)

"""The driver of a study: hands cells to workers, keeps queue, folders and tracking in step.

It may be killed at any moment. A fit counts when its folder is there; queue and tracking are
settled from the folders by the next run.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from fints.study.assemble import arm_rows, assemble, mean_profile
from fints.study.design import Arm
from fints.study.fits import Cell, read_result
from fints.study.grouping import jobs_of
from fints.study.plan import Plan, loss_or_infinity
from fints.study.pool import Pool
from fints.study.progress import Report
from fints.study.published_fits import NOTHING, Committed
from fints.study.recorder import Recorder, patience_with
from fints.study.restore import Kept
from fints.study.store import StudyFolder, append_line, fit_json, write_json
from fints.study.tracking import Tracker
from fints.study.trials import Claim, Queue, open_storage

__all__ = ["Outcome", "caught_signals", "run"]


@dataclass
class Outcome:
    """How a run ended.

    `signal` is that which stopped it (0: none), `failures` names cells that failed too often, each
    with its error, `link` is the fragment of MLflow's compare page. `assembled` tells whether there
    are tables, which needs a final fit. `untracked` says why MLflow lacks something, empty if it does not;
    `tracker` is what wrote there.
    """

    signal: int = 0
    failures: list[str] = field(default_factory=list)
    finished: int = 0
    total: int = 0
    link: str = ""
    assembled: bool = False
    untracked: str = ""
    tracker: Tracker | None = None
    rows: dict[str, list[dict[str, Any]]] = field(default_factory=dict)


def run(
    plan: Plan,
    folder: StudyFolder,
    report: Report,
    *,
    workers: int,
    tracking_uri: str | None = None,
    commit: str | None = None,
    command: str = "",
    keep_weights: bool = True,
    committed: Committed = NOTHING,
) -> Outcome:
    """Run all fits of a plan that are neither there yet nor committed, then write the study's tables.

    A damaged fit is set aside and made again. A cell that fails too often is left out of the tables. Final
    fits keep their forecasters if `keep_weights`, which changes no number.

    Raises
    ------
    ValueError
        If another driver holds the folder, or a store cannot be opened.
    RuntimeError
        If workers do not start, or a fit was damaged while the run went on (`DamagedFit`).
    """
    started, clock = time.time(), time.perf_counter()
    with folder.held(), caught_signals() as caught:
        spec = plan.spec()
        told = {**spec, "commit": commit, "command": command}
        write_json(folder.path / "study.json", told)
        for line in folder.set_aside_damaged():
            report.say(line)
        kept = Kept(plan, folder, committed)
        kept.restore_all(report.say)
        tracker = Tracker(
            spec, root=folder.root, label=folder.label, uri=tracking_uri, commit=commit, command=command
        )
        # Hashes the sources of baselines, once, while no other thread imports: CPython's parser of
        # syntax trees is not safe against that.
        write_json(folder.baselines, [cell.to_dict() for cell in plan.baseline_cells()])
        recorder = Recorder(tracker, folder.fits, report.say, patience=patience_with(tracker))
        start = {
            "folder": str(folder.path),
            "dataset": plan.dataset.reference,
            "opens_seal": plan.study.opens_seal,
            "checksum": plan.dataset.checksum,
            "keep_weights": keep_weights,
        }
        pool = Pool(workers, start, folder.logs)
        status = "KILLED"
        try:
            driver = _Driver(
                plan,
                folder,
                Queue(open_storage(folder.path / "optuna.db"), f"{plan.name}/{plan.label}"),
                pool,
                recorder,
                report,
                kept,
            )
            driver.run(caught)
            if not caught:
                status = "FAILED" if driver.failures else "FINISHED"
        finally:
            pool.stop()
            waited = recorder.close(status)
        outcome = driver.outcome(caught[0] if caught else 0)
        outcome.link = tracker.link
        outcome.untracked = recorder.error
        outcome.tracker = tracker
        done = driver.finished_cells()
        if status != "KILLED" and any(cell.role == "final" for cell in done):
            assemble(folder.path, done, told)
            outcome.assembled = True
        append_line(
            folder.path / "runs.jsonl",
            {
                "started": started,
                "command": command,
                "commit": commit,
                "workers": workers,
                "status": status,
                "fits": driver.fitted,
                "wall_seconds": time.perf_counter() - clock,
                "waited_for_tracking_seconds": waited,
                "tracking_seconds": tracker.seconds,
            },
        )
    return outcome


class _Driver:
    def __init__(
        self,
        plan: Plan,
        folder: StudyFolder,
        queue: Queue,
        pool: Pool,
        recorder: Recorder,
        report: Report,
        kept: Kept,
    ) -> None:
        self._plan, self._folder, self._queue = plan, folder, queue
        self._pool, self._recorder, self._report, self._kept = pool, recorder, report, kept
        self._losses: dict[str, float] = {}
        self._members: dict[str, list[str]] = {}
        self._final: dict[str, list[Cell]] = {}
        self._counted: set[str] = set()
        self._closed: set[str] = set()
        self.failures: list[str] = []
        self.fitted = 0

    def run(self, caught: list[int]) -> None:
        """Work until nothing is left or a signal was caught."""
        # The dearest arms first, so that no worker is left alone with a long fit at the end.
        arms = sorted(self._plan.arms, key=lambda arm: -self._plan.tuning_cells(arm)[0].seconds)
        for arm in arms:
            cells = self._plan.tuning_cells(arm)
            self._queue.add(arm.name, "tuning", self._jobs_of(cells), self._loss)
            self._count_kept(cells)
        self._queue.add("baselines", "baseline", self._plan.baseline_cells(), self._loss)
        self._advance(arms)
        while not caught:
            self._dispatch(arms)
            if not self._pool.busy and not (self._pool.starting() and self._queue.num_waiting()):
                break
            found = self._pool.next_event()
            if found is not None:
                self._handle(*found)
                self._advance(arms)
        self._pool.stop()
        for claim in self._pool.busy.values():
            # A worker may have put its fit in place between the signal and its end.
            for cell in self._newly_there(claim):
                self._recorder.finish(cell)
            loss = self._loss(claim.cell.key)
            if loss is not None:
                self._queue.complete(claim, loss)
                continue
            for cell in self._missing(claim):
                self._recorder.kill(cell)
            self._queue.requeue(claim, failed=False)

    def finished_cells(self) -> list[Cell]:
        """Return every cell of the plan whose fit is there."""
        known = self._plan.baseline_cells() + [
            cell
            for arm in self._plan.arms
            for cell in [*self._plan.tuning_cells(arm), *self._final.get(arm.name, [])]
        ]
        return [cell for cell in known if self._loss(cell.key) is not None]

    def outcome(self, caught: int) -> Outcome:
        """Sum up."""
        rows = {}
        for arm in self._plan.arms:
            if arm.name in self._closed:
                rows[arm.name] = arm_rows(self._folder.fits, self._arm_cells(arm))
        total = sum(self._plan.num_fits().values())
        return Outcome(
            signal=caught, failures=self.failures, finished=len(self._counted), total=total, rows=rows
        )

    def _dispatch(self, arms: list[Arm]) -> None:
        for slot in self._pool.idle():
            claim = self._claim()
            if claim is None:
                # What was claimed may have been there already, and may have ended an arm's tuning.
                self._advance(arms)
                claim = self._claim()
            if claim is None:
                return
            if claim.cell.role != "baseline":
                for cell in self._missing(claim):
                    self._recorder.start(cell)
                    self._report.started(cell)
            self._pool.send(slot, claim.cell, claim)

    def _claim(self) -> Claim | None:
        while (claim := self._queue.claim()) is not None:
            loss = self._loss(claim.cell.key)
            if loss is None:
                return claim
            self._queue.complete(claim, loss)
            self._count_kept(claim.cell.cells())
        return None

    def _handle(self, slot: int, event: dict[str, Any]) -> None:
        kind = event["event"]
        if kind not in ("done", "failed", "gone") or slot not in self._pool.busy:
            return
        claim: Claim = self._pool.busy.pop(slot)
        loss = self._loss(claim.cell.key)
        if loss is not None:
            self._queue.complete(claim, loss)
        for cell in self._newly_there(claim):
            self._recorder.finish(cell)
            folder = self._folder.fit(cell.key)
            timing = fit_json(folder, "timing.json")
            self._report.finished(cell, read_result(folder), timing["seconds"])
        if loss is not None:
            return
        error = event["error"] if kind == "failed" else f"its worker was killed (code {event['code']})"
        again = self._queue.requeue(claim, failed=True)
        for cell in self._missing(claim):
            self._recorder.kill(cell, "FAILED" if kind == "failed" else "KILLED", error)
        self._report.failed(claim.cell, error, again=again)
        if not again:
            self.failures.append(f"{claim.cell}: {error}")

    def _advance(self, arms: list[Arm]) -> None:
        """Enqueue the final fits of arms whose tuning has ended, close arms whose final fits have."""
        for arm in arms:
            if arm.name not in self._final:
                losses = {cell.key: self._loss(cell.key) for cell in self._plan.tuning_cells(arm)}
                known = {key: loss for key, loss in losses.items() if loss is not None}
                if len(known) < len(losses):
                    continue
                cells = self._plan.final_cells(arm, self._plan.choose(arm, known))
                # Where not all of the tuning was committed, these could not be known before.
                self._kept.restore(cells)
                self._queue.add(arm.name, "final", self._jobs_of(cells), self._loss)
                self._final[arm.name] = cells
                self._count_kept(cells)
            if arm.name not in self._closed and all(
                cell.key in self._counted for cell in self._arm_cells(arm)
            ):
                self._closed.add(arm.name)
                cells = self._arm_cells(arm)
                fits = self._folder.fits
                self._recorder.close_arm(arm.name, arm_rows(fits, cells), mean_profile(fits, cells))

    def _arm_cells(self, arm: Arm) -> list[Cell]:
        return [*self._plan.tuning_cells(arm), *self._final[arm.name]]

    def _count_kept(self, cells: list[Cell]) -> None:
        for cell in cells:
            if cell.role != "baseline" and cell.key not in self._counted and self._loss(cell.key) is not None:
                self._counted.add(cell.key)
                self._recorder.finish(cell)
                self._report.kept(cell)

    def _jobs_of(self, cells: list[Cell]) -> list[Cell]:
        jobs = jobs_of(cells)
        self._members.update({job.key: [cell.key for cell in job.cells()] for job in jobs if job.members})
        return jobs

    def _missing(self, claim: Claim) -> list[Cell]:
        """Return the fits of a claim that are not there."""
        return [cell for cell in claim.cell.cells() if self._loss(cell.key) is None]

    def _newly_there(self, claim: Claim) -> list[Cell]:
        """Return the fits of a claim that are there and were not counted, and count them."""
        if claim.cell.role == "baseline":
            return []
        fresh = [
            cell
            for cell in claim.cell.cells()
            if cell.key not in self._counted and self._loss(cell.key) is not None
        ]
        self._counted.update(cell.key for cell in fresh)
        self.fitted += len(fresh)
        return fresh

    def _loss(self, key: str) -> float | None:
        """Return the validation loss of a fit, or the mean one of a job's fits; None if one is not there."""
        if key in self._members:
            losses = [self._loss(member) for member in self._members[key]]
            known = [loss for loss in losses if loss is not None]
            return sum(known) / len(known) if len(known) == len(losses) else None
        if key not in self._losses:
            if not self._folder.finished(key):
                return None
            self._losses[key] = loss_or_infinity(read_result(self._folder.fit(key)))
        return self._losses[key]


@contextmanager
def caught_signals() -> Iterator[list[int]]:
    """Collect the first SIGINT or SIGTERM instead of dying; a second one acts as usual."""
    caught: list[int] = []
    usual = {name: signal.getsignal(name) for name in (signal.SIGINT, signal.SIGTERM)}

    def note(number: int, frame: FrameType | None) -> None:
        caught.append(number)
        for name, handler in usual.items():
            signal.signal(name, handler)

    for name in usual:
        signal.signal(name, note)
    try:
        yield caught
    finally:
        for name, handler in usual.items():
            signal.signal(name, handler)

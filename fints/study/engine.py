"""One machine's part of a shared study: takes cells, has them fitted, hands the fits on.

It may be killed, or stopped for a while, at any moment: what it had claimed goes to another worker, and
of two results of one cell the first counts.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from typing import Any

from fints.study.addresses import one_line
from fints.study.fits import read_result
from fints.study.launch import Crew
from fints.study.liveness import MISSED
from fints.study.plan import loss_or_infinity
from fints.study.pool import Pool
from fints.study.progress import Report
from fints.study.recorder import NoRecord, Recorder
from fints.study.shared import SharedStore
from fints.study.shared_queue import FAILED, INTERRUPTED, SUPERSEDED, SharedQueue, Standing
from fints.study.store import StudyFolder, damage, fit_json
from fints.study.trials import Claim

__all__ = ["Engine"]

# Between two looks at a queue that is empty while others are still at work.
PAUSE_S = 2.0


class Engine:
    """Works on a study until nothing is left, or a signal was caught.

    Parameters
    ----------
    name : str
        Of the study in the store.
    store, queue : SharedStore, SharedQueue
        Where its cells and fits are.
    pool : Pool or Crew
        Processes that fit: its own, or those that a launcher started elsewhere.
    recorder : Recorder
        Tells MLflow.
    report : Report
        Tells a person.
    folder : StudyFolder
        Where the pool leaves fits.
    worker : str
        This process's name.
    interval : float
        Seconds between the signs of life of the pool's processes.
    """

    def __init__(
        self,
        name: str,
        *,
        store: SharedStore,
        queue: SharedQueue,
        pool: Pool | Crew,
        recorder: Recorder | NoRecord,
        report: Report,
        folder: StudyFolder,
        worker: str,
        interval: float,
    ) -> None:
        self._name, self._store, self._queue = name, store, queue
        self._pool, self._recorder, self._report = pool, recorder, report
        self._folder, self._worker = folder, worker
        self._silence = MISSED * interval
        self._counted: set[str] = set()
        self._settled = -PAUSE_S
        self.standing = Standing()
        self.fitted = 0

    def run(self, caught: list[int]) -> None:
        """Work until nothing is left that this or another worker could do.

        Raises
        ------
        RuntimeError
            If the disk here is full, the storage stays away, or the pool's processes do not start.
        """
        try:
            self._work(caught)
        finally:
            self._pool.stop()
            for claim in list(self._pool.busy.values()):
                # A process may have put its fit in place between the signal and its end.
                if self._is_there(claim):
                    self._hand_on(claim)
                else:
                    self._give_back(claim)
            self._pool.busy.clear()
        self._settle()

    def _work(self, caught: list[int]) -> None:
        self._settle()
        while not caught:
            self._dispatch()
            if not self._pool.busy and not self._pool.starting():
                self._settle()
                if self.standing.done:
                    break
                if not self.standing.waiting:
                    time.sleep(PAUSE_S)
                    continue
            found = self._pool.next_event()
            if found is not None:
                self._handle(*found)
            self._end_silent()

    def _give_back(self, claim: Claim) -> None:
        self._queue.give_back(claim, ended=INTERRUPTED)
        for cell in claim.cell.cells():
            self._recorder.kill(cell)

    def _is_there(self, claim: Claim) -> bool:
        return all(self._folder.finished(cell.key) for cell in claim.cell.cells())

    def _settle(self) -> None:
        self.standing = self._queue.settle(self._report.say)
        self._settled = time.monotonic()
        for key, cell in self.standing.finished.items():
            if key not in self._counted and cell.role != "baseline":
                self._counted.add(key)
                self._report.kept(cell)

    def _dispatch(self) -> None:
        for slot in self._pool.idle():
            claim = self._queue.claim()
            if claim is None and time.monotonic() - self._settled >= PAUSE_S:
                # An arm's tuning may have ended, or a worker.
                self._settle()
                claim = self._queue.claim()
            if claim is None:
                return
            if claim.cell.role != "baseline":
                for cell in claim.cell.cells():
                    self._recorder.start(cell)
                    self._report.started(cell)
            self._pool.send(slot, claim.cell, claim)

    def _handle(self, slot: int, event: dict[str, Any]) -> None:
        kind = event["event"]
        if kind not in ("done", "failed", "gone") or slot not in self._pool.busy:
            return
        claim: Claim = self._pool.busy.pop(slot)
        if self._is_there(claim):
            self._hand_on(claim)
            return
        if event.get("full"):
            # On another machine the cell may well be fitted; here every other one would fail as well.
            self._give_back(claim)
            raise RuntimeError(
                f"the disk of {self._folder.path} is full ({event['error']}): make room there."
            )
        error = event["error"] if kind == "failed" else f"its worker was killed (code {event['code']})"
        self._fail(claim, error, "FAILED" if kind == "failed" else "KILLED")

    def _fail(self, claim: Claim, error: str, status: str) -> None:
        again = self._queue.give_back(claim, ended=FAILED, error=error)
        for cell in claim.cell.cells():
            self._recorder.kill(cell, status, error)
        self._report.failed(claim.cell, error, again=again)

    def _hand_on(self, claim: Claim) -> None:
        """Store what a claim has made, if it is still ours to finish."""
        cells = claim.cell.cells()
        for folder in (self._folder.fit(cell.key) for cell in cells):
            if reason := damage(folder):
                shutil.rmtree(folder)
                self._fail(claim, f"its files are damaged: {reason}", "FAILED")
                return
        if not self._queue.holds(claim):
            self._drop(claim)
            return
        losses = {cell.key: loss_or_infinity(read_result(self._folder.fit(cell.key))) for cell in cells}
        attempt = f"{self._worker} trial {claim.trial._trial_id}"
        # Of fits that are made at once some may be stored, by a worker that died over the others.
        stored = [
            cell
            for cell in cells
            if self._store.put_fit(
                self._name, cell.key, self._folder.fit(cell.key), loss=losses[cell.key], attempt=attempt
            )
        ]
        if not stored:
            self._queue.give_back(claim, ended=SUPERSEDED)
            self._drop(claim)
            return
        self._queue.complete(claim, sum(losses.values()) / len(losses))
        self.fitted += len(stored)
        for cell in stored:
            if cell.role == "baseline":
                continue
            self._recorder.finish(cell)
            self._counted.add(cell.key)
            timing = fit_json(self._folder.fit(cell.key), "timing.json")
            self._report.finished(cell, read_result(self._folder.fit(cell.key)), timing["seconds"])

    def _drop(self, claim: Claim) -> None:
        """Forget a late result: its cell was given to another worker, whose result counts."""
        for cell in claim.cell.cells():
            shutil.rmtree(self._folder.fit(cell.key), ignore_errors=True)
            self._recorder.kill(cell, "KILLED", "its worker gave no sign of life, another took the cell")
        self._report.say(
            f"dropped: {claim.cell}: this worker gave no sign of life for too long, so the cell was given to "
            "another one, whose result counts"
        )

    def _end_silent(self) -> None:
        """Kill a process that has said nothing for as long as a dead worker would."""
        for slot, pid in self._pool.silent(self._silence).items():
            claim: Claim = self._pool.busy[slot]
            self._report.say(f"{claim.cell}: its process {pid} says nothing any more and is killed")
            os.kill(pid, signal.SIGKILL)

    def fetch(self) -> list[str]:
        """Bring every finished fit into the folder; return a line for each that the storage has damaged.

        Such a fit is forgotten there, to be made again.
        """
        for line in self._folder.set_aside_damaged():
            self._report.say(line.replace("to be fitted again", "fetched from the storage"))
        lines = []
        for key, cell in self.standing.finished.items():
            try:
                self._store.get_fit(self._name, key, self._folder.fit(key), tmp=self._folder.tmp)
            except ValueError as error:
                self._store.drop_fit(self._name, key)
                lines.append(f"damaged: {cell}: {one_line(error)}; to be fitted again")
        return lines

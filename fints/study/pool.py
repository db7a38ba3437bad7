"""Worker processes and what they say, as one queue of events."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Protocol

__all__ = ["PANEL_WORKER", "Event", "Job", "Pool"]

Event = dict[str, Any]
# What a worker runs.
WORKER, PANEL_WORKER = "fints.study.worker", "fints.study.panel_worker"
# A worker that dies this often before it was ready will not get ready.
MOST_FAILED_STARTS = 3
ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "POLARS_MAX_THREADS"), "1"
)


class Job(Protocol):
    """What a worker is given: it takes it as JSON."""

    def to_dict(self) -> dict[str, Any]:
        """Return its fields, JSON-able."""
        ...


class Pool:
    """`num_workers` fresh processes that fit cells, one thread each.

    Parameters
    ----------
    num_workers : int
        Fits at a time.
    start : dict
        First line to each worker: folder, dataset, opens_seal, checksum.
    logs : Path
        Where what workers print is kept.
    module : str
        What a worker runs: WORKER or PANEL_WORKER.
    """

    def __init__(
        self,
        num_workers: int,
        start: dict[str, Any],
        logs: Path,
        *,
        module: str = WORKER,
    ) -> None:
        self._module = module
        self._start = start
        self._logs = logs
        self._events: queue.Queue[tuple[int, subprocess.Popen[str], Event]] = queue.Queue()
        self._workers: dict[int, subprocess.Popen[str]] = {}
        self._ready: set[int] = set()
        self._failed_starts: dict[int, int] = {}
        self._heard: dict[int, float] = {}
        self._asked = time.monotonic()
        self.busy: dict[int, Any] = {}
        for slot in range(num_workers):
            self._spawn(slot)

    def idle(self) -> list[int]:
        """Return the workers that can take a cell."""
        return [slot for slot in sorted(self._ready) if slot not in self.busy]

    def starting(self) -> bool:
        """Tell whether a worker is not ready yet."""
        return len(self._ready) < len(self._workers)

    def pids(self) -> list[int]:
        """Return the process ids."""
        return [worker.pid for worker in self._workers.values()]

    def silent(self, seconds: float) -> dict[int, int]:
        """Return the busy workers that have said nothing for `seconds`, with their process ids.

        Of use where they give signs of life (`beats` in the first line to them). A silence of this
        process itself, stopped for a while, is no silence of theirs.
        """
        now = time.monotonic()
        if now - self._asked > seconds / 2:
            self._heard = dict.fromkeys(self._workers, now)
        self._asked = now
        return {
            slot: self._workers[slot].pid
            for slot in self.busy
            if slot in self._workers and now - self._heard.get(slot, now) > seconds
        }

    def send(self, slot: int, cell: Job, claim: Any) -> None:
        """Give a cell to an idle worker."""
        self.busy[slot] = claim
        self._heard[slot] = time.monotonic()
        # A worker that has just died says so through its output, as "gone".
        with contextlib.suppress(OSError):
            self._write(slot, cell.to_dict())

    def next_event(self, timeout: float = 0.5) -> tuple[int, Event] | None:
        """Return the next word of a worker, None if there was none in `timeout` seconds.

        A worker that died gives "gone", and another one takes its place.

        Raises
        ------
        RuntimeError
            If workers do not get ready at all, with the place of their log.
        """
        try:
            slot, worker, event = self._events.get(timeout=timeout)
        except queue.Empty:
            return None
        if worker is not self._workers.get(slot):
            return None
        if event["event"] == "ready":
            self._ready.add(slot)
            self._failed_starts[slot] = 0
        elif event["event"] == "unusable":
            raise RuntimeError(event["error"])
        elif event["event"] == "gone":
            if slot not in self._ready:
                self._failed_starts[slot] = self._failed_starts.get(slot, 0) + 1
                if self._failed_starts[slot] >= MOST_FAILED_STARTS:
                    raise RuntimeError(f"workers do not start; see {self._log(slot)}.")
            self._ready.discard(slot)
            self._spawn(slot)
        return slot, event

    def stop(self) -> None:
        """End all workers; what they had not finished is dropped."""
        for worker in self._workers.values():
            with contextlib.suppress(OSError):
                assert worker.stdin is not None
                worker.stdin.close()
        for worker in self._workers.values():
            try:
                worker.wait(timeout=5)
            except subprocess.TimeoutExpired:
                worker.kill()
                worker.wait()
        self._workers.clear()
        self._ready.clear()

    def _spawn(self, slot: int) -> None:
        with self._log(slot).open("a", encoding="utf-8") as log:
            worker = subprocess.Popen(
                [sys.executable, "-m", self._module],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                encoding="utf-8",
                bufsize=1,
                env={**os.environ, **ONE_THREAD, "PYTHONHASHSEED": "0"},
                # A Ctrl-C in the terminal is for the driver, which ends its workers itself.
                start_new_session=True,
            )
        self._workers[slot] = worker
        threading.Thread(target=self._listen, args=(slot, worker), daemon=True).start()
        with contextlib.suppress(OSError):
            self._write(slot, {**self._start, "slot": slot})

    def _listen(self, slot: int, worker: subprocess.Popen[str]) -> None:
        assert worker.stdout is not None
        for line in worker.stdout:
            self._heard[slot] = time.monotonic()
            # A worker killed in the middle of a line leaves a torn one.
            with contextlib.suppress(ValueError):
                self._events.put((slot, worker, json.loads(line)))
        worker.stdout.close()
        self._events.put((slot, worker, {"event": "gone", "code": worker.wait()}))

    def _write(self, slot: int, value: Any) -> None:
        stream = self._workers[slot].stdin
        assert stream is not None
        stream.write(json.dumps(value) + "\n")
        stream.flush()

    def _log(self, slot: int) -> Path:
        return self._logs / f"worker-{slot}.log"

"""The tracker on a thread of its own, so that fits never wait for a store."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fints.study.fits import Cell
from fints.study.tracking import Tracker

__all__ = ["Recorder"]


class Recorder:
    """Passes what happens to a `Tracker`, in order, without making the caller wait.

    The stores are opened on the thread as well, while the first fits already run. What is lost by a
    kill, or by a store that fails, is caught up by the next run, which finds finished fits in their
    folders.

    Attributes
    ----------
    error : str
        Why the stores could not be written, in one line; empty while they can. Nothing is written
        after the first error.
    """

    def __init__(self, tracker: Tracker, fits: Path, say: Callable[[str], None] = print) -> None:
        self._tracker = tracker
        self._fits = fits
        self._tasks: queue.Queue[Callable[[], None] | None] = queue.Queue()
        self._say = say
        self.error = ""
        self._thread = threading.Thread(target=self._serve, name="tracking", daemon=True)
        self._thread.start()

    def start(self, cell: Cell) -> None:
        """Tell that a cell starts."""
        self._tasks.put(lambda: self._tracker.start(cell))

    def finish(self, cell: Cell) -> None:
        """Tell that a cell's folder is there."""
        self._tasks.put(lambda: self._tracker.finish(cell, self._fits / cell.key))

    def kill(self, cell: Cell, status: str = "KILLED", reason: str = "") -> None:
        """Tell that a cell was interrupted or failed."""
        self._tasks.put(lambda: self._tracker.kill(cell, status, reason))

    def close_arm(
        self, arm: str, rows: list[dict[str, Any]], profile: Mapping[str, list[tuple[int, float]]]
    ) -> None:
        """Tell that all fits of an arm are there."""
        self._tasks.put(lambda: self._tracker.close_arm(arm, rows, profile))

    def close(self, status: str) -> float:
        """Write what is left, close all runs, and return the seconds this took."""
        clock = time.perf_counter()
        self._tasks.put(lambda: self._tracker.close(status))
        self._tasks.put(None)
        self._thread.join()
        return time.perf_counter() - clock

    def _serve(self) -> None:
        try:
            self._tracker.open(self._fits)
            while (task := self._tasks.get()) is not None:
                task()
        except Exception as error:  # no fit is worth less because its record could not be written
            self.error = (str(error).strip() or type(error).__name__).splitlines()[0]
            self._say(f"tracking failed, the fits go on without it: {self.error}")

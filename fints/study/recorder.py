"""The tracker on a thread of its own, so that fits never wait for a store."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fints.study.addresses import one_line
from fints.study.run_contents import Fitted
from fints.study.tracking import Tracker

__all__ = ["TRACKING_PATIENCE_S", "NoRecord", "Recorder", "patience_with"]

# A tracking server that is away at the end of a study is waited for this long.
TRACKING_PATIENCE_S = 180.0
# Between two questions whether a store that went away is back.
PAUSE_S = 2.0


class Recorder:
    """Passes what happens to a `Tracker`, in order, without making the caller wait.

    The stores are opened on the thread as well, while the first fits already run. What is lost by a
    kill, or by a store that fails, is caught up by the next run, which finds finished fits in their
    folders.

    Parameters
    ----------
    tracker : Tracker
        What writes.
    fits : Path
        Where the folders of finished fits are.
    say : callable
        Receives a line when the store fails, and when it is back.
    patience : float
        Seconds that `close` waits for a store that is away; until then it is asked again and again, and
        told everything once it answers. 0: nothing is written after the first error.

    Attributes
    ----------
    error : str
        Why the stores could not be written, in one line; empty if they have everything.
    """

    def __init__(
        self, tracker: Tracker, fits: Path, say: Callable[[str], None] = print, *, patience: float = 0.0
    ) -> None:
        self._tracker = tracker
        self._fits = fits
        self._tasks: queue.Queue[Callable[[], None] | None] = queue.Queue()
        self._say = say
        self._patience = patience
        self._deadline: float | None = None
        # The last word on each cell and arm: what a store that comes back must be told.
        self._words: dict[str, Callable[[], None]] = {}
        self.error = ""
        self._thread = threading.Thread(target=self._serve, name="tracking", daemon=True)
        self._thread.start()

    def start(self, cell: Fitted) -> None:
        """Tell that a cell starts."""
        self._tell(cell.key, lambda: self._tracker.start(cell))

    def finish(self, cell: Fitted) -> None:
        """Tell that a cell's folder is there."""
        self._tell(cell.key, lambda: self._tracker.finish(cell, self._fits / cell.key))

    def kill(self, cell: Fitted, status: str = "KILLED", reason: str = "") -> None:
        """Tell that a cell was interrupted or failed."""
        self._tell(cell.key, lambda: self._tracker.kill(cell, status, reason))

    def close_arm(
        self,
        arm: str,
        rows: Sequence[Mapping[str, Any]],
        profile: Mapping[str, Sequence[tuple[int, float]]],
    ) -> None:
        """Tell that all fits of an arm are there."""
        self._tell(f"arm {arm}", lambda: self._tracker.close_arm(arm, rows, profile))

    def close(self, status: str) -> float:
        """Write what is left, close all runs, and return the seconds this took."""
        return self._end(lambda: self._tracker.close(status))

    def leave(self) -> float:
        """Write what is left, close this process's own runs, and return the seconds this took."""
        return self._end(self._tracker.leave)

    def _tell(self, name: str, task: Callable[[], None]) -> None:
        self._words[name] = task
        self._tasks.put(task)

    def _end(self, last: Callable[[], None]) -> float:
        clock = time.perf_counter()
        self._deadline = time.monotonic() + self._patience
        self._tasks.put(last)
        self._tasks.put(None)
        self._thread.join()
        return time.perf_counter() - clock

    def _serve(self) -> None:
        task: Callable[[], None] | None = self._open
        while task is not None:
            try:
                task()
            except Exception as error:  # no fit is worth less because its record could not be written
                if not self._catch_up(task, one_line(error)):
                    return
            task = self._tasks.get()

    def _open(self) -> None:
        self._tracker.open(self._fits)

    def _catch_up(self, failed: Callable[[], None], line: str) -> bool:
        """Wait for the store and tell it all that it missed; return False if it stays away."""
        if self._patience == 0:
            self.error = line
            self._say(f"tracking failed, the fits go on without it: {line}")
            return False
        self._say(f"tracking failed, the fits go on and are recorded once it is back: {line}")
        while self._deadline is None or time.monotonic() < self._deadline:
            time.sleep(PAUSE_S)
            try:
                self._open()
                for word in [*self._words.values(), failed]:
                    word()
            except Exception as error:  # still away, or away again
                line = one_line(error)
                continue
            self._say("tracking is back and has been told what it missed")
            return True
        self.error = line
        self._say(f"tracking stays away: {line}")
        return False


def patience_with(tracker: Tracker) -> float:
    """Return how long a driver waits for a store: a server may restart, a file that fails will fail again."""
    return TRACKING_PATIENCE_S if tracker.served else 0.0


class NoRecord:
    """In the place of a `Recorder` where no store was named: whoever ends the study records its fits."""

    error = ""

    def start(self, cell: Fitted) -> None:
        """Take no note."""

    def finish(self, cell: Fitted) -> None:
        """Take no note."""

    def kill(self, cell: Fitted, status: str = "KILLED", reason: str = "") -> None:
        """Take no note."""

    def close_arm(
        self,
        arm: str,
        rows: Sequence[Mapping[str, Any]],
        profile: Mapping[str, Sequence[tuple[int, float]]],
    ) -> None:
        """Take no note."""

    def close(self, status: str) -> float:
        """Have nothing to write."""
        return 0.0

    def leave(self) -> float:
        """Have nothing to write."""
        return 0.0

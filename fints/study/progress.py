"""What a person sees while a study runs: a picture on a terminal, else one line a finished trial."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Protocol

from rich.console import Console
from rich.live import Live

from fints.study.cells import FINISHED
from fints.study.dashboard import LAST, Dashboard, Standing
from fints.study.estimates import duration
from fints.study.grid import Grid, Mark

__all__ = ["Job", "Report"]

REFRESHES_A_SECOND = 4


class Job(Protocol):
    """A fit that is told of: its text says which it is."""

    @property
    def seconds(self) -> float:
        """How long it is expected to take."""
        ...

    def cells(self) -> Sequence[Any]:
        """Return the fits that it is: several may be made at once."""
        ...


class Report:
    """Tells finished, failed and remaining fits on `console`.

    The remaining time is the estimated work left over the speed seen so far in this run.

    Parameters
    ----------
    console : Console
        Where to.
    total : int
        Number of fits.
    work : float
        Seconds that they are expected to take on one worker.
    workers : int
        Fits at a time.
    grid : Grid, optional
        Draws a picture of all fits where `console` is a terminal that can move its cursor; without one, and
        elsewhere, lines are printed.
    """

    def __init__(
        self, console: Console, *, total: int, work: float, workers: int, grid: Grid | None = None
    ) -> None:
        self._console = console
        self._total = total
        self._work_left = work
        self._work_done = 0.0
        self._workers = workers
        self._started = time.monotonic()
        self._done = 0
        self._here = 0
        self._last: list[str] = []
        self._grid = grid
        self._live: Live | None = None
        # The picture is drawn on a thread of its own.
        self._lock = threading.Lock()

    def __enter__(self) -> Report:
        """Draw the picture where there is a terminal."""
        terminal = self._console.is_terminal and not self._console.is_dumb_terminal
        if self._grid is not None and terminal and self._console.file.isatty():
            self._live = Live(
                console=self._console,
                refresh_per_second=REFRESHES_A_SECOND,
                vertical_overflow="crop",
                get_renderable=self._picture,
            )
            try:
                self._live.start(refresh=True)
            except BaseException:
                # Ctrl-C while it starts: nobody would call __exit__.
                self._live.stop()
                raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the last picture as it is, and the terminal as it was."""
        if self._grid is not None:
            with self._lock:
                self._grid.stop()
        if self._live is not None:
            self._live.stop()

    def say(self, text: str) -> None:
        """Print a line, above the picture."""
        self._console.print(text, highlight=False, markup=False)

    def started(self, cell: Job) -> None:
        """Tell a fit that a worker here has begun."""
        self._mark(cell, Mark.RUNNING)

    def further(self, cells: Sequence[Job]) -> None:
        """Count fits that were not known of before."""
        with self._lock:
            self._total += len(cells)
            self._work_left += sum(cell.seconds for cell in cells)

    def kept(self, cell: Job) -> None:
        """Count a fit that was finished before this run, or elsewhere."""
        with self._lock:
            self._done += 1
            self._work_left -= cell.seconds
        self._mark(cell, Mark.KEPT)

    def finished(self, cell: Job, result: Mapping[str, Any], seconds: float) -> None:
        """Count and tell a fit that this run finished."""
        loss = result["validation_loss"]
        well = result["outcome"] in FINISHED
        told = f"validation loss {loss:.5f}" if loss is not None else "no validation loss"
        if not well:
            told = f"{result['outcome']}: {result['reason']}"
        with self._lock:
            self._done += 1
            self._here += 1
            self._work_left -= cell.seconds
            self._work_done += cell.seconds
            short = f"{loss:.5f}" if well and loss is not None else result["outcome"]
            self._last = [*self._last, f"{short:>9} {seconds:6.1f} s  {cell}"][-LAST:]
        self._mark(cell, Mark.DONE if well else Mark.DIVERGED)
        if self._live is None:
            self.say(f"[{self._done}/{self._total}] {cell}")
            self.say(f"        {told}, {seconds:.1f} s, about {duration(self._seconds_left())} left")

    def failed(self, cell: Job, error: str, *, again: bool) -> None:
        """Tell a fit that failed."""
        if self._grid is not None:
            with self._lock:
                for one in cell.cells():
                    self._grid.end(one, Mark.WAITING if again else Mark.FAILED)
        self.say(f"failed: {cell}: {error}" + ("; it will be tried again" if again else ""))

    def _mark(self, cell: Job, mark: Mark) -> None:
        if self._grid is not None:
            with self._lock:
                self._grid.put(cell, mark)

    def _picture(self) -> Dashboard:
        assert self._grid is not None
        with self._lock:
            elapsed = time.monotonic() - self._started
            standing = Standing(
                done=self._done,
                total=self._total,
                elapsed=elapsed,
                seconds_left=self._seconds_left(),
                an_hour=3600 * self._here / elapsed if self._here else None,
                workers=self._workers,
                last=tuple(self._last),
            )
        return Dashboard(self._grid, standing)

    def _seconds_left(self) -> float:
        left = max(self._work_left, 0.0)
        if self._work_done > 0:
            return left * (time.monotonic() - self._started) / self._work_done
        return left / self._workers

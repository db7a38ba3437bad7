"""What a person sees while a study runs: a bar on a terminal, else one line a finished trial."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from fints.study.cells import FINISHED
from fints.study.estimates import duration

__all__ = ["Job", "Report"]


class Job(Protocol):
    """A fit that is told of: its text says which it is."""

    @property
    def seconds(self) -> float:
        """How long it is expected to take."""
        ...


class Report:
    """Tells finished, failed and remaining fits on `console`.

    The remaining time is the estimated work left over the speed seen so far in this run.
    """

    def __init__(self, console: Console, *, total: int, work: float, workers: int) -> None:
        self._console = console
        self._total = total
        self._work_left = work
        self._work_done = 0.0
        self._workers = workers
        self._started = time.monotonic()
        self._done = 0
        self._bar: Progress | None = None
        self._task: Any = None

    def __enter__(self) -> Report:
        """Show the bar where there is a terminal."""
        if self._console.is_terminal:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                TextColumn("{task.fields[left]}"),
                console=self._console,
            )
            self._bar.start()
            self._task = self._bar.add_task("fits", total=self._total, left=self._remaining())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()

    def say(self, text: str) -> None:
        """Print a line above the bar."""
        self._console.print(text, highlight=False, markup=False)

    def kept(self, cell: Job) -> None:
        """Count a fit that was finished before this run."""
        self._done += 1
        self._work_left -= cell.seconds
        self._advance()

    def finished(self, cell: Job, result: Mapping[str, Any], seconds: float) -> None:
        """Count and tell a fit that this run finished."""
        self._done += 1
        self._work_left -= cell.seconds
        self._work_done += cell.seconds
        self._advance()
        loss = result["validation_loss"]
        told = f"validation loss {loss:.5f}" if loss is not None else "no validation loss"
        if result["outcome"] not in FINISHED:
            told = f"{result['outcome']}: {result['reason']}"
        left = "" if self._bar is not None else f", {self._remaining()}"
        self.say(f"[{self._done}/{self._total}] {cell}")
        self.say(f"        {told}, {seconds:.1f} s{left}")

    def failed(self, cell: Job, error: str, *, again: bool) -> None:
        """Tell a fit that failed."""
        self.say(f"failed: {cell}: {error}" + ("; it will be tried again" if again else ""))

    def _advance(self) -> None:
        if self._bar is not None:
            self._bar.update(self._task, completed=self._done, left=self._remaining())

    def _remaining(self) -> str:
        left = max(self._work_left, 0.0)
        if self._work_done > 0:
            left *= (time.monotonic() - self._started) / self._work_done
        else:
            left /= self._workers
        return f"about {duration(left)} left"

"""How far a shared study is, and when it may be done."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from fints.study.estimates import duration
from fints.study.liveness import new_worker
from fints.study.shared import SharedStore
from fints.study.shared_queue import SharedQueue

__all__ = ["StudyStatus", "study_status"]


@dataclass(frozen=True)
class StudyStatus:
    """Fits of one study, baselines left out.

    `an_hour` is the rate of the last finished fits, NaN before two are there; `seconds_left` the fits that
    are left at that rate; `workers` maps a host and process id to the cells that it has.
    """

    study: str
    total: int
    finished: int
    running: int
    waiting: int
    failures: list[str]
    an_hour: float
    seconds_left: float
    workers: dict[str, int]

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, JSON-able; what is not known is None."""
        return {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in asdict(self).items()
        }

    def row(self) -> tuple[str, ...]:
        """Return what a table shows."""
        known = math.isfinite(self.an_hour)
        return (
            self.study,
            f"{self.finished}/{self.total}",
            str(self.running),
            str(self.waiting),
            str(len(self.failures)),
            f"{self.an_hour:.0f}" if known else "-",
            duration(self.seconds_left) if known and math.isfinite(self.seconds_left) else "-",
            str(len(self.workers)),
        )


def study_status(store: SharedStore, name: str) -> StudyStatus:
    """Look at a study; nothing is changed but what Optuna makes for arms that have just begun.

    Parameters
    ----------
    store : SharedStore
        Where it is.
    name : str
        Of the study there.
    """
    queue = SharedQueue(store, name, new_worker(name))
    standing = queue.standing()
    fits = {key: cell for key, cell in standing.finished.items() if cell.role != "baseline"}
    total = queue.planned.total
    failures = [f"{cell}: {error}" for cell, error in standing.given_up.values()]
    an_hour = store.rate(name)
    left = total - len(fits) - len(failures)
    workers = {
        f"{worker.host}:{worker.pid}": sum(holder == worker.name for holder in standing.running.values())
        for worker in store.workers(name).values()
    }
    return StudyStatus(
        study=name,
        total=total,
        finished=len(fits),
        running=len(standing.running),
        waiting=max(0, left - len(standing.running)),
        failures=failures,
        an_hour=an_hour,
        seconds_left=0.0 if left == 0 else 3600 * left / an_hour if an_hour > 0 else math.nan,
        workers=workers,
    )

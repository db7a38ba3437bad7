"""Which workers are dead, told from their signs of life alone: no clock of another machine is read."""

from __future__ import annotations

import hashlib
import os
import platform
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path

from fints.study.shared import SharedStore, Worker

__all__ = ["Beats", "Liveness", "new_worker"]

# Signs of life that may be missed before a worker counts as dead.
MISSED = 5


class Liveness:
    """What one observer knows of the others.

    A worker is dead when its count of beats has not changed for `MISSED` of its intervals on this
    process's own steady clock. So neither a clock that was set, here or elsewhere, nor a server that was
    away for an hour makes a living worker look dead.

    Parameters
    ----------
    interval : float
        Seconds between two beats of every worker of the study.
    clock : callable
        Steady seconds.
    """

    def __init__(self, interval: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._grace = MISSED * interval
        self._clock = clock
        self._seen: dict[str, tuple[int | None, float]] = {}

    def dead(self, name: str, workers: Mapping[str, Worker]) -> bool:
        """Tell whether worker `name` is dead, which takes some calls to find out.

        A name that is in no list (its worker has left, or was killed before it could say its name) is
        watched as long.
        """
        worker = workers.get(name)
        beat = None if worker is None else worker.beat
        now = self._clock()
        known = self._seen.get(name)
        if known is None or known[0] != beat:
            self._seen[name] = (beat, now)
            return worker is not None and _ended_here(worker)
        return now - known[1] > self._grace or (worker is not None and _ended_here(worker))


class Beats:
    """Gives this worker's signs of life on a thread of its own until it is closed."""

    def __init__(self, store: SharedStore, worker: Worker, interval: float) -> None:
        self._store, self._worker, self._interval = store, worker, interval
        self._ended = threading.Event()
        store.patiently(lambda: store.beat(worker))
        self._thread = threading.Thread(target=self._give, name="beats", daemon=True)
        self._thread.start()

    def _give(self) -> None:
        import sqlalchemy.exc

        while not self._ended.wait(self._interval):
            try:
                self._store.beat(self._worker)
            except sqlalchemy.exc.SQLAlchemyError:
                # The server is away: there is another beat to come, and nobody can miss this one.
                continue

    def close(self) -> None:
        """Give no more signs of life, and strike the worker off."""
        self._ended.set()
        self._thread.join()
        self._store.leave(self._worker.name)


def new_worker(study: str) -> Worker:
    """Return this process under a name that no other process has or will have."""
    name = f"{platform.node()}:{os.getpid()}:{_machine()}:{uuid.uuid4().hex[:8]}"
    return Worker(name, study, platform.node(), os.getpid(), 0)


def _ended_here(worker: Worker) -> bool:
    """Tell whether a worker was a process of this machine that has ended: it need not be waited for."""
    parts = worker.name.split(":")
    if len(parts) != 4 or not _machine() or parts[2] != _machine():
        return False
    try:
        os.kill(worker.pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False


def _machine() -> str:
    """Return what tells this boot of this machine, and the processes it can see, from any other."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return hashlib.sha256(f"{boot} {os.readlink('/proc/self/ns/pid')}".encode()).hexdigest()[:8]
    except OSError:
        return ""

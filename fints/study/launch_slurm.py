"""Workers on a Slurm cluster: an array of jobs, which submitit writes and watches."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import submitit

from fints.study.addresses import one_line
from fints.study.launch import Ended, Launcher, Order, options_of, without_addresses
from fints.study.launched import LEAVE_S, serve

__all__ = ["Slurm"]

# Slurm says with a signal this long before the end of a job's time that it is near.
NOTICE_S = 90
# How often a job goes on after its time was up: as often as it takes.
MOST_TIMES = 1000
# A file of this name ends all jobs, also where no scancel reaches them.
STOP = "stop"


class Slurm(Launcher):
    """Slurm by submitit, or submitit's own processes on this machine (``cluster=local``), to try it.

    An order lies in a file that its owner alone can read, beside the jobs' logs, until the driver ends. A job
    whose time is up gives its cell back and is put into the queue again; checkpoints of long fits stay.

    Parameters
    ----------
    entries : sequence of str
        Fields of submitit's ``SlurmExecutor`` under their names there: ``partition=gpu``, ``time=240``
        (minutes), ``cpus_per_task=1``, ``gpus_per_node=1``, ``setup=["module load python"]``.
    folder : Path
        Of orders and logs; every machine must see it.

    Raises
    ------
    ValueError
        If an option is unknown or Slurm cannot be used from here.
    """

    engine = "Slurm"

    def __init__(self, entries: Sequence[str], folder: Path) -> None:
        known = dict.fromkeys(sorted(submitit.SlurmExecutor._valid_parameters()))
        options = options_of(entries, {**known, "cluster": "slurm", "time": 240, "cpus_per_task": 1}, "slurm")
        cluster = options.pop("cluster")
        if cluster not in ("slurm", "local"):
            raise ValueError(f"--launcher-option cluster must be slurm or local; got {cluster!r}.")
        self.one_machine = cluster == "local"
        folder.mkdir(parents=True, exist_ok=True)
        # It is its owner's alone, and with it all that lies in it.
        self._folder = Path(tempfile.mkdtemp(prefix=f"{cluster}-", dir=folder))
        try:
            self._executor = _executor(cluster, self._folder, options)
        except (RuntimeError, ValueError, TypeError) as error:
            self._folder.rmdir()
            raise ValueError(f"--launcher slurm cannot be used: {one_line(error)}") from error
        self._jobs: dict[int, Any] = {}
        self._orders: list[Path] = []

    def start(self, orders: Mapping[int, Order]) -> None:
        """Submit an array with a job a slot."""
        files = []
        for slot, order in orders.items():
            path = self._folder / f"order-{slot}.json"
            # In a folder that all machines see, checkpoints outlive the job, whose next part goes on there.
            content = {**order, "scratch": str(self._folder / f"scratch-{slot}")}
            with open(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "w") as stream:
                json.dump(content, stream)
            files.append(path)
        self._orders += files
        with without_addresses(), self._executor.batch():
            submitted = [self._executor.submit(_Work(), str(path)) for path in files]
        self._jobs.update(zip(orders, submitted, strict=True))

    def ended(self) -> dict[int, Ended]:
        """Ask submitit which jobs have ended."""
        done = [slot for slot, job in self._jobs.items() if job.done()]
        return {slot: _ended(self._jobs.pop(slot)) for slot in done}

    def stop(self) -> None:
        """Cancel what is left, wait as long as its end may take, and take the orders away."""
        (self._folder / STOP).touch()
        deadline = time.monotonic() + LEAVE_S
        # Slurm takes jobs that wait out of its queue, and gives those that run time to end.
        while self.one_machine and self._jobs and time.monotonic() < deadline:
            time.sleep(0.2)
            self.ended()
        for job in self._jobs.values():
            job.cancel(check=False)
        for path in self._orders:
            path.unlink(missing_ok=True)


class _Work:
    """What submitit pickles: no secret, but where the order is."""

    def __call__(self, order: str) -> dict[str, Any]:
        path = Path(order)
        return serve(json.loads(path.read_text(encoding="utf-8")), path.with_name(STOP).exists)

    def checkpoint(self, order: str) -> Any:
        """Go on after the time was up, or another job came first, as before."""
        return submitit.helpers.DelayedSubmission(self, order)


def _executor(cluster: str, folder: Path, options: Mapping[str, Any]) -> Any:
    given = {name: value for name, value in options.items() if value is not None}
    if cluster == "local":
        executor = submitit.LocalExecutor(folder, max_num_timeout=MOST_TIMES)
        executor.update_parameters(timeout_min=given["time"], setup=given.get("setup", []))
        return executor
    executor = submitit.SlurmExecutor(folder, max_num_timeout=MOST_TIMES)
    executor.update_parameters(**{"job_name": "fints", "signal_delay_s": NOTICE_S, **given})
    return executor


def _ended(job: Any) -> Ended:
    try:
        return Ended(**job.result())
    except Exception as error:  # of submitit, and whatever a job's own end left for it to raise
        return Ended(None, one_line(error))

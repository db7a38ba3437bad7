"""Workers on a Ray cluster: one actor each, which Ray places where there is room."""

from __future__ import annotations

import os
import signal
import threading
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import ray

from fints.study.addresses import one_line
from fints.study.launch import Ended, Launcher, Order, options_of, without_addresses
from fints.study.launched import LEAVE_S, serve

__all__ = ["Ray"]

# Orders travel as arguments: Ray's store of objects, by default a third of the memory, is hardly used.
OBJECT_STORE_BYTES = 80 * 2**20


class Ray(Launcher):
    """A cluster that exists, or one of this machine's own for the time of the run.

    Orders are arguments of a call: Ray shows environments (`runtime_env`) and command lines in its dashboard,
    but no arguments.

    Parameters
    ----------
    entries : sequence of str
        ``address=HOST:PORT`` (RAY_ADDRESS, else a cluster of this machine's own), ``num_cpus=1`` and
        ``num_gpus=0`` of a worker.

    Raises
    ------
    ValueError
        If an option is unknown or the cluster does not answer.
    """

    engine = "Ray"

    def __init__(self, entries: Sequence[str]) -> None:
        options = options_of(entries, {"address": None, "num_cpus": 1, "num_gpus": 0}, "ray")
        self._address = options.pop("address") or os.environ.get("RAY_ADDRESS")
        self.one_machine = not self._address
        self._resources = options
        self._actors: dict[int, Any] = {}
        self._running: dict[Any, int] = {}

    def start(self, orders: Mapping[int, Order]) -> None:
        """Ask Ray for an actor a slot."""
        if not ray.is_initialized():
            self._connect(len(orders))
        worker = ray.remote(_Worker).options(max_concurrency=2, **self._resources)
        for slot, order in orders.items():
            self._actors[slot] = worker.remote()
            self._running[self._actors[slot].run.remote(order)] = slot

    def _connect(self, workers: int) -> None:
        # What the driver catches itself, Ray would take over.
        caught = signal.getsignal(signal.SIGTERM)
        options: dict[str, Any] = {"address": self._address}
        if not self._address:
            options = {
                "address": "local",
                "include_dashboard": False,
                "num_cpus": max(1, round(workers * self._resources["num_cpus"])),
                "object_store_memory": OBJECT_STORE_BYTES,
            }
        try:
            with without_addresses():
                ray.init(
                    namespace=f"fints-{uuid.uuid4().hex}",
                    log_to_driver=False,
                    logging_level="ERROR",
                    **options,
                )
        except Exception as error:  # of Ray, gRPC and the network, which share no base
            raise ValueError(
                f"--launcher ray needs a Ray cluster that answers, at {self._address or 'this machine'}: "
                f"{one_line(error)}"
            ) from error
        finally:
            signal.signal(signal.SIGTERM, caught)

    def ended(self) -> dict[int, Ended]:
        """Ask Ray which calls have returned."""
        done, _ = (
            ray.wait(list(self._running), num_returns=len(self._running), timeout=0)
            if self._running
            else ([], [])
        )
        found = {}
        for call in done:
            slot = self._running.pop(call)
            try:
                found[slot] = Ended(**ray.get(call))
            except ray.exceptions.RayError as error:
                found[slot] = Ended(None, one_line(error))
        return found

    def stop(self) -> None:
        """Tell every actor to end its worker, wait as long as that may take, and leave the cluster."""
        if not ray.is_initialized():
            return
        for slot in self._running.values():
            self._actors[slot].stop.remote()
        if self._running:
            ray.wait(list(self._running), num_returns=len(self._running), timeout=LEAVE_S)
        for actor in self._actors.values():
            # One that never started is taken out of the queue.
            with suppress(ray.exceptions.RayError):
                ray.kill(actor)
        ray.shutdown()


class _Worker:
    """Runs one worker; `stop` is a call beside `run`."""

    def __init__(self) -> None:
        self._stopped = threading.Event()

    def run(self, order: Order) -> dict[str, Any]:
        return serve(order, self._stopped.is_set)

    def stop(self) -> None:
        self._stopped.set()

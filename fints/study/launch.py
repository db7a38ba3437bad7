"""Workers that an engine of the site starts: the same as ``fints worker``, told what to do in secret.

The driver of a shared study asks the engine for N of them and fits nothing itself. It is no more needed than
before: cells and fits are in the storage, so a launched worker that dies costs what it had begun, and whoever
else works on the study may go on.
"""

from __future__ import annotations

import json
import os
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from packaging.requirements import Requirement

from fints.study.addresses import one_line, without_secrets
from fints.words import counted

__all__ = [
    "LAUNCHERS",
    "Crew",
    "Ended",
    "Launcher",
    "Order",
    "launcher_of",
    "make_launcher",
    "options_of",
    "order_of",
    "without_addresses",
]

LAUNCHERS = ("local", "ray", "slurm")
# What an engine needs, as the extra of its name in pyproject.toml says.
REQUIREMENTS = {"ray": "ray>=2.60,<3", "slurm": "submitit>=1.5.4,<2"}
# A worker that was lost this often is not started again: its machine, or what it fits, kills it.
MOST_STARTS = 3
# Exit codes of a worker that was not lost: it ended by itself (1: fits failed, 2: refused) or was told to.
NOT_LOST = (0, 1, 2, 130, 143, -signal.SIGINT, -signal.SIGTERM)
# Variables that hold addresses and what opens them.
SECRET = ("FINTS_STORAGE", "FINTS_SERVER_STORE", "MLFLOW_", "PG")

Order = dict[str, Any]


@dataclass(frozen=True)
class Ended:
    """How a launched worker ended: its exit code, None if the engine lost it, and its last words."""

    code: int | None
    said: str

    @property
    def lost(self) -> bool:
        """Whether it ended neither by itself nor because it was told to."""
        return self.code not in NOT_LOST


class Launcher(ABC):
    """An engine that runs `fints.study.launched.serve` with an order, somewhere.

    Attributes
    ----------
    engine : str
        What a person calls it.
    one_machine : bool
        Whether all workers are on this machine.
    """

    engine: str
    one_machine: bool

    @abstractmethod
    def start(self, orders: Mapping[int, Order]) -> None:
        """Ask for a worker a slot, all at once; they begin when the engine has room."""

    @abstractmethod
    def ended(self) -> dict[int, Ended]:
        """Return the workers that have ended since the last call, by slot."""

    @abstractmethod
    def stop(self) -> None:
        """Have all workers give back what they had begun, and end them."""


class Crew:
    """What the driver has instead of a pool of processes: workers elsewhere, which find cells themselves.

    So it is never idle and never busy; it only looks after them.

    Parameters
    ----------
    launcher : Launcher
        Who starts them.
    orders : sequence of Order
        One a worker.
    say : callable
        Receives a line a worker that ended before its time.
    others : callable
        How many workers give signs of life that the launcher did not start.
    """

    def __init__(
        self,
        launcher: Launcher,
        orders: Sequence[Order],
        *,
        say: Callable[[str], None],
        others: Callable[[], int],
    ) -> None:
        self._launcher, self._say, self._others = launcher, say, others
        self._orders = dict(enumerate(orders))
        self._starts = dict.fromkeys(self._orders, 1)
        self._at_work = set(self._orders)
        self._last = ""
        self._settled = False
        self.busy: dict[int, Any] = {}

    def __enter__(self) -> Crew:
        """Ask the engine for all of them."""
        self._launcher.start(self._orders)
        self._say(f"{counted(len(self._orders), 'worker')} asked of {self._launcher.engine}")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End those that are left."""
        self._launcher.stop()

    def idle(self) -> list[int]:
        """Nobody here can take a cell."""
        return []

    def starting(self) -> bool:
        """Nobody here is about to."""
        return False

    def silent(self, seconds: float) -> dict[int, int]:
        """Leave silence to the storage, which counts their signs of life."""
        return {}

    def send(self, slot: int, cell: Any, claim: Any) -> None:
        """Nobody here is given a cell."""
        raise AssertionError("launched workers take cells themselves")

    def stop(self) -> None:
        """Let them end their records: they leave by themselves when nothing is left."""

    def wait(self, seconds: float) -> None:
        """Wait until all have left."""
        deadline = time.monotonic() + seconds
        while self._at_work and time.monotonic() < deadline:
            self._at_work -= self._launcher.ended().keys()
            time.sleep(0.2)

    def next_event(self, timeout: float = 0.5) -> None:
        """Look after the workers; those that were lost are started again, `MOST_STARTS` times in all.

        Raises
        ------
        RuntimeError
            If all have ended, nobody else works on the study, and cells are left.
        """
        for slot, ended in self._launcher.ended().items():
            self._at_work.discard(slot)
            if ended.code == 0:
                continue
            self._last = ended.said.removeprefix("error: ").rstrip(".")
            how = "was lost" if ended.code is None else f"ended with code {ended.code}"
            again = ended.lost and self._starts[slot] < MOST_STARTS
            self._say(
                f"worker {slot + 1} of {len(self._orders)} on {self._launcher.engine} {how}"
                + (f": {self._last}" if self._last else "")
                + ("; another one is asked for" if again else "")
            )
            if again:
                self._starts[slot] += 1
                self._launcher.start({slot: self._orders[slot]})
                self._at_work.add(slot)
        if self._at_work or self._others():
            self._settled = False
        elif self._settled:
            raise RuntimeError(
                f"all {len(self._orders)} workers on {self._launcher.engine} have ended and fits are left"
                + (f" (one said: {self._last})." if self._last else ".")
                + " What is finished is kept; run again to go on."
            )
        else:
            # What the last of them handed in may be all that was left: the queue is looked at once more.
            self._settled = True
        time.sleep(timeout)


def order_of(study: str, storage: str, tracking_uri: str | None) -> Order:
    """Return what a launched worker must know; it holds secrets.

    Parameters
    ----------
    study : str
        Its name in the storage.
    storage, tracking_uri : str
        Addresses with their secrets.
    """
    environment = {name: value for name, value in os.environ.items() if name.startswith(SECRET)}
    environment["FINTS_STORAGE"] = storage
    environment.pop("MLFLOW_TRACKING_URI", None)
    if tracking_uri is not None:
        environment["MLFLOW_TRACKING_URI"] = tracking_uri
    return {"study": study, "environment": environment, "scratch": None}


@contextmanager
def without_addresses() -> Iterator[None]:
    """Take the secret variables out of what this process hands to those it starts."""
    taken = {name: os.environ.pop(name) for name in [*os.environ] if name.startswith(SECRET)}
    try:
        yield
    finally:
        os.environ.update(taken)


def options_of(entries: Sequence[str], known: Mapping[str, Any], launcher: str) -> dict[str, Any]:
    """Return the values of ``--launcher-option NAME=VALUE`` entries, over those that `known` has.

    Raises
    ------
    ValueError
        If an entry is none, or its name is not known.
    """
    options = dict(known)
    for entry in entries:
        name, equals, text = entry.partition("=")
        if not equals or name not in known:
            raise ValueError(
                f"--launcher-option must be NAME=VALUE with a name that --launcher {launcher} knows "
                f"({', '.join(sorted(known))}); got {without_secrets(entry)!r}."
            )
        try:
            options[name] = json.loads(text)
        except ValueError:
            options[name] = text
    return options


def launcher_of(
    name: str,
    entries: Sequence[str],
    *,
    workers: int | None,
    storage: str | None,
    typed: Sequence[str],
    folder: Path,
) -> Launcher | None:
    """Return the launcher that a command line asks for, None for processes of this machine.

    Parameters
    ----------
    name, entries, workers, storage
        Of the options --launcher, --launcher-option, --workers, --storage.
    typed : sequence of str
        All words of the command line.
    folder : Path
        As in `make_launcher`.

    Raises
    ------
    ValueError
        If an option does not go with another one, besides what `make_launcher` refuses.
    """
    if name == "local":
        if entries:
            raise ValueError("--launcher-option needs --launcher ray or slurm: local has no options.")
        return None
    if not storage:
        raise ValueError(f"--launcher {name} needs --storage (FINTS_STORAGE), which all workers share.")
    if not workers:
        raise ValueError(f"--launcher {name} needs --workers N from 1 to 256: how many it is to start.")
    if any(without_secrets(word) != word for word in typed):
        raise ValueError(
            f"--launcher {name} must not find a password in the command line, which clusters show: set "
            "FINTS_STORAGE and MLFLOW_TRACKING_URI instead."
        )
    launcher = make_launcher(name, entries, folder)
    if storage.startswith("sqlite:") and not launcher.one_machine:
        raise ValueError(
            f"--launcher {name} starts workers on several machines, which a SQLite --storage cannot serve: "
            "give a PostgreSQL one."
        )
    return launcher


def make_launcher(name: str, entries: Sequence[str], folder: Path) -> Launcher:
    """Return the launcher of that name.

    Parameters
    ----------
    name : str
        "ray" or "slurm".
    entries : sequence of str
        Its options, NAME=VALUE.
    folder : Path
        Where it may keep orders and logs; with Slurm all machines must see it.

    Raises
    ------
    ValueError
        If its package is missing, an option is wrong or the engine cannot be used from here.
    """
    try:
        if name == "ray":
            from fints.study.launch_ray import Ray

            return Ray(entries)
        from fints.study.launch_slurm import Slurm

        return Slurm(entries, folder)
    except ImportError as error:
        requirement = REQUIREMENTS[name]
        raise ValueError(
            f"--launcher {name} needs {Requirement(requirement).name}, which cannot be imported "
            f"({one_line(error)}): pip install '{requirement}' (or fints with its extra `{name}`)."
        ) from error

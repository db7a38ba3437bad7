"""Who else may write the record of a study, as the tracker must know it."""

from __future__ import annotations

import shutil
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from fints.study.liveness import Liveness
from fints.study.shared import SharedStore
from fints.study.store import damage

__all__ = ["Alone", "Company", "Many"]


class Company(ABC):
    """`me` names this process in the tags of its runs."""

    me: str

    @abstractmethod
    def find(self, key: str, fits: Path) -> Path | None:
        """Return the folder of a finished fit, None if it is not finished."""

    @abstractmethod
    def living(self, name: str) -> bool:
        """Tell whether another process of that name may still be at work."""

    @abstractmethod
    def exclusive(self) -> AbstractContextManager[None]:
        """Keep the others from making what must be there once."""


class Alone(Company):
    """The driver that holds the study's folder: whoever else was at work is dead."""

    def __init__(self) -> None:
        self.me = uuid.uuid4().hex

    def find(self, key: str, fits: Path) -> Path | None:
        """Return the fit's folder."""
        return fits / key if (fits / key).is_dir() else None

    def living(self, name: str) -> bool:
        """Nobody else lives."""
        return False

    def exclusive(self) -> AbstractContextManager[None]:
        """Need no lock."""
        return nullcontext()


class Many(Company):
    """One of the workers of a shared study, whose fits lie in its database."""

    def __init__(self, store: SharedStore, study: str, me: str, interval: float) -> None:
        self.me = me
        self._store, self._study = store, study
        self._liveness = Liveness(interval)
        self._holds = False

    def find(self, key: str, fits: Path) -> Path | None:
        """Fetch the fit if it is not here, or not whole."""
        final = fits / key
        if final.is_dir() and damage(final):
            shutil.rmtree(final)
        if not final.is_dir():
            if key not in self._store.losses(self._study):
                return None
            self._store.get_fit(self._study, key, final, tmp=fits.parent / "tmp")
        return final

    def living(self, name: str) -> bool:
        """Tell whether that worker has neither left nor fallen silent."""
        workers = self._store.workers(self._study)
        return name in workers and not self._liveness.dead(name, workers)

    def exclusive(self) -> AbstractContextManager[None]:
        """Hold the lock of the study's record, for the time that a slow server may take.

        Who holds it may take it again.
        """
        return nullcontext() if self._holds else self._held()

    @contextmanager
    def _held(self) -> Iterator[None]:
        with self._store.exclusive(f"{self._study}/tracking", seconds=600):
            self._holds = True
            try:
                yield
            finally:
                self._holds = False

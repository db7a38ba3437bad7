"""The database that the machines of one study share: its spec, its finished fits, its workers, its locks.

Optuna's tables in the same database are the queue (`fints.study.shared_queue`). A finished fit lies here
whole, once: the first result of a fit counts, whoever else comes with another one.
"""

from __future__ import annotations

import functools
import json
import math
import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from fints.study.addresses import one_line, without_secrets
from fints.study.archive import checksum, pack, unpack
from fints.study.fingerprint import WORDS
from fints.study.shared_tables import tables

if TYPE_CHECKING:
    import sqlalchemy

__all__ = ["IDLE_TRANSACTION_S", "KEPT", "SharedStore", "Worker"]

# A worker that is stopped in the middle of a transaction must not hold its locks for ever.
IDLE_TRANSACTION_S = 60
# A lock in a file is waited for that many times longer than a server would leave it to who holds it.
HELD_TIMES = 5
# How the attempt of a fit begins that was made before the study was shared.
KEPT = "kept in "
P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class Worker:
    """One process that takes fits: `name` is its own for ever, `beat` counts its signs of life."""

    name: str
    study: str
    host: str
    pid: int
    beat: int


def _patient(method: Callable[P, T]) -> Callable[P, T]:
    """Let a method of `SharedStore` be tried again while its server is away: each may be repeated."""

    @functools.wraps(method)
    def wrapped(*given: P.args, **named: P.kwargs) -> T:
        store: Any = given[0]
        return store.patiently(lambda: method(*given, **named))

    return wrapped


def other_plan(stored: Mapping[str, Any], spec: Mapping[str, Any]) -> list[str]:
    """Return in what two plans differ; words may change without making another plan."""
    return sorted(name for name in {*stored, *spec} - {*WORDS} if stored.get(name) != spec.get(name))


class SharedStore:
    """Tables of ours beside Optuna's; every method may be called again after a failure.

    Parameters
    ----------
    url : str
        ``postgresql+psycopg://...`` or ``sqlite:///...``, as `fints.study.shared_open` checked it.
    engine : Engine
        Connected to it.
    storage : RDBStorage
        Optuna's, on the same database.
    patience : float
        Seconds that a server which has gone is waited for.
    """

    def __init__(self, url: str, engine: sqlalchemy.Engine, storage: Any, *, patience: float) -> None:
        self.url = url
        self.storage = storage
        self._engine = engine
        self._patience = patience
        self._tables = tables()

    @property
    def shown(self) -> str:
        """The address without its password."""
        return without_secrets(self.url)

    def patiently(self, call: Callable[[], T]) -> T:
        """Return what `call` does, tried again while the server is away.

        Raises
        ------
        RuntimeError
            In one line, without secrets, if the database cannot be used or stays away too long.
        """
        import optuna
        from sqlalchemy.exc import InterfaceError, OperationalError, PendingRollbackError, SQLAlchemyError

        deadline, wait = time.monotonic() + self._patience, 0.2
        while True:
            try:
                return call()
            except (SQLAlchemyError, optuna.exceptions.StorageInternalError) as error:
                cause = error if isinstance(error, SQLAlchemyError) else error.__cause__
                # The last is what Optuna gets from a session whose server has gone in the middle.
                passing = self._engine.dialect.name == "postgresql" and isinstance(
                    cause, OperationalError | InterfaceError | PendingRollbackError
                )
                if not passing or time.monotonic() > deadline:
                    raise RuntimeError(
                        f"the storage {self.shown} must stay usable and failed "
                        f"({one_line(cause or error, self.url)}): mend it and start again; what was "
                        "finished is kept."
                    ) from error
            self.storage.remove_session()
            time.sleep(wait)
            wait = min(2 * wait, 5.0)

    @contextmanager
    def exclusive(self, name: str, *, seconds: int = IDLE_TRANSACTION_S) -> Iterator[None]:
        """Hold the lock `name` of this database, which dies with its holder or after `seconds`.

        A server that restarts drops it too: what is done under it must be right when done twice. A file
        cannot take a lock from a process that is stopped: there whoever waits gives up, after five times as
        long.

        Raises
        ------
        RuntimeError
            If one process holds the lock of a file for so long.
        """
        import sqlalchemy

        if self._engine.dialect.name == "postgresql":
            with self._engine.begin() as connection:
                limit = f"set local idle_in_transaction_session_timeout = {1000 * seconds}"
                connection.execute(sqlalchemy.text(limit))
                connection.execute(
                    sqlalchemy.text("select pg_advisory_xact_lock(hashtextextended(:name, 0))"),
                    {"name": f"fints/{name}"},
                )
                yield
            return
        path = Path(str(self._engine.url.database))
        with _file_lock(path.with_name(f"{path.name}.{checksum(name.encode())[:12]}.lock"), seconds):
            yield

    @_patient
    def put_study(
        self, name: str, *, spec: Mapping[str, Any], baselines: Sequence[Mapping[str, Any]], facts: Any
    ) -> None:
        """Write what any worker must know of a study.

        Raises
        ------
        ValueError
            If another plan has that name: its workers would leave it unfinished without a word.
        """
        table = self._tables["fints_studies"]
        row = {
            "spec": json.dumps(dict(spec)),
            "baselines": json.dumps(list(baselines)),
            "facts": json.dumps(facts),
        }
        with self._engine.begin() as connection:
            connection.execute(self._insert(table).values(name=name, **row).on_conflict_do_nothing())
            mine = table.c.name == name
            stored = json.loads(
                connection.execute(table.select().with_only_columns(table.c.spec).where(mine)).scalar_one()
            )
            if differing := other_plan(stored, json.loads(row["spec"])):
                raise ValueError(
                    f"{self.shown} must hold no other plan under the name {name!r}, and holds one that "
                    f"differs in {', '.join(differing)}: rename the study's file, use another database, or "
                    "let `run` put this plan in its place (--replace); finished fits stay."
                )
            connection.execute(table.update().where(mine).values(**row))

    @_patient
    def withdraw_study(self, name: str) -> None:
        """Forget the plan of a study, so that another one can have its name; its finished fits stay."""
        table = self._tables["fints_studies"]
        with self._engine.begin() as connection:
            connection.execute(table.delete().where(table.c.name == name))

    @_patient
    def study(self, name: str) -> dict[str, Any]:
        """Return "spec", "baselines" and "facts" of a study.

        Raises
        ------
        ValueError
            If there is no such study.
        """
        table = self._tables["fints_studies"]
        with self._engine.connect() as connection:
            row = connection.execute(table.select().where(table.c.name == name)).mappings().first()
        if row is None:
            known = ", ".join(self.studies()) or "none"
            raise ValueError(f"{self.shown} must hold study {name!r} and does not; it has: {known}.")
        return {column: json.loads(row[column]) for column in ("spec", "baselines", "facts")}

    @_patient
    def studies(self) -> list[str]:
        """Return the names (study/preset-dataset) of all studies, sorted."""
        table = self._tables["fints_studies"]
        with self._engine.connect() as connection:
            return sorted(connection.execute(table.select().with_only_columns(table.c.name)).scalars())

    @_patient
    def put_fit(self, study: str, key: str, folder: Path, *, loss: float, attempt: str) -> bool:
        """Store a finished fit; return whether it counts, which only the first of a key does.

        Parameters
        ----------
        study, key : str
            Whose fit this is.
        folder : Path
            Of the fit; it must be whole.
        loss : float
            Validation loss, infinite for a diverged fit.
        attempt : str
            Names this try among all: a repeated call after a lost answer finds itself.
        """
        table = self._tables["fints_fits"]
        content = pack(folder)
        with self._engine.begin() as connection:
            connection.execute(
                self._insert(table)
                .values(
                    study=study,
                    key=key,
                    loss=loss,
                    attempt=attempt,
                    sha256=checksum(content),
                    content=content,
                )
                .on_conflict_do_nothing()
            )
            found = connection.execute(
                table.select()
                .with_only_columns(table.c.attempt)
                .where(table.c.study == study, table.c.key == key)
            ).scalar_one()
        return bool(found == attempt)

    @_patient
    def losses(self, study: str) -> dict[str, float]:
        """Return the validation loss of every stored fit by its key."""
        table = self._tables["fints_fits"]
        query = table.select().with_only_columns(table.c.key, table.c.loss).where(table.c.study == study)
        with self._engine.connect() as connection:
            return {key: float(loss) for key, loss in connection.execute(query)}

    @_patient
    def get_fit(self, study: str, key: str, final: Path, *, tmp: Path) -> None:
        """Let the stored fit become the folder `final`, if it is not there.

        Raises
        ------
        ValueError
            If it is not stored, or not as it was stored.
        """
        if final.is_dir():
            return
        table = self._tables["fints_fits"]
        query = (
            table.select()
            .with_only_columns(table.c.content, table.c.sha256)
            .where(table.c.study == study, table.c.key == key)
        )
        with self._engine.connect() as connection:
            row = connection.execute(query).first()
        if row is None:
            raise ValueError(f"{self.shown} must hold fit {key} of {study} and does not.")
        unpack(bytes(row.content), row.sha256, final, tmp=tmp)

    @_patient
    def rate(self, study: str, last: int = 50) -> float:
        """Return fits an hour over the `last` ones that were stored; NaN before there are two."""
        table = self._tables["fints_fits"]
        query = (
            table.select()
            .with_only_columns(table.c.stored)
            .where(table.c.study == study, ~table.c.attempt.startswith(KEPT))
            .order_by(table.c.stored.desc())
            .limit(last)
        )
        with self._engine.connect() as connection:
            times = list(connection.execute(query).scalars())
        seconds = (times[0] - times[-1]).total_seconds() if len(times) > 1 else 0.0
        return 3600 * (len(times) - 1) / seconds if seconds > 0 else math.nan

    @_patient
    def drop_fit(self, study: str, key: str) -> None:
        """Forget a stored fit, so that it is made again."""
        table = self._tables["fints_fits"]
        with self._engine.begin() as connection:
            connection.execute(table.delete().where(table.c.study == study, table.c.key == key))

    def beat(self, worker: Worker) -> None:
        """Give a sign of life; not repeated by itself, since the next one follows."""
        table = self._tables["fints_workers"]
        with self._engine.begin() as connection:
            connection.execute(
                self._insert(table)
                .values(worker=worker.name, study=worker.study, host=worker.host, pid=worker.pid, beat=0)
                .on_conflict_do_nothing()
            )
            connection.execute(
                table.update().where(table.c.worker == worker.name).values(beat=table.c.beat + 1)
            )

    @_patient
    def workers(self, study: str) -> dict[str, Worker]:
        """Return the workers of a study that have not left, dead ones among them."""
        table = self._tables["fints_workers"]
        with self._engine.connect() as connection:
            rows = connection.execute(table.select().where(table.c.study == study)).mappings().all()
        return {
            row["worker"]: Worker(row["worker"], study, row["host"], row["pid"], row["beat"]) for row in rows
        }

    @_patient
    def leave(self, worker: str) -> None:
        """Strike a worker off, because it ends or because it is dead."""
        table = self._tables["fints_workers"]
        with self._engine.begin() as connection:
            connection.execute(table.delete().where(table.c.worker == worker))

    def close(self) -> None:
        """Close all connections."""
        self.storage.remove_session()
        self.storage.engine.dispose()
        self._engine.dispose()

    def _insert(self, table: sqlalchemy.Table) -> Any:
        from sqlalchemy.dialects import postgresql, sqlite

        return (postgresql if self._engine.dialect.name == "postgresql" else sqlite).insert(table)


@contextmanager
def _file_lock(path: Path, seconds: float) -> Iterator[None]:
    from filelock import FileLock, Timeout

    holder = path.with_suffix(".json")
    lock, since, seen = FileLock(path), time.monotonic(), _read(holder)
    while True:
        try:
            lock.acquire(timeout=1.0)
            break
        except Timeout:
            if (now := _read(holder)) != seen:
                seen, since = now, time.monotonic()
            elif time.monotonic() - since > HELD_TIMES * seconds:
                raise RuntimeError(
                    f"the lock {path} must not be held for long, and {seen or 'a process'} holds it: end "
                    "that process (it may be stopped), then start again; what was finished is kept."
                ) from None
    try:
        # With the time, so that one process that comes back often is not taken for one that never leaves.
        since_when = f"{datetime.now():%H:%M:%S.%f}"
        told = f"process {os.getpid()} on {platform.node()} (since {since_when})"
        holder.write_text(told, encoding="utf-8")
        yield
    finally:
        # Between two holders there is none to be named.
        holder.unlink(missing_ok=True)
        lock.release()


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""

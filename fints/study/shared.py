"""The database that the machines of one study share: its spec, its finished fits, its workers, its locks.

Optuna's tables in the same database are the queue (`fints.study.shared_queue`). A finished fit lies here
whole, once: the first result of a fit counts, whoever else comes with another one.
"""

from __future__ import annotations

import functools
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from fints.study.addresses import one_line, without_secrets
from fints.study.archive import checksum, pack, unpack
from fints.study.embedded import embedded

if TYPE_CHECKING:
    import sqlalchemy

__all__ = ["FORMAT", "KEPT", "SharedStore", "Worker", "open_shared"]

# Of the tables below. A store of another format is refused by name.
FORMAT = 1
# A server that restarts is waited for this long; after that the worker ends, and its claims are given back.
PATIENCE_S = 600.0
# A worker that is stopped in the middle of a transaction must not hold its locks for ever.
IDLE_TRANSACTION_S = 60
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


class SharedStore:
    """Tables of ours beside Optuna's; every method may be called again after a failure.

    Parameters
    ----------
    url : str
        ``postgresql+psycopg://...`` or ``sqlite:///...``, as `open_shared` checked it.
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

        A server that restarts drops it too: what is done under it must be right when done twice.
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
        from filelock import FileLock

        path = Path(str(self._engine.url.database))
        with FileLock(path.with_name(f"{path.name}.{checksum(name.encode())[:12]}.lock")):
            yield

    @_patient
    def put_study(
        self, name: str, *, spec: Mapping[str, Any], baselines: Sequence[Mapping[str, Any]], facts: Any
    ) -> None:
        """Write what any worker must know of a study; another plan under the same name replaces it."""
        table = self._tables["fints_studies"]
        row = {
            "spec": json.dumps(dict(spec)),
            "baselines": json.dumps(list(baselines)),
            "facts": json.dumps(facts),
        }
        with self._engine.begin() as connection:
            connection.execute(self._insert(table).values(name=name, **row).on_conflict_do_nothing())
            connection.execute(table.update().where(table.c.name == name).values(**row))

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


@functools.cache
def tables() -> dict[str, sqlalchemy.Table]:
    """Return our tables by name."""
    import sqlalchemy as sa

    metadata = sa.MetaData()
    now = sa.func.now()
    sa.Table("fints_format", metadata, sa.Column("format", sa.Integer, nullable=False))
    sa.Table(
        "fints_studies",
        metadata,
        sa.Column("name", sa.String(512), primary_key=True),
        sa.Column("spec", sa.Text, nullable=False),
        sa.Column("baselines", sa.Text, nullable=False),
        sa.Column("facts", sa.Text, nullable=False),
        sa.Column("stored", sa.DateTime, server_default=now),
    )
    sa.Table(
        "fints_fits",
        metadata,
        sa.Column("study", sa.String(512), primary_key=True),
        sa.Column("key", sa.String(64), primary_key=True),
        sa.Column("loss", sa.Double, nullable=False),
        sa.Column("attempt", sa.String(512), nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("content", sa.LargeBinary, nullable=False),
        sa.Column("stored", sa.DateTime, server_default=now),
    )
    sa.Table(
        "fints_workers",
        metadata,
        sa.Column("worker", sa.String(256), primary_key=True),
        sa.Column("study", sa.String(512), nullable=False, index=True),
        sa.Column("host", sa.String(256), nullable=False),
        sa.Column("pid", sa.Integer, nullable=False),
        sa.Column("beat", sa.BigInteger, nullable=False),
        sa.Column("since", sa.DateTime, server_default=now),
    )
    return dict(metadata.tables)


def open_shared(url: str, *, patience: float = PATIENCE_S) -> SharedStore:
    """Open (or make) the tables of ours and of Optuna's at an address.

    A server that does not answer is refused at once: patience is for one that goes away later.

    Raises
    ------
    ValueError
        In one line, without secrets, if the address cannot be used, its driver is missing, or its tables
        are of another format.
    """
    import optuna
    import sqlalchemy
    from sqlalchemy.exc import SQLAlchemyError

    # It warns of every query that it repeats.
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    shown = without_secrets(url)
    opened = ExitStack()
    try:
        parsed = sqlalchemy.make_url(url)
        if parsed.drivername == "sqlite" and parsed.database and parsed.database != ":memory:":
            url = embedded(Path(parsed.database).absolute(), _create_embedded)
            engine = sqlalchemy.create_engine(url)
            options: dict[str, Any] = {}
        elif parsed.drivername == "postgresql+psycopg":
            _ask(url)
            options = _server(parsed)
            engine = sqlalchemy.create_engine(url, **options)
        else:
            raise ValueError(
                "it must begin with postgresql+psycopg:// (many machines) or sqlite:/// (one machine)"
            )
        opened.callback(engine.dispose)
        with _making(engine):
            storage = optuna.storages.RDBStorage(url, engine_kwargs=dict(options))
            opened.callback(storage.engine.dispose)
            _create(engine)
        _check_format(engine)
    except ImportError as error:
        raise ValueError(
            f"--storage {shown} needs psycopg, which is not installed: pip install 'fints[postgres]'."
        ) from error
    # Tables of another release are a RuntimeError.
    except (SQLAlchemyError, ValueError, RuntimeError, OSError) as error:
        opened.close()
        raise ValueError(f"--storage {shown} cannot be opened: {one_line(error, url)}") from error
    return SharedStore(url, engine, storage, patience=patience)


def _ask(url: str) -> None:
    """Connect once, without patience."""
    import sqlalchemy

    engine = sqlalchemy.create_engine(
        url, poolclass=sqlalchemy.NullPool, connect_args={"connect_timeout": 10}
    )
    with engine.connect():
        pass
    engine.dispose()


@contextmanager
def _making(engine: sqlalchemy.Engine) -> Iterator[None]:
    """Let one process at a time make tables: two that do so at once would both fail."""
    import sqlalchemy

    if engine.dialect.name != "postgresql":
        yield
        return
    with engine.begin() as connection:
        connection.execute(sqlalchemy.text("select pg_advisory_xact_lock(815042)"))
        yield


def _server(url: sqlalchemy.URL) -> dict[str, Any]:
    """Return how an engine outlives restarts of its server: by asking each connection before it is used.

    And by trying a new one for a while, since a query of Optuna's must not fail between two others.
    """
    dialect = url.get_dialect()
    module: Any = dialect.import_dbapi()
    words, named = dialect().create_connect_args(url)
    named = {"connect_timeout": 10, **named}

    def connect() -> Any:
        deadline = time.monotonic() + 30
        while True:
            try:
                connection = module.connect(*words, **named)
                break
            except module.OperationalError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.5)
        connection.execute(f"set idle_in_transaction_session_timeout = {1000 * IDLE_TRANSACTION_S}")
        connection.execute("set tcp_keepalives_idle = 60")
        connection.commit()
        return connection

    return {"pool_pre_ping": True, "creator": connect, "pool_size": 4, "max_overflow": 4}


def _create_embedded(url: str) -> None:
    import optuna
    import sqlalchemy

    storage = optuna.storages.RDBStorage(url)
    storage.remove_session()
    storage.engine.dispose()
    engine = sqlalchemy.create_engine(url)
    _create(engine)
    engine.dispose()


def _create(engine: sqlalchemy.Engine) -> None:
    table = tables()["fints_format"]
    table.metadata.create_all(engine)
    with engine.begin() as connection:
        if connection.execute(table.select()).first() is None:
            connection.execute(table.insert().values(format=FORMAT))


def _check_format(engine: sqlalchemy.Engine) -> None:
    with engine.connect() as connection:
        found = connection.execute(tables()["fints_format"].select()).scalar_one()
    if found != FORMAT:
        raise ValueError(
            f"its tables are of format {found} and this fints reads format {FORMAT}: use the release that "
            "wrote them, or another database"
        )

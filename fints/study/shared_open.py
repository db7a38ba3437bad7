"""From an address to the store that the machines of one study share, or to a line that says why not."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fints.study.addresses import one_line, without_secrets
from fints.study.embedded import embedded
from fints.study.shared import IDLE_TRANSACTION_S, SharedStore
from fints.study.shared_tables import are_there, check_format, create_tables

if TYPE_CHECKING:
    import sqlalchemy

__all__ = ["RESTART_S", "NothingEnqueued", "open_existing", "open_shared"]

# What a server needs, as the extra `postgres` of pyproject.toml says.
DRIVER = "psycopg[binary]>=3.2"
# A server that restarts is waited for this long; after that the worker ends, and its claims are given back.
PATIENCE_S = 600.0
# One that does not answer at first may be restarting.
RESTART_S = 30.0
# How often it may go away while its tables are made.
RESTARTS = 5
# How long one process may make tables, on a machine that is loaded, while the others wait.
MAKING_S = 600


# Takes an address and the options of an engine; returns that engine and Optuna's storage.
_Tables = Callable[[str, dict[str, Any]], tuple["sqlalchemy.Engine", Any]]


class NothingEnqueued(ValueError):
    """A database in which no study was ever enqueued, told of the option or variable that names it."""

    def __init__(self, shown: str, why: str) -> None:
        super().__init__(
            f"--storage {shown} must be a database that a study was enqueued in, and {why}: "
            "python studies/NAME.py run --storage does that."
        )


def open_existing(url: str, *, patience: float = PATIENCE_S, wait: float = 0.0) -> SharedStore:
    """Open the tables of ours and of Optuna's at an address, and make none: for whoever only looks, or works.

    Parameters
    ----------
    url, patience, wait : str, float, float
        As `open_shared` takes them.

    Raises
    ------
    NothingEnqueued
        If they are not there.
    ValueError
        As `open_shared` raises it.
    """
    return _open(url, _existing_file, _tables_there, patience, wait)


def open_shared(url: str, *, patience: float = PATIENCE_S, wait: float = 0.0) -> SharedStore:
    """Open the tables of ours and of Optuna's at an address, made if they are not there, to enqueue a study.

    Parameters
    ----------
    url : str
        ``postgresql+psycopg://...`` or ``sqlite:///...``.
    patience : float
        Seconds that a server is waited for which goes away later.
    wait : float
        Seconds that a server is waited for which does not answer now, `RESTART_S` for what is started by
        machines; what is refused for another reason (a password, a name) is refused at once.

    Raises
    ------
    ValueError
        In one line, without secrets, if the address cannot be used, its driver is missing, or its tables
        are of another format.
    """
    return _open(url, lambda path: embedded(path, _create_embedded), _tables_at, patience, wait)


def _open(
    url: str, file: Callable[[Path], str], tables: _Tables, patience: float, wait: float
) -> SharedStore:
    """Open what `file` finds for the path of a SQLite database, or a server's database, with `tables`."""
    import optuna
    import sqlalchemy
    from sqlalchemy.exc import SQLAlchemyError

    # It warns of every query that it repeats.
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    shown = without_secrets(url)
    try:
        parsed = sqlalchemy.make_url(url)
        if parsed.drivername == "sqlite" and parsed.database and parsed.database != ":memory:":
            url = file(Path(parsed.database).absolute())
            engine, storage = tables(url, {})
        elif parsed.drivername == "postgresql+psycopg":
            engine, storage = _tables_on_server(parsed, url, wait, tables)
        else:
            raise ValueError(
                "it must begin with postgresql+psycopg:// (many machines) or sqlite:/// (one machine)"
            )
    except ImportError as error:
        raise ValueError(
            f"--storage {shown} needs psycopg, which is not installed: pip install '{DRIVER}' (or fints "
            "with its extra `postgres`)."
        ) from error
    except NothingEnqueued:
        raise
    # Tables of another release are a RuntimeError.
    except (
        SQLAlchemyError,
        optuna.exceptions.StorageInternalError,
        ValueError,
        RuntimeError,
        OSError,
    ) as error:
        raise ValueError(f"--storage {shown} cannot be opened: {one_line(error, url)}") from error
    return SharedStore(url, engine, storage, patience=patience)


def _tables_on_server(
    parsed: sqlalchemy.URL, url: str, wait: float, tables: _Tables
) -> tuple[sqlalchemy.Engine, Any]:
    """Open the tables, again if the server restarts in the middle."""
    deadline, restarts = time.monotonic() + wait, 0
    while True:
        answered = False
        try:
            _ask(url)
            answered = True
            return tables(url, _server(parsed))
        except Exception as error:  # SQLAlchemy's, or Optuna's with one of those as its cause
            restarts += answered
            if answered:
                # However long it took to get so far: a server that was there may take a while to come back.
                deadline = max(deadline, time.monotonic() + RESTART_S)
            if restarts > RESTARTS or time.monotonic() > deadline or not _may_be_restarting(error):
                raise
        time.sleep(0.5)


def _tables_at(url: str, options: dict[str, Any]) -> tuple[sqlalchemy.Engine, Any]:
    import optuna
    import sqlalchemy

    engine = sqlalchemy.create_engine(url, **options)
    with ExitStack() as opened:
        opened.callback(engine.dispose)
        with _making(engine):
            storage = optuna.storages.RDBStorage(url, engine_kwargs=dict(options))
            opened.callback(storage.engine.dispose)
            create_tables(engine)
        check_format(engine)
        opened.pop_all()
    return engine, storage


def _tables_there(url: str, options: dict[str, Any]) -> tuple[sqlalchemy.Engine, Any]:
    import optuna
    import sqlalchemy

    engine = sqlalchemy.create_engine(url, **options)
    with ExitStack() as opened:
        opened.callback(engine.dispose)
        if not are_there(engine):
            raise NothingEnqueued(without_secrets(url), "none ever was")
        check_format(engine)
        storage = optuna.storages.RDBStorage(url, engine_kwargs=dict(options), skip_table_creation=True)
        opened.pop_all()
    return engine, storage


def _existing_file(path: Path) -> str:
    if not path.is_file():
        raise NothingEnqueued(f"sqlite:///{path}", "there is no such file")
    return embedded(path, _make_none)


def _make_none(url: str) -> None:
    # The file went away between two looks.
    raise NothingEnqueued(url, "there is no such file")


def _ask(url: str) -> None:
    """Connect once, without patience."""
    import sqlalchemy

    engine = sqlalchemy.create_engine(
        url, poolclass=sqlalchemy.NullPool, connect_args={"connect_timeout": 10}
    )
    with engine.connect():
        pass
    engine.dispose()


# libpq's words, and those of PostgreSQL's errors 57P01 to 57P03.
_RESTARTING = (
    "Connection refused",
    "No such file or directory",
    "closed the connection unexpectedly",
    "terminating connection",
    "the connection is closed",
    "connection is lost",
    "is starting up",
    "is shutting down",
    "not yet accepting connections",
)


def _may_be_restarting(error: BaseException) -> bool:
    """Tell whether a server that restarts would answer so: by no answer, or by saying that it does."""
    chain: BaseException | None = error
    while chain is not None:
        if any(words in str(chain) for words in _RESTARTING):
            return True
        chain = chain.__cause__
    return False


@contextmanager
def _making(engine: sqlalchemy.Engine) -> Iterator[None]:
    """Let one process at a time make tables: two that do so at once would both fail."""
    import sqlalchemy

    if engine.dialect.name != "postgresql":
        yield
        return
    with engine.begin() as connection:
        connection.execute(
            sqlalchemy.text(f"set local idle_in_transaction_session_timeout = {1000 * MAKING_S}")
        )
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
    create_tables(engine)
    engine.dispose()

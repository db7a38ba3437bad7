"""Does an MLflow store answer? Asked before anything is fitted."""

from __future__ import annotations

import logging
import os
import textwrap
from pathlib import Path
from urllib.parse import urlsplit

from fints.study.addresses import one_line, without_secrets
from fints.study.embedded import check_database

__all__ = ["NO_PATIENCE", "TrackerAway", "check_address", "check_tracker", "quiet"]

SERVERS = ("http", "https")
DATABASES = ("sqlite", "postgresql", "mysql", "mssql")
# MLflow's words for HTTP's 403, by which its server refuses a name in a Host header too.
FORBIDDEN = "error code 403"
NO_PATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0", "MLFLOW_HTTP_REQUEST_TIMEOUT": "5"}


class TrackerAway(ValueError):
    """An MLflow server or store that does not answer now."""


def check_tracker(root: Path, uri: str | None) -> None:
    """Refuse a tracker that does not answer, before anything is fitted.

    Parameters
    ----------
    root : Path
        Results folder, whose own store is looked at if it is there.
    uri : str or None
        An MLflow server or store in its place.

    Raises
    ------
    TrackerAway
        If it does not answer.
    ValueError
        If it cannot be used, as a server that does not know the name under which it is called.
    """
    path = root / "mlflow.db"
    if not uri:
        if path.exists():
            check_database(path)
        return
    scheme = _scheme(uri)
    if "://" in uri and scheme not in (*SERVERS, *DATABASES, "file"):
        raise ValueError(
            f"--tracking-uri must begin with http://, https:// or the name of a database "
            f"({', '.join(DATABASES)}); got {without_secrets(uri)}."
        )
    quiet()
    before = {name: os.environ.get(name) for name in NO_PATIENCE}
    os.environ.update(NO_PATIENCE)
    try:
        from mlflow import MlflowClient

        if "://" in uri and scheme in DATABASES:
            # MLflow itself would try for half an hour.
            _connect(uri)
        MlflowClient(tracking_uri=uri, registry_uri=uri).search_experiments(max_results=1)
    except Exception as error:  # of MLflow, its drivers and the network, which share no base
        if scheme in SERVERS and FORBIDDEN in str(error):
            raise ValueError(
                f"--tracking-uri {without_secrets(uri)} must be a server that lets this machine in, and it "
                f"answers 403 ({_cause(error, uri)}): start it with --allowed-host {urlsplit(uri).hostname}, "
                "if it is `fints server`."
            ) from error
        raise TrackerAway(
            f"--tracking-uri {without_secrets(uri)} must be an MLflow server or store that answers, and does "
            f"not ({_cause(error, uri)}): start it, or leave the option out to track under the root."
        ) from error
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            os.environ |= {} if value is None else {name: value}


def check_address(uri: str, option: str) -> None:
    """Refuse what is no address of a database that answers.

    Raises
    ------
    ValueError
        In the words of `option`, without secrets.
    """
    shown = without_secrets(uri)
    if "://" not in uri or _scheme(uri) not in DATABASES:
        raise ValueError(
            f"{option} must be the address of a database, such as postgresql+psycopg://user@host/name; "
            f"got {shown!r}."
        )
    try:
        _connect(uri)
    except Exception as error:  # of SQLAlchemy and its drivers, which share no base
        raise ValueError(
            f"{option} {shown} must be a database that answers, and does not: {_cause(error, uri)}."
        ) from error


def _cause(error: BaseException, uri: str) -> str:
    """Return what lies at the bottom of an error, which libraries wrap into half a page."""
    while error.__context__ is not None:
        error = error.__context__
    return textwrap.shorten(one_line(error, uri), 150, placeholder=" ...")


def _scheme(uri: str) -> str:
    return uri.partition(":")[0].partition("+")[0]


def _connect(uri: str) -> None:
    import sqlalchemy

    engine = sqlalchemy.create_engine(uri)
    try:
        sqlalchemy.inspect(engine).get_table_names()
    finally:
        engine.dispose()


def quiet() -> None:
    """Let MLflow and its tables say nothing of their own to the user, and nothing to anybody else."""
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")
    # It would print two lines a run that ends.
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
    logging.getLogger("alembic").setLevel(logging.WARNING)

"""An MLflow server for the workers of studies."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from fints.study.embedded import embedded
from fints.study.stores import check_address

__all__ = ["command", "environment", "serve"]

# One worker: four cost 3.5 times the time a logged metric (their sockets wait), and 0.9 GB.
QUIET = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}


def command(folder: Path, host: str, port: int) -> list[str]:
    """Return the command of the server; artifacts go through it, so nobody shares a disk.

    It does not name the store, whose address may have a password: everybody on a machine sees command lines.
    """
    return [
        *(sys.executable, "-m", "mlflow", "server"),
        *("--artifacts-destination", str(folder / "artifacts")),
        *("--host", host, "--port", str(port), "--workers", "1"),
    ]


def environment(store: str) -> dict[str, str]:
    """Return the environment of the server, which only its owner may read, with the address of the store."""
    return {**os.environ, **QUIET, "MLFLOW_BACKEND_STORE_URI": store}


def serve(folder: Path, *, store: str | None, host: str, port: int) -> int:
    """Serve until interrupted and return the exit code.

    Parameters
    ----------
    folder : Path
        Of artifacts and, without `store`, of a SQLite database.
    store : str or None
        Address of another database.
    host, port : str, int
        Where to listen.

    Raises
    ------
    ValueError
        If the port is taken, or the folder or the database cannot be used.
    """
    with contextlib.closing(socket.socket(socket.AF_INET, socket.SOCK_STREAM)) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ValueError(
                f"port {port} of {host} cannot be used ({error.strerror}): choose another with --port, "
                "or another address of this machine with --host."
            ) from error
    if store is not None:
        check_address(store, "--store")
    if host != "127.0.0.1":
        print(f"listening on {host}: anybody who reaches it may read and write the runs.", flush=True)
    folder = folder.expanduser().resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if store is None:
        # Killed while it makes its tables, MLflow would not start again.
        store = embedded(folder / "mlflow.db", _create_tables).partition("?")[0]
    print(f"MLflow on http://{host}:{port}, kept in {folder}; Ctrl-C ends it, nothing is lost.", flush=True)
    server = subprocess.Popen(command(folder, host, port), env=environment(store))
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)
    try:
        while server.poll() is None:
            time.sleep(0.2)
        return server.returncode
    except KeyboardInterrupt:
        return 130
    finally:
        if server.poll() is None:
            server.terminate()
            try:
                server.wait(timeout=10)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def _create_tables(url: str) -> None:
    from fints.study.tracking import create_tables

    create_tables(url, Path(url.removeprefix("sqlite:///")).parent / "artifacts")


def _leave(number: int, frame: object) -> None:
    """End as the signal asks, through `finally`, so that no server is left behind."""
    raise SystemExit(128 + number)

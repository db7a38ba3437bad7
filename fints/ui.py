"""The MLflow pages of the studies under one root, served on this machine only."""

from __future__ import annotations

import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from fints.study.tracking import compare_link

__all__ = ["Page", "address", "pages", "serve", "store"]

HOST = "127.0.0.1"
# The server answers within 20 s on a laptop; a loaded machine may need a few times that.
PATIENCE_S = 120


@dataclass(frozen=True)
class Page:
    """One study: its name, the address of its runs in charts, and of the page that compares its arms."""

    study: str
    runs: str
    compare: str | None


def store(root: Path) -> Path:
    """Return the MLflow store under `root`.

    Raises
    ------
    ValueError
        If there is none, or the file is not an MLflow store.
    """
    path = root.expanduser().resolve() / "mlflow.db"
    if not path.is_file():
        raise ValueError(
            f"no MLflow store in {root}: it is made by the first study that runs there. "
            "Run one (make study), or name another folder with --root."
        )
    try:
        with closing(_connect(path)) as connection:
            connection.execute("select count(*) from experiments").fetchone()
    except sqlite3.Error as error:
        raise ValueError(f"{path} is not an MLflow store that can be read: {error}.") from error
    return path


def address(port: int) -> str:
    """Return the address of the pages at `port`."""
    return f"http://{HOST}:{port}"


def pages(path: Path, port: int) -> list[Page]:
    """Return a page for each study in the store at `path`, by name."""
    with closing(_connect(path)) as connection:
        studies = connection.execute(
            "select experiment_id, name from experiments"
            " where lifecycle_stage = 'active' and name != 'Default' order by name"
        ).fetchall()
        arms = {
            study: [
                run
                for (run,) in connection.execute(
                    "select run_uuid from runs where experiment_id = ? and lifecycle_stage = 'active'"
                    " and run_uuid not in (select run_uuid from tags where key = 'mlflow.parentRunId')"
                    " order by start_time, run_uuid",
                    (study,),
                )
            ]
            for study, _ in studies
        }
    base = address(port)
    return [
        Page(
            name,
            f"{base}/#/experiments/{study}/runs?compareRunsMode=CHART",
            f"{base}/{compare_link(str(study), arms[study])}" if len(arms[study]) > 1 else None,
        )
        for study, name in studies
    ]


def serve(path: Path, port: int) -> int:
    """Serve the store at `path` until interrupted; print the addresses once it answers.

    Raises
    ------
    ValueError
        If the port is taken, or the server ends or stays silent instead of answering.
    """
    with closing(socket.socket(socket.AF_INET, socket.SOCK_STREAM)) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise ValueError(
                f"port {port} cannot be used ({error.strerror}): choose another with --port."
            ) from error
    print(f"starting MLflow on {path} (10 to 20 s) ...", flush=True)
    command = [sys.executable, "-m", "mlflow", "ui", "--backend-store-uri", f"sqlite:///{path}"]
    # One worker: four cost 3.5 times the time a logged metric (their sockets wait), and 0.9 GB.
    command += ["--host", HOST, "--port", str(port), "--workers", "1"]
    quiet = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    log = path.with_name("mlflow-ui.log")
    with log.open("w") as sink:
        # A process group of its own: the server's children end with it, and Ctrl-C reaches us first.
        server = subprocess.Popen(
            command, env=os.environ | quiet, stdout=sink, stderr=subprocess.STDOUT, start_new_session=True
        )
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, _leave)
    try:
        _wait(server, port, log)
        _announce(path, port)
        # Polars restarts system calls that Ctrl-C interrupts, a wait for a child among them; a sleep wakes.
        while server.poll() is None:
            time.sleep(0.2)
        return server.returncode
    except KeyboardInterrupt:
        print("stopped")
        return 0
    finally:
        if server.poll() is None:
            os.killpg(server.pid, signal.SIGTERM)
            try:
                server.wait(timeout=10)
            except subprocess.TimeoutExpired:
                os.killpg(server.pid, signal.SIGKILL)
                server.wait()


def _leave(number: int, frame: object) -> None:
    """End as the signal asks, through `finally`, so that no server is left behind."""
    raise SystemExit(128 + number)


def _connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=30)


def _wait(server: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if server.poll() is not None:
            last = (log.read_text(errors="replace").strip().splitlines() or ["nothing was said"])[-1]
            raise ValueError(f"MLflow ended with code {server.returncode}: {last} (all of it: {log})")
        with closing(socket.socket(socket.AF_INET, socket.SOCK_STREAM)) as probe:
            probe.settimeout(1)
            if probe.connect_ex((HOST, port)) == 0:
                return
        time.sleep(0.2)
    raise ValueError(f"MLflow did not answer on port {port} within {PATIENCE_S} s; see {log}.")


def _announce(path: Path, port: int) -> None:
    print(f"MLflow: {address(port)}")
    for page in pages(path, port):
        print(f"\n{page.study}\n  charts   {page.runs}")
        if page.compare is not None:
            print(f"  compare  {page.compare}")
    print(
        "\nThe pages open in the GenAI view: choose 'Model training' at the top left once."
        "\nCtrl-C stops the server; nothing is lost.",
        flush=True,
    )

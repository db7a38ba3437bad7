"""PostgreSQL and MLflow servers of a test's own, on loopback, which can be stopped and started again."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

# Where Debian puts what is not on the PATH.
DEBIAN = "/usr/lib/postgresql"


def free_port() -> int:
    with contextlib.closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def postgres_programs() -> Path | None:
    """Return the folder of initdb and pg_ctl, None where PostgreSQL is not installed."""
    found = sorted(Path(DEBIAN).glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    if found:
        return found[-1].parent
    known = shutil.which("initdb")
    return None if known is None else Path(known).resolve().parent


class Postgres:
    """A server in `folder`; root runs it as the user postgres, whom PostgreSQL asks for."""

    def __init__(self, folder: Path) -> None:
        programs = postgres_programs()
        assert programs is not None
        self.port = free_port()
        self._programs, self._data = programs, folder / "data"
        self._log = folder / "postgres.log"
        folder.mkdir(parents=True, exist_ok=True)
        if os.geteuid() == 0:
            shutil.chown(folder, "postgres", "postgres")
        # Every directory above must let the user postgres through; pytest's do not.
        for parent in (folder, *folder.parents):
            if parent.stat().st_uid == os.geteuid() and parent != Path("/"):
                parent.chmod(parent.stat().st_mode | 0o011)
        self._call("initdb", "-D", str(self._data), "-A", "trust", "-U", "postgres", "--no-sync")
        self.start()

    def url(self, database: str) -> str:
        """Return the address of a fresh database."""
        import psycopg

        with psycopg.connect(
            host="127.0.0.1", port=self.port, user="postgres", dbname="postgres", autocommit=True
        ) as connection:
            connection.execute(f'create database "{database}"')
        return f"postgresql+psycopg://postgres:s3cr%40t@127.0.0.1:{self.port}/{database}"

    def start(self) -> None:
        options = f"-p {self.port} -c listen_addresses=127.0.0.1 -c unix_socket_directories='' -c fsync=off"
        self._call("pg_ctl", "-D", str(self._data), "-l", str(self._log), "-o", options, "-w", "start")

    def stop(self) -> None:
        self._call("pg_ctl", "-D", str(self._data), "-m", "immediate", "-w", "stop")

    def _call(self, program: str, *words: str) -> None:
        command = [str(self._programs / program), *words]
        if os.geteuid() == 0:
            command = ["runuser", "-u", "postgres", "--", *command]
        # A server keeps what it was given as its output: a pipe would never end.
        with (self._log.parent.parent / f"{self._log.parent.name}-{program}.log").open("a") as log:
            subprocess.run(command, check=True, stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd="/")


class MLflow:
    """An MLflow server on a SQLite store in `folder`."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.port = folder, free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def store(self) -> Path:
        return self.folder / "mlflow.db"

    def start(self) -> None:
        command = [sys.executable, "-m", "fints", "server", "--folder", str(self.folder)]
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [*command, "--port", str(self.port)], stdout=log, stderr=log, start_new_session=True
            )
        deadline = time.monotonic() + 180
        while time.monotonic() < deadline:
            assert self._process.poll() is None, (self.folder / "server.log").read_text()
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.uri}/health", timeout=2):
                return
            time.sleep(0.2)
        raise AssertionError("MLflow does not answer")

    def stop(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._process = None

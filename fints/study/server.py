"""An MLflow server for the workers of studies."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from fints.study.embedded import embedded
from fints.study.stores import check_address

__all__ = ["allowed_hosts", "allowed_origins", "command", "environment", "names_answered", "serve"]

# One worker: four cost 3.5 times the time a logged metric (their sockets wait), and 0.9 GB.
QUIET = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
# What MLflow answers to unless it is told: this machine's names to itself, and addresses in private networks.
LOOPBACK = ("localhost", "127.0.0.1", "[::1]", "0.0.0.0")
PRIVATE = ("10.*", "192.168.*", *(f"172.{second}.*" for second in range(16, 32)))
# In the form in which a client's Host header has it; a star stands for the names of a domain, not for all.
NAME = re.compile(r"(\*\.)?[a-z0-9]([a-z0-9._-]*[a-z0-9])?(:\d{1,5})?|\[[0-9a-f:.]+\](:\d{1,5})?")


def names_answered(host: str, named: Sequence[str]) -> list[str]:
    """Return the names, beyond loopback, under which a server answers: this machine's own and those `named`.

    A page that a browser has loaded from elsewhere must not get at the runs through a name of its own for
    this machine (DNS rebinding), so MLflow answers only to names that it was told. With `host` on loopback
    the machine's own names are none of them.

    Raises
    ------
    ValueError
        If one of `named` is no name, or all of them.
    """
    for name in named:
        if not NAME.fullmatch(name.lower()):
            raise ValueError(
                "--allowed-host must be a name under which the server is called, without http:// and path, "
                f"such as tracking, *.example.org or [fd00::1]; got {name!r}."
            )
    own: list[str] = []
    if host not in LOOPBACK[:2]:
        own = [*_own_names(), *(_addresses() if host == "0.0.0.0" else [host])]
    found = [name.lower() for name in (*own, *named)]
    return [name for name in dict.fromkeys(found) if NAME.fullmatch(name) and name not in LOOPBACK]


def allowed_hosts(names: Sequence[str]) -> list[str]:
    """Return the patterns of Host headers for `names`: each with any port, unless it has one.

    Source: ``mlflow.server.security_utils``, which compares a pattern without a star, and else gives it to
    `fnmatch`.
    """
    patterns: list[str] = []
    for name in (*LOOPBACK, *names):
        patterns.append(name)
        if name.endswith("]") or ":" not in name:
            patterns.append(name.replace("[", "[[]") + ":*")
    return [*patterns, *PRIVATE]


def allowed_origins(names: Sequence[str], port: int) -> list[str]:
    """Return the origins of MLflow's own pages: a browser names theirs when they ask for runs, too."""
    places = [place for name in names for place in dict.fromkeys((name, _with_port(name, port)))]
    return [f"{scheme}://{place}" for scheme in ("http", "https") for place in places]


def _with_port(name: str, port: int) -> str:
    return f"{name}:{port}" if name.endswith("]") or ":" not in name else name


def _own_names() -> list[str]:
    return [socket.gethostname(), socket.getfqdn()]


def _addresses() -> list[str]:
    """Return the IPv4 addresses of this machine."""
    import psutil

    cards = psutil.net_if_addrs().values()
    return [str(entry.address) for card in cards for entry in card if entry.family == socket.AF_INET]


def command(folder: Path, host: str, port: int, names: Sequence[str]) -> list[str]:
    """Return the command of the server; artifacts go through it, so nobody shares a disk.

    It does not name the store, whose address may have a password: everybody on a machine sees command lines.
    """
    origins = allowed_origins(names, port)
    return [
        *(sys.executable, "-m", "mlflow", "server"),
        *("--allowed-hosts", ",".join(allowed_hosts(names))),
        *(("--cors-allowed-origins", ",".join(origins)) if origins else ()),
        *("--artifacts-destination", str(folder / "artifacts")),
        *("--host", host, "--port", str(port), "--workers", "1"),
    ]


def environment(store: str) -> dict[str, str]:
    """Return the environment of the server, which only its owner may read, with the address of the store."""
    return {**os.environ, **QUIET, "MLFLOW_BACKEND_STORE_URI": store}


def serve(folder: Path, *, store: str | None, host: str, port: int, named: Sequence[str] = ()) -> int:
    """Serve until interrupted and return the exit code.

    Parameters
    ----------
    folder : Path
        Of artifacts and, without `store`, of a SQLite database.
    store : str or None
        Address of another database.
    host, port : str, int
        Where to listen.
    named : sequence of str
        Names under which it is called, beside those that this machine has itself.

    Raises
    ------
    ValueError
        If a name is none, the port is taken, or the folder or the database cannot be used.
    """
    names = names_answered(host, named)
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
    if names:
        print(f"it answers to localhost, {', '.join(names)}; --allowed-host NAME adds one.", flush=True)
    folder = folder.expanduser().resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if store is None:
        # Killed while it makes its tables, MLflow would not start again.
        store = embedded(folder / "mlflow.db", _create_tables).partition("?")[0]
    print(f"MLflow on http://{host}:{port}, kept in {folder}; Ctrl-C ends it, nothing is lost.", flush=True)
    server = subprocess.Popen(command(folder, host, port, names), env=environment(store))
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

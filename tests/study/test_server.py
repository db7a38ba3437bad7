"""The MLflow server of a study: who may ask it under which name, and what `ps` shows of it."""

from __future__ import annotations

import importlib.util
import runpy
import signal
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer

from fints.cli import app
from fints.study import server
from fints.study.stores import TrackerAway, check_tracker

# MLflow 3.17 configures its tables in a way that SQLAlchemy 2.1 deprecates; ours to report, not to mend.
pytestmark = pytest.mark.filterwarnings(
    "default:The ``noload`` loader strategy is deprecated:sqlalchemy.exc.SADeprecationWarning"
)

STORE = "postgresql+psycopg://fints:s3cret@db/mlflow"


class Ended:
    """A server that has ended."""

    returncode = 0

    def poll(self) -> int:
        return 0


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], dict[str, str]]]:
    """Commands and environments of what would be started."""
    found: list[tuple[list[str], dict[str, str]]] = []

    def start(words: list[str], env: dict[str, str]) -> Ended:
        found.append((words, env))
        return Ended()

    # Not the modules themselves, which others use in between.
    quiet = SimpleNamespace(signal=lambda *_: None, SIGTERM=signal.SIGTERM, SIGHUP=signal.SIGHUP)
    monkeypatch.setattr(server, "subprocess", SimpleNamespace(Popen=start))
    monkeypatch.setattr(server, "signal", quiet)
    monkeypatch.setattr(server, "check_address", lambda uri, option: None)
    return found


def given(*words: str) -> dict[str, Any]:
    """What the command line makes of words."""
    command = typer.main.get_command(app).commands["server"]  # type: ignore[attr-defined]
    return dict(command.make_context("server", [*words]).params)


def test_the_address_of_a_store_is_not_on_the_command_line_of_what_serves_it(
    started: list[tuple[list[str], dict[str, str]]], tmp_path: Path
) -> None:
    assert server.serve(tmp_path, store=STORE, host="127.0.0.1", port=0) == 0
    ((words, env),) = started
    assert not any("s3cret" in word or "db/mlflow" in word for word in words)
    assert [name for name, value in env.items() if "s3cret" in value] == ["MLFLOW_BACKEND_STORE_URI"]
    assert env["MLFLOW_BACKEND_STORE_URI"] == STORE


def test_the_address_of_a_store_may_be_told_without_a_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FINTS_SERVER_STORE", STORE)
    assert given()["store"] == STORE
    assert given("--store", "sqlite:///other.db")["store"] == "sqlite:///other.db"


def test_a_server_answers_to_its_own_names_to_those_it_is_told_and_to_no_others(
    started: list[tuple[list[str], dict[str, str]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_own_names", lambda: ["Node-7", "node-7.example.org"])
    monkeypatch.setattr(server, "_addresses", lambda: ["127.0.0.1", "203.0.113.9"])
    named = ("tracking", "*.svc.cluster.local", "[fd00::1]", "proxy:8443")
    server.serve(tmp_path, store=STORE, host="0.0.0.0", port=0, named=named)
    ((words, _),) = started
    # MLflow's own judgement, without its whole server.
    (package,) = importlib.util.find_spec("mlflow").submodule_search_locations  # type: ignore[union-attr, misc]
    rules = runpy.run_path(str(Path(package) / "server" / "security_utils.py"))
    is_allowed_host_header, should_block = rules["is_allowed_host_header"], rules["should_block_cors_request"]
    hosts = words[words.index("--allowed-hosts") + 1].split(",")
    # A browser names the place that a page came from when the page asks for runs.
    origins = server.allowed_origins(server.names_answered("0.0.0.0", named), 5000)
    own = ("node-7", "node-7.example.org", "203.0.113.9", "tracking", "[fd00::1]", "a.svc.cluster.local")
    for name in (*own, "localhost", "[::1]", "10.1.2.3"):
        assert is_allowed_host_header(hosts, name)
        assert is_allowed_host_header(hosts, f"{name}:5000")
        assert should_block(f"http://{name}:5000", "POST", origins) == (name == "10.1.2.3")
    assert is_allowed_host_header(hosts, "proxy:8443")
    assert not should_block("https://proxy:8443", "POST", origins)
    for host in ("evil.example", "tracking.evil.example:5000", "evil-tracking", "proxy:1", "node-7.evil"):
        assert not is_allowed_host_header(hosts, host)
        assert should_block(f"http://{host}", "POST", origins)


def test_on_loopback_a_server_answers_to_what_it_is_told_alone() -> None:
    assert server.names_answered("127.0.0.1", []) == []
    assert server.names_answered("127.0.0.1", ["Behind.Proxy"]) == ["behind.proxy"]
    assert server.names_answered("203.0.113.9", [])[-1] == "203.0.113.9"
    assert given("--allowed-host", "a", "--allowed-host", "b")["allowed_host"] == ["a", "b"]


@pytest.mark.parametrize("name", ["*", "", "http://tracking", "tracking/x", "a,b", "fd00::1", "*a", "a*b.c"])
def test_what_is_no_name_of_a_server_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="--allowed-host must be a name under which the server is called"):
        server.names_answered("0.0.0.0", ["tracking", name])


class Forbidding(BaseHTTPRequestHandler):
    """MLflow's answer to a name that it was not told."""

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(403)
        self.end_headers()
        self.wfile.write(b"Invalid Host header - possible DNS rebinding attack detected")

    do_POST = do_GET

    def log_message(self, format: str, *_: object) -> None:
        pass


def test_a_server_that_does_not_know_its_name_is_refused_with_what_tells_it(
    tmp_path: Path,
) -> None:
    with HTTPServer(("127.0.0.1", 0), Forbidding) as forbidding:
        thread = threading.Thread(target=forbidding.serve_forever)
        thread.start()
        try:
            with pytest.raises(ValueError, match="answers 403") as caught:
                check_tracker(tmp_path, f"http://localhost:{forbidding.server_address[1]}")
        finally:
            forbidding.shutdown()
            thread.join()
    told = str(caught.value)
    assert "Invalid Host header" in told
    assert told.endswith("start it with --allowed-host localhost, if it is `fints server`.")
    # One that is away may come back, so a run goes on without it; this one would refuse for ever.
    assert not isinstance(caught.value, TrackerAway)

"""The MLflow server of a study: who may ask it under which name, and what `ps` shows of it."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer

from fints.cli import app
from fints.study import server

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

    monkeypatch.setattr(subprocess, "Popen", start)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
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

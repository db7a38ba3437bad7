"""The MLflow pages: the right store, links that lead somewhere, nothing left running."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from pathlib import Path

import pytest

from fints.ui import pages, store


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory, mlflow_tables: Path) -> Path:
    """A results folder whose store has one study of two arms with a trial each, made by MLflow itself."""
    root = tmp_path_factory.mktemp("results")
    shutil.copy(mlflow_tables, root / "mlflow.db")
    script = """
import sys
from mlflow import MlflowClient
client = MlflowClient(f"sqlite:///{sys.argv[1]}/mlflow.db")
study = client.create_experiment("by_depth (smoke)", artifact_location=f"{sys.argv[1]}/mlartifacts")
for arm in ("pre_norm", "post_norm"):
    parent = client.create_run(study, run_name=arm)
    client.create_run(study, run_name="trial", tags={"mlflow.parentRunId": parent.info.run_id})
"""
    quiet = os.environ | {"MLFLOW_DISABLE_TELEMETRY": "true"}
    subprocess.run(
        [sys.executable, "-c", script, str(root)], check=True, env=quiet, capture_output=True, timeout=300
    )
    return root


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def answer(address: str) -> tuple[int, str]:
    with urllib.request.urlopen(address, timeout=300) as reply:
        return reply.status, reply.read().decode()


def test_a_folder_without_a_store_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no MLflow store in .*make study.*--root"):
        store(tmp_path)


def test_a_file_that_is_no_store_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mlflow.db").write_text("not a database, and long enough to be read as one")
    with pytest.raises(ValueError, match="is not an MLflow store"):
        store(tmp_path)


@pytest.mark.slow
def test_the_compare_page_has_the_arms_and_not_their_trials(root: Path) -> None:
    (page,) = pages(store(root), 5000)
    assert page.study == "by_depth (smoke)"
    ask = urllib.parse.parse_qs(urllib.parse.urlparse(page.compare.replace("/#/", "/")).query)
    assert len(set(json.loads(ask["runs"][0]))) == 2
    assert f"/experiments/{json.loads(ask['experiments'][0])[0]}/" in page.runs


@pytest.mark.slow
@pytest.mark.parametrize(("ending", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 143)])
def test_the_pages_answer_on_this_machine_and_end_with_the_command(
    root: Path, ending: signal.Signals, code: int
) -> None:
    port = free_port()
    command = [sys.executable, "-u", "-m", "fints", "ui", "--root", str(root), "--port", str(port)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    # As a terminal starts it: a shell's background jobs, and what they start, are told to ignore Ctrl-C.
    asks = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)}
    with subprocess.Popen(command, **pipes, **asks) as process:
        try:
            said = ""
            while "Ctrl-C" not in said:
                line = process.stdout.readline()
                assert line, process.stderr.read()
                said += line
            assert f"compare  http://127.0.0.1:{port}/#/compare-runs?runs=" in said
            status, page = answer(f"http://127.0.0.1:{port}/")
            assert status == 200
            assert "<title>MLflow" in page
            process.send_signal(ending)
            assert process.wait(timeout=300) == code
        finally:
            process.kill()
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                return
        time.sleep(0.2)
    pytest.fail("the server outlived the command")


def test_a_taken_port_is_refused_before_anything_starts(tmp_path: Path) -> None:
    import sqlite3

    with sqlite3.connect(tmp_path / "mlflow.db") as connection:
        connection.execute("create table experiments (experiment_id integer)")
    connection.close()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        run = subprocess.run(
            [sys.executable, "-m", "fints", "ui", "--root", str(tmp_path), "--port", str(port)],
            capture_output=True,
            text=True,
            timeout=300,
        )
    assert run.returncode == 2
    assert re.fullmatch(rf"error: port {port} cannot be used [^\n]*--port\.\n", run.stderr)
    assert run.stdout == ""

"""A run whose tracking server is away when it begins."""

from __future__ import annotations

import runpy
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fints.data import simulate

TINY = Path(__file__).parent / "tiny.py"
MLflow = runpy.run_path(str(Path(__file__).parent / "servers.py"))["MLflow"]


def run(folder: Path, uri: str, *more: str, root: str = "root") -> subprocess.Popen[str]:
    prices = folder / "prices.parquet"
    if not prices.is_file():
        simulate(num_assets=4, num_days=160, seed=3).panel.frame.write_parquet(prices)
    words = ["run", "--preset", "smoke", "--data", str(prices), "--no-models", "--tracking-uri", uri]
    words += ["--root", str(folder / root), *(more or ("--workers", "1"))]
    with told(folder).open("w", encoding="utf-8") as stream:
        return subprocess.Popen([sys.executable, str(TINY), *words], stdout=stream, stderr=stream, text=True)


def told(folder: Path) -> Path:
    return folder / "told.txt"


def goes_on(folder: Path, process: subprocess.Popen[str], fit: Callable[[], bool], server: Any) -> None:
    """Start the server once there is a fit, and wait for the end."""
    deadline = time.monotonic() + 600
    while not fit() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.2)
    assert fit(), told(folder).read_text(encoding="utf-8")
    server.start()
    assert process.wait(timeout=900) == 0, told(folder).read_text(encoding="utf-8")


def recorded(uri: str) -> Counter[str]:
    """Return how often each fit has a FINISHED run."""
    from mlflow import MlflowClient

    client = MlflowClient(uri)
    (experiment,) = (one for one in client.search_experiments() if one.name.startswith("tiny/"))
    runs = client.search_runs([experiment.experiment_id], "attributes.status = 'FINISHED'")
    return Counter(one.data.tags["fints.key"] for one in runs if "fints.key" in one.data.tags)


def fitted(folder: Path) -> set[str]:
    return {path.parent.name for path in folder.rglob("fits/*/metrics.json")}


@pytest.mark.slow
def test_a_run_that_goes_on_while_its_server_is_away_is_recorded_once_that_is_back(tmp_path: Path) -> None:
    server = MLflow(tmp_path / "server")
    try:
        assert run(tmp_path, server.uri).wait(timeout=600) == 0
        server.stop()
        lost = next(tmp_path.glob("root/tiny/*/fits/*/metrics.json")).parent
        shutil.rmtree(lost)
        goes_on(tmp_path, run(tmp_path, server.uri), lost.is_dir, server)
        assert set(recorded(server.uri)) >= fitted(tmp_path / "root")
    finally:
        server.stop()


@pytest.mark.slow
def test_a_run_that_joins_a_shared_study_while_the_server_is_away_is_recorded_once(tmp_path: Path) -> None:
    server = MLflow(tmp_path / "server")
    shared = ("--storage", f"sqlite:///{tmp_path / 'shared.db'}")
    try:
        assert run(tmp_path, server.uri, *shared, "--workers", "0").wait(timeout=600) == 0
        server.stop()
        joined = run(tmp_path, server.uri, *shared, "--workers", "1", root="other")
        goes_on(tmp_path, joined, lambda: bool(fitted(tmp_path / "other")), server)
        assert recorded(server.uri) == Counter(fitted(tmp_path / "other"))
    finally:
        server.stop()


@pytest.mark.slow
def test_a_run_that_begins_with_a_server_that_was_never_there_is_refused(tmp_path: Path) -> None:
    assert run(tmp_path, "http://127.0.0.1:1").wait(timeout=300) == 2
    last = told(tmp_path).read_text(encoding="utf-8").splitlines()[-1]
    assert last.startswith("error: --tracking-uri http://127.0.0.1:1 must be an MLflow server")

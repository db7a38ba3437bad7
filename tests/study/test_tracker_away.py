"""A run whose tracking server is away when it begins."""

from __future__ import annotations

import runpy
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fints.data import simulate

TINY = Path(__file__).parent / "tiny.py"
MLflow = runpy.run_path(str(Path(__file__).parent / "servers.py"))["MLflow"]


def run(folder: Path, uri: str) -> subprocess.Popen[str]:
    words = ["run", "--preset", "smoke", "--data", str(folder / "prices.parquet"), "--no-models"]
    words += ["--root", str(folder / "root"), "--workers", "1", "--tracking-uri", uri]
    with (folder / "told.txt").open("w", encoding="utf-8") as told:
        return subprocess.Popen([sys.executable, str(TINY), *words], stdout=told, stderr=told, text=True)


@pytest.mark.slow
def test_a_run_that_goes_on_while_its_server_is_away_is_recorded_once_that_is_back(tmp_path: Path) -> None:
    simulate(num_assets=4, num_days=160, seed=3).panel.frame.write_parquet(tmp_path / "prices.parquet")
    server = MLflow(tmp_path / "server")
    try:
        assert run(tmp_path, server.uri).wait(timeout=600) == 0
        fits = next((tmp_path / "root" / "tiny").iterdir()) / "fits"
        final = [
            path.parent
            for path in fits.glob("*/forecasts.parquet")
            if (path.parent / "metrics.json").is_file()
        ]
        shutil.rmtree(final[0])
        server.stop()

        again = run(tmp_path, server.uri)
        deadline = time.monotonic() + 600
        while not final[0].is_dir() and again.poll() is None and time.monotonic() < deadline:
            time.sleep(0.2)
        told = (tmp_path / "told.txt").read_text(encoding="utf-8")
        assert final[0].is_dir(), told
        server.start()
        assert again.wait(timeout=900) == 0, (tmp_path / "told.txt").read_text(encoding="utf-8")

        from mlflow import MlflowClient

        client = MlflowClient(server.uri)
        (experiment,) = (one for one in client.search_experiments() if one.name.startswith("tiny/"))
        runs = client.search_runs([experiment.experiment_id], f"tags.`fints.key` = '{final[0].name}'")
        assert [one.info.status for one in runs].count("FINISHED") >= 1
        assert all(one.info.status in ("FINISHED", "KILLED") for one in runs)
    finally:
        server.stop()


@pytest.mark.slow
def test_a_run_that_begins_with_a_server_that_was_never_there_is_refused(tmp_path: Path) -> None:
    simulate(num_assets=4, num_days=160, seed=3).panel.frame.write_parquet(tmp_path / "prices.parquet")
    assert run(tmp_path, "http://127.0.0.1:1").wait(timeout=300) == 2
    told = (tmp_path / "told.txt").read_text(encoding="utf-8").splitlines()[-1]
    assert told.startswith("error: --tracking-uri http://127.0.0.1:1 must be an MLflow server")

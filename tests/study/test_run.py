"""A run from the first fit to the report, and what happens when it is disturbed."""

from __future__ import annotations

import json
import os
import runpy
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from fints.data import load, simulate
from fints.study import cli

# MLflow 3.17 configures its tables in a way that SQLAlchemy 2.1 deprecates; ours to report, not to mend.
pytestmark = pytest.mark.filterwarnings("default:The ``noload`` loader strategy is deprecated")

TINY = Path(__file__).parent / "tiny.py"


@pytest.fixture(scope="module")
def prices(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "prices.parquet"
    simulate(num_assets=4, num_days=160, seed=3).panel.frame.write_parquet(path)
    return path


def folder_of(root: Path, prices: Path, preset: str = "smoke") -> Path:
    return root / "tiny" / f"{preset}-prices-{load(str(prices)).checksum[:8]}"


def start(root: Path, prices: Path, *more: str, preset: str = "smoke") -> subprocess.Popen[str]:
    command = [
        sys.executable,
        str(TINY),
        "run",
        "--preset",
        preset,
        "--data",
        str(prices),
        "--root",
        str(root),
    ]
    return subprocess.Popen(
        [*command, "--workers", "1", *more], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def finished(folder: Path) -> dict[str, int]:
    return {path.parent.name: path.stat().st_mtime_ns for path in folder.glob("fits/*/result.json")}


def wait_for_fits(folder: Path, count: int, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 300
    while len(finished(folder)) < count:
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.05)


def runs_by_status(root: Path) -> dict[str, int]:
    with closing(sqlite3.connect(root / "mlflow.db")) as store:
        return dict(store.execute("select status, count(*) from runs group by status").fetchall())


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory, prices: Path) -> tuple[Path, str]:
    """A finished smoke run and what it said."""
    root = tmp_path_factory.mktemp("done")
    process = start(root, prices)
    said, _ = process.communicate(timeout=300)
    assert process.returncode == 0, said
    return root, said


@pytest.mark.slow
def test_a_run_ends_with_a_table_a_report_and_a_way_to_compare(done: tuple[Path, str], prices: Path) -> None:
    root, said = done
    folder = folder_of(root, prices)
    assert "[8/8]" in said
    assert "pre_norm-depth_1" in said
    assert str(folder / "report.") in said
    assert "fints ui" in said
    assert "#/compare-runs?runs=" in said
    assert "Model training" in said
    assert (folder / "report.md").is_file()
    assert not list((folder / "tmp").iterdir())


@pytest.mark.slow
def test_lines_fit_eighty_columns_but_for_paths_and_links(done: tuple[Path, str]) -> None:
    root, said = done
    long = [
        line for line in said.splitlines() if len(line) > 80 and str(root) not in line and "http" not in line
    ]
    assert long == []


@pytest.mark.slow
def test_the_tables_hold_every_fit_once(done: tuple[Path, str], prices: Path) -> None:
    folder = folder_of(done[0], prices)
    fits = pl.read_parquet(folder / "fits.parquet")
    assert fits["key"].n_unique() == len(fits) == 8
    assert fits.group_by("role").len().sort("role").rows() == [("final", 4), ("tuning", 4)]
    forecasts = pl.read_parquet(folder / "forecasts.parquet")
    assert forecasts.equals(forecasts.sort("arm", "fold", "seed", "date", "asset"))
    assert len(forecasts) == forecasts.select("arm", "fold", "seed", "date", "asset").n_unique()
    assert set(pl.read_parquet(folder / "baselines.parquet")["baseline"]) == {
        "zero",
        "prevailing_mean",
        "ar1",
        "ridge",
    }
    assert set(pl.read_parquet(folder / "profiles.parquet")["layer"]) == {0, 1}
    mixing = pl.read_parquet(folder / "mixing.parquet")
    assert len(mixing) == 4 * 6  # two sublayers and the read-out, of each final fit
    assert mixing.filter("composed")["mean"].unique().to_list() == [1.0]
    assert set(mixing["composed"]) == {True, False}


@pytest.mark.slow
def test_mlflow_holds_two_arms_and_eight_fits_all_finished(done: tuple[Path, str]) -> None:
    assert runs_by_status(done[0]) == {"FINISHED": 10}


def call(verb: str, root: Path, prices: Path, *more: str) -> None:
    """A verb of the study in this process, which has loaded all that another one would have to load first."""
    words = [verb, "--preset", "smoke", "--data", str(prices), "--root", str(root), *more]
    with pytest.raises(SystemExit) as ended:
        cli.main(runpy.run_path(str(TINY))["STUDY"], words, file=TINY)
    assert ended.value.code == 0


@pytest.mark.slow
def test_running_again_fits_nothing_and_gives_the_same_report(
    done: tuple[Path, str], prices: Path, monkeypatch: pytest.MonkeyPatch, run_study: Callable[..., Any]
) -> None:
    root, _ = done
    folder = folder_of(root, prices)
    before, report = finished(folder), (folder / "report.md").read_bytes()
    run_study.work_here(monkeypatch, lambda cell: "nothing may be fitted")
    call("run", root, prices, "--workers", "1")
    assert finished(folder) == before
    assert (folder / "report.md").read_bytes() == report
    assert json.loads((folder / "runs.jsonl").read_text().splitlines()[-1])["fits"] == 0
    assert runs_by_status(root) == {"FINISHED": 10}


@pytest.mark.slow
def test_report_rebuilds_what_a_run_wrote(done: tuple[Path, str], prices: Path) -> None:
    root, _ = done
    page = folder_of(root, prices) / "report.md"
    report = page.read_bytes()
    page.unlink()
    call("report", root, prices)
    assert page.read_bytes() == report


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stopped_run_says_what_is_kept_and_leaves_nothing_running(
    number: signal.Signals, code: int, prices: Path, tmp_path: Path, mlflow_tables: Path
) -> None:
    shutil.copy(mlflow_tables, tmp_path / "mlflow.db")
    process = start(tmp_path, prices, preset="longer")
    folder = folder_of(tmp_path, prices, "longer")
    wait_for_fits(folder, 5, process)
    process.send_signal(number)
    said, _ = process.communicate(timeout=300)
    assert process.returncode == code, said
    assert "fits are kept. To go on:" in said
    assert "run --preset longer" in said
    assert "Traceback" not in said
    assert "RUNNING" not in runs_by_status(tmp_path)
    with closing(sqlite3.connect(folder / "optuna.db")) as store:
        assert store.execute("select count(*) from trials where state = 'RUNNING'").fetchone() == (0,)


@pytest.mark.slow
def test_a_second_driver_is_told_who_holds_the_folder_and_workers_die_with_the_first(
    prices: Path, tmp_path: Path, mlflow_tables: Path
) -> None:
    import psutil

    shutil.copy(mlflow_tables, tmp_path / "mlflow.db")
    first = start(tmp_path, prices, preset="longer")
    wait_for_fits(folder_of(tmp_path, prices, "longer"), 5, first)
    second = start(tmp_path, prices, preset="longer")
    said, _ = second.communicate(timeout=300)
    assert second.returncode == 2
    assert f"is held by process {first.pid}" in said
    workers = psutil.Process(first.pid).children()
    assert len(workers) == 1
    os.kill(first.pid, signal.SIGKILL)
    first.communicate()
    gone, alive = psutil.wait_procs(workers, timeout=60)
    assert (len(gone), alive) == (1, [])

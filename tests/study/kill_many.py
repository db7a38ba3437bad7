"""Kill a run again and again, run it again, and compare with an undisturbed run, byte for byte.

    python tests/study/kill_many.py --times 20 --workers 1
    python tests/study/kill_many.py --times 20 --workers 1 2

Victims alternate between the driver and a worker; of several numbers of workers each has two victims in
turn. A moment is a number of finished fits and a delay
after it, so that kills spread over the whole run on a fast and on a slow machine. Prints a line a
kill; exit code 0 if every comparison held.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from functools import cache
from pathlib import Path

import psutil

from fints.data import Panel, simulate

STUDY = Path(__file__).resolve().parent / "tiny.py"
# Everything a run leaves that may not depend on who ran it, when, and how often it was killed.
SAME = ("study.json", "*.parquet", "report.md", "report.html", "figures/*")
DIFFERS = {"timing.parquet"}


def make_panel(folder: Path) -> Path:
    """Write the panel of all these runs."""
    path = folder / "tiny-panel.parquet"
    simulated().frame.write_parquet(path)
    return path


@cache
def simulated() -> Panel:
    """Return the panel of all these runs."""
    return simulate(num_assets=4, num_days=160, seed=3).panel


def start(root: Path, panel: Path, *, workers: int, preset: str = "smoke") -> subprocess.Popen[str]:
    """Start a run; what it says goes to a file beside its root."""
    command = [sys.executable, str(STUDY), "run", "--preset", preset, "--data", str(panel)]
    command += ["--root", str(root), "--workers", str(workers)]
    root.mkdir(parents=True, exist_ok=True)
    with (root / "said.txt").open("a") as said:
        return subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT, text=True)


def folder_of(root: Path, preset: str = "smoke") -> Path:
    return root / "tiny" / f"{preset}-tiny-panel-{simulated().checksum[:8]}"


def digests(folder: Path) -> dict[str, str]:
    """Return a hash of each file that must not differ."""
    files = sorted({path for pattern in SAME for path in folder.glob(pattern)})
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
        if path.name not in DIFFERS
    }


def modified(folder: Path) -> dict[str, int]:
    """Return the finished fits and when each was written."""
    return {path.parent.name: path.stat().st_mtime_ns for path in folder.glob("fits/*/result.json")}


def tracked(root: Path) -> tuple[int, dict[str, int]]:
    """Return how many MLflow runs are RUNNING, and how many FINISHED ones each fit has."""
    with closing(sqlite3.connect(root / "mlflow.db")) as store:
        running = store.execute(
            "select count(*) from runs where status in ('RUNNING', 'SCHEDULED')"
        ).fetchone()[0]
        rows = store.execute(
            "select tags.value, count(*) from runs join tags using (run_uuid)"
            " where tags.key = 'fints.key' and status = 'FINISHED' group by tags.value"
        ).fetchall()
    return int(running), dict(rows)


def registered(root: Path) -> tuple[dict[str, int], int]:
    """Return how many registered models each arm has, and how many of all are named champion."""
    with closing(sqlite3.connect(root / "mlflow.db")) as store:
        arms = store.execute(
            "select value, count(*) from model_version_tags where key = 'fints.arm' group by value"
        ).fetchall()
        named = store.execute("select count(*) from registered_model_aliases where alias = 'champion'")
        return dict(arms), int(named.fetchone()[0])


def waiting(folder: Path) -> int:
    """Return how many Optuna trials are RUNNING or WAITING."""
    with closing(sqlite3.connect(folder / "optuna.db")) as store:
        return int(
            store.execute("select count(*) from trials where state in ('RUNNING', 'WAITING')").fetchone()[0]
        )


def kill(process: subprocess.Popen[str], victim: str, folder: Path, fits: int, delay: float) -> str:
    """Kill the driver or one of its workers `delay` seconds after `fits` are there; return who was hit."""
    while len(modified(folder)) < fits and process.poll() is None:
        time.sleep(0.01)
    deadline = time.monotonic() + delay
    while time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.01)
    if process.poll() is not None:
        return "nobody (it had ended)"
    if victim == "worker":
        with contextlib.suppress(psutil.NoSuchProcess):
            workers = psutil.Process(process.pid).children()
            if workers:
                os.kill(workers[-1].pid, signal.SIGKILL)
                return "a worker"
        # Before the first worker and during the report there is only the driver to hit.
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    return "the driver"


def compare(root: Path, expected: dict[str, str], kept: dict[str, int]) -> list[str]:
    """Return what differs from an undisturbed run."""
    folder = folder_of(root)
    wrong = []
    found = digests(folder)
    wrong += [
        f"{name} differs" for name in sorted({*expected, *found}) if expected.get(name) != found.get(name)
    ]
    after = modified(folder)
    wrong += [f"fit {key} ran twice" for key, when in kept.items() if after.get(key) != when]
    running, finished = tracked(root)
    if running:
        wrong.append(f"{running} MLflow runs are left RUNNING")
    fits = {
        key
        for key in after
        if json.loads((folder / "fits" / key / "result.json").read_text())["role"] != "baseline"
    }
    wrong += [
        f"fit {key} has {finished.get(key, 0)} FINISHED runs" for key in fits if finished.get(key, 0) != 1
    ]
    models, champions = registered(root)
    if set(models.values()) != {1} or len(models) != 2 or champions != 1:
        wrong.append(f"models of arms are registered {models}, champions {champions}")
    if waiting(folder):
        wrong.append(f"{waiting(folder)} trials are left RUNNING or WAITING")
    return wrong


def main() -> int:
    """Run, kill, run again, compare."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--workers", type=int, nargs="+", default=[1])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--tables",
        type=Path,
        help="an empty MLflow database, copied for every killed run but the first: to make one takes long",
    )
    arguments = parser.parse_args()
    draw = random.Random(arguments.seed)
    bad = 0
    with tempfile.TemporaryDirectory() as scratch:
        base = Path(scratch)
        panel = make_panel(base)
        clock = time.monotonic()
        calm = start(base / "calm", panel, workers=1)
        if calm.wait() != 0:
            print((base / "calm" / "said.txt").read_text())
            return 1
        length = time.monotonic() - clock
        expected = digests(folder_of(base / "calm"))
        num_fits = len(modified(folder_of(base / "calm")))
        print(f"undisturbed: {length:.1f} s, {len(expected)} files to compare", flush=True)
        for number in range(arguments.times):
            root = base / f"{number}"
            if arguments.tables and number:
                root.mkdir()
                shutil.copy(arguments.tables, root / "mlflow.db")
            workers = arguments.workers[number // 2 % len(arguments.workers)]
            victim, fits = ("driver", "worker")[number % 2], draw.randint(0, num_fits)
            # The first seconds are imports and tables, the last ones the report: both are hit too.
            delay = draw.uniform(0.0, length / 2 if fits in (0, num_fits) else 0.5)
            process = start(root, panel, workers=workers)
            hit = kill(process, victim, folder_of(root), fits, delay)
            kept = modified(folder_of(root))
            code = process.wait()
            if code != 0:
                code = start(root, panel, workers=workers).wait()
            wrong = [f"exit code {code}"] if code else compare(root, expected, kept)
            bad += bool(wrong)
            print(
                f"{number + 1:3} {hit} of {workers}, {delay:.2f} s after {fits} fits, "
                f"{len(kept)} were there: {'; '.join(wrong) or 'equal'}",
                flush=True,
            )
            if wrong:
                print((root / "said.txt").read_text(), flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())

"""Work on shared studies while everything around them fails, and count what is left.

    python tests/study/chaos.py --rounds 20
    python tests/study/chaos.py --rounds 1 --faults kill,postgres --preset smoke --steps 8

Each round enqueues a study in a fresh database and lets three processes work on it (the driver and two
workers), while the faults strike at random times, in random order, each once. Then every fit must have
exactly one result in the database, one COMPLETE trial and one FINISHED run in MLflow, the tables must be
those of an undisturbed run byte for byte, and each process must have ended with a sentence. Exit code 0 if
all of that held.
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
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl
import psutil
import psycopg

sys.path.insert(0, str(Path(__file__).parent))
from servers import MLflow, Postgres

from fints.data import simulate

STUDY = Path(__file__).resolve().parent / "tiny.py"
HEARTBEAT_S = 1.0
GRACE_S = 5 * HEARTBEAT_S
LEAST_DISK = "600k"
FAULTS = (
    "kill", "child", "term", "stop", "postgres", "mlflow", "drivers", "parquet", "checkpoint",
    "disk", "clock",
)  # fmt: skip
# Lets fits of any length keep checkpoints, in every Python process that has it on its path.
KEEPS_CHECKPOINTS = "import fints.study.fits\nfints.study.fits.CHECKPOINT_FROM_SECONDS = 0.0\n"
DIFFERS = {"timing.parquet"}


@dataclass
class Round:
    """One study, its servers and the processes that work on it."""

    folder: Path
    postgres: Postgres
    mlflow: MLflow
    url: str
    panel: Path
    preset: str
    steps: int
    draw: random.Random
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    ended: dict[str, int] = field(default_factory=dict)

    def run(self, name: str, *more: str, root: str = "root") -> None:
        """Start a driver."""
        words = [str(STUDY), "run", "--preset", self.preset, "--data", str(self.panel), "--workers", "1"]
        words += ["--set", f"training.steps={self.steps}", "--root", str(self.folder / root)]
        words += ["--heartbeat", str(HEARTBEAT_S), "--no-models", *more]
        self._start(name, words)

    def work(self, name: str, *more: str, **environment: str) -> None:
        """Start a worker."""
        self._start(name, ["-m", "fints", "worker", "--study", "tiny", *more], **environment)

    def _start(self, name: str, words: list[str], **environment: str) -> None:
        address = {"FINTS_STORAGE": self.url, "MLFLOW_TRACKING_URI": self.mlflow.uri}
        with (self.folder / f"{name}.txt").open("ab") as said:
            self.processes[name] = subprocess.Popen(
                [sys.executable, *words],
                stdout=said,
                stderr=said,
                env=os.environ | address | environment,
                start_new_session=True,
            )

    def victim(self) -> tuple[str, psutil.Process]:
        """Return a process that is at work, the driver or a worker."""
        alive = sorted(name for name, process in self.processes.items() if process.poll() is None)
        if not alive:
            raise psutil.NoSuchProcess(0)
        name = self.draw.choice(alive)
        return name, psutil.Process(self.processes[name].pid)

    def again(self, name: str) -> None:
        """Start a process that was ended in the place of the one that was."""
        self.processes[name].wait()
        if name.startswith("driver"):
            self.run(name, root="root" if name == "driver" else name)
        else:
            self.work(name)

    def finished(self) -> int:
        """Return how many fits are stored."""
        with contextlib.suppress(psycopg.Error), self._connected() as connection:
            return int(connection.execute("select count(*) from fints_fits").fetchone()[0])
        return 0

    def _connected(self) -> Any:
        return psycopg.connect(self.url.replace("+psycopg", ""), connect_timeout=5)

    def strike(self, fault: str) -> str:
        """Let one fault happen; return what was hit."""
        return str(getattr(self, f"_{fault}")())

    def _kill(self) -> str:
        name, process = self.victim()
        process.kill()
        self.again(name)
        return name

    def _child(self) -> str:
        name, process = self.victim()
        children = process.children()
        if children:
            children[0].kill()
        return f"a fit of {name}"

    def _term(self) -> str:
        name, process = self.victim()
        process.terminate()
        self.processes[name].wait(120)
        self.ended[name] = self.processes[name].returncode
        self.again(name)
        return name

    def _stop(self) -> str:
        name, process = self.victim()
        stopped = [process, *process.children()]
        for each in stopped:
            each.suspend()
        time.sleep(2 * GRACE_S)
        for each in stopped:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.resume()
        return name

    def _postgres(self) -> str:
        self.postgres.stop()
        time.sleep(3)
        self.postgres.start()
        return "for 3 s"

    def _mlflow(self) -> str:
        self.mlflow.stop()
        time.sleep(20)
        self.mlflow.start()
        return "for 20 s and its start"

    def _drivers(self) -> str:
        self.run("driver-2", root="driver-2")
        return "a second one, with a folder of its own"

    def _parquet(self) -> str:
        files = sorted((self.folder / "root").rglob("fits/*/*.parquet"))
        if not files:
            return "nothing yet"
        file = self.draw.choice(files)
        os.truncate(file, file.stat().st_size // 2)
        return file.parent.name

    def _checkpoint(self) -> str:
        place = self.folder / "kept"
        (place / "path").mkdir(parents=True)
        (place / "path" / "sitecustomize.py").write_text(KEEPS_CHECKPOINTS)
        path = os.pathsep.join([str(place / "path"), *filter(None, [os.environ.get("PYTHONPATH")])])
        words = ("--scratch", str(place / "scratch"))
        self.work("keeper", *words, PYTHONPATH=path)
        keeper = self.processes["keeper"]
        while keeper.poll() is None and not (found := [*place.rglob("checkpoints/*.pt")]):
            time.sleep(0.05)
        if keeper.poll() is not None:
            return "none: all was done"
        keeper.kill()
        keeper.wait()
        for file in found:
            with contextlib.suppress(FileNotFoundError):
                os.truncate(file, file.stat().st_size // 2)
        # It may well take the same fit again.
        self.work("keeper", *words, PYTHONPATH=path)
        return found[0].stem

    def _disk(self) -> str:
        if os.geteuid() != 0:
            return "left out: only root can mount a tmpfs"
        place = self.folder / "small"
        place.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", f"size={LEAST_DISK}", "tmpfs", str(place)]
        if subprocess.run(mount, capture_output=True, check=False).returncode:
            return "left out: a tmpfs cannot be mounted here"
        (place / "full").write_bytes(b"\0" * 520_000)
        self.work("full", "--scratch", str(place / "scratch"))
        return "a worker on a full one"

    def _clock(self) -> str:
        libraries = sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))
        if not libraries:
            return "left out: libfaketime is not installed"
        # Told to leave the steady clock alone, libfaketime 0.9.10 breaks time.sleep.
        step = self.draw.choice(("-3h", "+3h"))
        self.work("early", LD_PRELOAD=str(libraries[0]), FAKETIME=step)
        return f"a worker's by {step}"

    def wait(self, seconds: float) -> list[str]:
        """Wait until all processes have ended; return those that did not."""
        deadline = time.monotonic() + seconds
        late = []
        for name, process in self.processes.items():
            try:
                self.ended[name] = process.wait(max(1.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                late.append(f"{name} does not end")
                os.killpg(process.pid, signal.SIGKILL)
        if (place := self.folder / "small").is_mount():
            subprocess.run(["umount", str(place)], check=False)
        return late

    def wrong(self, expected: dict[str, str]) -> list[str]:
        """Return what is not as it must be."""
        told = []
        for name, code in self.ended.items():
            said = (self.folder / f"{name}.txt").read_text(errors="replace")
            if "Traceback" in said:
                told.append(f"{name} ended in a traceback")
            if not said.strip():
                told.append(f"{name} ended without a word")
            if code not in ((0, 1, 2) if name == "full" else (0, -signal.SIGKILL)):
                told.append(f"{name} ended with code {code}")
        with self._connected() as connection:
            results = Counter(key for (key,) in connection.execute("select key from fints_fits"))
            trials = Counter(
                (state, json.loads(cell)["key"])
                for state, cell in connection.execute(
                    "select t.state::text, a.value_json from trials t join trial_user_attributes a"
                    " on a.trial_id = t.trial_id and a.key = 'cell'"
                )
            )
        told += [f"{count} trials of {key} are left {s}" for (s, key), count in trials.items() if s in LEFT]
        told += [f"{key} has no single COMPLETE trial" for key in results if trials["COMPLETE", key] != 1]
        folder = self.results()
        if not (folder / "fits.parquet").is_file():
            return [*told, "the driver made no tables"]
        fits = {
            path.parent.name for path in folder.glob("fits/*/metrics.json") if "." not in path.parent.name
        }
        told += [] if fits <= results.keys() else ["a fit of the driver is not in the database"]
        told += self._wrong_in_mlflow(fits, folder.name)
        found = digests(folder)
        told += [
            f"{name} differs" for name in sorted({*expected, *found}) if expected.get(name) != found.get(name)
        ]
        return told

    def results(self) -> Path:
        """Return the driver's folder of the study."""
        return next((self.folder / "root" / "tiny").iterdir())

    def _wrong_in_mlflow(self, fits: set[str], label: str) -> list[str]:
        from mlflow import MlflowClient

        client = MlflowClient(self.mlflow.uri)
        experiment = client.get_experiment_by_name(f"tiny/{label}")
        runs = client.search_runs([experiment.experiment_id], max_results=5000)
        told = [
            f"run {run.data.tags['mlflow.runName']} is RUNNING"
            for run in runs
            if run.info.status == "RUNNING"
        ]
        done = Counter(run.data.tags.get("fints.key") for run in runs if run.info.status == "FINISHED")
        return told + [f"{key} has {done[key]} FINISHED runs" for key in sorted(fits) if done[key] != 1]


LEFT = ("RUNNING", "WAITING")


def digests(folder: Path) -> dict[str, str]:
    """Return a hash of each table that must not differ."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.glob("*.parquet"))
        if path.name not in DIFFERS
    }


def lengths(folder: Path) -> str:
    """Return how long the networks' fits took."""
    seconds = pl.read_parquet(folder / "timing.parquet").filter(pl.col("role") != "baseline")["seconds"]
    return f"{len(seconds)} of networks, {seconds.min():.1f} to {seconds.max():.1f} s each"


def calm(base: Path, panel: Path, preset: str, steps: int) -> tuple[Path, int]:
    """Return the folder of an undisturbed run on one machine, and how many fits it has, baselines too."""
    words = [sys.executable, str(STUDY), "run", "--preset", preset, "--data", str(panel), "--no-models"]
    words += ["--set", f"training.steps={steps}", "--root", str(base / "calm"), "--workers", "2"]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    folder = next((base / "calm" / "tiny").iterdir())
    return folder, len([path for path in (folder / "fits").iterdir() if path.is_dir()])


def main() -> int:
    """Strike and count."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--faults", default=",".join(FAULTS), help="comma-separated (%(default)s)")
    parser.add_argument("--preset", default="chaos", help="of tests/study/tiny.py (24 fits)")
    parser.add_argument("--steps", type=int, default=1500, help="of a fit (about 5 s on an idle core)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--patience", type=float, default=1200, help="seconds a round may take")
    arguments = parser.parse_args()
    draw = random.Random(arguments.seed)
    bad = 0
    with tempfile.TemporaryDirectory(prefix="fints-chaos-") as scratch:
        base = Path(scratch)
        prices = base / "prices.parquet"
        simulate(num_assets=4, num_days=160, seed=3).panel.frame.write_parquet(prices)
        quiet, num_fits = calm(base, prices, arguments.preset, arguments.steps)
        expected = digests(quiet)
        print(f"undisturbed: {num_fits} fits and baselines, {lengths(quiet)}", flush=True)
        postgres, mlflow = Postgres(base / "postgres"), MLflow(base / "mlflow")
        try:
            for number in range(arguments.rounds):
                panel = base / f"prices{number}.parquet"
                shutil.copy(prices, panel)
                clock = time.monotonic()
                folder = base / f"round-{number}"
                folder.mkdir()
                one = Round(
                    folder, postgres, mlflow, postgres.url(f"round_{number}"), panel,
                    arguments.preset, arguments.steps, draw,
                )  # fmt: skip
                told = strike_all(one, arguments.faults.split(","), num_fits, arguments.patience)
                late = one.wait(arguments.patience)
                wrong = late or one.wrong(expected)
                bad += bool(wrong)
                print(f"round {number + 1}, {time.monotonic() - clock:.0f} s: {'; '.join(told)}")
                held = wrong or ["every fit counts once, tables equal", lengths(one.results())]
                print(f"    {'; '.join(held)}", flush=True)
                if wrong:
                    for path in sorted(folder.glob("*.txt")):
                        print(f"--- {path.name}\n{path.read_text(errors='replace')[-6000:]}", flush=True)
        finally:
            mlflow.stop()
            postgres.stop()
    return 1 if bad else 0


def strike_all(one: Round, faults: list[str], num_fits: int, patience: float) -> list[str]:
    """Start driver and workers, and let each fault strike after a random number of fits."""
    one.run("driver")
    while not one.finished() and one.processes["driver"].poll() is None:
        # The study must be there before a worker can ask for it.
        with contextlib.suppress(psycopg.Error), one._connected() as connection:
            if connection.execute("select count(*) from fints_studies").fetchone()[0]:
                break
        time.sleep(0.2)
    for name in ("worker-1", "worker-2"):
        one.work(name)
    moments = sorted(one.draw.randint(0, max(0, num_fits - 2)) for _ in faults)
    told = []
    deadline = time.monotonic() + patience
    for moment, fault in zip(moments, one.draw.sample(faults, len(faults)), strict=True):
        while one.finished() < moment and time.monotonic() < deadline:
            if all(process.poll() is not None for process in one.processes.values()):
                break
            time.sleep(0.2)
        time.sleep(one.draw.uniform(0.0, 2.0))
        try:
            told.append(f"{fault} ({one.strike(fault)}) after {moment}")
        except psutil.NoSuchProcess:
            told.append(f"{fault} (all had ended)")
    return told


if __name__ == "__main__":
    sys.exit(main())

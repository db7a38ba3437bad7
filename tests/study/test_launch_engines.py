"""Studies on workers that Ray and submitit start: killed, stopped, and told no secret that others see."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from fints.data import simulate

STUDY = Path(__file__).resolve().parent / "tiny.py"
ENGINES = {"ray": "ray", "slurm": "submitit"}
SECRET = "s3cr%40t"
# For a machine that hangs: nothing is proved by time.
PATIENCE_S = 900.0


class Driver:
    """A study's driver with two launched workers, its database and all the processes that it leads to."""

    def __init__(self, engine: str, folder: Path, postgres: Any, scratch: Path) -> None:
        self.engine, self.folder, self.scratch = engine, folder, scratch
        self.url = str(postgres.url(f"launch_{uuid.uuid4().hex[:12]}"))
        assert SECRET in self.url
        self.panel = folder / "prices.parquet"
        simulate(num_assets=4, num_days=160, seed=3).panel.frame.write_parquet(self.panel)
        self.commands: set[str] = set()
        self.family: dict[int, psutil.Process] = {}

    def start(self) -> None:
        words = [str(STUDY), "run", "--preset", "smoke", "--data", str(self.panel), "--no-models"]
        # Fits long enough to be stopped in the middle of.
        words += ["--set", "training.steps=1500", "--root", str(self.folder / "root"), "--heartbeat", "2"]
        words += ["--workers", "2", "--launcher", self.engine]
        words += ["--launcher-option", "cluster=local"] if self.engine == "slurm" else []
        environment = {**os.environ, "FINTS_STORAGE": self.url, "RAY_TMPDIR": str(self.scratch)}
        environment.pop("RAY_ADDRESS", None)
        with (self.folder / "said.txt").open("ab") as said:
            self.process = subprocess.Popen(
                [sys.executable, *words], stdout=said, stderr=said, env=environment, start_new_session=True
            )

    def said(self) -> str:
        return (self.folder / "said.txt").read_text(errors="replace")

    def ask(self, query: str) -> list[tuple[Any, ...]]:
        """Return what the database answers; nothing before the driver has made its tables."""
        import psycopg

        with (
            contextlib.suppress(psycopg.errors.UndefinedTable),
            psycopg.connect(self.url.replace("+psycopg", ""), connect_timeout=30) as connection,
        ):
            return connection.execute(query).fetchall()
        return []

    def launched(self) -> list[int]:
        """Return the launched workers that have given a sign of life."""
        return [pid for (pid,) in self.ask("select pid from fints_workers") if pid != self.process.pid]

    def until(self, holds: Callable[[], Any]) -> Any:
        """Wait, and watch all processes meanwhile."""
        deadline = time.monotonic() + PATIENCE_S
        while not (found := holds()):
            assert self.process.poll() is None, self.said()
            assert time.monotonic() < deadline, self.said()
            self.watch()
            time.sleep(0.3)
        self.watch()
        return found

    def end(self) -> int:
        """Watch all processes until the driver ends, and return its code."""
        deadline = time.monotonic() + PATIENCE_S
        while self.process.poll() is None and time.monotonic() < deadline:
            self.watch()
            time.sleep(0.3)
        return self.process.wait(1)

    def watch(self) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            for process in (found := psutil.Process(self.process.pid), *found.children(recursive=True)):
                self.family[process.pid] = process
                with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
                    self.commands.add(" ".join(process.cmdline()))

    def left(self) -> list[psutil.Process]:
        """Return what is still there of all processes, after the time that they may take to end."""
        _, alive = psutil.wait_procs(list(self.family.values()), timeout=120)
        return [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A folder of a short name: the paths of Ray's sockets may have 107 characters."""
    path = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.mark.slow
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("engine", sorted(ENGINES))
def test_a_study_on_launched_workers_outlives_a_killed_one_and_a_stopped_driver(
    engine: str, postgres: Any, tmp_path: Path, scratch: Path
) -> None:
    pytest.importorskip(ENGINES[engine], reason=f"{ENGINES[engine]} is not installed")
    driver = Driver(engine, tmp_path, postgres, scratch)
    driver.start()
    try:
        victim = driver.until(driver.launched)[0]
        os.kill(victim, signal.SIGKILL)
        driver.until(lambda: "on Ray ended" in driver.said() or "on Slurm ended" in driver.said())
        assert "ended with code -9" in driver.said()
        assert "; another one is asked for" in driver.said()
        # The driver is stopped in the middle: what had begun is given back, and nothing of it is left.
        driver.until(lambda: driver.ask("select 1 from fints_fits"))
        driver.process.terminate()
        assert driver.end() == 143, driver.said()
        assert "stopped by SIGTERM" in driver.said()
        assert driver.left() == []
        assert driver.ask("select 1 from fints_workers where pid <> " + str(victim)) == []
        assert driver.ask("select 1 from trials where state = 'RUNNING'") == []

        driver.start()
        assert driver.end() == 0, driver.said()
        assert driver.left() == []
    finally:
        for process in driver.family.values():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
    (folder,) = (tmp_path / "root" / "tiny").iterdir()
    fits = {path.name for path in (folder / "fits").iterdir()}
    results = Counter(key for (key,) in driver.ask("select key from fints_fits"))
    assert set(results) == fits
    assert (folder / "fits.parquet").is_file()
    # All of them were made by launched workers, two at least.
    makers = {int(attempt.split(":")[1]) for (attempt,) in driver.ask("select attempt from fints_fits")}
    assert len(makers) >= 2
    assert driver.process.pid not in makers
    assert "Traceback" not in driver.said()
    # The password stands in no command line, log or file, of Ray's and Slurm's either.
    told = [command for command in driver.commands if SECRET in command]
    for path in (*tmp_path.rglob("*"), *scratch.rglob("*")):
        if path.is_file() and not path.is_symlink() and SECRET.encode() in path.read_bytes():
            told.append(str(path))
    assert any("fints.study.launched" in command for command in driver.commands)
    assert told == []

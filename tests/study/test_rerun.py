"""One fit is made again by the command that its run in MLflow carries."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from fints.data import simulate
from fints.study.commands import rerun_command

TINY = Path(__file__).parent / "tiny.py"

pytestmark = pytest.mark.timeout(1800)


def shell(words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command that begins with "python", as it would be typed in `folder`."""
    python, *rest = words
    assert python == "python"
    here = {**os.environ, "FINTS_HOME": str(folder / "home")}
    return subprocess.run(
        [sys.executable, *rest], cwd=folder, env=here, capture_output=True, text=True, timeout=1500
    )


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, mlflow_tables: Path) -> Path:
    """A folder with the tiny study, run at a width of its own, final fits two at once."""
    folder = tmp_path_factory.mktemp("rerun")
    shutil.copy(TINY, folder / "tiny.py")
    (folder / "home").mkdir()
    shutil.copy(mlflow_tables, folder / "home" / "mlflow.db")
    simulate(num_assets=4, num_days=160, seed=3).panel.frame.write_parquet(folder / "prices.parquet")
    words = (
        "python tiny.py run --preset smoke --data prices.parquet --set model.width=4 --workers 1 --no-models"
    )
    run = shell([*words.split(), "--set", "training.vectorise=2"], folder)
    assert run.returncode == 0, run.stderr
    return folder


def commands(folder: Path, role: str) -> dict[str, str]:
    """The command of each fit of a role, by its key."""
    with closing(sqlite3.connect(folder / "home" / "mlflow.db")) as store:
        tags: dict[str, dict[str, str]] = {}
        for run, key, value in store.execute("select run_uuid, key, value from tags"):
            tags.setdefault(run, {})[key] = value
    return {
        tag["fints.key"]: tag["fints.command"]
        for tag in tags.values()
        if tag["fints.role"] == role and "fints.key" in tag
    }


@pytest.mark.slow
@pytest.mark.parametrize("role", ["tuning", "final"])
def test_the_command_of_a_run_makes_its_fit_again_to_the_byte(place: Path, role: str, tmp_path: Path) -> None:
    found = commands(place, role)
    assert len(found) == 4
    key, command = sorted(found.items())[-1]
    assert "--set model.width=4" in command
    told = shell([*shlex.split(command), "--out", str(tmp_path)], place)
    assert told.returncode == 0, told.stdout + told.stderr
    assert "the same bytes as the stored fit" in told.stdout
    owed = ["result.json", "metrics.json", "history.parquet"]
    for name in [*owed, "forecasts.parquet"] if role == "final" else owed:
        (stored,) = (place / "home" / "tiny").glob(f"*/fits/{key}/{name}")
        (made,) = tmp_path.glob(f"tiny/*/fits/{key}/{name}")
        assert made.read_bytes() == stored.read_bytes(), name
        assert name in told.stdout


@pytest.mark.slow
def test_another_number_in_the_stored_fit_is_said_to_be_damage_and_other_bytes_to_differ(
    place: Path, tmp_path: Path
) -> None:
    key, command = sorted(commands(place, "final").items())[0]
    (stored,) = (place / "home" / "tiny").glob(f"*/fits/{key}")
    kept = tmp_path / "kept"
    shutil.copytree(stored, kept)
    try:
        (stored / "metrics.json").write_text("{}\n")
        damaged = shell([*shlex.split(command), "--out", str(tmp_path / "one")], place)
        # Without a list of checksums, as fits of old had none, other bytes are not known to be damage.
        (stored / "files.json").unlink()
        differs = shell([*shlex.split(command), "--out", str(tmp_path / "two")], place)
    finally:
        shutil.rmtree(stored)
        shutil.copytree(kept, stored)
    assert damaged.returncode == 0, damaged.stderr
    assert re.search(
        r"nothing to compare it with: .* is damaged \(metrics.json has changed\)", damaged.stdout
    )
    assert differs.returncode == 1, differs.stdout + differs.stderr
    assert "not the bytes of the stored fit: metrics.json" in differs.stdout


@pytest.mark.slow
def test_a_key_of_another_plan_is_refused_with_what_to_do(place: Path, tmp_path: Path) -> None:
    key, command = sorted(commands(place, "final").items())[0]
    other = command.replace("model.width=4", "model.width=8")
    assert other != command
    told = shell([*shlex.split(other), "--out", str(tmp_path / "fresh")], place)
    assert told.returncode == 2
    assert re.fullmatch(
        rf"error: no fit of this plan has the key {key}, [^\n]*fints.commit[^\n]*\n", told.stderr
    )
    assert not (tmp_path / "fresh").exists()


def test_the_command_of_a_fit_is_that_of_its_run_with_its_key() -> None:
    ran = "python 'my studies/s.py' run --preset quick --data 'a b.csv' --set 'data.features=[\"a\"]'"
    assert rerun_command(ran, "0123abcd") == ran.replace(" run ", " rerun 0123abcd ")

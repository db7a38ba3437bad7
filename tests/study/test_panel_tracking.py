"""What stands in MLflow after a run on simulated panels, and after one that was stopped."""

from __future__ import annotations

import json
import math
import os
import runpy
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from fints.study.panel_cells import PanelFit
from fints.study.panel_contents import PanelFits
from fints.study.panel_plan import PanelPlan, make_panel_plan
from fints.study.run_contents import arm_title
from fints.study.store import write_json
from fints.study.tracking import Tracker

# MLflow 3.17 configures its tables in a way that SQLAlchemy 2.1 deprecates; ours to report, not to mend.
pytestmark = pytest.mark.filterwarnings(
    "default:The ``noload`` loader strategy is deprecated:sqlalchemy.exc.SADeprecationWarning"
)
FILE = Path(__file__).parent / "tiny_panels.py"
STUDY = runpy.run_path(str(FILE))["STUDY"]
ARMS, FITS = 4, 16


def plan(preset: str = "smoke") -> PanelPlan:
    return make_panel_plan(STUDY, name="tiny_panels", docstring="Ask nothing.", preset=preset)


@pytest.fixture
def root(tmp_path: Path, mlflow_tables: Path) -> Path:
    """A results folder with an empty MLflow store."""
    shutil.copy(mlflow_tables, tmp_path / "mlflow.db")
    return tmp_path


def opened(root: Path, made: PanelPlan) -> Tracker:
    spec = made.spec()
    tracker = Tracker(spec, root=root, label=made.label, commit="abc", contents=PanelFits(spec))
    tracker.open(root / "fits")
    return tracker


def runs_of(root: Path, made: PanelPlan) -> list[Any]:
    client = opened(root, made).client
    experiment = client.get_experiment_by_name(f"{made.name}/{made.label}")
    return list(client.search_runs([experiment.experiment_id], max_results=1000))


def finish(fits: Path, cell: PanelFit, **numbers: float | None) -> Path:
    """Leave what a fit leaves, with rows of one measure by sublayer at two steps."""
    folder = fits / cell.key
    folder.mkdir(parents=True)
    identity = {name: getattr(cell, name) for name in ("key", "arm", "role", "panel", "seed", "point")}
    result = {
        "outcome": "finished",
        "reason": "all taken",
        "steps": 4,
        "parameters": 9,
        "validation_loss": 1.5,
    }
    write_json(folder / "result.json", identity | result | numbers)
    write_json(folder / "timing.json", {"seconds": 2.0})
    row = {"measure": "gradient_norm", "layer": 0, "step": 2, "value": 1.0}
    rows = [
        row,
        row | {"layer": 1},
        row | {"step": 4, "value": 3.0},
        row | {"step": 4, "layer": 1, "value": None},
    ]
    whole = {"measure": "validation_distance", "layer": None, "step": 2, "value": 0.5}
    write_json(folder / "rows.json", [*rows, whole, whole | {"step": 4, "value": 0.25}])
    return folder


def test_a_fit_is_told_with_its_panel_its_numbers_and_what_was_watched_last(root: Path) -> None:
    made = plan()
    arm = made.arms[0]
    cell = made.final_cells(arm, {"training.learning_rate": 1e-3})[0]
    tracker = opened(root, made)
    tracker.finish(cell, finish(root / "fits", cell, test_excess=0.25, share_of_oracle=0.5, moved_at_4=None))
    (run,) = [run for run in runs_of(root, made) if run.data.tags.get("fints.key") == cell.key]
    assert run.data.tags["mlflow.runName"] == "final panel 100"
    assert run.data.params == {
        **arm.levels,
        "learning_rate": "0.001",
        "role": "final",
        "panel": "100",
        "seed": "100",
        "data": run.data.params["data"],
    }
    assert run.data.metrics == {
        "train/steps": 4.0,
        "train/parameters": 9.0,
        "train/seconds": 2.0,
        "validation/loss": 1.5,
        "validation/distance": 0.25,
        "test/excess": 0.25,
        "test/share_of_oracle": 0.5,
        "gradient/norm_by_sublayer": 3.0,
    }
    (given,) = run.inputs.dataset_inputs
    assert given.dataset.name == "simulated-100"
    assert json.loads(given.dataset.source)["simulation"] == {**cell.simulation, "seed": 100}


def test_two_panels_have_two_digests_and_one_panel_one(root: Path) -> None:
    made = plan()
    contents = PanelFits(made.spec())
    point = {"training.learning_rate": 1e-3}
    cells = [cell for arm in made.arms[:2] for cell in made.final_cells(arm, point)]
    digests = [contents.data_of(cell).digest for cell in cells]
    assert digests[:2] == digests[2:]
    assert len(set(digests)) == 2


def test_an_arm_says_how_its_fits_ended_on_average(root: Path) -> None:
    made = plan()
    rows = [
        {"arm": "a", "role": "tuning", "panel": 90, "seed": 90, "point": {"training.learning_rate": 0.001}}
        | {"outcome": "finished", "validation_loss": 1.25, "seconds": 1.0},
        *(
            {
                "arm": "a",
                "role": "final",
                "panel": panel,
                "seed": panel,
                "point": {"training.learning_rate": 0.001},
            }
            | {"outcome": outcome, "validation_loss": 1.5, "test_excess": excess, "seconds": 3.0}
            for panel, outcome, excess in ((100, "finished", 0.25), (101, "diverged", 0.75))
        ),
    ]
    note, best = PanelFits(made.spec()).arm_note("a", rows)
    assert "1 of 3 fits **diverged**" in note
    assert "| 101 | 101 | 0.7500 | 1.5000 | 3 | diverged |" in note
    assert best == {
        "train/diverged_fits": 1.0,
        "best/excess": 0.5,
        "test/excess": 0.5,
        "validation/loss": 1.5,
        "train/seconds": 3.0,
    }


def test_the_title_of_an_arm_begins_with_what_sets_it_apart() -> None:
    arms = [
        {"residual": "post_norm", "depth": depth, "relief": relief}
        for depth in ("2", "16")
        for relief in ("none", "dropout")
    ]
    assert arm_title(arms[3], arms) == "depth 16, dropout, post_norm"
    assert arm_title(arms[0], arms[:1]) == "depth 2, post_norm, none"


def command(root: Path, *words: str) -> list[str]:
    return [sys.executable, str(FILE), "run", "--root", str(root), "--workers", "1", "--plain", *words]


@pytest.mark.slow
def test_every_fit_of_a_run_has_one_run_under_its_arm_and_the_answer_one_of_its_own(root: Path) -> None:
    done = subprocess.run(command(root, "--preset", "smoke"), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    made = plan()
    told = runs_of(root, made)
    roles = Counter(run.data.tags["fints.role"] for run in told)
    assert roles == {"arm": ARMS, "tuning": FITS // 2, "final": FITS // 2, "answer": 1}
    assert {run.info.status for run in told} == {"FINISHED"}
    parents = {run.info.run_id: run for run in told if run.data.tags["fints.role"] == "arm"}
    for run in told:
        assert all(math.isfinite(value) for value in run.data.metrics.values())
        assert len(run.data.metrics) <= 60
        if run.data.tags["fints.role"] in ("tuning", "final"):
            parent = parents[run.data.tags["mlflow.parentRunId"]]
            assert parent.data.tags["fints.arm"] == run.data.tags["fints.arm"]
            assert "Final fits" in parent.data.tags["mlflow.note.content"]
    (answer,) = [run for run in told if run.data.tags["fints.role"] == "answer"]
    client = opened(root, made).client
    assert {item.path for item in client.list_artifacts(answer.info.run_id)} == {"figures", "report"}
    assert "#/compare-runs?runs=" in done.stdout
    # Its command makes a fit again.
    run = next(run for run in told if run.data.tags["fints.role"] == "final")
    words = [
        *shlex.split(run.data.tags["fints.command"])[2:],
        "--root",
        str(root),
        "--out",
        str(root / "again"),
    ]
    remade = subprocess.run([sys.executable, str(FILE), *words], capture_output=True, text=True, check=False)
    assert remade.returncode == 0, remade.stdout + remade.stderr
    assert "the same bytes as the stored fit: result.json, rows.json" in remade.stdout
    # A second run fits nothing, and records nothing twice.
    again = subprocess.run(command(root, "--preset", "smoke"), capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr
    assert len(runs_of(root, made)) == len(told)
    told_of_runs = (root / "tiny_panels" / "smoke" / "runs.jsonl").read_text()
    fits = [json.loads(line)["fits"] for line in told_of_runs.splitlines()]
    assert fits == [FITS, 0]


@pytest.mark.slow
def test_fits_that_a_stopped_run_left_are_recorded_by_the_next(root: Path) -> None:
    words = command(root, "--preset", "smoke", "--set", "training.steps=40")
    first = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
    place = root / "tiny_panels"
    deadline = time.monotonic() + 120
    while len(list(place.glob("*/fits/*/result.json"))) < 3 and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(first.pid, signal.SIGKILL)
    first.communicate()
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    made = make_panel_plan(
        STUDY, name="tiny_panels", docstring="", preset="smoke", changes={"training.steps": 40}
    )
    told = runs_of(root, made)
    finished = Counter(
        run.data.tags["fints.key"]
        for run in told
        if run.info.status == "FINISHED" and "fints.key" in run.data.tags
    )
    assert set(finished.values()) == {1}
    assert len(finished) == FITS
    assert not [run for run in told if run.info.status == "RUNNING"]


@pytest.mark.slow
def test_a_fit_that_fails_is_failed_in_the_record_with_its_reason(root: Path) -> None:
    done = subprocess.run(command(root, "--preset", "fails"), capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stdout + done.stderr
    told = [run for run in runs_of(root, plan("fails")) if "fints.key" in run.data.tags]
    assert told
    assert {run.info.status for run in told} == {"FAILED"}
    assert all("horizon" in run.data.tags["fints.reason"] for run in told)

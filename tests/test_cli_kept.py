"""Studies and datasets that are kept: listed, weighed, deleted in one step, and never anything else."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from fints.cli import main
from fints.data import datasets, simulate, store
from fints.data.deleting import remove_folder
from fints.study.kept import PARTS, kept_studies, sizes
from fints.study.store import StudyFolder, write_json

TINY = Path(__file__).parent / "study" / "tiny.py"
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run the command in this process, 80 columns wide, and return its code, stdout and stderr."""
    monkeypatch.setenv("COLUMNS", "80")

    def call(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(list(words))
        captured = capsys.readouterr()
        return code, " ".join(captured.out.split()), captured.err

    return call


def make_study(root: Path, name: str = "depths", label: str = "quick-mine") -> StudyFolder:
    """Make the folder of a study with something of every part; each file's size is a power of two."""
    folder = StudyFolder(root, name, label)
    contents = {
        "fits/a/result.json": 1,
        "fits/a/forecaster/weights.safetensors": 2,
        "fits/b/result.json": 4,
        "fits/b.damaged-20260101-000000/result.json": 8,
        "checkpoints/c.pt": 16,
        "forecasts.parquet": 32,
        "report.html": 64,
        "figures/one.svg": 128,
        "optuna.db": 256,
        "logs/worker-0.log": 512,
    }
    for file, size in contents.items():
        path = folder.path / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * size)
    write_json(
        folder.path / "study.json", {"title": "T", "preset": "quick", "dataset": {"reference": "mine"}}
    )
    artifact = root / "mlartifacts" / name / label / "run" / "experiment.json"
    artifact.parent.mkdir(parents=True)
    artifact.write_bytes(b"x" * 1024)
    return folder


def test_disk_use_is_told_by_part_and_adds_up(run: Run, home_of_its_own: Path) -> None:
    folder = make_study(home_of_its_own)
    (kept,) = kept_studies(home_of_its_own)
    taken = sizes(kept)
    spec = (folder.path / "study.json").stat().st_size
    assert taken == {
        "fits": 5,
        "weights": 2,
        "checkpoints": 16,
        "damaged": 8,
        "tables": 32,
        "report": 192,
        "queue": 256,
        "other": 512 + spec,
        "mlflow": 1024,
    }
    code, out, err = run("study", "disk", "--json")
    assert (code, err) == (0, "")
    told = json.loads(out)
    assert told["studies"] == [{"study": "depths/quick-mine", **taken, "total": sum(taken.values())}]
    assert run("study", "disk", "depths")[1].startswith("depths/quick-mine: 2.")


def test_studies_are_listed_and_links_are_none(run: Run, home_of_its_own: Path, tmp_path: Path) -> None:
    assert "No study has been run" in run("study", "list")[1]
    make_study(home_of_its_own)
    make_study(tmp_path, "outside")
    (home_of_its_own / "escaped").symlink_to(tmp_path / "outside")
    (home_of_its_own / "depths" / "linked").symlink_to(home_of_its_own / "depths" / "quick-mine")
    listed = json.loads(run("study", "list", "--json")[1])["studies"]
    assert [(row["study"], row["fits"], row["dataset"]) for row in listed] == [
        ("depths/quick-mine", 2, "mine")
    ]
    assert "depths/quick-mine 2" in run("study", "list")[1]


def test_deleting_takes_one_size_of_a_study_and_leaves_mlflow_unless_told(
    run: Run, home_of_its_own: Path
) -> None:
    gone, stays = make_study(home_of_its_own), make_study(home_of_its_own, label="full-mine")
    code, out, err = run("study", "delete", "depths/quick-mine", "--yes")
    assert (code, err) == (0, "")
    assert "deleted: depths/quick-mine (2 fits, " in out
    assert "--tracking" in out
    assert not gone.path.exists()
    assert stays.path.exists()
    assert (home_of_its_own / "mlartifacts" / "depths" / "quick-mine").exists()
    assert sorted(path.name for path in (home_of_its_own / "depths").iterdir()) == ["full-mine"]
    assert run("study", "delete", "depths", "--yes")[0] == 0
    assert not (home_of_its_own / "depths").exists()


def test_a_study_that_a_driver_holds_is_not_deleted(run: Run, home_of_its_own: Path) -> None:
    folder = make_study(home_of_its_own)
    program = (
        "import sys\nfrom pathlib import Path\nfrom fints.study.store import StudyFolder\n"
        f"with StudyFolder(Path({str(home_of_its_own)!r}), 'depths', 'quick-mine').held():\n"
        "    print('held', flush=True)\n    sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as driver:
        assert driver.stdout is not None
        assert driver.stdout.readline() == "held\n"
        before = sorted(folder.path.rglob("*"))
        code, out, err = run("study", "delete", "depths", "--yes")
        assert (code, out) == (2, "")
        assert f"held by process {driver.pid}" in err
        assert sorted(folder.path.rglob("*")) == before
        driver.communicate("")
    assert run("study", "delete", "depths", "--yes")[0] == 0


def test_nothing_is_deleted_that_nobody_agreed_to(
    run: Run, home_of_its_own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_study(home_of_its_own)
    store(simulate(num_assets=2, num_days=20, seed=1).panel, "mine")
    for words in (("study", "delete", "depths"), ("data", "delete", "mine")):
        code, out, err = run(*words)
        assert (code, out) == (2, "")
        assert "Nobody can be asked here: add --yes" in err
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("typer.confirm", lambda question: False)
    assert run("study", "delete", "depths")[:2] == (0, "Nothing was deleted.")
    assert folder.path.exists()
    monkeypatch.setattr("typer.confirm", lambda question: True)
    assert run("data", "delete", "mine")[0] == 0
    assert [card.name for card in datasets()] == ["sp500-20"]


def test_deleting_a_dataset_names_the_studies_that_were_run_on_it(
    run: Run, home_of_its_own: Path, tmp_path: Path
) -> None:
    make_study(home_of_its_own)
    file = tmp_path / "prices.csv"
    simulate(num_assets=2, num_days=20, seed=1).panel.frame.write_csv(file)
    store(simulate(num_assets=2, num_days=20, seed=1).panel, "mine")
    assert "depths/quick-mine" in run("data", "delete", "mine")[2]
    assert "deleted: dataset mine" in run("data", "delete", "mine", "--yes")[1]
    assert file.exists()
    assert not list((home_of_its_own / "datasets").iterdir())


def test_a_folder_is_gone_in_one_step_and_what_a_kill_left_goes_with_the_next(
    home_of_its_own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store(simulate(num_assets=2, num_days=20, seed=1).panel, "mine")
    folder = home_of_its_own / "datasets" / "mine"

    def killed(path: Path, **_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("fints.data.deleting.shutil.rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            remove_folder(folder)
    # Half-way it is nowhere that anybody looks.
    assert [card.name for card in datasets()] == ["sp500-20"]
    assert len(list(folder.parent.iterdir())) == 1
    store(simulate(num_assets=2, num_days=20, seed=1).panel, "other")
    remove_folder(folder.parent / "other")
    assert not list(folder.parent.iterdir())


def test_a_folder_that_cannot_be_renamed_is_left_whole(
    home_of_its_own: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    store(simulate(num_assets=2, num_days=20, seed=1).panel, "mine")

    def refuse(old: Path, new: Path) -> None:
        raise PermissionError(13, "Permission denied", str(old))

    monkeypatch.setattr("fints.data.deleting.os.rename", refuse)
    code, _, err = run("data", "delete", "mine", "--yes")
    assert code == 2
    assert "Permission denied" in err
    assert {path.name for path in (home_of_its_own / "datasets").iterdir()} == {"mine"}
    assert [card.name for card in datasets()] == ["sp500-20", "mine"]


@pytest.mark.slow
def test_a_study_is_deleted_with_its_runs_and_models_and_can_be_run_again(tmp_path: Path) -> None:
    root, prices = tmp_path / "root", tmp_path / "prices.parquet"
    simulate(num_assets=3, num_days=160, seed=1).panel.frame.write_parquet(prices)
    size = ["--preset", "smoke", "--data", str(prices), "--root", str(root)]

    def call(*words: str | Path) -> str:
        # A process of its own: MLflow warns, and a warning is an error here.
        ended = subprocess.run(
            [sys.executable, *words], capture_output=True, text=True, timeout=600, check=False
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    def rows(table: str) -> int:
        with closing(sqlite3.connect(root / "mlflow.db")) as connection:
            return int(connection.execute(f"select count(*) from {table}").fetchone()[0])

    call(TINY, "run", *size, "--workers", "1")
    (kept,) = kept_studies(root)
    taken = sizes(kept)
    assert all(taken[part] > 0 for part in PARTS if part not in ("checkpoints", "damaged"))
    before = rows("runs")
    assert before == 2 + 8
    assert rows("registered_models") == 1
    report = json.loads(call(TINY, "report", *size, "--json"))
    assert {"verdict", "decision", "found", "arms", "contrasts", "report"} <= report.keys()
    assert [row["arm"] for row in report["arms"]] == ["pre_norm-depth_1", "post_norm-depth_1"]
    assert Path(report["report"]).is_file()

    call("-m", "fints", "study", "delete", "tiny", "--root", str(root), "--tracking", "--yes")
    assert kept_studies(root) == []
    assert (rows("runs"), rows("registered_models"), rows("model_versions")) == (0, 0, 0)
    assert not (root / "mlartifacts" / "tiny").exists()
    call(TINY, "run", *size, "--workers", "1", "--no-models")
    assert rows("runs") == before

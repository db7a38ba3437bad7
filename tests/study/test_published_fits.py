"""Fits that were committed beside a study's file count as done, and give the same tables and page."""

from __future__ import annotations

import argparse
import dataclasses
import json
import runpy
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal

from fints.data import simulate
from fints.study import cli, figures
from fints.study.assemble import TABLES
from fints.study.commands import resume_command, run_command
from fints.study.fits import Cell
from fints.study.model_log import LoggedModels
from fints.study.models import Choice, arm_forecaster
from fints.study.origin import ORIGIN, origin_of
from fints.study.plan import Plan
from fints.study.publish import place_of
from fints.study.published_fits import Committed, publish_fits, read_committed
from fints.study.restore import Kept, drop_restored
from fints.study.seal import RECORD, record_of
from fints.study.store import StudyFolder, finish_folder, write_json
from fints.study.unit import units_on

TINY = runpy.run_path(str(Path(__file__).parent / "tiny.py"))["STUDY"]
FITS, BASELINES = 8, 8
SAME = [name for name in TABLES if name != "timing"]


@dataclasses.dataclass(frozen=True)
class Clone:
    """A clone with the study's file, and commands given in it."""

    study: Path
    prices: Path
    root: Path

    @property
    def place(self) -> Path:
        """Where its fits are committed."""
        (place,) = (self.study.parent / "published" / "tiny").glob("smoke-prices-*")
        return place

    def page(self) -> dict[str, bytes]:
        """Return what is published but the fits."""
        files = [self.study.with_suffix(".md"), *self.study.parent.glob("figures/tiny/*.svg")]
        return {path.name: path.read_bytes() for path in files}

    def call(self, verb: str, *more: str, root: Path | None = None) -> int:
        """Return the exit code of a verb."""
        words = [verb, "--preset", "smoke", "--data", str(self.prices), "--root", str(root or self.root)]
        with pytest.raises(SystemExit) as ended:
            cli.main(TINY, [*words, *more], file=self.study)
        assert isinstance(ended.value.code, int)
        return ended.value.code

    def committed(self, plan: Plan) -> Committed:
        return read_committed(place_of(self.study, plan.label), checksum=plan.dataset.checksum)


@dataclasses.dataclass(frozen=True)
class Whole:
    """An uninterrupted run, and a clone in which it is published."""

    plan: Plan
    folder: StudyFolder
    clone: Clone


@pytest.fixture(scope="module", autouse=True)
def _blank() -> Any:
    """Compose pictures and leave them blank: to draw them takes longest."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figures, "write_figure", lambda _, path: Path(f"{path}.svg").touch())
        yield


@pytest.fixture(scope="module")
def whole(run_study: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Whole:
    home = tmp_path_factory.mktemp("published")
    simulate(num_assets=4, num_days=160, seed=3).panel.frame.write_parquet(home / "prices.parquet")
    with pytest.MonkeyPatch.context() as patch:
        run = run_study(patch, home / "root", home / "prices.parquet")
    study = home / "clone" / "tiny.py"
    study.parent.mkdir()
    study.write_text('"""Words."""\n')
    clone = Clone(study, home / "prices.parquet", home / "root")
    assert clone.call("report", "--publish") == 0
    return Whole(run.plan, run.folder, clone)


@pytest.fixture
def fresh(whole: Whole, tmp_path: Path) -> Clone:
    """A fresh clone of what was committed, with an empty home."""
    shutil.copytree(whole.clone.study.parent, tmp_path / "clone")
    return Clone(tmp_path / "clone" / "tiny.py", whole.clone.prices, tmp_path / "root")


def tables(folder: Path) -> dict[str, bytes]:
    return {name: (folder / f"{name}.parquet").read_bytes() for name in SAME}


def test_a_root_called_results_beside_the_study_is_not_where_its_fits_are_published(
    whole: Whole, fresh: Clone
) -> None:
    root = fresh.study.parent / "results"
    shutil.copytree(whole.clone.root, root)
    shutil.rmtree(fresh.study.parent / "published")
    before = (root / whole.folder.name / whole.folder.label / "study.json").read_bytes()
    for words in (["report"], ["report", "--publish"], ["report"]):
        assert fresh.call(*words, root=root) == 0
    assert (root / whole.folder.name / whole.folder.label / "study.json").read_bytes() == before
    assert len(fresh.committed(whole.plan).fits) == FITS + BASELINES


@pytest.mark.parametrize("verb", ["plan", "run", "report"])
def test_runs_where_fits_are_published_are_refused(
    verb: str, fresh: Clone, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fresh.call(verb, root=fresh.study.parent / "published") == 2
    assert "give another folder with --root" in capsys.readouterr().err


def half(whole: Whole, root: Path) -> StudyFolder:
    """What a run leaves that was killed half-way: all of the tuning, and two final fits of one arm."""
    folder = StudyFolder(root, whole.folder.name, whole.folder.label)
    skipped = shutil.ignore_patterns("*.parquet", "tables.json", "optuna.db*", "report.*")
    shutil.copytree(whole.folder.path, folder.path, ignore=skipped)
    shutil.rmtree(folder.fits)
    final = [cell for cell in Kept(whole.plan, whole.folder).cells() if cell.role == "final"]
    gone = {cell.key for cell in final if cell.arm != whole.plan.arms[0].name}
    shutil.copytree(whole.folder.fits, folder.fits, ignore=lambda _, names: gone & set(names))
    return folder


def test_after_half_a_run_was_committed_and_its_machine_lost_the_rest_is_fitted_to_the_same_tables(
    whole: Whole,
    tmp_path: Path,
    run_study: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = half(whole, tmp_path / "lost")
    study = shutil.copy(whole.clone.study, tmp_path)
    clone = Clone(Path(study), whole.clone.prices, tmp_path / "lost")
    # A run that goes on holds the folder.
    with folder.held():
        assert clone.call("report", "--publish") == 0
    assert "Incomplete: 2 of 4 final fits are missing." in clone.study.with_suffix(".md").read_text()
    page = clone.page()
    shutil.rmtree(clone.root)
    assert clone.call("report", "--publish", root=tmp_path / "reader") == 0
    assert clone.page() == page

    new = tmp_path / "new"
    assert clone.call("plan", root=new) == 0
    assert "in all   8 fits; there already: 6, 6 of them committed" in capsys.readouterr().out
    made: list[str] = []

    def note(cell: Cell) -> str:
        made.append(f"{cell.arm} {cell.role}")
        return ""

    run = run_study(monkeypatch, new, clone.prices, fault=note, committed=clone.committed(whole.plan))
    assert made == [f"{whole.plan.arms[1].name} final"] * 2
    assert f"6 committed fits restored, and {BASELINES} of baselines" in run.said
    assert (run.outcome.finished, run.outcome.total) == (FITS, FITS)
    assert tables(run.folder.path) == tables(whole.folder.path)
    # Published by what has both, and then as it was for the one that had it all.
    assert clone.call("report", "--publish", root=new) == 0
    assert clone.page() == whole.clone.page()


def test_one_command_on_a_fresh_clone_rebuilds_tables_page_and_figures_to_the_byte(
    whole: Whole, fresh: Clone
) -> None:
    page = fresh.page()
    assert len(page) > 5
    assert fresh.call("report") == 0
    folder = fresh.root / "tiny" / whole.folder.label
    assert tables(folder) == tables(whole.folder.path)
    for name in ("report.md", "report.html"):
        assert (folder / name).read_bytes() == (whole.folder.path / name).read_bytes()
    before = {path.name: path.read_bytes() for path in fresh.place.iterdir()}
    assert fresh.call("report", "--publish") == 0
    assert fresh.page() == page
    assert {path.name: path.read_bytes() for path in fresh.place.iterdir()} == before


@pytest.mark.slow
def test_figures_are_drawn_to_the_byte_from_committed_fits(
    whole: Whole, fresh: Clone, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.undo()
    from fints.study.canvas import write_figure

    monkeypatch.setattr(figures, "write_figure", write_figure)
    root = tmp_path / "whole"
    shutil.copytree(whole.clone.root, root)
    assert fresh.call("report", "--publish", root=root) == 0
    drawn = fresh.page()
    assert all(content for content in drawn.values())
    assert fresh.call("report", "--publish") == 0
    assert fresh.page() == drawn


def test_a_fit_comes_back_as_it_was_written_whatever_it_wrote(whole: Whole, tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    plan, folder = whole.plan, StudyFolder(tmp_path / "made", "tiny", whole.folder.label)
    final = [cell for cell in Kept(plan, whole.folder).cells() if cell.role == "final"]
    written = {}
    for number, cell in enumerate(final):
        source = whole.folder.fit(cell.key)
        frame = pl.read_parquet(source / "forecasts.parquet")
        # Doubles, not single precision in some unit; missing ones; zeros of both signs; tiny ones.
        forecast = rng.standard_normal(len(frame)) * 10.0 ** rng.integers(-300, 300, len(frame))
        forecast[:3] = 0.0, -0.0, 5e-324
        frame = frame.with_columns(pl.Series("forecast", forecast).replace(forecast[3], None))
        if number == 0:
            frame = frame.clear()
        elif number == 1:
            law = {"degrees": rng.random(len(frame)) + 3, "log_scale": rng.standard_normal(len(frame))}
            frame = frame.with_columns(**{name: pl.Series(value) for name, value in law.items()})
        made = tmp_path / "growing" / cell.key
        shutil.copytree(source, made, ignore=shutil.ignore_patterns("files.json"))
        frame.write_parquet(made / "forecasts.parquet")
        if number == 2:
            pl.DataFrame({"layer": [0, 1], "nothing": [None, None], "kind": ["a", None]}).write_parquet(
                made / "profile.parquet"
            )
        folder.fits.mkdir(parents=True, exist_ok=True)
        finish_folder(made, folder.fit(cell.key))
        written[cell.key] = frame
    place = tmp_path / "place"
    cells = [(cell, plan.design(cell)) for cell in final]
    assert publish_fits(place, spec=plan.spec(), cells=cells, fits=folder.fits) == len(final)
    again = StudyFolder(tmp_path / "again", "tiny", whole.folder.label)
    kept = Kept(plan, again, read_committed(place, checksum=plan.dataset.checksum))
    assert [cell.key for cell in kept.restore(final)] == list(written)
    for key, frame in written.items():
        back = pl.read_parquet(again.fit(key) / "forecasts.parquet")
        assert_frame_equal(back, frame, check_exact=True)
        signs = (np.signbit(one["forecast"].to_numpy()) for one in (back, frame))
        assert np.array_equal(*signs)
        for name in ("result.json", "metrics.json", "history.parquet", "profile.parquet", "mixing.parquet"):
            assert (again.fit(key) / name).read_bytes() == (folder.fit(key) / name).read_bytes(), name
        assert not (again.fit(key) / "forecaster").exists()
        assert "host" not in (again.fit(key) / "timing.json").read_text()


@pytest.mark.parametrize("weights", ["with", "without"])
def test_forecasts_of_a_network_are_kept_in_single_precision_and_come_back_in_double(
    whole: Whole, tmp_path: Path, weights: str
) -> None:
    plan = whole.plan
    fits = tmp_path / "fits"
    left_out = shutil.ignore_patterns("forecaster") if weights == "without" else None
    shutil.copytree(whole.folder.fits, fits, ignore=left_out)
    cells = [(cell, plan.design(cell)) for cell in Kept(plan, whole.folder).cells() if cell.role == "final"]
    place = tmp_path / "place"
    publish_fits(place, spec=plan.spec(), cells=cells, fits=fits, unit=units_on(plan.dataset.panel))
    stored = pl.read_parquet(place / "forecasts.parquet")
    assert "forecast" not in stored.columns
    assert stored.schema["scaled"] == pl.Float32
    assert stored["scaled"].null_count() == 0
    units = pl.read_parquet(place / "fits.parquet").group_by("fold").agg(pl.col("unit").n_unique())
    assert units["unit"].to_list() == [1, 1]
    # Outcomes are the same for both arms of a fold, and stand there once.
    outcomes = pl.read_parquet(place / "outcomes.parquet")
    assert 2 * len(outcomes) == len(stored)


def test_fits_of_other_sources_count_by_their_design_and_the_report_says_whose_they_are(
    whole: Whole, fresh: Clone, run_study: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fints.study.plan.sources_hash", lambda **_: "0123456789abcdef")
    monkeypatch.setattr("fints.study.plan.torch_version", lambda: "9.9.9")
    run = run_study(
        monkeypatch,
        fresh.root,
        fresh.prices,
        fault=lambda cell: "nothing may be fitted",
        committed=fresh.committed(whole.plan),
    )
    assert run.plan.sources != whole.plan.sources
    assert run.outcome.failures == []
    here, there = (pl.read_parquet(one.path / "fits.parquet") for one in (run.folder, whole.folder))
    assert not set(here["key"]) & set(there["key"])
    assert here.drop("key").equals(there.drop("key"))
    same = {name: content for name, content in tables(whole.folder.path).items() if name != "fits"}
    assert same.items() <= tables(run.folder.path).items()
    text = run.report()
    torch = fresh.committed(whole.plan).spec["torch"]
    assert f"count as done: 8 fits by sources `{whole.plan.sources}`, torch {torch}, cpu." in text
    # Published again they are still what they were.
    assert fresh.call("report", "--publish") == 0
    made = pl.read_parquet(fresh.place / "fits.parquet").filter(pl.col("role") != "baseline")
    assert set(made["key"]) == set(there["key"])
    assert made["sources"].unique().to_list() == [whole.plan.sources]


def test_a_final_fit_counts_that_could_not_be_known_before_its_arm_was_tuned(
    whole: Whole, fresh: Clone, run_study: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    committed = fresh.committed(whole.plan)
    tuning = next(design for design, row in committed.fits.items() if row["role"] == "tuning")
    less = dataclasses.replace(
        committed, fits={design: row for design, row in committed.fits.items() if design != tuning}
    )
    made: list[str] = []

    def note(cell: Cell) -> str:
        made.append(whole.plan.design(cell))
        return ""

    run = run_study(monkeypatch, fresh.root, fresh.prices, fault=note, committed=less)
    assert made == [tuning]
    assert tables(run.folder.path) == tables(whole.folder.path)


def test_anew_counts_no_committed_fit_nor_one_that_was_restored(
    whole: Whole, fresh: Clone, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fresh.call("report") == 0
    capsys.readouterr()
    assert fresh.call("plan", "--json") == 0
    told = json.loads(capsys.readouterr().out)["fits"]
    assert (told["kept"], told["committed"]) == (FITS, FITS)
    assert fresh.call("plan", "--json", "--anew") == 0
    told = json.loads(capsys.readouterr().out)["fits"]
    assert (told["kept"], told["committed"]) == (0, 0)
    folder = StudyFolder(fresh.root, "tiny", whole.folder.label)
    assert drop_restored(folder) == FITS + BASELINES
    assert list(folder.fits.iterdir()) == []
    assert fresh.call("report", "--anew", root=whole.clone.root) == 0


def test_the_command_that_goes_on_with_a_run_counts_no_committed_fit_where_the_run_did_not() -> None:
    typed = argparse.Namespace(preset="smoke", data=None, set=[], anew=True, models=True)
    assert resume_command(Path("tiny.py").resolve(), typed) == "python tiny.py run --preset smoke --anew"
    # What the results tell is the command that gives them, whoever made them.
    assert run_command(Path("tiny.py").resolve(), typed) == "python tiny.py run --preset smoke"


def test_tuning_fits_are_published_before_there_is_a_page(
    whole: Whole, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = half(whole, tmp_path / "root")
    for cell in Kept(whole.plan, folder).cells():
        if cell.role == "final":
            shutil.rmtree(folder.fit(cell.key))
    clone = Clone(Path(shutil.copy(whole.clone.study, tmp_path)), whole.clone.prices, tmp_path / "root")
    assert clone.call("report") == 2
    assert "no final fit is finished" in capsys.readouterr().err
    assert clone.call("report", "--publish") == 0
    assert pl.read_parquet(clone.place / "fits.parquet")["role"].value_counts().sort("role").rows() == [
        ("baseline", BASELINES),
        ("tuning", 4),
    ]
    assert not clone.study.with_suffix(".md").exists()
    kept = Kept(whole.plan, StudyFolder(tmp_path / "x", "tiny", "y"), clone.committed(whole.plan))
    assert len(kept.cells()) == BASELINES + 4


def test_fits_are_published_where_no_page_can_be_made_of_them(
    whole: Whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: Any) -> None:
        raise ValueError("no page")

    monkeypatch.setattr("fints.study.report.write_report", refuse)
    clone = Clone(Path(shutil.copy(whole.clone.study, tmp_path)), whole.clone.prices, whole.clone.root)
    assert clone.call("report", "--publish") == 2
    assert len(clone.committed(whole.plan).fits) == FITS + BASELINES
    assert not clone.study.with_suffix(".md").exists()


def test_fits_that_come_later_leave_the_rows_before_them_as_they_are(whole: Whole, tmp_path: Path) -> None:
    plan, place = whole.plan, tmp_path / "place"
    cells = [(cell, plan.design(cell)) for cell in Kept(plan, whole.folder).cells()]
    first = cells[::-2]
    publish_fits(place, spec=plan.spec(), cells=first, fits=whole.folder.fits)
    before = {path.stem: pl.read_parquet(path) for path in place.glob("*.parquet")}
    committed = read_committed(place, checksum=plan.dataset.checksum)
    publish_fits(place, spec=plan.spec(), cells=cells, fits=whole.folder.fits, before=committed)
    assert len(committed.fits) == len(first)
    for name, frame in before.items():
        after = pl.read_parquet(place / f"{name}.parquet")
        assert_frame_equal(after.head(len(frame)).select(frame.columns), frame)
    assert len(pl.read_parquet(place / "fits.parquet")) == len(cells)


def test_a_restored_fit_makes_room_for_the_one_that_was_committed_since(whole: Whole, fresh: Clone) -> None:
    plan = whole.plan
    folder = StudyFolder(fresh.root, "tiny", whole.folder.label)
    old = fresh.committed(plan)
    design, row = next((design, row) for design, row in old.fits.items() if row["role"] == "tuning")
    other = {**row, "key": "f" * 16, "result": json.dumps(json.loads(row["result"]) | {"steps": 7})}
    new = dataclasses.replace(old, fits={**old.fits, design: other})
    cell = next(cell for cell in Kept(plan, folder, old).cells() if plan.design(cell) == design)
    assert Kept(plan, folder, old).restore([cell]) == [cell]
    assert Kept(plan, folder, old).restore([cell]) == []
    # Its tables are those of the old key, which a new one would bring along.
    made = dataclasses.replace(new, fits={design: {**other, "schemas": "{}"}})
    assert Kept(plan, folder, made).restore([cell]) == [cell]
    assert json.loads((folder.fit(cell.key) / "result.json").read_text())["steps"] == 7
    # One that was made here stays.
    shutil.rmtree(folder.fit(cell.key))
    shutil.copytree(whole.folder.fit(cell.key), folder.fit(cell.key))
    assert Kept(plan, folder, made).restore([cell]) == []


def test_what_cannot_be_used_is_refused_in_one_line_and_anew_does_without(
    whole: Whole, fresh: Clone, capsys: pytest.CaptureFixture[str]
) -> None:
    told = json.loads((fresh.place / "study.json").read_text())

    def truncated() -> None:
        path = fresh.place / "forecasts.parquet"
        path.write_bytes(path.read_bytes()[:-40])

    def damaged() -> None:
        path = fresh.place / "fits.parquet"
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)

    def spoilt() -> None:
        (fresh.place / "study.json").write_text("{")

    faults: list[tuple[Callable[[], object], str]] = [
        (truncated, "forecasts.parquet is not as it was published"),
        (damaged, "fits.parquet is not as it was published"),
        ((fresh.place / "outcomes.parquet").unlink, "outcomes.parquet is missing"),
        (spoilt, "study.json cannot be read"),
        (lambda: _tell(fresh, told | {"format": 2}), "published by a newer fints (format 2, here 1)"),
        (
            lambda: _tell(fresh, told | {"spec": told["spec"] | {"checksum": "0" * 16}}),
            f"must be of the panel that is here (checksum {whole.plan.dataset.checksum})",
        ),
    ]
    whole_place = whole.clone.place
    for fault, words in faults:
        shutil.rmtree(fresh.place)
        shutil.copytree(whole_place, fresh.study.parent / "published" / "tiny" / whole.folder.label)
        fault()
        for verb in ("plan", "report", "run"):
            assert fresh.call(verb) == 2
            said = capsys.readouterr().err
            assert words in said
            assert said.count("\n") == 1
            assert "--anew" in said
        assert fresh.call("plan", "--anew") == 0
        capsys.readouterr()
    assert not (fresh.root / "tiny").exists()


def _tell(clone: Clone, told: dict[str, Any]) -> None:
    write_json(clone.place / "study.json", told)


def test_an_arm_whose_weights_were_not_committed_has_no_model_and_says_how_to_get_one(
    whole: Whole, fresh: Clone
) -> None:
    assert fresh.call("report") == 0
    plan, folder = whole.plan, StudyFolder(fresh.root, "tiny", whole.folder.label)
    rows = pl.read_parquet(folder.path / "fits.parquet").filter(role="final").to_dicts()
    made = LoggedModels("tiny", Choice(arm=plan.arms[0].name, reason="lowest loss"))
    for arm in plan.arms:
        with pytest.raises(ValueError, match="run --anew makes its fits here, with them") as refused:
            arm_forecaster(plan, folder, arm, [row for row in rows if row["arm"] == arm.name])
        made.without[arm.name] = str(refused.value)
    (line,) = made.lines()
    assert line.startswith("models   none of 2 arms: its weights are not committed: run --anew")


def test_fits_that_have_read_sealed_dates_need_the_record_of_it(
    whole: Whole, fresh: Clone, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sealed = dataclasses.replace(TINY, opens_seal=True, presets=TINY.presets)
    monkeypatch.setitem(globals(), "TINY", sealed)
    folder = StudyFolder(fresh.root, "tiny", whole.folder.label)
    for verb in ("plan", "report", "run"):
        assert fresh.call(verb) == 2
        assert "have read sealed dates" in capsys.readouterr().err
    assert not folder.path.exists()
    record = record_of(fresh.study, "smoke")
    record.parent.mkdir(parents=True)
    told = {"design": "d", "commit": "abc", "opened": "2026-01-02T03:04:05+00:00", "results": None}
    record.write_text(json.dumps(told))
    assert fresh.call("report") == 0
    assert (folder.path / RECORD).is_file()
    assert "first on 2026-01-02T03:04:05+00:00, at commit" in (folder.path / "report.md").read_text()
    # No other design may read them again, whatever is committed.
    assert fresh.call("run") == 2


@pytest.mark.slow
@pytest.mark.filterwarnings("default:The ``noload`` loader strategy is deprecated")
def test_a_run_of_a_fresh_clone_fits_nothing_records_all_and_logs_no_model(
    whole: Whole,
    fresh: Clone,
    run_study: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    mlflow_tables: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from mlflow import MlflowClient

    run_study.work_here(monkeypatch, lambda cell: "nothing may be fitted")
    fresh.root.mkdir()
    shutil.copy(mlflow_tables, fresh.root / "mlflow.db")
    assert fresh.call("run", "--workers", "1") == 0
    said = capsys.readouterr().out
    assert "8 committed fits restored, and 8 of baselines" in said
    assert "models   none of 2 arms: its weights are not committed" in said
    assert tables(fresh.root / "tiny" / whole.folder.label) == tables(whole.folder.path)
    client = MlflowClient(tracking_uri=f"sqlite:///{fresh.root / 'mlflow.db'}")
    (experiment,) = client.search_experiments(filter_string="name LIKE 'tiny/%'")
    runs = client.search_runs([experiment.experiment_id])
    children = [run for run in runs if "fints.key" in run.data.tags]
    assert len(children) == FITS
    assert {run.data.tags["fints.made_by_sources"] for run in children} == {whole.plan.sources}
    # And with --anew nothing counts: every fit would be made here.
    assert fresh.call("run", "--workers", "1", "--anew") == 1
    assert "nothing may be fitted" in capsys.readouterr().out


@pytest.mark.slow
def test_committed_fits_are_handed_to_the_machines_that_share_a_study(
    whole: Whole,
    fresh: Clone,
    run_study: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    run = run_study(
        monkeypatch,
        fresh.root,
        fresh.prices,
        fault=lambda cell: "nothing may be fitted",
        storage=f"sqlite:///{tmp_path / 'shared.db'}",
        committed=fresh.committed(whole.plan),
    )
    assert run.outcome.failures == []
    assert run.outcome.finished == FITS
    assert tables(run.folder.path) == tables(whole.folder.path)
    assert origin_of(run.final_fit()) is not None
    assert (run.final_fit() / ORIGIN).is_file()

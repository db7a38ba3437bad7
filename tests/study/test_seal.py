"""Sealed dates are read once: when is written down, and a second reading is refused."""

from __future__ import annotations

import dataclasses
import datetime as dt
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from fints.data import simulate
from fints.study import cli, store_checks
from fints.study.plan import Plan
from fints.study.seal import break_seal, record_of, seal_results, sealed_note


@dataclasses.dataclass
class Ran:
    """A plan, and a folder with the tables of its run."""

    plan: Plan
    folder: Path


@pytest.fixture(scope="module")
def once(run_study: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Ran:
    root = tmp_path_factory.mktemp("seal")
    simulate(num_assets=4, num_days=160, seed=3).panel.frame.write_parquet(root / "prices.parquet")
    with pytest.MonkeyPatch.context() as patch:
        run = run_study(patch, root / "results", root / "prices.parquet")
    return Ran(run.plan, run.folder.path)


@pytest.fixture
def ran(once: Ran, tmp_path: Path) -> Ran:
    whole = shutil.ignore_patterns("fits", "logs", "*.db")
    return Ran(once.plan, Path(shutil.copytree(once.folder, tmp_path / "folder", ignore=whole)))


def sealed(plan: Plan, **changes: Any) -> Plan:
    study = dataclasses.replace(plan.study, opens_seal=True, presets=plan.study.presets)
    return dataclasses.replace(plan, study=study, **changes)


def opened(plan: Plan, beside: Path, folder: Path, commit: str | None = "abc", changed: bool = False) -> None:
    break_seal(plan, beside, folder, commit=commit, changed=changed)


def test_the_first_run_writes_down_when_it_was_and_an_interrupted_one_goes_on(
    ran: Ran, tmp_path: Path
) -> None:
    plan, beside = sealed(ran.plan), tmp_path / "why.py"
    before = dt.datetime.now(dt.UTC).replace(microsecond=0)
    opened(plan, beside, ran.folder)
    record = record_of(beside, plan.preset)
    first = record.read_text()
    told = sealed_note(ran.folder)["opened"]
    assert before <= dt.datetime.fromisoformat(told["opened"]) <= dt.datetime.now(dt.UTC)
    assert told["commit"] == "abc"
    # Later, at a commit that changed no number and no word of the study.
    opened(plan, beside, ran.folder, commit="def")
    assert record.read_text() == first


def test_another_study_or_other_code_may_not_read_them_again(ran: Ran, tmp_path: Path) -> None:
    plan, beside = sealed(ran.plan), tmp_path / "why.py"
    opened(plan, beside, ran.folder)
    for other in (
        sealed(ran.plan, docstring="Other words."),
        sealed(ran.plan, sources="0123456789abcdef"),
        sealed(ran.plan, folds=ran.plan.folds[:1]),
    ):
        with pytest.raises(ValueError, match=r"were read on .* by commit abc"):
            opened(other, beside, ran.folder)


def test_only_a_study_as_declared_and_committed_reads_them(ran: Ran, tmp_path: Path) -> None:
    plan, beside = sealed(ran.plan), tmp_path / "why.py"
    with pytest.raises(ValueError, match="leave out --set and --data"):
        opened(plan, beside, ran.folder, changed=True)
    with pytest.raises(ValueError, match="run it from a clone"):
        opened(plan, beside, ran.folder, commit=None)
    assert not record_of(beside, plan.preset).exists()


def test_the_results_are_held_and_others_are_refused(ran: Ran, tmp_path: Path) -> None:
    plan, beside, folder = sealed(ran.plan), tmp_path / "why.py", ran.folder
    opened(plan, beside, folder)
    record, table = record_of(beside, plan.preset), folder / "forecasts.parquet"
    fits, forecasts = pl.read_parquet(folder / "fits.parquet"), pl.read_parquet(table)
    # Half of the fits are no result yet.
    fits.filter(pl.col("fold") == 0).write_parquet(folder / "fits.parquet")
    seal_results(plan, beside, folder)
    assert '"results": null' in record.read_text()
    fits.write_parquet(folder / "fits.parquet")
    seal_results(plan, beside, folder)
    held = record.read_text()
    assert '"results": null' not in held
    # The same forecasts written by another release of a library are the same.
    forecasts.sample(fraction=1.0, shuffle=True, seed=1).write_parquet(table, compression="snappy")
    seal_results(plan, beside, folder)
    assert record.read_text() == held
    opened(plan, beside, folder)
    forecasts.with_columns(pl.col("forecast") * (1 + 1e-12)).write_parquet(table)
    with pytest.raises(ValueError, match="are not those that"):
        seal_results(plan, beside, folder)


def test_a_record_that_cannot_be_read_is_not_taken_for_a_seal_that_is_whole(ran: Ran, tmp_path: Path) -> None:
    plan, beside = sealed(ran.plan), tmp_path / "why.py"
    opened(plan, beside, ran.folder)
    record = record_of(beside, plan.preset)
    for text in ("", "{}", "[1]"):
        record.write_text(text)
        with pytest.raises(ValueError, match="restore it"):
            opened(plan, beside, ran.folder)


def test_a_study_that_opens_no_seal_leaves_no_record(ran: Ran, tmp_path: Path) -> None:
    beside = tmp_path / "why.py"
    opened(ran.plan, beside, ran.folder, commit=None, changed=True)
    seal_results(ran.plan, beside, ran.folder)
    assert not record_of(beside, ran.plan.preset).parent.exists()
    assert sealed_note(ran.folder) == {}


def test_the_report_says_when_the_seal_was_broken(ran: Ran, tmp_path: Path) -> None:
    plan = sealed(ran.plan)
    opened(plan, tmp_path / "why.py", ran.folder)
    from fints.study.analysis import analyse
    from fints.study.assemble import table_spec
    from fints.study.report import write_report

    note = sealed_note(ran.folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fints.study.report.draw", lambda analysis, folder: [])
        page = write_report(analyse(table_spec(ran.folder) | note, ran.folder), ran.folder)
    text = page.with_suffix(".md").read_text()
    assert f"has read sealed dates, as no other one may: first on {note['opened']['opened']}" in text


def test_a_run_asks_for_the_seal_before_it_fits_anything(
    once: Ran, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    study = dataclasses.replace(once.plan.study, opens_seal=True)
    path = tmp_path / "why.py"
    path.write_text('"""Ask why."""\n')
    for home, name, value in (
        (store_checks, "check_stores", lambda folder, arguments: False),
        (cli, "commit_of_claims", lambda study, path, preset: "abc"),
    ):
        monkeypatch.setattr(home, name, value)
    words = ["run", "--preset", once.plan.preset, "--data", once.plan.dataset.reference]
    with pytest.raises(SystemExit) as ended:
        cli.main(study, [*words, "--root", str(tmp_path / "root")], file=path)
    assert ended.value.code == 2
    assert "reads sealed dates, so it runs as declared" in capsys.readouterr().err
    assert not (tmp_path / "root").exists()

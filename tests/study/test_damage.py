"""A finished fit that was damaged since is made again, and nothing of it is deleted."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fints.data import simulate
from fints.study import fits, runner, scale
from fints.study.rerun import find_job
from fints.study.store import DamagedFit, digest

FILES = ("forecasts.parquet", "profile.parquet", "result.json", "timing.json", "metrics.json")
# Of a forecaster that was kept only the manifest knows.
WEIGHTS = "forecaster/weights.safetensors"


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory, run_study: Callable[..., Any]) -> Any:
    base = tmp_path_factory.mktemp("damage")
    panel = base / "prices.parquet"
    simulate(num_assets=3, num_days=160, seed=3).panel.frame.write_parquet(panel)
    with pytest.MonkeyPatch.context() as patch:
        return run_study(patch, base, panel)


@pytest.fixture(scope="module")
def shared(done: Any, tmp_path_factory: pytest.TempPathFactory) -> Callable[[pytest.MonkeyPatch], Any]:
    """Run the same study on a shared store that has all its fits, in a fresh folder."""
    base = tmp_path_factory.mktemp("shared")
    panel = Path(done.plan.dataset.reference)

    def run(patch: pytest.MonkeyPatch) -> Any:
        root = base / str(len(list(base.iterdir())))
        return type(done)(patch, root, panel, storage=f"sqlite:///{base / 'shared.db'}")

    with pytest.MonkeyPatch.context() as patch:
        run(patch)
    return run


def again(run: Any, patch: pytest.MonkeyPatch) -> Any:
    return type(run)(patch, run.folder.root, Path(run.plan.dataset.reference))


@pytest.mark.parametrize("name", [*FILES, WEIGHTS])
def test_a_fit_lacking_a_file_is_set_aside_and_made_again(
    done: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    fit, report, before = done.final_fit(), done.report(), set(done.folder.fits.iterdir())
    (fit / name).unlink()
    second = again(done, monkeypatch)
    assert f"damaged: fits/{fit.name}: {name} is missing; set aside, to be fitted again" in second.said
    assert second.said.count("damaged") == 1
    (aside,) = set(done.folder.fits.iterdir()) - before
    assert aside.name.startswith(f"{fit.name}.damaged-")
    assert (fit / name).is_file()
    assert second.report() == report


@pytest.mark.parametrize(("name", "manifest"), [*itertools.product(FILES, (True, False)), (WEIGHTS, True)])
def test_a_torn_file_is_found_with_and_without_a_manifest(done: Any, name: str, manifest: bool) -> None:
    fit = done.final_fit()
    path = fit / name
    kept = {entry: entry.read_bytes() for entry in fit.rglob("*") if entry.is_file()}
    assert fit.name in done.folder.whole()
    path.write_bytes(kept[path][:-3])
    if not manifest:
        (fit / "files.json").unlink()
    try:
        assert fit.name not in done.folder.whole()
    finally:
        for entry, content in kept.items():
            entry.write_bytes(content)
    assert fit.name in done.folder.whole()


def test_a_fit_from_before_manifests_counts_as_it_is(done: Any) -> None:
    manifests = [path / "files.json" for path in done.folder.fits.iterdir()]
    kept = {path: path.read_bytes() for path in manifests if path.is_file()}
    whole = done.folder.whole()
    for path in kept:
        path.unlink()
    try:
        assert done.folder.whole() == whole
    finally:
        for path, content in kept.items():
            path.write_bytes(content)


def test_a_second_run_of_whole_fits_sets_nothing_aside(done: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    second = again(done, monkeypatch)
    assert "damaged" not in second.said
    assert second.outcome.finished == second.outcome.total


def torn(run: Any, role: str, name: str) -> Path:
    """Cut a file of a finished fit in half, as a disk that fills or fails would."""
    found = (path for path in sorted(run.fits.iterdir()) if ".damaged-" not in path.name)
    fit = next(path for path in found if f'"role": "{role}"' in (path / "result.json").read_text())
    content = (fit / name).read_bytes()
    (fit / name).write_bytes(content[: len(content) // 2])
    return fit


@pytest.mark.parametrize(
    ("role", "name"),
    [
        ("final", "forecasts.parquet"),
        ("final", "profile.parquet"),
        ("final", "metrics.json"),
        ("baseline", "forecasts.parquet"),
        ("tuning", "result.json"),
    ],
)
def test_a_fit_damaged_while_the_driver_waits_for_others_is_fetched_again(
    done: Any, shared: Any, monkeypatch: pytest.MonkeyPatch, role: str, name: str
) -> None:
    monkeypatch.setattr(scale, "_wait_for_others", lambda part, company: torn(part.folder, role, name))
    run = shared(monkeypatch)
    assert f"{name} has changed; set aside, fetched from the storage" in run.said
    for table in sorted(done.folder.path.glob("*.parquet")):
        if table.name != "timing.parquet":
            assert digest(run.folder.path / table.name) == digest(table), table.name


def test_a_fit_damaged_before_the_tables_are_written_is_named_and_made_again_by_the_next_run(
    done: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = done.report()
    with monkeypatch.context() as patch:
        real, hit = runner.assemble, []

        def assemble(folder: Path, *more: Any) -> None:
            hit.append(torn(done.folder, "final", "forecasts.parquet"))
            real(folder, *more)

        patch.setattr(runner, "assemble", assemble)
        with pytest.raises(DamagedFit) as caught:
            again(done, patch)
    assert str(hit[0]) in str(caught.value)
    assert "forecasts.parquet has changed: run again, which sets it aside" in str(caught.value)
    second = again(done, monkeypatch)
    assert second.said.count("damaged") == 1
    assert second.report() == report


def test_a_fit_whose_checkpoint_was_damaged_begins_anew_and_ends_in_the_same_bytes(
    done: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(fits, "CHECKPOINT_FROM_SECONDS", 0.0)
    fit = done.final_fit()
    cell, _ = find_job(done.plan, fit.name)
    checkpoint = tmp_path / "checkpoints" / f"{cell.key}.pt"
    for folder in (checkpoint.parent, tmp_path / "fits"):
        folder.mkdir()
    checkpoint.write_bytes(b"PK half of it")
    places = {"tmp": tmp_path / "tmp", "fits": tmp_path / "fits", "checkpoints": checkpoint.parent}
    made = fits.run_cell(cell, done.plan.dataset.panel, **places)
    assert f"{cell} begins anew: checkpoint {checkpoint} cannot be read" in capsys.readouterr().err
    assert not any(checkpoint.parent.iterdir())
    for name in ("forecasts.parquet", "history.parquet", WEIGHTS):
        assert (made / name).read_bytes() == (fit / name).read_bytes(), name

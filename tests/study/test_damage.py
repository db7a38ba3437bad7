"""A finished fit that was damaged since is made again, and nothing of it is deleted."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fints.data import simulate

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

"""Studies on panels that choose combinations of levels, tune nothing, and repeat seeds."""

from __future__ import annotations

import io
import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from rich.console import Console

from fints.config import DataConfig, Experiment, ModelConfig, TrainingConfig
from fints.study import panel_runner
from fints.study.panel_cells import Days, PanelFit
from fints.study.panel_design import PanelPreset, PanelStudy, PanelTuning
from fints.study.panel_fits import run_panel_fit
from fints.study.panel_plan import PanelPlan, make_panel_plan
from fints.study.panel_runner import collect, run_panels
from fints.study.panel_store import Fits, committed, publish_fits
from fints.study.progress import Report
from fints.study.store import StudyFolder

LEVELS = {"residual": ("pre_norm", "post_norm"), "case": ("calm", "loud"), "depth": ("1", "2")}


def study(**changes: Any) -> PanelStudy:
    values: dict[str, Any] = {
        "title": "Does anything happen?",
        "base": Experiment(
            data=DataConfig(features=("a", "b"), target="log_return", context=4),
            model=ModelConfig(width=8, num_heads=2),
            training=TrainingConfig(
                batch_size=8, steps=2, warmup_steps=1, evaluate_every=2, keep="last", device="cpu"
            ),
        ),
        "simulation": {"num_assets": 2, "signal": "linear"},
        "days": Days(train=20, validation=8, test=8),
        "factors": {
            "residual": {name: {"model.residual": name} for name in LEVELS["residual"]},
            "case": {"calm": {"simulation.noise": "gaussian"}, "loud": {"simulation.noise": "garch"}},
            "depth": {depth: {"model.depth": int(depth)} for depth in LEVELS["depth"]},
        },
        "tuning": PanelTuning(space={}, panels=()),
        "panels": (100, 101),
        "watched": False,
        "presets": {"quick": PanelPreset()},
        "answer": "stability",
    }
    return PanelStudy(**values | changes)


def plan(**size: Any) -> PanelPlan:
    asked = size.pop("asked", {})
    made = study(presets={"quick": PanelPreset(**size)}, asked=asked)
    return make_panel_plan(made, name="tiny", docstring="Ask nothing.", preset="quick")


def test_the_arms_are_those_within_a_grid_each_once() -> None:
    grids = ({"residual": ("pre_norm",), "case": ("loud",)}, {"case": ("loud",), "depth": ("1",)})
    found = [tuple(arm.levels.values()) for arm in plan(grids=grids).arms]
    wanted = [
        (residual, case, depth)
        for residual, case, depth in itertools.product(*LEVELS.values())
        if case == "loud" and (residual == "pre_norm" or depth == "1")
    ]
    assert found == wanted
    # Levels that no grid has are none of the study at this size.
    assert list(plan(grids=grids).study.factors["case"]) == ["loud"]
    assert len(plan().arms) == 8


@pytest.mark.parametrize(
    ("size", "told"),
    [
        ({"grids": ({"case": ("quiet",)},)}, r"preset 'quick': factor 'case' has no level 'quiet'"),
        ({"grids": ({"cases": ("calm",)},)}, r"preset 'quick': unknown factor 'cases'"),
        ({"seeds": 0}, r"seeds must be at least 1; got 0"),
        (
            {"tuning": PanelTuning(space={"training.learning_rate": (1e-3, 1e-2)}, panels=())},
            r"several design points need tuning panels to choose by",
        ),
        ({"asked": {"scaled_features": ("c",)}}, r"must name features of the experiment"),
    ],
)
def test_what_cannot_be_fitted_is_refused_where_it_is_declared(size: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        plan(**size)


def test_a_further_seed_is_another_fit_and_leaves_the_first_as_it_was() -> None:
    one, three = plan(), plan(seeds=3)
    cells = [made.final_cells(made.arms[0], {}) for made in (one, three)]
    assert [cell.panel for cell in cells[1]] == [100, 100, 100, 101, 101, 101]
    assert cells[1][::3] == cells[0]
    assert len({cell.seed for cell in cells[1]}) == len({cell.key for cell in cells[1]}) == 6
    assert len({cell.design for cell in cells[1]}) == 6
    assert three.num_fits()["final"] == 3 * one.num_fits()["final"]


def test_what_a_fit_is_asked_belongs_to_its_design_and_nothing_asked_changes_nothing() -> None:
    plain, asked = plan(), plan(asked={"blocks": 2})
    one, other = (made.final_cells(made.arms[0], {})[0] for made in (plain, asked))
    assert other.asked == {"blocks": 2}
    assert one.design != other.design
    assert plan(asked={}).final_cells(plain.arms[0], {})[0] == one


@pytest.mark.slow
def test_a_study_that_tunes_nothing_goes_to_its_final_fits_and_is_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fitted: list[PanelFit] = []

    class Inline:
        """Stands in for the pool: one worker in this process."""

        def __init__(self, num_workers: int, start: dict[str, Any], logs: Path, *, module: str) -> None:
            self.busy: dict[int, Any] = {}
            self._folder = Path(start["folder"])

        def idle(self) -> list[int]:
            return [] if self.busy else [0]

        def send(self, slot: int, cell: PanelFit, claim: Any) -> None:
            self.busy[slot] = cell

        def next_event(self) -> tuple[int, dict[str, Any]]:
            cell = self.busy[0]
            fitted.append(cell)
            run_panel_fit(cell, tmp=self._folder / "tmp", fits=self._folder / "fits")
            return 0, {"event": "done", "key": cell.key}

        def stop(self) -> None:
            return None

    monkeypatch.setattr(panel_runner, "Pool", Inline)
    made = plan(
        grids=({"case": ("loud",), "depth": ("1",)},), seeds=2, asked={"blocks": 2, "volatility": 0.5}
    )
    folder = StudyFolder(tmp_path, made.name, made.label)
    with Report(Console(file=io.StringIO()), total=8, work=1.0, workers=1) as report:
        outcome = run_panels(made, folder, report, workers=1, known={})
    assert (outcome.failures, outcome.finished) == ([], 8)
    assert {cell.role for cell in fitted} == {"final"}
    found = collect(made, folder, {})
    assert (found.missing, found.table.height, found.rows.height) == (0, 8, 0)
    table = found.of(made.arms[0].name)
    assert table["seed"].n_unique() == 4
    # Further seeds have other weights and batches on the same panel.
    assert table["test_excess"].n_unique() == 4
    assert table["worst_block_share"].null_count() == table["calm_share"].null_count() == 0
    beside = tmp_path / "studies" / "tiny.py"
    publish_fits(found, beside, "quick", spec=made.spec())
    known = committed(beside, "quick")
    assert len(known) == 8
    with Report(Console(file=io.StringIO()), total=8, work=1.0, workers=1) as report:
        run_panels(
            replace(made), StudyFolder(tmp_path / "new", "tiny", "quick"), report, workers=1, known=known
        )
    assert len(fitted) == 8


@pytest.mark.parametrize(
    ("name", "content", "wanted"),
    [
        ("fits.parquet", b"junk", "fits.parquet is not as it was published"),
        ("rows.parquet", None, "rows.parquet is missing"),
        ("study.json", None, "study.json is missing"),
        ("study.json", b"[1, ", "study.json cannot be read"),
        ("study.json", b'{"format": 9, "files": {}, "spec": {}}', "published by a newer fints"),
    ],
)
def test_committed_fits_that_are_not_what_was_published_are_refused(
    name: str, content: bytes | None, wanted: str, tmp_path: Path
) -> None:
    beside, made = tmp_path / "tiny.py", plan()
    cell = made.final_cells(made.arms[0], {})[0]
    row = {name: getattr(cell, name) for name in ("key", "design", "arm", "role", "panel", "seed")}
    rows = {"key": pl.String, "step": pl.Int64, "layer": pl.Int64, "measure": pl.String, "value": pl.Float64}
    found = Fits(table=pl.DataFrame([row | {"point": "{}"}]), rows=pl.DataFrame(schema=rows), missing=0)
    place = publish_fits(found, beside, "quick", spec=made.spec())
    assert list(committed(beside, "quick")) == [cell.design]
    if content is None:
        (place / name).unlink()
    else:
        (place / name).write_bytes(content)
    with pytest.raises(ValueError, match=wanted):
        committed(beside, "quick")

"""A study on panels whose fits are made several at once is the study, whatever disturbs it."""

from __future__ import annotations

import io
import json
import runpy
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fints.config import Experiment, override
from fints.study import panel_fits, panel_runner
from fints.study.grouping import grouping_lines, jobs_of, why_alone
from fints.study.panel_cells import PanelFit
from fints.study.panel_plan import PanelPlan, make_panel_plan
from fints.study.panel_runner import run_panels
from fints.study.progress import Report
from fints.study.store import StudyFolder

TINY = runpy.run_path(str(Path(__file__).parent / "test_panel_study.py"))
FOUR = {"training.vectorise": 4}


class Inline:
    """Stands in for the pool: one worker in this process."""

    jobs: list[PanelFit] = []  # noqa: RUF012

    def __init__(self, num_workers: int, start: dict[str, Any], logs: Path, *, module: str) -> None:
        self.busy: dict[int, Any] = {}
        self._folder = Path(start["folder"])

    def idle(self) -> list[int]:
        return [] if self.busy else [0]

    def send(self, slot: int, job: PanelFit, claim: Any) -> None:
        self.busy[slot] = PanelFit(**json.loads(json.dumps(job.to_dict())))

    def next_event(self) -> tuple[int, dict[str, Any]]:
        job = self.busy[0]
        self.jobs.append(job)
        panel_fits.run_panel_job(job, tmp=self._folder / "tmp", fits=self._folder / "fits")
        return 0, {"event": "done", "key": job.key}

    def stop(self) -> None:
        return None


@pytest.fixture
def plan() -> Any:
    def make(changes: dict[str, Any] | None = None) -> PanelPlan:
        study = TINY["study"](panels=(100, 101, 102))
        return make_panel_plan(
            study, name="tiny", docstring="Ask nothing.", preset="quick", changes=changes or {}
        )

    return make


def run(made: PanelPlan, root: Path) -> StudyFolder:
    folder = StudyFolder(root, made.name, made.label)
    total = sum(made.num_fits().values())
    with Report(Console(file=io.StringIO()), total=total, work=1.0, workers=1) as report:
        outcome = run_panels(made, folder, report, workers=1, known={})
    assert (outcome.failures, outcome.finished) == ([], total)
    return folder


def told(folder: StudyFolder) -> dict[tuple[Any, ...], dict[str, Any]]:
    found = {}
    for path in folder.fits.glob("*/result.json"):
        result = json.loads(path.read_text())
        rows = path.with_name("rows.json")
        result["rows"] = json.loads(rows.read_text()) if rows.is_file() else []
        found[(result["arm"], result["role"], result["panel"], str(result["point"]))] = result
    return found


def assert_same(together: StudyFolder, alone: StudyFolder) -> None:
    expected = told(alone)
    assert told(together).keys() == expected.keys()
    for name, result in told(together).items():
        other = expected[name]
        assert result["outcome"] == other["outcome"]
        assert len(result["rows"]) == len(other["rows"])
        for one, same in zip(result["rows"], other["rows"], strict=True):
            assert (one["step"], one["layer"], one["measure"]) == (
                same["step"],
                same["layer"],
                same["measure"],
            )
        for measure, value in other.items():
            if isinstance(value, float):
                assert result[measure] == pytest.approx(value, rel=1e-4, abs=1e-6), measure


def of_fits(folder: StudyFolder) -> dict[str, bytes]:
    return {
        f"{path.parent.name}/{path.name}": path.read_bytes()
        for path in sorted(folder.fits.glob("*/*"))
        if path.name not in ("timing.json", "files.json")
    }


@pytest.mark.slow
def test_fits_on_panels_that_are_made_at_once_are_those_made_alone_and_survive_a_kill(
    plan: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(panel_runner, "Pool", Inline)
    Inline.jobs = []
    together = run(plan(FOUR), tmp_path / "together")
    # Of each arm one job tunes at both rates, and one makes the fits of all three panels.
    assert [len(job.cells()) for job in Inline.jobs] == [2] * 4 + [3] * 4
    alone = run(plan(), tmp_path / "alone")

    assert_same(together, alone)

    written: list[str] = []
    usual = panel_fits.finish_folder

    def dying(fresh: Path, final: Path) -> None:
        if len(written) == 10:
            raise KeyboardInterrupt
        usual(fresh, final)
        written.append(final.name)

    monkeypatch.setattr(panel_fits, "finish_folder", dying)
    with pytest.raises(KeyboardInterrupt):
        run(plan(FOUR), tmp_path / "killed")
    monkeypatch.setattr(panel_fits, "finish_folder", usual)
    killed = run(plan(FOUR), tmp_path / "killed")
    assert of_fits(killed) == of_fits(together)


@pytest.mark.slow
def test_fits_with_an_intervention_that_are_made_at_once_are_those_made_alone(
    plan: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(panel_runner, "Pool", Inline)
    Inline.jobs = []
    relieved = {"training.interventions": {"decorrelation_placebo": {"dose": 0.3}}}
    together = run(plan({**FOUR, **relieved}), tmp_path / "together")
    assert max(len(job.cells()) for job in Inline.jobs) == 3
    assert_same(together, run(plan(relieved), tmp_path / "alone"))


def test_arms_whose_interventions_change_a_pass_are_made_one_by_one(plan: Any) -> None:
    made = plan({**FOUR, "training.interventions": {"token_pull": {"dose": 0.5}}})
    cells = made.tuning_cells(made.arms[0])
    assert [job.members for job in jobs_of(cells)] == [()] * len(cells)
    assert "token_pull" in (why_alone(made.arms[0].experiment) or "")


def test_a_plan_says_what_is_made_at_once_and_why_the_rest_is_not(plan: Any) -> None:
    def lines(changes: dict[str, Any]) -> list[str]:
        return grouping_lines({arm.name: arm.experiment for arm in plan(changes).arms})

    assert lines({}) == []
    assert lines(FOUR) == ["at once  up to 4 fits of an arm, as one network with stacked parameters"]
    relieved = {**FOUR, "training.interventions": {"gradient_equaliser": {"dose": 1.0}}}
    assert lines(relieved) == lines(FOUR)
    told = lines({**FOUR, "training.interventions": {"token_pull": {"dose": 0.5}}})
    assert told[1].startswith("         but 4 arms one by one: token_pull changes the pass of a network")
    several = [
        override(Experiment(), {"training.vectorise": 4, **changes})
        for changes in (
            {"training.interventions": {"token_pull": {"dose": 0.5}}},
            {
                "model.residual": "dynamic_hyper_connections",
                "training.interventions": {"decorrelation": {"dose": 0.5}},
            },
        )
    ]
    told = grouping_lines({str(number): one for number, one in enumerate(several)})
    assert ["token_pull" in line or "decorrelation" in line for line in told[1:]] == [True, True]

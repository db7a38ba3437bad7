"""A study on simulated panels: declared, planned, run, resumed, committed and reported."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from rich.console import Console

from fints.config import DataConfig, Experiment, ModelConfig, TrainingConfig, override
from fints.study import cause_report, panel_cli, panel_report, panel_runner
from fints.study.checkout import declared_before, declared_in
from fints.study.document import to_markdown
from fints.study.panel_cells import Days, PanelFit
from fints.study.panel_design import Answer, PanelArm, PanelPreset, PanelStudy, PanelTuning, Yoked
from fints.study.panel_fits import run_panel_job
from fints.study.panel_plan import PanelPlan, make_panel_plan
from fints.study.panel_report import write_panel_report
from fints.study.panel_runner import collect, run_panels
from fints.study.panel_store import Fits, committed, publish_fits
from fints.study.progress import Report
from fints.study.rerun import find_job
from fints.study.store import StudyFolder

FACTORS: dict[str, Any] = {
    "residual": {"post_norm": {"model.residual": "post_norm"}},
    "tier": {"r2_20": {"simulation.r2": 0.2}},
    "depth": {"1": {"model.depth": 1}, "2": {"model.depth": 2}},
    "relief": {"none": {}, "dropout": {"model.dropout": 0.2}},
}


COMMANDS = {"run": "python tiny.py run", "report": "python tiny.py report"}


def study(**changes: Any) -> PanelStudy:
    values: dict[str, Any] = {
        "title": "Does anything happen?",
        "base": Experiment(
            data=DataConfig(features=("a", "b"), target="log_return", context=6),
            model=ModelConfig(width=8, num_heads=2),
            training=TrainingConfig(
                batch_size=16,
                steps=4,
                warmup_steps=1,
                evaluate_every=4,
                profile_every=2,
                keep="last",
                device="cpu",
            ),
        ),
        "simulation": {"num_assets": 3, "signal": "linear"},
        "days": Days(train=30, validation=10, test=10),
        "factors": FACTORS,
        "tuning": PanelTuning(space={"training.learning_rate": (1e-3, 1e-2)}, panels=(90,)),
        "panels": (100, 101),
        "presets": {
            "smoke": PanelPreset(levels={"relief": ("none",)}, panels=(100,), claim="none"),
            "quick": PanelPreset(),
        },
        "answer": "causes",
        "settings": {
            "reference": "1",
            "deep": "2",
            "causes": {"noise": "dropout"},
            "placebos": {},
            "smallest": {"r2_20": 0.01},
            "pilot_spread": {"r2_20": 0.01},
        },
    }
    return PanelStudy(**values | changes)


def plan(preset: str = "quick", **changes: Any) -> PanelPlan:
    return make_panel_plan(study(**changes), name="tiny", docstring="Ask nothing.", preset=preset)


class Inline:
    """Stands in for the pool: one worker in this process; the first try of a key in `fails` fails."""

    fails: set[str] = set()  # noqa: RUF012
    fitted: list[PanelFit] = []  # noqa: RUF012

    def __init__(self, num_workers: int, start: dict[str, Any], logs: Path, *, module: str) -> None:
        assert module == "fints.study.panel_worker"
        self.busy: dict[int, Any] = {}
        self._folder = Path(start["folder"])

    def idle(self) -> list[int]:
        return [] if self.busy else [0]

    def send(self, slot: int, cell: PanelFit, claim: Any) -> None:
        self.busy[slot] = PanelFit(**json.loads(json.dumps(cell.to_dict())))

    def next_event(self) -> tuple[int, dict[str, Any]]:
        cell = self.busy[0]
        if cell.key in self.fails:
            self.fails.discard(cell.key)
            return 0, {"event": "failed", "key": cell.key, "error": "a fault"}
        self.fitted.append(cell)
        run_panel_job(cell, tmp=self._folder / "tmp", fits=self._folder / "fits")
        return 0, {"event": "done", "key": cell.key}

    def stop(self) -> None:
        return None


@pytest.fixture
def inline(monkeypatch: pytest.MonkeyPatch) -> type[Inline]:
    monkeypatch.setattr(panel_runner, "Pool", Inline)
    Inline.fails, Inline.fitted = set(), []
    return Inline


def run(made: PanelPlan, root: Path, known: dict[str, Any] | None = None) -> tuple[Any, StudyFolder]:
    folder = StudyFolder(root, made.name, made.label)
    console = Console(file=io.StringIO())
    with Report(console, total=sum(made.num_fits().values()), work=1.0, workers=1) as report:
        return run_panels(made, folder, report, workers=1, known=known or {}), folder


@pytest.mark.slow
def test_an_arm_is_tuned_before_it_is_judged_and_a_fault_is_tried_again(
    inline: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cause_report, "draw_causes", lambda study, fits, cells, folder: [])
    made = plan()
    Inline.fails = {made.tuning_cells(made.arms[0])[0].key}
    outcome, folder = run(made, tmp_path)
    assert (outcome.failures, outcome.finished) == ([], 16)
    roles = [cell.role for cell in inline.fitted]
    assert roles == ["tuning"] * 8 + ["final"] * 8
    # A panel is finished by all arms before the next begins.
    assert [cell.panel for cell in inline.fitted[8:]] == [100] * 4 + [101] * 4
    found = collect(made, folder, {})
    assert found.missing == 0
    for arm in made.arms:
        tuning = found.of(arm.name, role="tuning")
        best = tuning.sort("validation_loss", maintain_order=True)["point"][0]
        assert found.of(arm.name)["point"].to_list() == [best] * 2
    # What is there is not fitted again.
    inline.fitted.clear()
    assert run(made, tmp_path)[0].finished == 16
    assert inline.fitted == []

    published = tmp_path / "studies" / "tiny.py"
    publish_fits(found, published, "quick", spec=made.spec())
    known = committed(published, "quick")
    outcome, elsewhere = run(made, tmp_path / "elsewhere", known)
    assert (outcome.finished, inline.fitted) == (16, [])
    pages = []
    for place, given in ((folder, {}), (elsewhere, known)):
        again = collect(made, place, given)
        page, sentence = write_panel_report(
            made, again, place.path, declared=None, commands={"run": "r", "report": "p"}
        )
        assert "no verdict, 2 panels of at least 8" in sentence
        assert "## What is still open" in (place.path / "report.md").read_text(encoding="utf-8")
        assert page.is_file()
        pages.append((place.path / "report.md").read_text(encoding="utf-8"))
        assert again.table.drop("seconds").sort("key").equals(found.table.drop("seconds").sort("key"))
    assert pages[0] == pages[1]
    assert "this run states no question beforehand" in pages[0]
    assert f"16 fits with sources `{made.sources}`." in pages[0]
    # Fits that other code made count too, and the page says so.
    mixed = collect(made, folder, {})
    other = mixed.table.with_columns(
        sources=pl.when(pl.col("panel") == 101).then(pl.lit("older")).otherwise("sources")
    )
    write_panel_report(made, replace(mixed, table=other), folder.path, declared=None, commands=COMMANDS)
    assert "They are not all of one code" in (folder.path / "report.md").read_text(encoding="utf-8")


def test_what_is_open_is_told_with_the_panels_that_decide_it_and_the_command_that_has_them() -> None:
    larger = panel_report.Larger(panels=10, fits=90, command="python tiny.py run --preset full")
    answer = Answer(sentence="", blocks=[], tables={}, undecided={"near": 8, "far": 9, "never": None})
    told = to_markdown(panel_report._still_open(plan(), answer, larger))
    assert "- near: about 8 more." in told
    assert "- never: no number of panels decides it, at these estimates." in told
    # Two panels are there: 8 more are ten, as many as the larger size has.
    assert "in 90 fits; 1 of 3 would be decided by so many alone" in told
    assert larger.command in told
    decided = panel_report._still_open(plan(), replace(answer, undecided={}), larger)
    assert "No verdict of this size is left undecided." in to_markdown(decided)


YOKED = Yoked(factor="relief", plain="none", levels=("dropout",))


@pytest.mark.slow
def test_a_plain_arm_is_fitted_too_where_an_arm_yoked_to_it_chose_another_point(
    inline: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = plan(yoked=YOKED)
    first, second = made.study.tuning.points()

    def choose(self: PanelPlan, arm: PanelArm, losses: Any) -> dict[str, Any]:
        return second if arm.levels["depth"] == "2" and arm.levels["relief"] == "dropout" else first

    monkeypatch.setattr(PanelPlan, "choose", choose)
    outcome, folder = run(made, tmp_path)
    assert (outcome.failures, outcome.finished) == ([], 16 + 2)
    yoked = [cell for cell in inline.fitted if cell.role == "yoked"]
    assert [(cell.arm, cell.point, cell.panel, cell.watched) for cell in yoked] == [
        ("post_norm-r2_20-depth_2-none", second, panel, True) for panel in (100, 101)
    ]
    # They come panel by panel with the final ones, and stand beside those, not among them.
    assert [cell.panel for cell in inline.fitted[8:]] == [100] * 5 + [101] * 5
    found = collect(made, folder, {})
    assert found.missing == 0
    arm = "post_norm-r2_20-depth_2-none"
    assert found.of(arm, role="yoked")["point"].to_list() == [json.dumps(second)] * 2
    assert found.of(arm)["point"].to_list() == [json.dumps(first)] * 2
    assert find_job(made, yoked[1].key)[0].key == yoked[1].key
    inline.fitted.clear()
    assert run(made, tmp_path)[0].finished == 18
    publish_fits(found, tmp_path / "studies" / "tiny.py", "quick", spec=made.spec())
    known = committed(tmp_path / "studies" / "tiny.py", "quick")
    assert run(made, tmp_path / "elsewhere", known)[0].finished == 18
    assert inline.fitted == []


def test_a_plain_arm_is_fitted_once_for_all_that_chose_the_same_point_and_not_at_its_own() -> None:
    factors = FACTORS | {"relief": {**FACTORS["relief"], "more": {"model.dropout": 0.4}}}
    made = plan(yoked=replace(YOKED, levels=("dropout", "more")), factors=factors)
    first, second = made.study.tuning.points()
    one, other = "post_norm-r2_20-depth_1", "post_norm-r2_20-depth_2"
    chosen = {f"{one}-none": first, f"{one}-dropout": second, f"{one}-more": second}
    (cells,) = made.yoked_cells(chosen)
    assert {(cell.arm, cell.role) for cell in cells} == {(f"{one}-none", "yoked")}
    assert made.yoked_cells({**chosen, f"{one}-dropout": first, f"{one}-more": first}) == []
    # Of a pair that is not whole yet nothing is known.
    assert made.yoked_cells({f"{other}-dropout": second}) == []
    assert plan().yoked_cells({f"{one}-none": first, f"{one}-dropout": second}) == []
    assert len(made.most_yoked()) == 4
    assert any(line.startswith("yoked    at most 4 fits more") for line in panel_cli._yoked_lines(made, 2))
    assert panel_cli._yoked_lines(plan(), 2) == []
    told = to_markdown(panel_report._design(made))
    assert "where an arm at relief dropout, more chose another design point than that with none" in told
    assert "Yoked" not in to_markdown(panel_report._design(plan()))


@pytest.mark.parametrize("wrong", [{"factor": "cure"}, {"plain": "nothing"}, {"levels": ("none",)}])
def test_what_is_yoked_must_be_levels_of_one_factor(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="yoked must name a factor, one of its levels, and others"):
        study(yoked=replace(YOKED, **wrong))


@pytest.mark.slow
def test_a_worker_fits_what_it_is_told_and_ends_with_its_input(tmp_path: Path) -> None:
    made = plan("smoke")
    folder = StudyFolder(tmp_path, made.name, made.label)
    first, second = made.tuning_cells(made.arms[0])
    broken = replace(second, experiment={"model": {"width": -1}})
    lines = [{"folder": str(folder.path), "slot": 0}, first.to_dict(), broken.to_dict()]
    with folder.held():
        words = [sys.executable, "-m", "fints.study.panel_worker"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        with subprocess.Popen(words, text=True, **pipes) as worker:
            assert worker.stdin is not None
            assert worker.stdout is not None
            worker.stdin.write("".join(json.dumps(line) + "\n" for line in lines))
            worker.stdin.flush()
            told = [json.loads(worker.stdout.readline()) for _ in range(3)]
            # Its input ends, as it does when its parent dies.
            worker.stdin.close()
            assert worker.wait(timeout=300) == 0
    assert [event["event"] for event in told] == ["ready", "done", "failed"]
    assert "model.width = -1 cannot be used" in told[2]["error"]
    assert folder.finished(first.key)


@pytest.mark.slow
def test_a_fit_that_fails_for_good_leaves_the_rest(inline: Any, tmp_path: Path, monkeypatch: Any) -> None:
    made = plan("smoke")
    lost = made.tuning_cells(made.arms[0])[1]
    monkeypatch.setattr(Inline, "fails", type("All", (set,), {"discard": lambda self, key: None})({lost.key}))
    outcome, folder = run(made, tmp_path)
    assert outcome.failures == [f"{lost}: a fault"]
    found = collect(made, folder, {})
    # The arm that was not tuned has no final fit; the other has all.
    assert (found.missing, found.table.filter(pl.col("role") == "final").height) == (2, 1)


def test_a_key_tells_design_and_code_and_a_design_is_that_of_another_name() -> None:
    first = plan().tuning_cells(plan().arms[0])
    assert len({cell.key for arm in plan().arms for cell in plan().tuning_cells(arm)}) == 8
    renamed = {**FACTORS, "relief": {"plain": {}, "dropout": {"model.dropout": 0.2}}}
    settings = {**study().settings}
    other = plan(factors=renamed, settings=settings, presets={"quick": PanelPreset()})
    assert [cell.design for cell in other.tuning_cells(other.arms[0])] == [cell.design for cell in first]
    for change in (
        {"days": Days(train=31, validation=10, test=10)},
        {"simulation": {"num_assets": 4, "signal": "linear"}},
        {"tuning": PanelTuning(space={"training.learning_rate": (1e-3, 1e-2)}, panels=(91,))},
    ):
        changed = plan(**change)
        assert changed.tuning_cells(changed.arms[0])[0].design != first[0].design


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"panels": (90, 91)}, r"panels \[90\] are tuning panels too"),
        ({"panels": (100, 100)}, "panels must be distinct"),
        ({"answer": "nothing"}, "answer = 'nothing' is unknown"),
        ({"factors": {**FACTORS, "relief": {"none": {}, "other": {}}}}, "are the same; change a level"),
        (
            {"factors": {**FACTORS, "relief": {"none": {}, "other": {"model.depth": 3}}}},
            "and by another factor",
        ),
        ({"presets": {"quick": PanelPreset(levels={"depth": ("3",)})}}, "factor 'depth' has no level '3'"),
        ({"presets": {"quick": PanelPreset(changes={"model.wide": 3})}}, "unknown field model.wide"),
    ],
)
def test_what_cannot_be_run_is_refused_where_it_is_declared(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        study(**changes)


@pytest.fixture
def changed_question(tmp_path: Path) -> tuple[Path, list[str]]:
    """A study's file of three commits, a day each, and their names, the first one first."""
    path = tmp_path / "ask.py"

    def git(*words: str, day: str = "") -> str:
        name = ("-c", "user.name=n", "-c", "user.email=e@e")
        dates = {"GIT_AUTHOR_DATE": day, "GIT_COMMITTER_DATE": day} if day else {}
        told = subprocess.run(
            ["git", *name, *words],
            cwd=tmp_path,
            check=True,
            capture_output=True,
            text=True,
            env={**os.environ, **dates},
        )
        return told.stdout

    git("init", "-q")
    for number, text in enumerate(('"""Ask A."""\n', '"""Ask B."""\n', '"""Ask B."""\nx = 1\n')):
        path.write_text(text, encoding="utf-8")
        git("add", "ask.py")
        git("commit", "-q", "-m", str(number), day=f"2026-01-0{number + 1}T00:00:00+00:00")
    return path, git("log", "--reverse", "--format=%h", "--", "ask.py").split()


def test_a_question_changed_after_the_first_commit_is_as_old_as_its_change(
    changed_question: tuple[Path, list[str]],
) -> None:
    path, commits = changed_question
    since = declared_in(path, "Ask B.")
    assert since is not None
    assert since[0] == commits[1]
    assert declared_in(path, "Ask A.") is None


def test_the_question_that_fits_were_made_under_is_the_last_before_the_first_of_them(
    changed_question: tuple[Path, list[str]],
) -> None:
    path, commits = changed_question
    found = declared_before(path, "2026-01-01T12:00:00+00:00")
    assert found is not None
    assert (found[0], found[2]) == (commits[0], "Ask A.")
    later = declared_before(path, "2026-01-03T12:00:00+00:00")
    assert later is not None
    assert (later[0], later[2]) == (commits[2], "Ask B.")
    assert declared_before(path, "2025-12-31T12:00:00+00:00") is None


@pytest.mark.parametrize("first", ["2026-01-01T12:00:00+00:00", "2026-01-02T12:00:00+00:00"])
def test_a_report_shows_the_question_that_its_fits_were_made_under(first: str) -> None:
    fits = Fits(table=pl.DataFrame({"started": [None, first]}), rows=pl.DataFrame(), missing=0)
    declared, before = (
        ("bbb", "2026-01-02T00:00:00+00:00"),
        ("aaa", "2026-01-01T00:00:00+00:00", "T\n\nAsk A."),
    )
    made = replace(plan(), docstring="T\n\nAsk B.")
    told = to_markdown(panel_report._declared(made, fits, declared, before))
    if first < declared[1]:
        assert "Ask A." in told
        assert "Ask B." not in told
        assert "commit `aaa`" in told
        assert "The file now has another text, since commit `bbb`" in told
        edited = to_markdown(panel_report._declared(made, fits, None, before))
        assert "Ask A." in edited
        assert "another text, which no commit holds" in edited
        again = to_markdown(
            panel_report._declared(replace(made, docstring=before[2]), fits, declared, before)
        )
        assert "had another one in between" in again
        bare = to_markdown(panel_report._declared(made, fits, declared, None))
        assert "the text was changed after it" in bare
    else:
        assert "Ask B." in told
        assert "unchanged since commit `bbb`" in told


def test_a_plan_knows_what_looking_for_the_best_weights_costs() -> None:
    def seconds(**training: Any) -> float:
        base = override(study().base, {f"training.{name}": value for name, value in training.items()})
        plan = make_panel_plan(study(base=base), name="tiny", docstring="", preset="quick")
        return plan.final_cells(plan.arms[0], {})[0].seconds

    last = seconds(keep="last")
    assert seconds(keep="last", evaluate_every=1) == last
    twice, once = (seconds(keep="best", evaluate_every=every) - last for every in (2, 4))
    assert twice == pytest.approx(2 * once)
    assert once > 0


def test_a_report_says_under_which_levels_the_best_weights_are_judged() -> None:
    kept = {"none": {}, "best_weights": {"training.keep": "best"}}
    settings = study().settings | {"causes": {"noise": "best_weights"}}
    told = to_markdown(panel_report._design(plan(factors={**FACTORS, "relief": kept}, settings=settings)))
    assert "the last weights kept, and under best_weights those of the best validation loss." in told
    everywhere = plan(base=override(study().base, {"training.keep": "best"}))
    assert "the weights of the best validation loss kept." in to_markdown(panel_report._design(everywhere))
    assert "the last weights kept." in to_markdown(panel_report._design(plan()))

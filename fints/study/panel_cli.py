"""The verbs of a panel study's file: ``python studies/NAME.py plan | run | report``.

Exit codes: 0 done, 1 fits failed, 2 wrong use, 130 Ctrl-C, 143 SIGTERM.
"""

from __future__ import annotations

import argparse
import shlex
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from fints.study.addresses import one_line, without_secrets
from fints.study.checkout import commit_of, commit_of_claims, declared_before, declared_in, why_no_commit
from fints.study.claims import CLAIM_WORDS, FULL
from fints.study.command_line import (
    answer,
    changes_of,
    docstring_of,
    file_of,
    made_again,
    make_console,
    require,
    usable_cores,
)
from fints.study.commands import shown
from fints.study.grouping import grouping_lines
from fints.study.options import panel_parser
from fints.study.panel_design import PanelStudy
from fints.words import counted, json_text

if TYPE_CHECKING:
    from fints.study.panel_plan import PanelPlan
    from fints.study.panel_report import Larger
    from fints.study.panel_store import Fits
    from fints.study.store import StudyFolder
    from fints.study.tracking import Tracker

__all__ = ["main"]


def main(study: PanelStudy, argv: Sequence[str] | None = None, *, file: str | Path | None = None) -> NoReturn:
    """Read the command line, do what it says, and exit.

    Parameters
    ----------
    study : PanelStudy
        Declared by the calling file, which names and documents it.
    argv : sequence of str, optional
        Arguments; those of the process if not given.
    file : path, optional
        The study's file; that of the caller if not given.
    """
    caller = sys._getframe(1).f_globals

    def verb() -> int:
        require(study, PanelStudy, "panel_main")
        path = file_of(caller, file)
        docstring = docstring_of(path)
        arguments = panel_parser(path, study).parse_args(argv)
        return _VERBS[arguments.verb](study, path, docstring, arguments)

    answer(verb, stopped="stopped; what is finished is kept, the same command goes on.")


def _plan(study: PanelStudy, path: Path, docstring: str, arguments: argparse.Namespace) -> int:
    plan, folder, known = _resolve(study, path, docstring, arguments)
    workers, commit = arguments.workers or usable_cores(), commit_of(path)
    standing = _standing(plan, folder, known)
    if arguments.as_json:
        from fints.study.as_json import panel_plan_told

        kept, seconds = standing
        told = panel_plan_told(plan, folder, kept=kept, seconds=seconds, workers=workers, commit=commit)
        print(json_text(told))
        return 0
    for line in _plan_lines(plan, folder, standing, commit or why_no_commit(path), workers):
        make_console().print(line, highlight=False, markup=False, soft_wrap=True)
    return 0


def _run(study: PanelStudy, path: Path, docstring: str, arguments: argparse.Namespace) -> int:
    from fints.study.grid import grid_of_panels
    from fints.study.overview import mlflow_lines
    from fints.study.panel_contents import PanelFits
    from fints.study.panel_runner import run_panels
    from fints.study.progress import Report
    from fints.study.store_checks import check_stores, note_tracker
    from fints.study.tracking import Tracker

    signal.signal(signal.SIGTERM, _terminated)
    plan, folder, known = _resolve(study, path, docstring, arguments)
    console = make_console()
    commit = commit_of_claims(study, path, plan.preset)
    if commit is None:
        console.print(f"{why_no_commit(path)}: the results will name no commit", highlight=False)
    if check_stores(folder, arguments):
        note_tracker(folder, arguments)
    workers = arguments.workers or usable_cores()
    total = sum(plan.num_fits().values())
    console.print(f"{plan.name}, preset {plan.preset}: {counted(total, 'fit')}, results in", highlight=False)
    console.print(str(folder.path), highlight=False, soft_wrap=True)
    grid = None if arguments.plain else grid_of_panels(plan)
    tracker = Tracker(
        spec := plan.spec(),
        root=folder.root,
        label=folder.label,
        uri=arguments.tracking_uri,
        commit=commit,
        command=_command(path, arguments, "run"),
        contents=PanelFits(spec),
    )
    with Report(console, total=total, work=plan.seconds(), workers=workers, grid=grid) as report:
        outcome = run_panels(
            plan,
            folder,
            report,
            workers=workers,
            known=known,
            commit=commit,
            command=_command(path, arguments, "run"),
            tracker=tracker,
        )
    for failure in outcome.failures:
        console.print(f"failed for good: {failure}", highlight=False, markup=False)
    page, _, sentence = _written(study, plan, folder, known, path, docstring, arguments)
    console.print(f"\n{sentence}", highlight=False, markup=False)
    console.print(f"report: {page}", highlight=False, soft_wrap=True)
    untracked = outcome.untracked or _log_answer(folder, tracker, sentence, arguments)
    address = arguments.tracking_uri and without_secrets(arguments.tracking_uri)
    lines = ["", *mlflow_lines(folder.root, outcome.link, tracking_uri=address)]
    if untracked:
        lines = [f"tracking failed ({untracked}): MLflow is behind. The same command completes it."]
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    return 1 if outcome.failures or untracked else 0


def _log_answer(folder: StudyFolder, tracker: Tracker, sentence: str, arguments: argparse.Namespace) -> str:
    """Put finding, figures and report into MLflow; return why that failed, which costs no report."""
    from fints.study.figure_log import log_answer

    try:
        with folder.held():
            log_answer(folder.path, tracker, sentence)
    except Exception as error:  # of MLflow, its drivers and the network, which share no base
        return one_line(error, arguments.tracking_uri)
    return ""


def _report(study: PanelStudy, path: Path, docstring: str, arguments: argparse.Namespace) -> int:
    from fints.study.panel_store import publish_fits
    from fints.study.publish import publish

    plan, folder, known = _resolve(study, path, docstring, arguments)
    if arguments.publish and plan.changes:
        raise ValueError("only a study as declared is published; leave out --set.")
    page, found, sentence = _written(study, plan, folder, known, path, docstring, arguments)
    lines, published = [f"report: {page}"], dict[str, Any]()
    if arguments.publish:
        published = {
            "published": str(publish(folder.path, path, preset=plan.preset)),
            "published_fits": str(publish_fits(found, path, plan.preset, spec=plan.spec())),
        }
        lines.append(f"to commit: {published['published']} and {published['published_fits']}")
    if arguments.as_json:
        from fints.study.as_json import panel_report_told

        print(json_text(panel_report_told(plan, page, sentence, missing=found.missing) | published))
        return 0
    for line in lines:
        make_console().print(line, highlight=False, markup=False, soft_wrap=True)
    return 0


def _rerun(study: PanelStudy, path: Path, docstring: str, arguments: argparse.Namespace) -> int:
    plan, folder, _ = _resolve(study, path, docstring, arguments)
    return made_again(plan, folder, arguments)


_VERBS = {"plan": _plan, "run": _run, "report": _report, "rerun": _rerun}


def _resolve(
    study: PanelStudy, path: Path, docstring: str, arguments: argparse.Namespace
) -> tuple[PanelPlan, StudyFolder, dict[str, dict[str, Any]]]:
    from fints.study.panel_plan import make_panel_plan
    from fints.study.panel_store import committed
    from fints.study.publish import root_of_runs
    from fints.study.store import StudyFolder

    plan = make_panel_plan(
        study,
        name=path.stem,
        docstring=docstring,
        preset=arguments.preset,
        changes=changes_of(arguments.set),
    )
    root = root_of_runs(arguments.root, path)
    folder = StudyFolder(root, plan.name, plan.label)
    known = {} if getattr(arguments, "anew", False) else committed(path, plan.preset)
    return plan, folder, known


def _written(
    study: PanelStudy,
    plan: PanelPlan,
    folder: StudyFolder,
    known: dict[str, dict[str, Any]],
    path: Path,
    docstring: str,
    arguments: argparse.Namespace,
) -> tuple[Path, Fits, str]:
    from fints.study.panel_report import first_started, write_panel_report
    from fints.study.panel_runner import collect

    found = collect(plan, folder, known)
    commands = {verb: _command(path, arguments, verb) for verb in ("run", "report")}
    first = first_started(found)
    page, sentence = write_panel_report(
        plan,
        found,
        folder.path,
        declared=declared_in(path, docstring),
        before=None if first is None else declared_before(path, first),
        commands=commands,
        larger=_larger(study, plan, path, docstring),
    )
    return page, found, sentence


def _larger(study: PanelStudy, plan: PanelPlan, path: Path, docstring: str) -> Larger | None:
    from fints.study.panel_plan import make_panel_plan
    from fints.study.panel_report import Larger

    if plan.preset == FULL or FULL not in study.presets:
        return None
    full = make_panel_plan(study, name=path.stem, docstring=docstring, preset=FULL)
    return Larger(
        panels=len(full.study.panels),
        fits=sum(full.num_fits().values()),
        command=f"python {shown(path)} run --preset {FULL}",
    )


def _standing(plan: PanelPlan, folder: StudyFolder, known: dict[str, dict[str, Any]]) -> tuple[int, float]:
    """Return how many fits are there, and how many seconds of one worker the others take."""
    done, kept, left = folder.whole(), 0, 0.0
    for arm in plan.arms:
        # Which point an arm is fitted at is known after its tuning; its fits cost the same at each.
        points = plan.study.tuning.points()[: None if done or known else 1]
        final = max(
            (plan.final_cells(arm, point) for point in points),
            key=lambda cells: sum(cell.key in done or cell.design in known for cell in cells),
        )
        for cell in (*plan.tuning_cells(arm), *final):
            there = cell.key in done or cell.design in known
            kept += there
            left += 0.0 if there else cell.seconds
    return kept, left


def _plan_lines(
    plan: PanelPlan, folder: StudyFolder, standing: tuple[int, float], commit: str, workers: int
) -> list[str]:
    from fints.study.estimates import duration, parameters

    study, fits = plan.study, plan.num_fits()
    width = max(len(arm.name) for arm in plan.arms)
    lines = [
        f"{plan.name}: {study.title}",
        f"preset {plan.preset} {CLAIM_WORDS[study.presets[plan.preset].claim]}",
        "",
        f"{'arm':{width}} {'parameters':>10} {'time a fit':>10}",
    ]
    kept, left = standing
    sizes: dict[str, int] = {}
    for arm in plan.arms:
        seconds = plan.final_cells(arm, study.tuning.points()[0])[0].seconds
        shape = str(arm.experiment.model)
        sizes[shape] = sizes[shape] if shape in sizes else parameters(arm.experiment)
        lines.append(f"{arm.name:{width}} {sizes[shape]:>10,} {duration(seconds):>10}")
    number, panels = len(study.tuning.points()), len(study.tuning.panels)
    arms = counted(len(plan.arms), "arm")
    tuned = f"{arms} x {counted(number, 'point')} x {counted(panels, 'panel')} = "
    tuned += f"{counted(fits['tuning'], 'fit')}, by validation loss"
    seeds = f" x {counted(study.seeds, 'seed')}" if study.seeds > 1 else ""
    return [
        *lines,
        "",
        f"tuning   {tuned if panels else 'none'}",
        f"final    {arms} x {counted(len(study.panels), 'panel')}{seeds} = {counted(fits['final'], 'fit')}",
        *_yoked_lines(plan, workers),
        f"in all   {counted(sum(fits.values()), 'fit')}; there already: {kept}",
        *grouping_lines({arm.name: arm.experiment for arm in plan.arms}),
        f"time     about {duration(left / workers)} with {counted(workers, 'worker')} (a rough estimate)",
        f"commit   {commit}",
        "folder",
        f"  {folder.path}",
        *study.power(),
    ]


def _yoked_lines(plan: PanelPlan, workers: int) -> list[str]:
    from fints.study.estimates import duration

    most = plan.most_yoked()
    if plan.study.yoked is None or not most:
        return []
    time = duration(sum(cell.seconds for cell in most) / workers)
    return [
        f"yoked    at most {counted(len(most), 'fit')} more ({time} more): {plan.study.yoked.factor} "
        f"{plan.study.yoked.plain} at points that others chose",
    ]


def _command(path: Path, arguments: argparse.Namespace, verb: str) -> str:
    words = ["python", shown(path), verb, "--preset", arguments.preset]
    for entry in arguments.set:
        words += ["--set", entry]
    return shlex.join(words + ["--anew"] * arguments.anew)


def _terminated(number: int, frame: FrameType | None) -> NoReturn:
    # Workers are ended on the way out, as at Ctrl-C.
    raise SystemExit(128 + number)

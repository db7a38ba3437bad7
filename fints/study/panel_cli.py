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

from fints.study.checkout import commit_of, declared_in, refuse_uncommitted
from fints.study.claims import CLAIM_WORDS
from fints.study.command_line import (
    OneLineParser,
    answer,
    changes_of,
    docstring_of,
    make_console,
    usable_cores,
    workers_of,
)
from fints.study.commands import shown
from fints.study.panel_design import PanelStudy
from fints.words import counted

if TYPE_CHECKING:
    from fints.study.panel_plan import PanelPlan
    from fints.study.panel_store import Fits
    from fints.study.store import StudyFolder

__all__ = ["main"]

DEFAULT_PRESET = "quick"


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
        path = Path(file or caller["__file__"]).resolve()
        docstring = docstring_of(path)
        arguments = _parser(path, study).parse_args(argv)
        return _VERBS[arguments.verb](study, path, docstring, arguments)

    answer(verb, stopped="stopped; what is finished is kept, the same command goes on.")


def _parser(path: Path, study: PanelStudy) -> argparse.ArgumentParser:
    name = shown(path)
    parser = OneLineParser(prog=f"python {name}", description=study.title, allow_abbrev=False)
    verbs = parser.add_subparsers(
        dest="verb", required=True, metavar="{plan,run,report}", parser_class=OneLineParser
    )
    told = {
        "plan": "show arms, fits, cost and power; run nothing",
        "run": "tune, fit and report; resumes by itself",
        "report": "rebuild the report from finished fits; train nothing",
    }
    default = DEFAULT_PRESET if DEFAULT_PRESET in study.presets else next(iter(study.presets))
    for verb, text in told.items():
        own = verbs.add_parser(verb, help=text, allow_abbrev=False)
        own.add_argument(
            "--preset", default=default, metavar="|".join(study.presets), help="size (%(default)s)"
        )
        own.add_argument(
            "--set",
            action="append",
            default=[],
            metavar="FIELD=VALUE",
            help="change a field, e.g. training.steps=500",
        )
        own.add_argument(
            "--root", metavar="DIR", help="where results live (FINTS_HOME, else the user's data folder)"
        )
        own.add_argument(
            "--anew", action="store_true", help="count no committed result as done: fit all of it here"
        )
        if verb != "report":
            own.add_argument(
                "--workers", type=workers_of, metavar="N", help=f"fits at a time ({usable_cores()})"
            )
        else:
            own.add_argument(
                "--publish",
                action="store_true",
                help="also write NAME.md, its figures and its fits beside the study's file",
            )
    return parser


def _plan(study: PanelStudy, path: Path, docstring: str, arguments: argparse.Namespace) -> int:
    plan, folder, known = _resolve(study, path, docstring, arguments)
    for line in _plan_lines(plan, folder, known, commit_of(path), arguments.workers or usable_cores()):
        make_console().print(line, highlight=False, markup=False, soft_wrap=True)
    return 0


def _run(study: PanelStudy, path: Path, docstring: str, arguments: argparse.Namespace) -> int:
    from fints.study.panel_runner import run_panels
    from fints.study.progress import Report

    signal.signal(signal.SIGTERM, _terminated)
    plan, folder, known = _resolve(study, path, docstring, arguments)
    console = make_console()
    commit = commit_of(path)
    if commit is None:
        console.print("not a git checkout: the results will name no commit", highlight=False)
    elif plan.study.presets[plan.preset].claim != "none":
        refuse_uncommitted(study, path)
    workers = arguments.workers or usable_cores()
    total = sum(plan.num_fits().values())
    console.print(f"{plan.name}, preset {plan.preset}: {counted(total, 'fit')}, results in", highlight=False)
    console.print(str(folder.path), highlight=False, soft_wrap=True)
    with Report(console, total=total, work=plan.seconds(), workers=workers) as report:
        outcome = run_panels(
            plan,
            folder,
            report,
            workers=workers,
            known=known,
            commit=commit,
            command=_command(path, arguments, "run"),
        )
    for failure in outcome.failures:
        console.print(f"failed for good: {failure}", highlight=False, markup=False)
    page, _, sentence = _written(plan, folder, known, path, docstring, arguments)
    console.print(f"\n{sentence}", highlight=False, markup=False)
    console.print(f"report: {page}", highlight=False, soft_wrap=True)
    return 1 if outcome.failures else 0


def _report(study: PanelStudy, path: Path, docstring: str, arguments: argparse.Namespace) -> int:
    from fints.study.panel_store import publish_fits
    from fints.study.publish import publish

    plan, folder, known = _resolve(study, path, docstring, arguments)
    folder.path.mkdir(parents=True, exist_ok=True)
    page, found, _ = _written(plan, folder, known, path, docstring, arguments)
    make_console().print(f"report: {page}", highlight=False, soft_wrap=True)
    if arguments.publish:
        if plan.changes:
            raise ValueError("only a study as declared is published; leave out --set.")
        told = f"to commit: {publish(folder.path, path)} and {publish_fits(found, path, plan.preset)}"
        make_console().print(told, highlight=False, soft_wrap=True)
    return 0


_VERBS = {"plan": _plan, "run": _run, "report": _report}


def _resolve(
    study: PanelStudy, path: Path, docstring: str, arguments: argparse.Namespace
) -> tuple[PanelPlan, StudyFolder, dict[str, dict[str, Any]]]:
    from fints.data import home
    from fints.study.panel_plan import make_panel_plan
    from fints.study.panel_store import committed
    from fints.study.store import StudyFolder

    plan = make_panel_plan(
        study,
        name=path.stem,
        docstring=docstring,
        preset=arguments.preset,
        changes=changes_of(arguments.set),
    )
    root = Path(arguments.root).expanduser() if arguments.root else home()
    folder = StudyFolder(root.resolve(), plan.name, plan.label)
    return plan, folder, {} if arguments.anew else committed(path, plan.preset)


def _written(
    plan: PanelPlan,
    folder: StudyFolder,
    known: dict[str, dict[str, Any]],
    path: Path,
    docstring: str,
    arguments: argparse.Namespace,
) -> tuple[Path, Fits, str]:
    from fints.study.panel_report import write_panel_report
    from fints.study.panel_runner import collect

    found = collect(plan, folder, known)
    commands = {verb: _command(path, arguments, verb) for verb in ("run", "report")}
    page, sentence = write_panel_report(
        plan, found, folder.path, declared=declared_in(path, docstring), commands=commands
    )
    return page, found, sentence


def _plan_lines(
    plan: PanelPlan,
    folder: StudyFolder,
    known: dict[str, dict[str, Any]],
    commit: str | None,
    workers: int,
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
    done = folder.whole()
    kept, left = 0, 0.0
    sizes: dict[str, int] = {}
    for arm in plan.arms:
        tuning = plan.tuning_fits(arm)
        shape = str(arm.experiment.model)
        sizes[shape] = sizes[shape] if shape in sizes else parameters(arm.experiment)
        lines.append(f"{arm.name:{width}} {sizes[shape]:>10,} {duration(tuning[0].seconds):>10}")
        # Which point an arm is fitted at is known after its tuning; its fits cost the same at each.
        points = study.tuning.points()[: None if done or known else 1]
        final = max(
            (plan.final_fits(arm, point) for point in points),
            key=lambda cells: sum(cell.key in done or cell.design in known for cell in cells),
        )
        for cell in (*tuning, *final):
            there = cell.key in done or cell.design in known
            kept += there
            left += 0.0 if there else cell.seconds
    number, panels = len(study.tuning.points()), len(study.tuning.panels)
    arms = counted(len(plan.arms), "arm")
    return [
        *lines,
        "",
        f"tuning   {arms} x {counted(number, 'point')} x {counted(panels, 'panel')} = "
        f"{counted(fits['tuning'], 'fit')}, by validation loss",
        f"final    {arms} x {counted(len(study.panels), 'panel')} = {counted(fits['final'], 'fit')}",
        f"in all   {counted(sum(fits.values()), 'fit')}; there already: {kept}",
        f"time     about {duration(left / workers)} with {counted(workers, 'worker')} (a rough estimate)",
        f"commit   {commit or 'none: not a git checkout'}",
        "folder",
        f"  {folder.path}",
        *study.power(),
    ]


def _command(path: Path, arguments: argparse.Namespace, verb: str) -> str:
    words = ["python", shown(path), verb, "--preset", arguments.preset]
    for entry in arguments.set:
        words += ["--set", entry]
    return shlex.join(words + ["--anew"] * arguments.anew)


def _terminated(number: int, frame: FrameType | None) -> NoReturn:
    # Workers are ended on the way out, as at Ctrl-C.
    raise SystemExit(128 + number)

"""The verbs of a study file: ``python studies/NAME.py plan | run | report | rerun``.

Exit codes: 0 done, 1 fits failed or a check did not hold, 2 wrong use, 130 Ctrl-C, 143 SIGTERM.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from fints.study.addresses import one_line, without_secrets
from fints.study.checkout import commit_of, commit_of_claims, why_no_commit
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
from fints.study.commands import enqueued_lines, finished_elsewhere, resume_command, run_command
from fints.study.design import Study
from fints.study.launch import launcher_of
from fints.study.options import study_parser
from fints.study.seal import break_seal, carry_record, require_record, seal_results, sealed_note
from fints.words import counted, json_text

if TYPE_CHECKING:
    from fints.study.analysis import Analysis
    from fints.study.plan import Plan
    from fints.study.restore import Kept
    from fints.study.runner import Outcome
    from fints.study.so_far import Ground
    from fints.study.store import StudyFolder

__all__ = ["main"]


def main(study: Study, argv: Sequence[str] | None = None, *, file: str | Path | None = None) -> NoReturn:
    """Read the command line, do what it says, and exit.

    Parameters
    ----------
    study : Study
        Declared by the calling file, which names and documents it.
    argv : sequence of str, optional
        Arguments; those of the process if not given.
    file : path, optional
        The study's file; that of the caller if not given.
    """
    caller = sys._getframe(1).f_globals

    def verb() -> int:
        require(study, Study, "main")
        path = file_of(caller, file)
        docstring = str(caller.get("__doc__") or "") if file is None else docstring_of(path)
        arguments = study_parser(path, study).parse_args(argv)
        return _VERBS[arguments.verb](study, path, docstring, arguments)

    answer(verb, stopped="stopped.")


def _plan(study: Study, path: Path, docstring: str, arguments: argparse.Namespace) -> int:
    from fints.study.overview import plan_lines

    if arguments.as_json and arguments.check:
        raise ValueError("--json tells the plan and --check trains: give one of them.")
    plan, folder = _resolve(study, path, docstring, arguments)
    console = make_console()
    kept = _kept(plan, folder, path, arguments)
    workers, commit = arguments.workers or _default_workers(plan), commit_of(path)
    if arguments.as_json:
        from fints.study.as_json import plan_told

        print(json_text(plan_told(kept, workers=workers, commit=commit, models=arguments.models)))
        return 0
    commit = commit or why_no_commit(path)
    for line in plan_lines(kept, workers=workers, commit=commit, models=arguments.models):
        console.print(line, highlight=False, markup=False)
    if not arguments.check:
        return 0
    from fints.study.check import share_of_oracle

    console.print("\ncheck: Pre-Norm, depth 2, planted linear signal at R2 20 %", highlight=False)
    share, passed = share_of_oracle(plan, lambda line: console.print(line, highlight=False, markup=False))
    verdict = "enough" if passed else "too little: give more steps"
    console.print(f"share of oracle {share:.2f}, at least 0.50 wanted: {verdict}", highlight=False)
    return 0 if passed else 1


def _run(study: Study, path: Path, docstring: str, arguments: argparse.Namespace) -> int:
    if arguments.workers == 0 and not arguments.storage:
        raise ValueError("--workers must be a whole number from 1 to 256; 0 is for a shared --storage only.")
    if arguments.replace and not arguments.storage:
        raise ValueError("--replace is for a shared --storage only; here the newest plan counts anyway.")
    plan, folder = _resolve(study, path, docstring, arguments)
    console = make_console()
    commit = commit_of_claims(study, path, plan.preset)
    if commit is None:
        console.print(f"{why_no_commit(path)}: the results will name no commit", highlight=False)
    workers = _default_workers(plan) if arguments.workers is None else arguments.workers
    from fints.study.estimates import memory_shortage, study_seconds
    from fints.study.grid import grid_of_study
    from fints.study.overview import finished_lines
    from fints.study.planned import Planned
    from fints.study.progress import Report
    from fints.study.restore import drop_restored
    from fints.study.runner import run
    from fints.study.store_checks import check_stores, note_tracker

    here, kept = workers if arguments.launcher == "local" else 0, _kept(plan, folder, path, arguments)
    done = {cell.key for cell in kept.cells()}
    if here and (shortage := memory_shortage(plan, workers=here, done=done)):
        raise ValueError(shortage)
    reached = check_stores(folder, arguments)
    launcher = launcher_of(
        arguments.launcher,
        arguments.launcher_option,
        workers=arguments.workers,
        storage=arguments.storage,
        typed=sys.argv,
        folder=folder.path / "launch",
    )
    # The last of all that may refuse a run, so that a record is of one that began.
    break_seal(plan, path, folder.path, commit=commit, changed=bool(arguments.set or arguments.data))
    if reached:
        note_tracker(folder, arguments)
    total = sum(plan.num_fits().values())
    console.print(f"{plan.name}, preset {plan.preset}: {counted(total, 'fit')}, results in", highlight=False)
    console.print(str(folder.path), highlight=False, soft_wrap=True)
    options = {
        "workers": workers,
        "tracking_uri": arguments.tracking_uri,
        "commit": commit,
        "command": run_command(path, arguments),
        "keep_weights": arguments.models,
        "committed": kept.committed,
    }
    if arguments.anew:
        with folder.held():
            drop_restored(folder)
    grid = None if arguments.plain else grid_of_study(Planned(plan.spec()))
    work = study_seconds(plan, workers=1)
    with Report(console, total=total, work=work, workers=max(workers, 1), grid=grid) as report:
        if arguments.storage:
            from fints.study.scale import run_shared

            outcome = run_shared(
                plan,
                folder,
                report,
                storage=arguments.storage,
                interval=arguments.heartbeat,
                launcher=launcher,
                replace=arguments.replace,
                **options,
            )
        else:
            outcome = run(plan, folder, report, **options)
    if workers == 0:
        for line in enqueued_lines(plan, outcome, arguments):
            console.print(line, highlight=False, markup=False, soft_wrap=True)
        return 0
    if outcome.signal:
        name = signal.Signals(outcome.signal).name
        console.print(
            f"stopped by {name}: {outcome.finished} of {outcome.total} fits are kept. To go on:",
            highlight=False,
        )
        console.print(resume_command(path, arguments), highlight=False, markup=False, soft_wrap=True)
        return 128 + outcome.signal
    for failure in outcome.failures:
        console.print(f"failed for good: {failure}", highlight=False, markup=False)
    if outcome.failures:
        console.print(f"what the workers printed is in {folder.logs}", highlight=False, soft_wrap=True)
    if not outcome.assembled:
        console.print("no final fit was finished, so there is no report", highlight=False)
        return 1
    seal_results(plan, path, folder.path)
    analysis, page = _write_report(folder, folder.path)
    _log_figures(folder, outcome, arguments)
    models = _log_models(plan, folder, analysis, outcome, arguments) if arguments.models else []
    if said := analysis.found.sentence.replace("**", ""):
        console.print(f"\n{said}", highlight=False, markup=False)
    for line in (
        finished_lines(plan, folder, outcome, page, tracking_uri=_shown(arguments.tracking_uri)) + models
    ):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    if outcome.untracked:
        console.print(
            f"tracking failed ({outcome.untracked}): MLflow is behind. Running again completes it:",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )
        console.print(resume_command(path, arguments), highlight=False, markup=False, soft_wrap=True)
    return 1 if outcome.failures or outcome.untracked else 0


def _report(study: Study, path: Path, docstring: str, arguments: argparse.Namespace) -> int:
    from fints.study.so_far import ground_of

    plan, folder = _resolve(study, path, docstring, arguments)
    kept = _kept(plan, folder, path, arguments)
    left_out: list[str] = []
    if arguments.storage:
        from fints.study.remote_report import fetch_tables
        from fints.study.shared_open import open_existing

        # Who only reads makes no tables.
        open_existing(arguments.storage).close()
        left_out = fetch_tables(arguments.storage, f"{plan.name}/{plan.label}", folder)
    carry_record(plan, path, folder.path)
    ground = ground_of(kept)
    nothing = f"no final fit is finished in {folder.path}"
    if ground.tables is None and not (arguments.publish and ground.cells):
        elsewhere = finished_elsewhere(study, path, arguments, folder)
        raise ValueError(f"{nothing}; first: {resume_command(path, arguments)}{elsewhere}")
    # The fits first: they cost most, and a page without what it was made from would be no answer.
    told = _publish_fits(plan, path, kept, ground) if arguments.publish else {}
    written = None if ground.tables is None else _write_report(folder, ground.tables)
    if arguments.publish and ground.tables is not None:
        told = _publish_page(plan, path, ground.tables) | told
    lines = [*left_out, nothing if written is None else f"report: {written[1]}"]
    if told:
        lines += [*ground.left_out(), f"to commit: {' and '.join(told.values())}"]
    if arguments.as_json:
        from fints.study.as_json import report_told

        said = {} if written is None else report_told(*written, left_out=left_out)
        print(json_text(said | told))
        return 0
    for line in lines:
        make_console().print(line, highlight=False, markup=False, soft_wrap=True)
    return 0


def _rerun(study: Study, path: Path, docstring: str, arguments: argparse.Namespace) -> int:
    return made_again(*_resolve(study, path, docstring, arguments), arguments)


_VERBS = {"plan": _plan, "run": _run, "report": _report, "rerun": _rerun}


def _resolve(
    study: Study, path: Path, docstring: str, arguments: argparse.Namespace
) -> tuple[Plan, StudyFolder]:
    from fints.study.plan import make_plan
    from fints.study.publish import root_of_runs
    from fints.study.store import StudyFolder

    plan = make_plan(
        study,
        name=path.stem,
        docstring=docstring,
        preset=arguments.preset,
        data=arguments.data,
        changes=changes_of(arguments.set),
    )
    root = root_of_runs(arguments.root, path)
    return plan, StudyFolder(root, plan.name, plan.label)


def _publish_fits(plan: Plan, path: Path, kept: Kept, ground: Ground) -> dict[str, str]:
    """Write the fits that are there beside the study's file and return where."""
    from fints.study.publish import place_of
    from fints.study.published_fits import publish_fits
    from fints.study.unit import units_on

    if not ground.cells:
        return {}
    place, cells = place_of(path, plan.label), [(cell, plan.design(cell)) for cell in ground.cells]
    fits, unit = kept.folder.fits, units_on(plan.dataset.panel)
    publish_fits(place, spec=ground.spec, cells=cells, fits=fits, unit=unit, before=kept.committed)
    return {"published_fits": str(place)}


def _publish_page(plan: Plan, path: Path, tables: Path) -> dict[str, str]:
    """Write the page and its figures beside the study's file and return where."""
    from fints.study.publish import publish

    return {"published": str(publish(tables, path, preset=plan.preset))}


def _kept(plan: Plan, folder: StudyFolder, path: Path, arguments: argparse.Namespace) -> Kept:
    """Return what is there of a plan: fits in its folder and committed ones, these without --anew only."""
    from fints.study.publish import place_of
    from fints.study.published_fits import read_committed
    from fints.study.restore import Kept, restored_keys

    if arguments.anew:
        return Kept(plan, folder, ignored=restored_keys(folder))
    committed = read_committed(place_of(path, plan.label), checksum=plan.dataset.checksum)
    if committed.fits:
        require_record(plan, path)
    return Kept(plan, folder, committed)


def _write_report(folder: StudyFolder, tables: Path) -> tuple[Analysis, Path]:
    from fints.study.analysis import analyse
    from fints.study.assemble import table_spec
    from fints.study.report import write_report

    analysis = analyse(table_spec(tables) | sealed_note(folder.path), tables)
    return analysis, write_report(analysis, tables)


def _log_figures(folder: StudyFolder, outcome: Outcome, arguments: argparse.Namespace) -> None:
    """Put the figures into MLflow, beside the arms that they show; a failing store costs no report."""
    from fints.study.figure_log import log_figures

    if outcome.untracked or not outcome.link or outcome.tracker is None:
        return
    try:
        with folder.held(), outcome.tracker.exclusive():
            log_figures(folder.path, outcome.tracker)
    except Exception as error:  # of MLflow, its drivers and the network, which share no base
        outcome.untracked = one_line(error, arguments.tracking_uri)


def _log_models(
    plan: Plan, folder: StudyFolder, analysis: Analysis, outcome: Outcome, arguments: argparse.Namespace
) -> list[str]:
    """Put each arm's forecaster into MLflow and return the lines on it; a failing store costs no report."""
    from fints.study.model_log import log_models

    if outcome.failures:
        return ["", "models   none before every fit is there"]
    if outcome.untracked or not outcome.link or outcome.tracker is None:
        return []
    try:
        with folder.held(), outcome.tracker.exclusive():
            return ["", *log_models(plan, folder, analysis, outcome.tracker).lines()]
    except Exception as error:  # of MLflow, its drivers and the network, which share no base
        outcome.untracked = one_line(error, arguments.tracking_uri)
        return []


def _shown(address: str | None) -> str | None:
    return None if address is None else without_secrets(address)


def _default_workers(plan: Plan) -> int:
    """Return one worker a core, but one alone on an accelerator, whose memory all of them would share."""
    from fints.study.fingerprint import device_type

    devices = {device_type(arm.experiment.training.device) for arm in plan.arms}
    return usable_cores() if devices == {"cpu"} else 1

"""What may be typed after ``python studies/NAME.py``: verbs, options, examples, of both kinds of studies."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from fints.study.command_line import OneLineParser, text_of, usable_cores, workers_of
from fints.study.commands import shown
from fints.study.launch import LAUNCHERS

if TYPE_CHECKING:
    from fints.study.design import Study
    from fints.study.panel_design import PanelStudy

__all__ = ["panel_parser", "study_parser"]

DEFAULT_PRESET = "quick"


def study_parser(path: Path, study: Study) -> argparse.ArgumentParser:
    """Return the parser of a study of one panel in time.

    Parameters
    ----------
    path : Path
        Its file, as it is called in the examples.
    study : Study
        Whose sizes there are.
    """
    name = shown(path)
    sizes, default = list(study.presets), _default(study.presets)
    parser, verbs = _with_verbs(
        name,
        study.title,
        ("plan", "run", "report", "rerun"),
        f"plan --preset {default}",
        f"run --preset {sizes[0]}",
        f"run --preset {default} --workers 2",
        "run --data prices.csv --set training.steps=500",
        f"report --preset {default}",
    )
    plan = _verb(
        verbs,
        name,
        "plan",
        "show arms, fits, cost and power; run nothing",
        f"plan --preset {default}",
        "plan --data prices.csv --set training.steps=500",
        f"plan --preset {sizes[-1]} --json",
    )
    run = _verb(
        verbs,
        name,
        "run",
        "tune, fit, evaluate and report; resumes by itself",
        f"run --preset {sizes[0]}",
        f"run --preset {default} --workers 2 --plain",
        "run --data prices.csv --set training.steps=500 --root results",
        f"run --preset {default} --anew",
        "run --workers 0 --storage postgresql+psycopg://fints@db/fints",
        "run --workers 32 --launcher slurm --launcher-option partition=long",
    )
    report = _verb(
        verbs,
        name,
        "report",
        "rebuild the report from stored fits; train nothing",
        f"report --preset {default}",
        f"report --preset {default} --publish",
        f"report --preset {default} --json",
    )
    again = _rerun_verb(verbs, name, default)
    for verb in (plan, run, report, again):
        _add_size(verb, sizes, default)
        verb.add_argument(
            "--data", type=text_of, metavar="NAME", help="dataset name, or path of a CSV or parquet panel"
        )
        _add_set(verb, "model.width=64")
        _add_root(verb)
    for verb in (plan, run):
        verb.add_argument(
            "--workers",
            type=workers_of if verb is plan else _workers_or_none,
            metavar="N",
            help=f"fits at a time ({usable_cores()}; 1 on a GPU)"
            + ("" if verb is plan else "; 0 with --storage: enqueue only"),
        )
    plan.add_argument(
        "--check", action="store_true", help="train the budget on a planted signal and show how much it finds"
    )
    for verb in (run, report):
        verb.add_argument(
            "--storage",
            type=text_of,
            metavar="URL",
            default=os.environ.get("FINTS_STORAGE") or None,
            help="database that many machines share, postgresql+psycopg://... (FINTS_STORAGE)",
        )
    run.add_argument(
        "--replace",
        action="store_true",
        help="with --storage: take the place of another plan of this name there; its finished fits stay",
    )
    run.add_argument(
        "--launcher",
        choices=LAUNCHERS,
        default="local",
        help="with --storage: who starts the workers, this machine or the site's engine (%(default)s)",
    )
    run.add_argument(
        "--launcher-option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="for Ray or Slurm, e.g. address=head:6379 or partition=long",
    )
    run.add_argument(
        "--heartbeat",
        type=_seconds,
        metavar="SECONDS",
        default=60.0,
        help="with --storage: a worker silent for five of these is given up (%(default)g)",
    )
    report.add_argument(
        "--publish",
        action="store_true",
        help="also write NAME.md, its figures and the fits that are there beside the study's file",
    )
    for verb in (plan, run, report):
        _add_anew(verb)
    _add_tracker(run)
    for verb in (plan, run):
        verb.add_argument(
            "--no-models",
            dest="models",
            action="store_false",
            help="keep no weights, log no forecaster an arm for fints.load",
        )
    _add_looks(plan, run, report)
    return parser


def panel_parser(path: Path, study: PanelStudy) -> argparse.ArgumentParser:
    """Return the parser of a study of simulated panels; parameters as `study_parser`."""
    name = shown(path)
    sizes, default = list(study.presets), _default(study.presets)
    parser, verbs = _with_verbs(
        name,
        study.title,
        ("plan", "run", "report", "rerun"),
        f"plan --preset {default}",
        f"run --preset {sizes[0]}",
        f"report --preset {default}",
    )
    plan = _verb(
        verbs,
        name,
        "plan",
        "show arms, fits, cost and power; run nothing",
        f"plan --preset {default}",
        f"plan --preset {sizes[-1]} --json",
    )
    run = _verb(
        verbs,
        name,
        "run",
        "tune, fit and report; resumes by itself",
        f"run --preset {sizes[0]}",
        f"run --preset {default} --workers 2 --plain",
        f"run --preset {default} --set training.steps=500 --root results",
    )
    report = _verb(
        verbs,
        name,
        "report",
        "rebuild the report from finished fits; train nothing",
        f"report --preset {default}",
        f"report --preset {default} --publish",
        f"report --preset {default} --json",
    )
    again = _rerun_verb(verbs, name, default)
    for verb in (plan, run, report, again):
        _add_size(verb, sizes, default)
        _add_set(verb, "training.steps=500")
        _add_root(verb)
    for verb in (plan, run, report):
        _add_anew(verb)
    for verb in (plan, run):
        verb.add_argument(
            "--workers", type=workers_of, metavar="N", help=f"fits at a time ({usable_cores()})"
        )
    report.add_argument(
        "--publish",
        action="store_true",
        help="also write NAME.md, its figures and its fits beside the study's file",
    )
    _add_tracker(run)
    # Panels are fitted on one machine.
    run.set_defaults(storage=None)
    _add_looks(plan, run, report)
    return parser


def _with_verbs(
    name: str, title: str, known: Iterable[str], *examples: str
) -> tuple[argparse.ArgumentParser, argparse._SubParsersAction[OneLineParser]]:
    parser = OneLineParser(
        prog=f"python {name}",
        description=title,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        epilog=_examples(name, examples),
    )
    verbs = parser.add_subparsers(
        dest="verb", required=True, metavar=f"{{{','.join(known)}}}", parser_class=OneLineParser
    )
    return parser, verbs


def _verb(
    verbs: argparse._SubParsersAction[OneLineParser], name: str, verb: str, text: str, *examples: str
) -> argparse.ArgumentParser:
    return verbs.add_parser(
        verb,
        help=text,
        description=f"{text[0].upper()}{text[1:]}.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        epilog=_examples(name, examples),
    )


def _examples(name: str, examples: Iterable[str]) -> str:
    return "\n".join(["examples:", *(f"  python {name} {words}" for words in examples)])


def _add_size(verb: argparse.ArgumentParser, sizes: list[str], default: str) -> None:
    verb.add_argument("--preset", default=default, metavar="|".join(sizes), help="size (%(default)s)")


def _add_set(verb: argparse.ArgumentParser, example: str) -> None:
    verb.add_argument(
        "--set", action="append", default=[], metavar="FIELD=VALUE", help=f"change a field, e.g. {example}"
    )
    verb.add_argument(
        "--vectorise",
        dest="set",
        action="append",
        type=_vectorise,
        default=[],
        metavar="K",
        help="make up to K fits of an arm at once, as one network with stacked parameters",
    )


def _vectorise(text: str) -> str:
    """Return the field that makes K fits at once, from the text of K."""
    if not text.isdecimal() or not 2 <= int(text) <= 256:
        raise argparse.ArgumentTypeError(f"must be a whole number from 2 to 256; got {text!r}")
    return f"training.vectorise={int(text)}"


def _add_root(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "--root",
        type=text_of,
        metavar="DIR",
        help="where results live (FINTS_HOME, else the user's data folder)",
    )


def _rerun_verb(
    verbs: argparse._SubParsersAction[OneLineParser], name: str, default: str
) -> argparse.ArgumentParser:
    again = _verb(
        verbs,
        name,
        "rerun",
        "make one fit again and compare its bytes with the stored one",
        f"rerun 0123456789abcdef --preset {default}",
    )
    again.add_argument("key", metavar="KEY", help="of the fit: the tag fints.key of its run in MLflow")
    again.add_argument(
        "--out", type=text_of, metavar="DIR", help="keep the fit here; else in a folder that is named"
    )
    return again


def _add_tracker(run: argparse.ArgumentParser) -> None:
    run.add_argument(
        "--tracking-uri",
        type=text_of,
        metavar="URI",
        default=os.environ.get("MLFLOW_TRACKING_URI") or None,
        help="MLflow server or store (MLFLOW_TRACKING_URI, else SQLite under the root)",
    )


def _add_anew(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "--anew", action="store_true", help="count no committed result as done: fit all of it here"
    )


def _add_looks(
    plan: argparse.ArgumentParser, run: argparse.ArgumentParser, report: argparse.ArgumentParser
) -> None:
    run.add_argument("--plain", action="store_true", help="print lines, draw no grid of the fits")
    for verb in (plan, report):
        verb.add_argument(
            "--json",
            dest="as_json",
            action="store_true",
            help="print one JSON document for a program to read",
        )


def _default(presets: Iterable[str]) -> str:
    sizes = list(presets)
    return DEFAULT_PRESET if DEFAULT_PRESET in sizes else sizes[0]


def _workers_or_none(text: str) -> int:
    return 0 if text == "0" else workers_of(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.1 <= seconds <= 3600:
        raise argparse.ArgumentTypeError(f"must be a number of seconds from 0.1 to 3600; got {text!r}")
    return seconds

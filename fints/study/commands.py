"""The commands that a study file tells its reader to type."""

from __future__ import annotations

import argparse
import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from fints.study.addresses import without_secrets

if TYPE_CHECKING:
    from fints.study.design import Study
    from fints.study.plan import Plan
    from fints.study.runner import Outcome
    from fints.study.store import StudyFolder

__all__ = ["enqueued_lines", "finished_elsewhere", "rerun_command", "resume_command", "run_command", "shown"]


def run_command(path: Path, arguments: argparse.Namespace) -> str:
    """Return the command that gives these results; what changes no number is left out."""
    return shlex.join(_words(path, arguments, "run"))


def resume_command(path: Path, arguments: argparse.Namespace) -> str:
    """Return the command that goes on with this run, with every option that was given."""
    return shlex.join(_words(path, arguments, "run", "root", "storage", "tracking_uri", "workers"))


def rerun_command(command: str, key: str) -> str:
    """Return the command that makes one fit again, from the one that ran its study (``... run ...``)."""
    words = shlex.split(command)
    at = words.index("run")
    return shlex.join([*words[:at], "rerun", key, *words[at + 1 :]])


def enqueued_lines(plan: Plan, outcome: Outcome, arguments: argparse.Namespace) -> list[str]:
    """Return what a person reads who has enqueued a study and runs nothing of it here."""
    name = f"{plan.name}/{plan.label}"
    storage = without_secrets(arguments.storage)
    words = ["fints", "worker", "--study", name, "--storage", storage]
    if arguments.tracking_uri:
        words += ["--tracking-uri", without_secrets(arguments.tracking_uri)]
    return [
        f"enqueued: {outcome.total - outcome.finished} of {outcome.total} fits are to be made. "
        "On any machine:",
        shlex.join(words),
        "and to see how far it is:",
        shlex.join(["fints", "study", "status", "--study", name, "--storage", storage]),
    ]


def _words(path: Path, arguments: argparse.Namespace, verb: str, *options: str) -> list[str]:
    """Return the words of a command: what changes numbers, and of `options` those that were given."""
    words = ["python", shown(path), verb, "--preset", arguments.preset]
    words += ["--data", arguments.data] if arguments.data else []
    for entry in arguments.set:
        words += ["--set", entry]
    for option in options:
        if (value := getattr(arguments, option, None)) is not None:
            words += [f"--{option.replace('_', '-')}", without_secrets(str(value))]
    if "workers" in options and getattr(arguments, "launcher", "local") != "local":
        words += ["--launcher", arguments.launcher]
        words += [word for entry in arguments.launcher_option for word in ("--launcher-option", entry)]
    # Weights change no number, so only the command that goes on with a run says that it keeps none.
    words += ["--no-models"] * ("workers" in options and not getattr(arguments, "models", True))
    # Nor does whose fits they are; without it the committed ones would count again.
    return words + ["--anew"] * ("workers" in options and getattr(arguments, "anew", False))


def finished_elsewhere(study: Study, path: Path, arguments: argparse.Namespace, folder: StudyFolder) -> str:
    """Say which other sizes of the study have a report to show, and the command for each."""
    from fints.study.assemble import table_spec

    commands: dict[str, str] = {}
    for table in sorted(folder.path.parent.glob("*/tables.json")):
        try:
            spec = table_spec(table.parent)
            preset, reference = str(spec["preset"]), str(spec["dataset"]["reference"])
            entries = [f"{name}={json.dumps(value)}" for name, value in spec["changes"].items()]
        except (ValueError, LookupError, TypeError, AttributeError):
            # That folder's own report says what is wrong with it.
            continue
        other = argparse.Namespace(**vars(arguments))
        other.preset, other.set = preset, entries
        other.data = None if reference == study.dataset else reference
        commands[table.parent.name] = shlex.join(_words(path, other, "report", "root"))
    if not commands:
        return ""
    one = len(commands) == 1
    names = ", ".join(commands)
    told = (
        f"Finished there is only {names}; its report" if one else f"Finished there are {names}; their reports"
    )
    return f". {told}: {' ; '.join(commands.values())}"


def shown(path: Path) -> str:
    """Return a path as it would be typed here."""
    here = Path.cwd()
    return path.relative_to(here).as_posix() if path.is_relative_to(here) else str(path)

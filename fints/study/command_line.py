"""What the command lines of study files share: one line an error, workers, changed fields, a console."""

from __future__ import annotations

import argparse
import ast
import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from rich.console import Console

    from fints.study.panel_plan import PanelPlan
    from fints.study.plan import Plan
    from fints.study.store import StudyFolder

__all__ = [
    "OneLineParser",
    "answer",
    "changes_of",
    "check_folder",
    "docstring_of",
    "fail",
    "file_of",
    "made_again",
    "make_console",
    "require",
    "text_of",
    "usable_cores",
    "workers_of",
]


class OneLineParser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        """End with exit code 2."""
        fail(f"{message} (--help shows what there is)", 2)


def answer(verb: Callable[[], int], *, stopped: str) -> NoReturn:
    """Exit with what `verb` returns, or with an error in one line.

    The code is 2 for what cannot be used, 1 for what failed, 130 after Ctrl-C, which says `stopped`.
    """
    try:
        code = verb()
    except ValueError as error:
        fail(str(error), 2)
    except OSError as error:
        # The last net: what opens a file says more where it knows what the file is for.
        fail(f"{error.filename} cannot be used: {error.strerror}." if error.filename else str(error), 2)
    except RuntimeError as error:
        fail(str(error), 1)
    except KeyboardInterrupt:
        fail(stopped, 130)
    sys.exit(code)


def made_again(plan: Plan | PanelPlan, folder: StudyFolder, arguments: argparse.Namespace) -> int:
    """Make one fit again, say whether it is the stored one, and return the exit code."""
    from fints.study.rerun import rerun

    made = rerun(plan, arguments.key, stored=folder, out=arguments.out and Path(arguments.out).expanduser())
    for line in made.lines():
        make_console().print(line, highlight=False, markup=False, soft_wrap=True)
    return 1 if made.different else 0


def require(study: object, kind: type, main: str) -> None:
    """Refuse what a study's file hands to a `main` that is not for it.

    Raises
    ------
    ValueError
        If it is not a study of this kind.
    """
    if not isinstance(study, kind):
        got = type(study).__name__
        fit = {"Study": "main", "PanelStudy": "panel_main"}.get(got)
        mend = f"call fints.study.{fit}(STUDY)" if fit else f"give it the {kind.__name__} of this file"
        raise ValueError(f"{main} must be given a {kind.__name__}, and got a {got}: {mend}.")


def changes_of(entries: Sequence[str]) -> dict[str, Any]:
    """Return the fields of ``--set FIELD=VALUE`` entries; a value that is no JSON is a text.

    Raises
    ------
    ValueError
        If an entry has no field or no value.
    """
    changes: dict[str, Any] = {}
    for entry in entries:
        name, equals, text = entry.partition("=")
        if not equals or not name:
            raise ValueError(f"--set needs FIELD=VALUE, e.g. training.steps=500; got {entry!r}.")
        try:
            changes[name] = json.loads(text)
        except ValueError:
            changes[name] = text
    return changes


def check_folder(folder: StudyFolder) -> None:
    """Make the folder of the results, before anything is fitted.

    Raises
    ------
    ValueError
        If a database cannot stand at its path, or nothing can be written there.
    """
    from fints.study.embedded import check_path

    check_path(folder.path)
    try:
        folder.path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder.root), tempfile.TemporaryFile(dir=folder.path):
            pass
    except OSError as error:
        place = "" if str(error.filename) == str(folder.path) else f": {error.filename}"
        raise ValueError(
            f"{folder.path} must be a folder that results can be written to, and cannot be "
            f"({error.strerror}{place}): choose another one with --root or FINTS_HOME."
        ) from error


def text_of(text: str) -> str:
    """Return the text of an option, which must not be empty."""
    if not text:
        raise argparse.ArgumentTypeError("must not be empty: leave the option out")
    return text


def docstring_of(path: Path) -> str:
    """Return the docstring of a study's file, as it stands there."""
    return ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")), clean=False) or ""


def file_of(caller: Mapping[str, Any], file: str | Path | None) -> Path:
    """Return the file that a study stands in: `file`, or that of the module with these globals.

    Raises
    ------
    ValueError
        If there is none, as of what is piped into the interpreter.
    """
    found = file or caller.get("__file__")
    if found is None:
        raise ValueError(
            "a study must stand in a file, which names and documents it, and this one came from a pipe or a "
            "prompt: save it as NAME.py and run `python NAME.py plan`, or give main(STUDY, file=...)."
        )
    return Path(found).resolve()


def workers_of(text: str) -> int:
    """Return a number of workers from its text."""
    if not text.isdecimal() or not 1 <= int(text) <= 256:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1 to 256; got {text!r}")
    return int(text)


def usable_cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def make_console() -> Console:
    """Return what a person reads on."""
    from rich.console import Console

    # Where there is no terminal, a line stays a line.
    return Console() if sys.stdout.isatty() else Console(width=80)


def fail(message: str, code: int) -> NoReturn:
    """Print an error in one line and exit."""
    print("error: " + " ".join(message.split()), file=sys.stderr)
    sys.exit(code)

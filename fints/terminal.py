"""What every verb of the command line shares: refusals in one line, tables and fields 80 columns wide, JSON.

Nothing heavy is imported before something is printed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fints.words import json_text

if TYPE_CHECKING:
    from rich.console import Console

__all__ = [
    "AsJson",
    "Failure",
    "Refusal",
    "Yes",
    "confirmed",
    "examples",
    "failing",
    "print_fields",
    "print_json",
    "print_table",
    "print_wrapped",
    "refusing",
]

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for a program to read.")]


def examples(*commands: str) -> str:
    """Return the end of a help page: commands as they may be typed.

    Each must be one that its command would take, which a test checks.
    """
    # The first character keeps the lines as they are.
    return "\n".join(["\b", "Examples:", *(f"  {command}" for command in commands)])


class Refusal(typer.TyperException):
    """What was given cannot be used: exit code 2 and one line that says why."""

    exit_code = 2


class Failure(typer.TyperException):
    """What was asked for is right and could not be done: exit code 1 and one line that says why."""

    exit_code = 1


@contextmanager
def failing() -> Iterator[None]:
    """Turn what a server or a store that fails raises into a `Failure`."""
    try:
        yield
    except RuntimeError as error:
        # Typer ends commands by these.
        if isinstance(error, typer.Exit | typer.Abort):
            raise
        raise Failure(str(error)) from error


@contextmanager
def refusing() -> Iterator[None]:
    """Turn what the packages raise for a caller into a `Refusal`; a bug elsewhere keeps its traceback."""
    try:
        yield
    except BrokenPipeError:
        # Whoever read this has had enough.
        raise
    except OSError as error:
        named = error.filename is not None and error.strerror is not None
        raise Refusal(f"{error.strerror}: {error.filename}" if named else str(error)) from error
    except ValueError as error:
        raise Refusal(str(error)) from error
    except MemoryError as error:
        raise Refusal(f"it does not fit into the memory of this machine: {error}.") from error


def confirmed(question: str, yes: bool) -> bool:
    """Return whether a person agrees; `yes` says so beforehand.

    Raises
    ------
    Refusal
        If nobody can be asked.
    """
    if yes:
        return True
    if not sys.stdin.isatty():
        raise Refusal(f"{question} Nobody can be asked here: add --yes, or leave all as it is.")
    agreed = typer.confirm(question)
    if not agreed:
        print("Nothing was deleted.")
    return agreed


def print_json(value: Any) -> None:
    """Print a value as one JSON document."""
    print(json_text(value))


def _console() -> Console:
    from rich.console import Console

    return Console(file=sys.stdout, soft_wrap=False)


def print_table(columns: list[str], rows: Sequence[tuple[str, ...]], right: tuple[str, ...] = ()) -> None:
    """Print rows under a header; the columns named in `right` are set to the right."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    _console().print(table)


def print_fields(fields: dict[str, Any]) -> None:
    """Print one field a line; a list of sentences has one sentence a line."""
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in fields.items():
        text = "\n".join(f"- {item}" for item in value) if isinstance(value, list) else str(value)
        table.add_row(Text(name.replace("_", " "), style="bold"), Text(text))
    _console().print(table)


def print_wrapped(text: str) -> None:
    """Print a text, broken at the width of the terminal."""
    from rich.text import Text

    _console().print(Text(text))

"""How a fints command line ends: one clear line on stderr and an exit code.

0 done, 1 something is wrong (failed trials, a failed check), 2 the command or its input cannot be
used, 130 interrupted.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import typer

__all__ = ["Refusal", "call", "refusing"]


class Refusal(typer.TyperException):
    """The input cannot be used: exit code 2 and one line that says why."""

    exit_code = 2


@contextmanager
def refusing() -> Iterator[None]:
    """Turn what the packages raise for a caller into a `Refusal`; a bug elsewhere keeps its traceback."""
    try:
        yield
    except OSError as error:
        named = error.filename is not None and error.strerror is not None
        raise Refusal(f"{error.strerror}: {error.filename}" if named else str(error)) from error
    except ValueError as error:
        raise Refusal(str(error)) from error


def call(app: typer.Typer, name: str, arguments: Sequence[str] | None = None) -> int:
    """Run `app` on `arguments` (default: those of the process) and return its exit code.

    Without arguments it prints its help.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    try:
        result = app(args=arguments, prog_name=name, standalone_mode=False)
    except typer.TyperException as error:
        line = " ".join(error.format_message().split())
        if not isinstance(error, Refusal):
            # A usage error knows the verb it stands at; typer's base class does not declare it.
            context = getattr(error, "ctx", None)
            verb = context.command_path if context is not None else name
            line = f"{line}{'' if line.endswith(('.', '?')) else '.'} Try: {verb} --help"
        print(f"{name}: {line}", file=sys.stderr)
        return error.exit_code
    except typer.Abort:
        print(f"{name}: stopped", file=sys.stderr)
        return 130
    return result if isinstance(result, int) else 0

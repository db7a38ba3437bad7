"""The ``fints`` command: what is installed, which data, which schemes, the tracking pages.

Studies are run by their own files (``python studies/NAME.py``); this command looks after what
surrounds them. Everything heavy is imported inside the verb that needs it, so that ``--help``
answers at once.

Exit codes: 0 done, 1 something is wrong (a failed check), 2 the command or its input cannot be
used, 130 interrupted. What is refused is one line on stderr.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fints import __version__

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["app", "main"]

# The width at which `schemes` counts parameters.
WIDTH = 64

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for a program to read.")]

# Plain help: importing what draws rich's boxes takes longer than the whole command without them.
app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
data = typer.Typer(rich_markup_mode=None)
app.add_typer(data, name="data", help="List, show or check data.")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command on `arguments` (default: those of the process) and return its exit code.

    Without arguments it prints its help.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    try:
        result = app(args=arguments, prog_name="fints", standalone_mode=False)
    except typer.TyperException as error:
        line = " ".join(error.format_message().split())
        if not isinstance(error, Refusal):
            # A usage error knows the verb it stands at; typer's base class does not declare it.
            context = getattr(error, "ctx", None)
            verb = context.command_path if context is not None else "fints"
            line = f"{line}{'' if line.endswith(('.', '?')) else '.'} Try: {verb} --help"
        print(f"error: {line}", file=sys.stderr)
        return error.exit_code
    return result if isinstance(result, int) else 0


class Refusal(typer.TyperException):
    """What was given cannot be used: exit code 2 and one line that says why."""

    exit_code = 2


@contextmanager
def _refusing() -> Iterator[None]:
    """Turn what the packages raise for a caller into a `Refusal`; a bug elsewhere keeps its traceback."""
    try:
        yield
    except OSError as error:
        named = error.filename is not None and error.strerror is not None
        raise Refusal(f"{error.strerror}: {error.filename}" if named else str(error)) from error
    except ValueError as error:
        raise Refusal(str(error)) from error


def _version(wanted: bool) -> None:
    if wanted:
        print(f"fints {__version__}")
        raise typer.Exit()


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Residual connections in transformers that forecast returns: what surrounds the studies."""


@app.command()
def doctor(as_json: AsJson = False) -> None:
    """Check this machine; exit code 1 if something is wrong."""
    from fints.data import home
    from fints.doctor import examine

    checks = examine(home())
    wrong = [check for check in checks if check.state == "wrong"]
    if as_json:
        _print_json({"ok": not wrong, "checks": [check.to_dict() for check in checks]})
    else:
        rows = [(check.name, check.found, check.state) for check in checks]
        _print_table(["check", "found", "state"], rows)
        for check in checks:
            if check.remedy:
                print(f"{check.name}: {check.remedy}")
        print(
            f"{len(wrong)} of {len(checks)} checks are wrong." if wrong else "Everything fints needs is here."
        )
    raise typer.Exit(1 if wrong else 0)


@data.command("list")
def data_list(as_json: AsJson = False) -> None:
    """List the bundled datasets and those of your own folder."""
    from fints.data import datasets

    with _refusing():
        cards = datasets()
    if as_json:
        _print_json([card.to_dict() for card in cards])
        return
    rows = [
        (card.name, str(len(card.assets)), f"{card.rows:,}", str(card.span[0]), str(card.span[1]), card.title)
        for card in cards
    ]
    _print_table(["name", "assets", "rows", "from", "to", "title"], rows, right=("assets", "rows"))


@data.command("show")
def data_show(
    name: Annotated[str, typer.Argument(help="A name of `fints data list`.", show_default=False)],
    as_json: AsJson = False,
) -> None:
    """Show a dataset's card: origin, licence, span, faults."""
    from fints.data import card

    with _refusing():
        found = card(name)
    if as_json:
        _print_json(found.to_dict() | {"path": str(found.path)})
        return
    fields = found.to_dict() | {
        "assets": ", ".join(found.assets),
        "rows": f"{found.rows:,}",
        "span": f"{found.span[0]} to {found.span[1]}",
    }
    fields["sealed_from"] = (
        f"{found.sealed_from}: no study reads further" if found.sealed_from else "nothing sealed"
    )
    _print_fields(fields | {"path": str(found.path)})


@data.command("check")
def data_check(
    file: Annotated[Path, typer.Argument(help="A CSV or parquet file, long or wide.", show_default=False)],
    layout: Annotated[str, typer.Option(help="How the file is laid out: auto, long or wide.")] = "auto",
    price: Annotated[str, typer.Option(help="The column that holds the price.")] = "close",
    as_json: AsJson = False,
) -> None:
    """Check a file of yours; exit code 2 if it is no panel."""
    from fints.data import check

    with _refusing():
        report = check(file, layout=layout, price=price)
    if as_json:
        _print_json(report.to_dict())
        raise typer.Exit(0 if report.ok else 2)
    errors = [finding.message for finding in report.findings if finding.level == "error"]
    if errors:
        # The first error is the line on stderr; the others are read above it.
        for message in errors[1:]:
            print(f"also: {message}")
        raise Refusal(errors[0])
    fields = {"file": report.subject, "read as": report.recognised, **report.summary}
    fields |= {"rows": f"{report.summary['rows']:,}", "prices": f"{report.summary['prices']:,}"}
    _print_fields(fields)
    for finding in report.findings:
        _print_wrapped(f"{finding.level}: {finding.message}")
    print("This file is a panel that fints can use.")


@app.command()
def schemes(as_json: AsJson = False) -> None:
    """List the residual schemes: equation, size, start, paper."""
    from fints.residual import RESIDUALS

    rows = [
        {
            "name": name,
            "equation": scheme.equation,
            "paper": scheme.paper,
            "parameters_per_sublayer": scheme.parameters_per_sublayer(WIDTH, norm="layer_norm"),
            "equals_pre_norm_at_start": scheme.equals_pre_norm_at_start,
        }
        for name, scheme in RESIDUALS.items()
    ]
    if as_json:
        _print_json({"width": WIDTH, "schemes": rows})
        return
    for row in rows:
        start = "the same function as" if row["equals_pre_norm_at_start"] else "another function than"
        print(f"{row['name']}\n  {row['equation']}")
        print(f"  {row['parameters_per_sublayer']:,} parameters a sublayer at width {WIDTH}, its norm apart")
        print(f"  {start} Pre-Norm at the start\n  {row['paper']}")


@app.command()
def ui(
    root: Annotated[
        Path | None, typer.Option(help="Folder of the results; default: FINTS_HOME, else your data folder.")
    ] = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port on 127.0.0.1.")] = 5000,
) -> None:
    """Open the MLflow pages of your studies."""
    from fints.data import home
    from fints.ui import serve, store

    with _refusing():
        code = serve(store(root if root is not None else home()), port)
    raise typer.Exit(code)


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False))


def _console() -> Console:
    from rich.console import Console

    return Console(file=sys.stdout, soft_wrap=False)


def _print_table(columns: list[str], rows: Sequence[tuple[str, ...]], right: tuple[str, ...] = ()) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    _console().print(table)


def _print_fields(fields: dict[str, Any]) -> None:
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


def _print_wrapped(text: str) -> None:
    from rich.text import Text

    _console().print(Text(text))

"""The ``fints`` command: what is installed, which data, which schemes, the tracking pages, workers.

Studies are run by their own files (``python studies/NAME.py``); this command looks after what
surrounds them. Everything heavy is imported inside the verb that needs it, so that ``--help``
answers at once.

Exit codes: 0 done, 1 something is wrong (a failed check), 2 the command or its input cannot be
used, 130 interrupted. What is refused is one line on stderr.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from fints import __version__
from fints.cli_completion import refuse_unknown_shell
from fints.cli_data import data
from fints.cli_evaluate import EXAMPLES as EVALUATE_EXAMPLES
from fints.cli_evaluate import evaluate
from fints.cli_kept import study
from fints.cli_scale import SERVER_EXAMPLES, WORKER_EXAMPLES, server, worker
from fints.cli_schemes import schemes
from fints.cli_simulate import EXAMPLES as SIMULATE_EXAMPLES
from fints.cli_simulate import simulate
from fints.terminal import (
    AsJson,
    Failure,
    Refusal,
    examples,
    print_json,
    print_table,
    print_wrapped,
    refusing,
)

__all__ = ["app", "main"]

# Plain help: importing what draws rich's boxes takes longer than the whole command without them.
app = typer.Typer(
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    epilog=examples(
        "fints doctor",
        "fints data check prices.csv",
        "python studies/residual_by_depth.py run --preset smoke",
    ),
)
data.command("simulate", epilog=SIMULATE_EXAMPLES)(simulate)
app.add_typer(data, name="data", help="List, show, check, import, simulate or delete data.")
app.add_typer(schemes, name="schemes", help="List, draw or convert residual schemes.")
app.command("evaluate", epilog=EVALUATE_EXAMPLES)(evaluate)
app.add_typer(
    study, name="study", help="List, delete, move, report studies; see how far those are that machines share."
)
app.command("worker", epilog=WORKER_EXAMPLES)(worker)
app.command("server", epilog=SERVER_EXAMPLES)(server)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command on `arguments` (default: those of the process) and return its exit code.

    Without arguments it prints its help.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    try:
        refuse_unknown_shell(arguments)
        result = app(args=arguments, prog_name="fints", standalone_mode=False)
    except typer.TyperException as error:
        print(f"error: {_one_line(error, arguments)}", file=sys.stderr)
        return error.exit_code
    except typer.Abort:
        # Ctrl-C at a question.
        print("\nerror: stopped; nothing was done.", file=sys.stderr)
        return 130
    return result if isinstance(result, int) else 0


def _one_line(error: typer.TyperException, arguments: Sequence[str]) -> str:
    """Return what an error says: what must hold, what was given, and for wrong use where to read on."""
    line = " ".join(error.format_message().split())
    if isinstance(error, Refusal | Failure):
        return line
    # Wrong use, of which typer's base class declares neither the verb nor the option.
    if found := re.fullmatch(r"(No such option: .*) \(Possible options: (.*)\)", line):
        line = f"{found[1]}. Did you mean {found[2]}?"
    if found := re.fullmatch(r"Invalid value for '([^']*)': Input should be ([^,]*)(?:, unable .*)?", line):
        names = [name.strip() for name in found[1].split("/")]
        line = f"{names[-1]} must be {found[2]}{_given(names, arguments)}"
    context = getattr(error, "ctx", None)
    verb = context.command_path if context is not None else "fints"
    return f"{line}{'' if line.endswith(('.', '?')) else '.'} Try: {verb} --help"


def _given(names: Sequence[str], arguments: Sequence[str]) -> str:
    """Return which value an option was given, where it can be seen."""
    for place, word in enumerate(arguments):
        option, equals, value = word.partition("=")
        if option in names and (equals or place + 1 < len(arguments)):
            return f"; got {value if equals else arguments[place + 1]!r}"
    return ""


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


@app.command(epilog=examples("fints doctor", "fints doctor --json"))
def doctor(as_json: AsJson = False) -> None:
    """Check this machine; exit code 1 if something is wrong."""
    from fints.data import home
    from fints.doctor import examine

    checks = examine(home())
    wrong = [check for check in checks if check.state == "wrong"]
    if as_json:
        print_json({"ok": not wrong, "checks": [check.to_dict() for check in checks]})
    else:
        rows = [(check.name, check.found, check.state) for check in checks]
        print_table(["check", "found", "state"], rows)
        for check in checks:
            if check.remedy:
                print_wrapped(f"{check.name}: {check.remedy}")
        print(
            f"{len(wrong)} of {len(checks)} checks are wrong." if wrong else "Everything fints needs is here."
        )
    raise typer.Exit(1 if wrong else 0)


@app.command(epilog=examples("fints ui", "fints ui --root results --port 5001"))
def ui(
    root: Annotated[
        Path | None, typer.Option(help="Folder of the results; default: FINTS_HOME, else your data folder.")
    ] = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port on 127.0.0.1.")] = 5000,
) -> None:
    """Open the MLflow pages of your studies."""
    from fints.data import home
    from fints.ui import serve, store

    with refusing():
        code = serve(store(root if root is not None else home()), port)
    raise typer.Exit(code)

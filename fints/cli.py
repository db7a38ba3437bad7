"""The ``fints`` command: what is installed, which data, which schemes, the tracking pages.

Studies are run by their own files (``python studies/NAME.py``); this command looks after what
surrounds them. Everything heavy is imported inside the verb that needs it, so that ``--help``
answers at once.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fints import __version__
from fints.console import call, refusing

if TYPE_CHECKING:
    from rich.console import Console

    from fints.data import Panel

__all__ = ["app", "main"]

# The width at which `schemes` counts parameters.
WIDTH = 64

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for a program to read.")]

# Plain help: the boxes of rich cost a quarter of a second of imports before the first line.
app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
data = typer.Typer(rich_markup_mode=None)
app.add_typer(data, name="data", help="List, show or check data.")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command on `arguments` (default: those of the process) and return its exit code."""
    return call(app, "fints", arguments)


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

    with refusing():
        cards = datasets()
    if as_json:
        _print_json([_card_fields(card) for card in cards])
        return
    rows = [
        (card.name, str(len(card.assets)), f"{card.rows:,}", _span(card.span), card.title) for card in cards
    ]
    _print_table(["name", "assets", "rows", "span", "title"], rows, right=("assets", "rows"))


@data.command("show")
def data_show(
    name: Annotated[str, typer.Argument(help="A name of `fints data list`.")], as_json: AsJson = False
) -> None:
    """Show a dataset's card: origin, licence, span, known faults, checksum."""
    from fints.data import card

    with refusing():
        fields = _card_fields(card(name))
    if as_json:
        _print_json(fields)
        return
    _print_fields(fields)


@data.command("check")
def data_check(
    file: Annotated[Path, typer.Argument(help="A CSV or parquet file, long or wide.")],
    layout: Annotated[str, typer.Option(help="How the file is laid out: auto, long or wide.")] = "auto",
    price: Annotated[str, typer.Option(help="The column that holds the price.")] = "close",
    as_json: AsJson = False,
) -> None:
    """Check that a file is a panel fints can use, and say what is in it."""
    from fints.data import read

    with refusing():
        panel = read(file, layout=layout, price=price)
    fields = _panel_fields(panel)
    if as_json:
        _print_json(fields)
        return
    _print_fields(fields)
    print(f"{file} is a panel that fints can use.")


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

    with refusing():
        code = serve(store(root if root is not None else home()), port)
    raise typer.Exit(code)


def _card_fields(card: Any) -> dict[str, Any]:
    import dataclasses

    return {
        name: _plain(value)
        for name, value in ((f.name, getattr(card, f.name)) for f in dataclasses.fields(card))
    }


def _panel_fields(panel: Panel) -> dict[str, Any]:
    import polars as pl

    frame = panel.frame
    by_asset = frame.group_by("asset").agg(
        pl.col(panel.price).is_null().all().alias("empty"), pl.col(panel.price).n_unique().alias("prices")
    )
    empty = by_asset.filter(pl.col("empty"))["asset"].sort().to_list()
    constant = by_asset.filter(~pl.col("empty") & (pl.col("prices") == 1))["asset"].sort().to_list()
    numbers = [panel.price, *panel.feature_columns]
    missing = {name: frame[name].null_count() / frame.height for name in numbers}
    fields: dict[str, Any] = {
        "rows": frame.height,
        "assets": len(panel.assets),
        "span": [str(panel.dates[0]), str(panel.dates[-1])],
        "dates": len(panel.dates),
        "columns": numbers,
        "missing_share": missing,
        "assets_without_a_price": empty,
        "assets_with_one_constant_price": constant,
        "checksum": panel.checksum,
    }
    return fields


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _span(span: Any) -> str:
    return " to ".join(str(end) for end in span) if isinstance(span, list | tuple) else str(span)


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False))


def _console() -> Console:
    from rich.console import Console

    return Console(file=sys.stdout, soft_wrap=False)


def _print_table(columns: list[str], rows: list[tuple[str, ...]], right: tuple[str, ...] = ()) -> None:
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
    """Print one field a line, lists as indented lines when they are sentences."""
    rows = []
    for name, value in fields.items():
        if isinstance(value, dict):
            text = ", ".join(f"{key} {share:.2%}" for key, share in value.items())
        elif isinstance(value, list):
            text = ("\n" if any(" " in str(item) for item in value) else ", ").join(map(str, value)) or "none"
        elif isinstance(value, bool) or not isinstance(value, int):
            text = str(value)
        else:
            text = f"{value:,}"
        rows.append((name.replace("_", " "), text))
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in rows:
        table.add_row(Text(name, style="bold"), Text(text))
    _console().print(table)

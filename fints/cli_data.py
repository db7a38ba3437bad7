"""The verbs of ``fints data``: list, show, check."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fints.terminal import AsJson, Refusal, print_fields, print_json, print_table, print_wrapped, refusing

__all__ = ["data"]

data = typer.Typer(rich_markup_mode=None)


@data.command("list")
def data_list(as_json: AsJson = False) -> None:
    """List the bundled datasets and those of your own folder."""
    from fints.data import datasets

    with refusing():
        cards = datasets()
    if as_json:
        print_json([card.to_dict() for card in cards])
        return
    rows = [
        (card.name, str(len(card.assets)), f"{card.rows:,}", str(card.span[0]), str(card.span[1]), card.title)
        for card in cards
    ]
    print_table(["name", "assets", "rows", "from", "to", "title"], rows, right=("assets", "rows"))


@data.command("show")
def data_show(
    name: Annotated[str, typer.Argument(help="A name of `fints data list`.", show_default=False)],
    as_json: AsJson = False,
) -> None:
    """Show a dataset's card: origin, licence, span, faults."""
    from fints.data import card

    with refusing():
        found = card(name)
    if as_json:
        print_json(found.to_dict() | {"path": str(found.path)})
        return
    fields = found.to_dict() | {
        "assets": ", ".join(found.assets),
        "rows": f"{found.rows:,}",
        "span": f"{found.span[0]} to {found.span[1]}",
    }
    fields["sealed_from"] = (
        f"{found.sealed_from}: no study reads further" if found.sealed_from else "nothing sealed"
    )
    print_fields(fields | {"path": str(found.path)})


@data.command("check")
def data_check(
    file: Annotated[Path, typer.Argument(help="A CSV or parquet file, long or wide.", show_default=False)],
    layout: Annotated[str, typer.Option(help="How the file is laid out: auto, long or wide.")] = "auto",
    price: Annotated[str, typer.Option(help="The column that holds the price.")] = "close",
    as_json: AsJson = False,
) -> None:
    """Check a file of yours; exit code 2 if it is no panel."""
    from fints.data import check

    with refusing():
        report = check(file, layout=layout, price=price)
    if as_json:
        print_json(report.to_dict())
        raise typer.Exit(0 if report.ok else 2)
    errors = [finding.message for finding in report.findings if finding.level == "error"]
    if errors:
        # The first error is the line on stderr; the others are read above it.
        for message in errors[1:]:
            print(f"also: {message}")
        raise Refusal(errors[0])
    fields = {"file": report.subject, "read as": report.recognised, **report.summary}
    fields |= {"rows": f"{report.summary['rows']:,}", "prices": f"{report.summary['prices']:,}"}
    print_fields(fields)
    for finding in report.findings:
        print_wrapped(f"{finding.level}: {finding.message}")
    print("This file is a panel that fints can use.")

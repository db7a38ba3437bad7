"""The verbs of ``fints data``: list, show, check, import."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fints.cli_completion import dataset_names, own_dataset_names
from fints.terminal import (
    AsJson,
    Refusal,
    Yes,
    confirmed,
    examples,
    print_fields,
    print_json,
    print_table,
    print_wrapped,
    refusing,
)
from fints.words import byte_text

if TYPE_CHECKING:
    from fints.data import Report

__all__ = ["data"]

data = typer.Typer(
    rich_markup_mode=None,
    epilog=examples(
        "fints data list", "fints data check prices.csv", "fints data import prices.csv --as mine"
    ),
)

# How a file is to be read and what may be repaired: the same for `check` and `import`.
File = Annotated[Path, typer.Argument(help="A file, or a folder of qlib.", show_default=False)]
Layout = Annotated[str, typer.Option(help="auto, long, wide, yfinance, stooq, kaggle, crsp, french ...")]
Price = Annotated[str | None, typer.Option(help="The column of prices (or returns).")]
Block = Annotated[str | None, typer.Option(help="french: number or words of a block's title.")]
Sheet = Annotated[str | None, typer.Option(help="The sheet of a workbook.")]
Returns = Annotated[str | None, typer.Option(help="The prices are returns: simple or log.")]
Drop = Annotated[list[str] | None, typer.Option(help="Leave a column out (may be repeated).")]
DateOrder = Annotated[str | None, typer.Option(help="day or month: which is first in 03/04/2020.")]
Century = Annotated[int | None, typer.Option(help="First year meant by two digits, such as 1950.")]
ExcelDates = Annotated[bool, typer.Option("--excel-dates", help="Five digits are Excel's days.")]
TimeZone = Annotated[str | None, typer.Option(help="Zone in which a stamp's day counts.")]
Duplicates = Annotated[str | None, typer.Option(help="Of repeated rows keep the first or last.")]
DropLiveBar = Annotated[bool, typer.Option("--drop-live-bar", help="Leave out a last bar that repeats.")]
Percent = Annotated[list[str] | None, typer.Option(help="Divide a column by 100 (repeatable).")]
Factors = Annotated[
    list[str] | None,
    typer.Option("--factor", help="Multiply an asset's prices: VOD=0.01@2001-02-03..2001-02-09."),
]
MissingPrices = Annotated[
    bool, typer.Option("--missing-prices", help="Prices of 0 or less, or infinite, are missing.")
]
FilledHolidays = Annotated[
    bool, typer.Option("--drop-filled-holidays", help="Leave out dates on which all prices repeat.")
]
DropStale = Annotated[int | None, typer.Option(help="Leave out runs of so many zero returns.")]
TotalLoss = Annotated[float | None, typer.Option(help="Write this for a return of -1, such as -0.99.")]
Delisting = Annotated[
    float | None, typer.Option("--missing-delisting", help="crsp: unknown delisting returns, such as -0.3.")
]


@data.command("list", epilog=examples("fints data list", "fints data list --json"))
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


@data.command("show", epilog=examples("fints data show sp500-20", "fints data show sp500-20 --json"))
def data_show(
    name: Annotated[
        str,
        typer.Argument(help="A name of `fints data list`.", show_default=False, autocompletion=dataset_names),
    ],
    as_json: AsJson = False,
) -> None:
    """Show a dataset's card: origin, licence, span, faults, repairs."""
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


@data.command(
    "check",
    epilog=examples(
        "fints data check prices.csv",
        "fints data check prices.csv --figure health.png",
        "fints data check prices.xlsx --sheet Close --date-order day --json",
    ),
)
def data_check(
    file: File,
    layout: Layout = "auto",
    price: Price = None,
    block: Block = None,
    sheet: Sheet = None,
    returns: Returns = None,
    drop: Drop = None,
    date_order: DateOrder = None,
    century: Century = None,
    excel_dates: ExcelDates = False,
    time_zone: TimeZone = None,
    duplicates: Duplicates = None,
    drop_live_bar: DropLiveBar = False,
    percent: Percent = None,
    factor: Factors = None,
    missing_prices: MissingPrices = False,
    drop_filled_holidays: FilledHolidays = False,
    drop_stale: DropStale = None,
    total_loss: TotalLoss = None,
    missing_delisting: Delisting = None,
    figure: Annotated[Path | None, typer.Option(help="Draw the report: .png, .svg or .pdf.")] = None,
    as_json: AsJson = False,
) -> None:
    """Check a file of yours; exit code 2 if it is no panel."""
    from fints.data import Factor, Repairs, check

    with refusing():
        repairs = Repairs(
            drop=tuple(drop or ()),
            date_order=date_order,
            century=century,
            excel_dates=excel_dates,
            time_zone=time_zone,
            duplicates=duplicates,
            drop_live_bar=drop_live_bar,
            percent=tuple(percent or ()),
            factors=tuple(map(Factor.parse, factor or ())),
            missing_prices=missing_prices,
            drop_filled_holidays=drop_filled_holidays,
            drop_stale=drop_stale,
            total_loss=total_loss,
            missing_delisting=missing_delisting,
        )
        report = check(
            file, layout=layout, price=price, block=block, sheet=sheet, returns=returns, repairs=repairs
        )
    drawn: dict[str, Any] = {}
    if figure is not None and report.ok:
        from fints.data.health_figure import draw_health

        with refusing():
            drawn = {"figure": str(draw_health(report, figure))}
    if as_json:
        print_json(report.to_dict() | drawn)
        raise typer.Exit(0 if report.ok else 2)
    errors = [finding.message for finding in report.findings if finding.level == "error"]
    if errors:
        # The first error is the line on stderr; the others are read above it.
        for message in errors[1:]:
            print(f"also: {message}")
        raise Refusal(errors[0])
    _print_report(report)
    for name, written in drawn.items():
        print_wrapped(f"{name}: {written}")
    print("This file is a panel that fints can use.")


@data.command(
    "import",
    epilog=examples(
        "fints data import prices.csv --as mine",
        "fints data import prices.csv --as mine --duplicates last --replace",
        "fints data import crsp.csv --as crsp --layout crsp --missing-delisting=-0.3",
    ),
)
def data_import(
    file: File,
    name: Annotated[str, typer.Option("--as", help="The dataset's name.", show_default=False)],
    layout: Layout = "auto",
    price: Price = None,
    block: Block = None,
    sheet: Sheet = None,
    returns: Returns = None,
    drop: Drop = None,
    date_order: DateOrder = None,
    century: Century = None,
    excel_dates: ExcelDates = False,
    time_zone: TimeZone = None,
    duplicates: Duplicates = None,
    drop_live_bar: DropLiveBar = False,
    percent: Percent = None,
    factor: Factors = None,
    missing_prices: MissingPrices = False,
    drop_filled_holidays: FilledHolidays = False,
    drop_stale: DropStale = None,
    total_loss: TotalLoss = None,
    missing_delisting: Delisting = None,
    title: Annotated[str, typer.Option(help="What it is, for the card.")] = "",
    licence: Annotated[str, typer.Option(help="What may be done with it, for the card.")] = "",
    replace: Annotated[bool, typer.Option("--replace", help="Replace a dataset of that name.")] = False,
    as_json: AsJson = False,
) -> None:
    """Keep a file of yours as a dataset; nothing is repaired unless you say so."""
    from fints.data import Factor, Repairs, import_file

    with refusing():
        repairs = Repairs(
            drop=tuple(drop or ()),
            date_order=date_order,
            century=century,
            excel_dates=excel_dates,
            time_zone=time_zone,
            duplicates=duplicates,
            drop_live_bar=drop_live_bar,
            percent=tuple(percent or ()),
            factors=tuple(map(Factor.parse, factor or ())),
            missing_prices=missing_prices,
            drop_filled_holidays=drop_filled_holidays,
            drop_stale=drop_stale,
            total_loss=total_loss,
            missing_delisting=missing_delisting,
        )
        imported = import_file(
            file,
            name,
            layout=layout,
            price=price,
            block=block,
            sheet=sheet,
            returns=returns,
            repairs=repairs,
            title=title,
            licence=licence,
            replace=replace,
        )
    if as_json:
        print_json({"card": imported.card.to_dict(), "report": imported.report.to_dict()})
        return
    _print_report(imported.report)
    print(f"Kept as {name}: fints data show {name}")


@data.command("delete", epilog=examples("fints data delete mine", "fints data delete mine --yes"))
def data_delete(
    name: Annotated[
        str,
        typer.Argument(help="A dataset of your own.", show_default=False, autocompletion=own_dataset_names),
    ],
    yes: Yes = False,
) -> None:
    """Delete a dataset of yours; the file it was imported from is not touched."""
    from fints.data import home
    from fints.data.deleting import delete_dataset, folder_bytes, own_dataset
    from fints.study.kept import kept_studies

    with refusing():
        folder = own_dataset(name)
        using = [one.name for one in kept_studies(home()) if one.dataset == name]
    told = f"Delete dataset {name} ({byte_text(folder_bytes(folder))}) from {folder.parent}?"
    if using:
        told += (
            f" Studies that were run on it keep their fits and cannot be gone on with: {', '.join(using)}."
        )
    if not confirmed(told, yes):
        return
    with refusing():
        freed = delete_dataset(name)
    print_wrapped(f"deleted: dataset {name}; {byte_text(freed)} are free again.")


def _print_report(report: Report) -> None:
    fields = {"file": report.subject, "read as": report.recognised, **report.summary}
    fields |= {"rows": f"{report.summary['rows']:,}", "prices": f"{report.summary['prices']:,}"}
    for key, texts in (("by layout", report.notes), ("repaired", report.repairs)):
        if texts:
            fields[key] = list(texts)
    print_fields(fields)
    for finding in report.findings:
        print_wrapped(f"{finding.level}: {finding.message}")

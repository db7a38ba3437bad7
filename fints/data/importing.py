"""A file that somebody brings becomes a dataset: read, repaired where asked, checked, kept with a card."""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from fints.data.catalog import Card, is_bundled, is_dataset, store
from fints.data.check import Report, report_of
from fints.data.readers import Repairs
from fints.data.sources import NO_REPAIRS, open_file

__all__ = ["Imported", "import_file"]

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True)
class Imported:
    """A dataset that was imported: its card, and the health report of what was kept."""

    card: Card
    report: Report


def import_file(
    path: str | os.PathLike[str],
    name: str,
    *,
    layout: str = "auto",
    price: str | None = None,
    block: str | int | None = None,
    sheet: str | None = None,
    returns: str | None = None,
    repairs: Repairs = NO_REPAIRS,
    title: str = "",
    licence: str = "",
    replace: bool = False,
) -> Imported:
    """Read a file as `fints.data.read` does and keep it as a dataset of the user's folder.

    The card holds where the file came from with its SHA-256, what the layout's rules and the repairs did to
    values, and the warnings of the health report as faults.

    Raises
    ------
    ValueError
        As `fints.data.read`; if the name is not letters, digits, points, dashes and underscores, or is taken
        and `replace` is not set. Nothing is written then.
    """
    if not NAME.fullmatch(name):
        raise ValueError(
            "a dataset's name is up to 100 letters, digits, '.', '-' and '_', the first a letter or digit; "
            f"got {name!r}."
        )
    if is_bundled(name):
        raise ValueError(f"{name!r} is a bundled dataset; choose another name.")
    if is_dataset(name) and not replace:
        raise ValueError(
            f"there is a dataset {name!r} already; choose another name, or give replace (--replace) to put "
            "this in its place."
        )
    reading = open_file(
        path, layout=layout, price=price, block=block, sheet=sheet, returns=returns, repairs=repairs
    )
    panel = reading.panel(name)
    report = report_of(reading, panel)
    source = Path(path)
    card = store(
        panel,
        name,
        title=title or f"imported from {source.name}",
        origin=f"{source.name}, SHA-256 {sha256(source)}, read as {reading.recognised}",
        licence=licence or "not stated",
        faults=tuple(finding.message for finding in report.findings if finding.level == "warning"),
        repairs=(*(f"by the layout: {note}" for note in reading.notes), *reading.repairs),
    )
    return Imported(card, report)


def sha256(path: Path) -> str:
    """Return the hexadecimal digest of a file, or of a folder's files with their names, in order."""
    digest = hashlib.sha256()
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    for file in files:
        if file != path:
            digest.update(file.relative_to(path).as_posix().encode() + b"\0")
        with file.open("rb") as stream:
            while chunk := stream.read(1 << 20):
                digest.update(chunk)
    return digest.hexdigest()

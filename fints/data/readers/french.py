"""Kenneth French's files: prose, then blocks of returns in percent, then more blocks, then a copyright line.

A block is a title (often none in files of factors), a header whose first cell is unnamed (or "Date"), and
rows that start with YYYYMMDD, YYYYMM or YYYY. Blocks of returns can be read; those of counts and sizes
cannot. Returns are percent, and -99.99 and -999 are missing. Nothing is skipped by its position: a line that
looks like a row but is none ends in an error, since a reader that took it for prose would lose what follows.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import polars as pl

from fints.data.dates import parse_periods
from fints.data.panel_shapes import unpivot
from fints.data.readers.asking import Asking
from fints.data.readers.files import PLACE, Text, collect
from fints.data.readers.reading import Reading
from fints.words import counted

__all__ = ["read_french", "recognises_french"]

HEADER = re.compile(r"^\s*(date)?\s*,.*[^\s,\d.-].*$", re.IGNORECASE)
ROW = re.compile(r"^\s*(\d{4}|\d{6}|\d{8})\s*(,|$)")
NUMBER = re.compile(r"^\s*[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?\s*$", re.IGNORECASE)
MISSING = (-99.99, -999.0)
RETURNS = re.compile(r"(weight\w*\s+returns|annual factors|^$)", re.IGNORECASE)
NO_RETURNS = re.compile(r"(number of firms|firm size|prior returns|average of|sum of)", re.IGNORECASE)
LARGEST = 1 << 28


@dataclass
class _Block:
    """One of the stacked tables: its title, names, and rows as (line, cells)."""

    title: str
    names: list[str]
    line: int
    rows: list[tuple[int, list[str]]] = field(default_factory=list)

    @property
    def returns(self) -> bool:
        return bool(RETURNS.search(self.title)) and not NO_RETURNS.search(self.title)

    @property
    def label(self) -> str:
        kinds = {4: "annual", 6: "monthly", 8: "daily"}
        kind = kinds.get(len(self.rows[0][1][0]), "?") if self.rows else "empty"
        return f"{self.title or 'untitled'} ({kind}, {counted(len(self.names), 'column')})"


def recognises_french(text: Text) -> bool:
    """Tell whether prose is followed by an unnamed header and rows of periods."""
    seen_prose = False
    for place, line in enumerate(text.head):
        if HEADER.match(line):
            after = next((later for later in text.head[place + 1 :] if later.strip()), "")
            if ROW.match(after):
                # Without any prose it may be a wide file; then only months or the name of a factor tell.
                return seen_prose or bool(re.match(r"^\s*\d{6}\s*,", after)) or "Mkt-RF" in line
            return False
        if ROW.match(line):
            return False
        seen_prose |= bool(line.strip())
    return False


def read_french(text: Text, asking: Asking) -> Reading:
    """Read one block of returns.

    `Asking.block` chooses it by its number from 1 or by a part of its title; else it is the first, and what
    was read says so.

    Raises
    ------
    ValueError
        With file, line, value and remedy.
    """
    path = text.path
    blocks = _blocks(text)
    block = _choose(text, blocks, asking.block)
    cells = pl.DataFrame(
        [[line, *row] for line, row in block.rows],
        schema=[(PLACE, pl.Int64), ("date", pl.String), *((f"\1{name}", pl.String) for name in block.names)],
        orient="row",
    )
    for name in block.names:
        column = cells[f"\1{name}"]
        values = column.cast(pl.Float64, strict=False)
        broken = ((values.is_null() | values.is_infinite()) & (column != "")).arg_true()
        if len(broken):
            place = int(broken[0])
            raise ValueError(
                f"{path}: line {cells[PLACE][place]}, column {name!r}: {column[place]!r} is not a number. "
                "Correct it, or write -99.99 if it is missing."
            )
    dates, date_format = parse_periods(path, cells["date"], cells[PLACE], "line")
    later = (dates.diff().dt.total_days() <= 0).fill_null(False).arg_true()
    if len(later):
        place = int(later[0])
        raise ValueError(
            f"{path}: line {cells[PLACE][place]}: the date {cells['date'][place]!r} does not follow "
            f"{cells['date'][place - 1]!r}. Two blocks without a title between them, or a repeated row: "
            "correct it."
        )
    numbers = pl.exclude(PLACE, "date").cast(pl.Float64, strict=False)
    wide = cells.with_columns(dates.alias("date")).select(
        pl.struct("date", PLACE).alias("date"), (pl.when(~numbers.is_in(MISSING)).then(numbers) / 100)
    )
    wide = wide.rename(lambda name: name.removeprefix("\1"))
    long = unpivot(wide, "return").with_columns(
        pl.col("date").struct.field("date"), pl.col("date").struct.field(PLACE)
    )
    gone = int(cells.select(numbers.is_in(MISSING).sum()).sum_horizontal().item())
    notes = ["returns in percent divided by 100, as the library defines them"]
    if gone:
        notes.append(f"{counted(gone, 'return')} missing by -99.99 or -999")
    if "RF" in block.names:
        notes.append(
            "RF is the return of Treasury bills and hardly varies: drop it if it is no asset for you"
        )
    number = blocks.index(block) + 1
    return Reading.of(
        path,
        long,
        unit="line",
        layout="french",
        recognised=f"Kenneth French's library, block {number} of {len(blocks)}: {block.label}, dates "
        f"({date_format})",
        price="return",
        returns="simple",
        notes=notes,
    )


def _blocks(text: Text) -> list[_Block]:
    lines = collect(text.lines().sort(PLACE), text)["line"].to_list()
    if sum(map(len, lines)) > LARGEST:
        raise ValueError(f"{text.path}: is larger than any file of the library. Name another layout.")
    blocks: list[_Block] = []
    prose: list[str] = []
    block: _Block | None = None
    for number, line in enumerate(lines, 1):
        if HEADER.match(line) and not ROW.match(line):
            block = _Block(_title(prose), _names(text, number, line), number)
            blocks.append(block)
            prose = []
        elif ROW.match(line):
            if block is None:
                raise ValueError(
                    f"{text.path}: line {number} is a row ({line.strip()[:40]!r}) without a header above "
                    "it. Put the names of the columns back."
                )
            block.rows.append((number, _cells(text, number, line, block)))
        elif not line.strip():
            if block is not None and block.rows:
                block = None
        else:
            _check_prose(text, number, line, blocks)
            if block is not None and block.rows:
                block = None
            prose.append(line.strip())
    blocks = [one for one in blocks if one.rows]
    if not blocks:
        raise ValueError(
            f"{text.path}: has no block of a header with an empty first cell and rows YYYYMM below it. Is "
            "it a file of Kenneth French's library?"
        )
    return blocks


def _title(prose: Sequence[str]) -> str:
    """Return the last line of prose if it is a title, not a sentence about the file."""
    if not prose or prose[-1].endswith(".") or "created" in prose[-1].lower():
        return ""
    return " ".join(prose[-1].split())


def _names(text: Text, number: int, line: str) -> list[str]:
    names = [" ".join(cell.split()) for cell in line.split(",")[1:]]
    if names and names[-1] == "":
        names.pop()
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice or "" in names:
        found = f"names {twice[0]!r} twice" if twice else "has an empty name"
        raise ValueError(f"{text.path}: line {number}: the header {found}. Give each column one name.")
    return names


def _cells(text: Text, number: int, line: str, block: _Block) -> list[str]:
    cells = [cell.strip() for cell in line.split(",")]
    if len(cells) == len(block.names) + 2 and cells[-1] == "":
        cells.pop()
    if len(cells) != len(block.names) + 1:
        raise ValueError(
            f"{text.path}: line {number} has {counted(len(cells), 'cell')}, its header has "
            f"{len(block.names) + 1}. Complete or delete it; if it is the last line, the file was cut short."
        )
    return cells


def _check_prose(text: Text, number: int, line: str, blocks: list[_Block]) -> None:
    """Refuse a damaged row: taken for prose it would end the block and lose the rows below."""
    cells = line.split(",")
    numbers = sum(bool(NUMBER.match(cell)) for cell in cells[1:])
    if blocks and len(cells) > 1 and numbers > 0 and 2 * numbers >= len(cells) - 1:
        raise ValueError(
            f"{text.path}: line {number} looks like a row but starts with {cells[0].strip()!r}, which is no "
            "date YYYYMM. Correct or delete it."
        )


def _choose(text: Text, blocks: list[_Block], wanted: str | None) -> _Block:
    listed = "; ".join(f"{number} {block.label}" for number, block in enumerate(blocks, 1))
    if wanted is None:
        found = [block for block in blocks if block.returns]
        if not found:
            raise ValueError(f"{text.path}: none of its blocks holds returns: {listed}.")
        return found[0]
    if wanted.isdigit():
        if not 1 <= int(wanted) <= len(blocks):
            raise ValueError(f"{text.path}: has no block {wanted}; it has {listed}.")
        chosen = [blocks[int(wanted) - 1]]
    else:
        words = wanted.casefold().split()
        named = [block for block in blocks if all(word in block.label.casefold() for word in words)]
        chosen = [block for block in named if block.returns] or named
    if len(chosen) != 1:
        raise ValueError(
            f"{text.path}: {len(chosen)} blocks match {wanted!r}; name one by number or title: {listed}."
        )
    if not chosen[0].returns:
        raise ValueError(f"{text.path}: block {chosen[0].label} holds no returns; choose among {listed}.")
    return chosen[0]

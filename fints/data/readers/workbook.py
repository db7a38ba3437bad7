"""Worksheets of .xlsx files, by the standard library alone.

An .xlsx file is a zip of XML parts: the workbook names its sheets, a sheet holds cells by reference ("B7"),
text may stand in a shared table, and whether a number is a date is said by the format of its style. Formulas
are read by the value that Excel saved with them.

Source: ECMA-376, Office Open XML, part 1, section 18 (SpreadsheetML).
"""

from __future__ import annotations

import datetime as dt
import re
import zipfile
from pathlib import Path
from xml.etree import ElementTree

__all__ = ["read_sheet"]

SPREADSHEET = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"
RELATIONSHIP = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}"
PACKAGE = "{http://schemas.openxmlformats.org/package/2006/relationships}"
# A part this large is no table of returns; what is small in a zip may be endless unpacked.
LARGEST_PART = 512 << 20
# Built-in number formats that show a day.
DATE_FORMATS = {*range(14, 18), 22, *range(27, 32), 36, *range(50, 59)}
ERRORS = {"#N/A", "#DIV/0!", "#NUM!", "#VALUE!", "#REF!", "#NAME?", "#NULL!"}


def read_sheet(path: Path, sheet: str | None) -> tuple[list[str], list[list[str | None]], str, int]:
    """Return the header, the columns of cells as text, the sheet's name and the row of the first cell.

    The first row that is not empty is the header. Days are text YYYY-MM-DD; #N/A is a missing cell, as is an
    empty one.

    Raises
    ------
    ValueError
        If the workbook is damaged, has no such sheet, a cell holds another error, or a header occurs twice.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            sheets = _sheets(archive)
            name = _choose(path, list(sheets), sheet)
            shared = _shared(archive)
            styles = _date_styles(archive)
            rows = _rows(path, _part(archive, sheets[name]), shared, styles, _epoch(archive))
    except (
        zipfile.BadZipFile,
        ElementTree.ParseError,
        KeyError,
        IndexError,
        OSError,
        NotImplementedError,  # zipfile's word for a compression that it does not know
    ) as error:
        raise ValueError(f"{path}: is a damaged workbook ({error!r}). Save or download it again.") from error
    filled = [(place, row) for place, row in rows if any(cell is not None for cell in row.values())]
    if len(filled) < 2:
        raise ValueError(f"{path}: sheet {name!r} has no header with rows below it.")
    top, header = filled[0]
    width = max(max(row, default=0) for _, row in filled) + 1
    columns = [(header.get(place) or "").strip() for place in range(width)]
    twice = sorted({column for column in columns if column and columns.count(column) > 1})
    if twice:
        raise ValueError(
            f"{path}: row {top} of sheet {name!r} names {', '.join(map(repr, twice))} more than once. Keep "
            "one."
        )
    last = filled[-1][0]
    below = dict(filled[1:])
    cells: list[list[str | None]] = [
        [below.get(row, {}).get(place) for row in range(top + 1, last + 1)] for place in range(width)
    ]
    for place, column in enumerate(columns):
        if not column and any(cell is not None for cell in cells[place]):
            raise ValueError(
                f"{path}: column {place + 1} of sheet {name!r} has values but no name in row {top}. Name it."
            )
    return columns, cells, name, top + 1


def _part(archive: zipfile.ZipFile, name: str) -> ElementTree.Element:
    if archive.getinfo(name).file_size > LARGEST_PART:
        raise zipfile.BadZipFile(f"{name} is larger than {LARGEST_PART >> 20} MiB unpacked")
    text = archive.read(name)
    # No workbook declares entities; a file that does wants something else.
    if b"<!DOCTYPE" in text[:1024] or b"<!ENTITY" in text[:1024]:
        raise zipfile.BadZipFile(f"{name} declares entities")
    return ElementTree.fromstring(text)


def _sheets(archive: zipfile.ZipFile) -> dict[str, str]:
    targets = {
        link.get("Id"): link.get("Target", "")
        for link in _part(archive, "xl/_rels/workbook.xml.rels").iter(f"{PACKAGE}Relationship")
    }
    found = {}
    for element in _part(archive, "xl/workbook.xml").iter(f"{SPREADSHEET}sheet"):
        target = targets[element.get(f"{RELATIONSHIP}id")]
        found[element.get("name", "")] = target.removeprefix("/") if target[:1] == "/" else f"xl/{target}"
    return found


def _choose(path: Path, names: list[str], sheet: str | None) -> str:
    if sheet is None:
        monthly = [name for name in names if name.casefold() == "monthly"]
        if not names:
            raise ValueError(f"{path}: the workbook has no sheet.")
        return (monthly or names)[0]
    found = [name for name in names if name.casefold() == sheet.casefold()]
    if not found:
        raise ValueError(f"{path}: has no sheet {sheet!r}; it has {', '.join(map(repr, names))}.")
    return found[0]


def _shared(archive: zipfile.ZipFile) -> list[str]:
    if "xl/sharedStrings.xml" not in archive.namelist():
        return []
    return [_text(item) for item in _part(archive, "xl/sharedStrings.xml").iter(f"{SPREADSHEET}si")]


def _text(element: ElementTree.Element) -> str:
    # Phonetic readings (rPh) stand beside the text and are no part of it.
    parts = [element.findtext(f"{SPREADSHEET}t")]
    parts += [run.findtext(f"{SPREADSHEET}t") for run in element.findall(f"{SPREADSHEET}r")]
    return "".join(part for part in parts if part)


def _date_styles(archive: zipfile.ZipFile) -> set[int]:
    if "xl/styles.xml" not in archive.namelist():
        return set()
    root = _part(archive, "xl/styles.xml")
    custom = set()
    for element in root.iter(f"{SPREADSHEET}numFmt"):
        plain = re.sub(r'"[^"]*"|\[[^\]]*\]|\\.', "", element.get("formatCode", "")).lower()
        if "y" in plain or "d" in plain:
            custom.add(int(element.get("numFmtId", "-1")))
    formats = root.find(f"{SPREADSHEET}cellXfs")
    used = [] if formats is None else [int(style.get("numFmtId", "0")) for style in formats]
    return {place for place, number in enumerate(used) if number in DATE_FORMATS or number in custom}


def _epoch(archive: zipfile.ZipFile) -> dt.date:
    for element in _part(archive, "xl/workbook.xml").iter(f"{SPREADSHEET}workbookPr"):
        if element.get("date1904") in ("1", "true"):
            return dt.date(1904, 1, 1)
    return dt.date(1899, 12, 30)


def _rows(
    path: Path, root: ElementTree.Element, shared: list[str], dates: set[int], epoch: dt.date
) -> list[tuple[int, dict[int, str | None]]]:
    rows = []
    number = 0
    for row in root.iter(f"{SPREADSHEET}row"):
        number = int(row.get("r", number + 1))
        cells: dict[int, str | None] = {}
        column = -1
        for cell in row.iter(f"{SPREADSHEET}c"):
            letters = re.match(r"[A-Z]+", cell.get("r", ""))
            column = _column(letters[0]) if letters else column + 1
            cells[column] = _value(path, number, cell, shared, dates, epoch)
        rows.append((number, cells))
    return rows


def _column(letters: str) -> int:
    number = 0
    for letter in letters:
        number = 26 * number + ord(letter) - ord("A") + 1
    if number > 16384:
        raise IndexError(f"there is no column {letters}")
    return number - 1


def _value(
    path: Path, row: int, cell: ElementTree.Element, shared: list[str], dates: set[int], epoch: dt.date
) -> str | None:
    kind = cell.get("t", "n")
    if kind == "inlineStr":
        inline = cell.find(f"{SPREADSHEET}is")
        return _text(inline) if inline is not None else None
    value = cell.findtext(f"{SPREADSHEET}v")
    if value is None or value == "":
        return None
    if kind == "s":
        return shared[int(value)]
    if kind == "e":
        if value == "#N/A":
            return None
        raise ValueError(
            f"{path}: row {row}, cell {cell.get('r', '?')}: holds {value}. Correct the formula or clear the "
            "cell."
        )
    if kind == "n" and int(cell.get("s", "0")) in dates:
        try:
            stamp = dt.datetime.combine(epoch, dt.time()) + dt.timedelta(days=float(value))
        except (ValueError, OverflowError):
            return value
        return stamp.date().isoformat() if stamp.time() == dt.time() else stamp.isoformat(" ")
    return value

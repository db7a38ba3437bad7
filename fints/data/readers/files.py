"""Files as tables of cells, read lazily, so that a large CSV stays on disk until its columns are numbers."""

from __future__ import annotations

import atexit
import csv
import gzip
import io
import os
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import polars as pl

from fints.data.readers.not_tables import answer, refuse_bytes, refuse_line
from fints.data.readers.workbook import read_sheet
from fints.words import counted

__all__ = ["PLACE", "Table", "Text", "collect", "open_container"]

PLACE = "\0place"
# Text up to this size may be in any encoding and with any ends of line; larger files stay on disk.
SMALL = 64 << 20
HEAD = 1 << 16
# Header rows, and a row of data below them.
HEAD_LINES = 8
MANY_COLUMNS = 300
# A damaged parquet file makes polars 2.1 panic, which is no Exception.
BROKEN = (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError)
SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}


@dataclass(frozen=True, eq=False)
class Table:
    """A file's cells under its column names.

    Attributes
    ----------
    path : Path
        The file.
    frame : polars.LazyFrame
        The cells, after a first column `PLACE`. Text is stripped, and null where empty.
    columns : tuple of str
        Names of the others, in the order of the file.
    unit : str
        What `PLACE` counts: "line" (the header of a CSV is line 1) or "row".
    style : str
        What the file is, in words.
    large : bool
        The cells lie on disk, not in memory.
    """

    path: Path
    frame: pl.LazyFrame
    columns: tuple[str, ...]
    unit: str
    style: str
    large: bool = False

    @property
    def by_name(self) -> dict[str, str]:
        """Each column by its name in lower case; of equal ones the first."""
        return {column.casefold(): column for column in reversed(self.columns)}


@dataclass(frozen=True, eq=False)
class Text:
    """A text file: its first lines, and where the whole is to be had.

    Attributes
    ----------
    path : Path
        The file the user named.
    source : Path or bytes
        The whole in UTF-8.
    head : tuple of str
        The first complete lines.
    """

    path: Path
    source: Path | bytes
    head: tuple[str, ...]

    def lines(self) -> pl.LazyFrame:
        """Return every line in a column ``line``, with its number from 1 in `PLACE`."""
        # An in-memory stream is read once: each query gets its own.
        return pl.scan_lines(_opened(self.source), row_index_name=PLACE, row_index_offset=1, glob=False)

    @property
    def first(self) -> int:
        """Index of the first line of `head` that is not blank."""
        return next(place for place, line in enumerate(self.head) if line.strip())

    @property
    def separator(self) -> str:
        """What separates the cells of the first line.

        Raises
        ------
        ValueError
            If the line has none, so is no header.
        """
        header = self.head[self.first]
        refuse_line(self.path, header)
        separator = max(SEPARATORS, key=header.count)
        if separator not in header:
            raise ValueError(
                f"{self.path}: the first line must be a header with a date column and at least one more, "
                f"separated by comma, semicolon, tab or bar; got {header[:80]!r}.{answer(header)}"
            )
        return separator

    def cells(self, place: int) -> list[str]:
        """Return the stripped cells of line `place` of the head."""
        return [cell.strip() for cell in next(csv.reader([self.head[place]], delimiter=self.separator), [])]

    def table(self, columns: Sequence[str], start: int) -> Table:
        """Return what follows the first `start` lines as a table of these columns; "" leaves a column out.

        Raises
        ------
        ValueError
            If a line has another number of cells, the quotes are broken, or there is no line.
        """
        separator = self.separator
        self._check_widths(separator, len(columns), start)
        names = [f"\0{place}" for place in range(len(columns))]
        cells = pl.scan_csv(
            _opened(self.source),
            separator=separator,
            has_header=False,
            skip_lines=start,
            # A first line that is blank has one cell.
            schema=dict.fromkeys(names, pl.String),
            missing_columns="insert",
            row_index_name=PLACE,
            row_index_offset=start + 1,
            raise_if_empty=False,
            glob=False,
        )
        kept = [
            pl.col(name).str.strip_chars().replace("", None).alias(column)
            for name, column in zip(names, columns, strict=True)
            if column
        ]
        values = tuple(column for column in columns if column)
        frame = cells.select(pl.col(PLACE).cast(pl.Int64), *kept)
        frame = frame.filter(~pl.all_horizontal(pl.col(*values).is_null()))
        large = isinstance(self.source, Path)
        if not large:
            frame = collect(frame, self).lazy()
        return Table(self.path, frame, values, "line", f"CSV separated by {SEPARATORS[separator]}", large)

    def _check_widths(self, separator: str, width: int, start: int) -> None:
        """Refuse a line with more or fewer cells than the header: padding it would hide a cut-off file."""
        lines = self.lines().filter(pl.col(PLACE) > start, pl.col("line").str.strip_chars() != "")
        found = pl.col("line").str.count_matches(separator, literal=True) + 1
        quoted, rows, odd = collect(
            lines.select(
                pl.col("line").str.contains('"', literal=True).any(),
                pl.len().alias("rows"),
                pl.struct(PLACE, found.alias("found")).filter(found != width).first().alias("odd"),
            ),
            self,
        ).row(0)
        if not rows:
            raise ValueError(f"{self.path}: the file has a header but no row of data. Give one row a date.")
        wrong = None if odd is None else (odd[PLACE], odd["found"])
        if quoted:
            counts = ((place, len(cells)) for place, cells in self._quoted(separator, start))
            wrong = next(((place, count) for place, count in counts if count not in (0, width)), None)
        if wrong:
            raise ValueError(
                f"{self.path}: line {wrong[0]} has {counted(wrong[1], 'cell')}, the header has {width}. "
                "Complete or delete it; if it is the last line, the file was cut short."
            )

    def _quoted(self, separator: str, start: int) -> Iterator[tuple[int, list[str]]]:
        opened = _opened(self.source)
        binary = opened.open("rb") if isinstance(opened, Path) else opened
        with io.TextIOWrapper(binary, encoding="utf-8", newline="") as stream:
            for _ in range(start):
                stream.readline()
            reader = csv.reader(stream, delimiter=separator)
            try:
                for cells in reader:
                    blank = len(cells) < 2 and not "".join(cells).strip()
                    yield start + reader.line_num, [] if blank else cells
            except csv.Error as error:
                place = start + reader.line_num
                raise ValueError(
                    f"{self.path}: line {place} is not well-formed CSV ({error}). Check its quotes."
                ) from error


def collect(frame: pl.LazyFrame, source: Text | Table) -> pl.DataFrame:
    """Run a query over a file.

    Raises
    ------
    ValueError
        If the file is not what its beginning promised.
    """
    try:
        return frame.collect(engine="streaming" if _large(source) else "in-memory")
    except BROKEN as error:
        said = _said(error)
        if isinstance(source, Text) and "utf" in said.lower():
            raise ValueError(_not_utf8(source.path, source.source)) from error
        raise ValueError(
            f"{source.path}: cannot be read as it stands ({said}). Check or write it again."
        ) from error


def _large(source: Text | Table) -> bool:
    """Tell whether a source is one for the streaming engine, which is slow to plan for many columns."""
    if isinstance(source, Text):
        return isinstance(source.source, Path)
    return source.large and len(source.columns) <= MANY_COLUMNS


def _said(error: BaseException) -> str:
    """Return the first line of an error, within reason."""
    return str(error).lstrip().split("\n", 1)[0][:200]


def open_container(path: Path, sheet: str | None = None) -> Text | Table:
    """Open a file as text or, if it has named columns of its own, as a table.

    Raises
    ------
    ValueError
        If there is no such file, it is empty, damaged, or of a kind that is not read.
    """
    if not path.is_file():
        raise ValueError(f"{path}: there is no such file{' (it is a folder)' if path.is_dir() else ''}.")
    try:
        size = path.stat().st_size
        with path.open("rb") as stream:
            start = stream.read(HEAD)
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror}).") from error
    suffix = path.suffix.lower()
    refuse_bytes(path, start)
    if start[:4] == b"PAR1" or suffix in (".parquet", ".pq"):
        return _columnar(path, "parquet")
    if start[:6] == b"ARROW1" or start[:4] == b"\xff\xff\xff\xff" or suffix in (".arrow", ".feather", ".ipc"):
        return _columnar(path, "Arrow")
    if start[:2] == b"PK":
        return _sheet(path, sheet)
    if start[:2] == b"\x1f\x8b":
        return _text(path, _gunzip(path))
    return _text(path, path if size > SMALL else path.read_bytes())


def _columnar(path: Path, kind: str) -> Table:
    try:
        if kind == "parquet":
            frame = pl.scan_parquet(path, glob=False)
            schema = frame.collect_schema()
        else:
            with path.open("rb") as stream:
                streamed = stream.read(4) == b"\xff\xff\xff\xff"
            frame = pl.read_ipc_stream(path).lazy() if streamed else pl.scan_ipc(path, glob=False)
            schema = frame.collect_schema()
    except BROKEN as error:
        said = _said(error)
        raise ValueError(f"{path}: is not a readable {kind} file ({said}). Write it again.") from error
    if not schema:
        raise ValueError(f"{path}: has no column. A panel needs dates and prices.")
    return _with_places(path, frame, list(schema), kind)


def _sheet(path: Path, sheet: str | None) -> Table:
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, OSError) as error:
        raise ValueError(f"{path}: is a damaged zip or Excel file ({error}). Download it again.") from error
    if "xl/workbook.xml" not in names:
        raise ValueError(f"{path}: is a zip file. Unpack it and read the file inside.")
    columns, cells, name, first = read_sheet(path, sheet)
    frame = pl.DataFrame(
        {column: cells[place] for place, column in enumerate(columns) if column}, schema=None
    )
    return _with_places(path, frame.lazy(), frame.columns, f"worksheet {name!r}", first)


def _with_places(path: Path, frame: pl.LazyFrame, columns: list[str], style: str, first: int = 1) -> Table:
    if PLACE in columns:
        raise ValueError(f"{path}: has a column of an impossible name, {PLACE!r}. Rename it.")
    texts = pl.col(pl.String).str.strip_chars().replace("", None)
    frame = frame.with_row_index(PLACE, offset=first).with_columns(pl.col(PLACE).cast(pl.Int64), texts)
    frame = frame.filter(~pl.all_horizontal(pl.col(*columns).is_null()))
    return Table(path, frame, tuple(columns), "row", style, large=True)


def _text(path: Path, source: Path | bytes) -> Text:
    if isinstance(source, bytes):
        source = _decoded(path, source)
        start, cut = _start(io.BytesIO(source))
    else:
        with source.open("rb") as stream:
            start, cut = _start(stream)
        start = start.removeprefix(b"\xef\xbb\xbf")
        if start[:2] in (b"\xff\xfe", b"\xfe\xff") or (b"\r" in start and b"\n" not in start):
            raise ValueError(
                f"{path}: is larger than {SMALL >> 20} MiB and not in UTF-8 with ordinary ends of line. "
                "Convert it, or write it as parquet."
            )
    lines = start.decode("utf-8", errors="replace").replace("\r\n", "\n").split("\n")
    head = tuple(lines[:-1] if cut and len(lines) > 1 else lines)
    if not any(line.strip() for line in head):
        raise ValueError(f"{path}: begins with {counted(len(head), 'empty line')}. Delete them.")
    return Text(path, source, head)


def _start(stream: BinaryIO) -> tuple[bytes, bool]:
    """Return the beginning with some whole lines, however long they are, and whether more follows."""
    start = stream.read(HEAD)
    while start.count(b"\n") < HEAD_LINES and (more := stream.read(max(HEAD, len(start)))):
        start += more
    return start, bool(stream.read(1))


def _decoded(path: Path, raw: bytes) -> bytes:
    if raw[:2] in (b"\xff\xfe", b"\xfe\xff"):
        try:
            text = raw.decode("utf-16")
        except UnicodeDecodeError as error:
            raise ValueError(f"{path}: is damaged UTF-16 text ({error.reason}). Save it in UTF-8.") from error
    else:
        try:
            text = raw.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise ValueError(_not_utf8(path, raw)) from error
    if "\0" in text:
        place = text.count("\n", 0, text.index("\0")) + 1
        raise ValueError(
            f"{path}: line {place} holds a byte of zero, as damaged text does and UTF-16 without its mark. "
            "Save the file in UTF-8."
        )
    if not text.strip():
        raise ValueError(f"{path}: is empty. Give a header line and one row a date.")
    # Old Mac and Windows ends of line.
    return text.replace("\r\n", "\n").replace("\r", "\n").encode()


def _not_utf8(path: Path, source: Path | bytes) -> str:
    with io.BytesIO(source) if isinstance(source, bytes) else source.open("rb") as stream:
        for place, line in enumerate(stream, 1):
            try:
                line.decode("utf-8-sig")
            except UnicodeDecodeError:
                return f"{path}: line {place} is not UTF-8 text. Save the file as CSV in UTF-8."
    return f"{path}: is not UTF-8 text. Save the file as CSV in UTF-8."


def _gunzip(path: Path) -> Path | bytes:
    """Return what a gzip file holds: bytes if small, else a file that is removed with this process."""
    try:
        with gzip.open(path, "rb") as stream:
            start = stream.read(SMALL + 1)
            if len(start) <= SMALL:
                return start
            handle, name = tempfile.mkstemp(suffix=".csv", prefix="fints-")
            # Lazy queries read it until the panel is built; it cannot go before the process does.
            atexit.register(Path(name).unlink, missing_ok=True)
            with os.fdopen(handle, "wb") as unpacked:
                unpacked.write(start)
                while chunk := stream.read(1 << 24):
                    unpacked.write(chunk)
            return Path(name)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(
            f"{path}: the gzip file is damaged or cut short ({error}). Download it again."
        ) from error


def _opened(source: Path | bytes) -> Path | io.BytesIO:
    return io.BytesIO(source) if isinstance(source, bytes) else source

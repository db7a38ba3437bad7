"""What is no table of text, told by its first bytes or its first line, and what to do about it."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["answer", "refuse_bytes", "refuse_line"]

FIRST_BYTES = {
    b"\xd0\xcf\x11\xe0": ("an old Excel file (.xls)", "Save it as .xlsx or CSV"),
    b"\x89HDF": ("an HDF5 file", "Write it as parquet"),
    b"\x80\x02": ("a pickle, which runs code when it is read", "Write it as parquet"),
    b"\x80\x03": ("a pickle, which runs code when it is read", "Write it as parquet"),
    b"\x80\x04": ("a pickle, which runs code when it is read", "Write it as parquet"),
    b"\x80\x05": ("a pickle, which runs code when it is read", "Write it as parquet"),
    b"BZh": ("a bzip2 file", "Unpack it"),
    b"\xfd7zXZ": ("an xz file", "Unpack it"),
    b"\x28\xb5\x2f\xfd": ("a zstd file", "Unpack it"),
    b"%PDF": ("a PDF", "Download the numbers as CSV"),
    b"SQLite format 3": ("an SQLite database", "Export the table as CSV or parquet"),
}
FIRST_LINES = {
    r"<!doctype|<html|<\?xml": "is a web page, not a CSV file. Download the file itself.",
    r"\{\s*(\"|$)|\[\s*([\[{\"]|$)": "is JSON, which is not read. Write it as CSV or parquet.",
    r"\"?sep=": "begins with a line that tells Excel what separates the cells. Delete that line.",
}
# What servers send in place of a file.
ANSWERS = {
    r"hits limit|dzienny limit": " This is Stooq's message that the daily quota is used up: try tomorrow.",
    r"^\s*(no data|brak danych)": " This is Stooq's answer for a symbol that it does not have.",
}


def refuse_bytes(path: Path, start: bytes) -> None:
    """Refuse a file that begins like one of a known other kind.

    Raises
    ------
    ValueError
        With the kind and what to do.
    """
    for magic, (kind, remedy) in FIRST_BYTES.items():
        if start.startswith(magic):
            raise ValueError(f"{path}: is {kind}, which is not read. {remedy}.")


def refuse_line(path: Path, line: str) -> None:
    """Refuse a text whose first line tells that it is something else.

    Raises
    ------
    ValueError
        With what it is and what to do.
    """
    for pattern, said in FIRST_LINES.items():
        if re.match(pattern, line.lstrip(), re.IGNORECASE):
            raise ValueError(f"{path}: {said}")


def answer(line: str) -> str:
    """Return which server's words in place of a file these are, if any."""
    return next((said for pattern, said in ANSWERS.items() if re.search(pattern, line, re.IGNORECASE)), "")

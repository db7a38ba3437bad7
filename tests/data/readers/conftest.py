"""Small files written by hand, and the rows that are read from them."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import polars as pl
import pytest

from fints.data import read


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Write a text and return its path."""

    def to(text: str, name: str = "file.csv") -> Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return to


@pytest.fixture(scope="session")
def rows() -> Callable[..., list[tuple[object, ...]]]:
    """Read a file and return its rows: the date as text, then columns (asset and close if none is named)."""

    def of(path: Path, *columns: str, **options: object) -> list[tuple[object, ...]]:
        frame = read(path, **options).frame
        return frame.select(pl.col("date").cast(pl.String), *(columns or ("asset", "close"))).rows()

    return of


@pytest.fixture(scope="session")
def layouts() -> ModuleType:
    """The writers of foreign layouts."""
    name = "reader_layouts"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name("layouts.py"))
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]

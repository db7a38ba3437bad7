"""Known panels written in every layout, damaged or not: a share of what `tests/data/fuzz_readers.py` runs."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def fuzz() -> ModuleType:
    name = "fuzz_readers"
    if name not in sys.modules:
        path = Path(__file__).resolve().parents[1] / "fuzz_readers.py"
        spec = importlib.util.spec_from_file_location(name, path)
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


def test_a_known_panel_comes_back_from_every_layout_or_the_error_names_the_row(fuzz: ModuleType) -> None:
    fuzz.cases(120, derandomize=True)


@pytest.mark.slow
def test_a_thousand_known_panels_come_back_or_are_refused_by_row(fuzz: ModuleType) -> None:
    fuzz.SEEN.clear()
    fuzz.cases(1000, derandomize=True)
    layouts = {layout for layout, _, outcome in fuzz.SEEN if outcome == "equal"}
    assert layouts == set(fuzz.layouts.WRITERS)

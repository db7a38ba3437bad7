"""What `import fints` offers: few names, each where it says, none before it is asked for."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

import pytest

import fints

ROOT = Path(__file__).resolve().parent.parent


def test_every_public_name_resolves_and_is_listed() -> None:
    assert set(fints.__all__) <= set(dir(fints))
    for name in fints.__all__:
        assert getattr(fints, name) is not None


def test_a_name_is_the_same_object_as_in_its_package() -> None:
    from fints.data import Panel, read
    from fints.forecaster import Forecaster
    from fints.registry import load

    assert (fints.Panel, fints.read, fints.Forecaster, fints.load) == (Panel, read, Forecaster, load)


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'Forecastor'.*Forecaster, Panel"):
        _ = fints.Forecastor


def test_star_import_brings_the_public_names_only() -> None:
    script = "from fints import *; print(sorted(n for n in dir() if not n.startswith('__')))"
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=300
    )
    assert run.stdout.strip() == str(sorted(set(fints.__all__) - {"__version__"}))


def test_the_version_is_the_same_wherever_it_stands() -> None:
    assert importlib.metadata.version("fints") == fints.__version__
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.search(r"^version: (.+)$", citation, flags=re.MULTILINE)[1] == fints.__version__


def test_python_m_fints_is_the_command() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "fints", "--version"], capture_output=True, text=True, check=True, timeout=300
    )
    assert run.stdout == f"fints {fints.__version__}\n"


def test_every_package_exports_what_it_lists() -> None:
    for name in ("data", "residual", "model", "training", "evaluation", "diagnostics", "study"):
        package = __import__(f"fints.{name}", fromlist=["__all__"])
        assert len(package.__all__) == len(set(package.__all__))
        missing = [public for public in package.__all__ if not hasattr(package, public)]
        assert missing == [], f"fints.{name}"

"""Every study states its question before its answer, imports fints alone, and can be planned."""

from __future__ import annotations

import ast
import itertools
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from fints.study.plan import make_plan

STUDIES = sorted((Path(__file__).resolve().parent.parent / "studies").glob("*.py"))
SECTIONS = (
    "Question",
    "Hypotheses",
    "Primary outcome",
    "Smallest effect of interest",
    "Verdict rule",
    "What would refute it",
    "Data",
)

each_study = pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)


def test_there_is_a_study() -> None:
    assert STUDIES


@each_study
def test_a_study_imports_fints_alone(path: Path) -> None:
    modules = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            modules |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None
            modules.add(node.module.split(".")[0])
    assert modules <= {"fints", "__future__"}


@each_study
def test_a_study_holds_no_code_but_its_declaration(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert not [
        node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Lambda)
    ]


@each_study
def test_a_study_says_what_it_asks_and_what_would_refute_it(path: Path) -> None:
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    lines = docstring.splitlines()
    found = [line for line, rule in itertools.pairwise(lines) if rule and set(rule) == {"-"}]
    assert found == list(SECTIONS)
    for title in SECTIONS:
        after = lines[lines.index(title) + 2 :]
        assert after, f"{title} is empty"
        assert after[0].strip(), f"{title} is empty"


@each_study
def test_a_study_can_be_planned_and_planning_writes_nothing(path: Path, tmp_path: Path) -> None:
    command = [sys.executable, str(path), "plan", "--preset", "standard", "--root", str(tmp_path)]
    told = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert told.returncode == 0, told.stderr
    assert "in all" in told.stdout
    assert list(tmp_path.iterdir()) == []


@each_study
@pytest.mark.parametrize("preset", ["smoke", "quick", "full"])
def test_a_study_fits_its_data_at_every_size(path: Path, preset: str) -> None:
    module = runpy.run_path(str(path))
    plan = make_plan(module["STUDY"], name=path.stem, docstring=module["__doc__"], preset=preset)
    assert sum(plan.num_fits().values()) > 0
    assert plan.spec()["claim"] == {"smoke": "none", "quick": "exploratory"}.get(preset, "exploratory")

"""Every study states its question before its answer, imports fints alone, and can be planned."""

from __future__ import annotations

import ast
import itertools
import runpy
from pathlib import Path

import pytest

from fints.study import cli, panel_cli
from fints.study.panel_design import PanelStudy
from fints.study.panel_plan import make_panel_plan
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
def test_a_study_can_be_planned_and_planning_writes_nothing(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = runpy.run_path(str(path))["STUDY"]
    main = panel_cli.main if isinstance(study, PanelStudy) else cli.main
    with pytest.raises(SystemExit) as ended:
        main(study, ["plan", "--preset", "standard", "--root", str(tmp_path)], file=path)
    told = capsys.readouterr()
    assert ended.value.code == 0, told.err
    assert "in all" in told.out
    assert list(tmp_path.iterdir()) == []


@each_study
@pytest.mark.parametrize("preset", ["smoke", "quick", "full"])
def test_a_study_fits_its_data_at_every_size(path: Path, preset: str) -> None:
    module = runpy.run_path(str(path))
    study = module["STUDY"]
    make = make_panel_plan if isinstance(study, PanelStudy) else make_plan
    plan = make(study, name=path.stem, docstring=module["__doc__"], preset=preset)
    assert sum(plan.num_fits().values()) > 0
    assert plan.spec()["claim"] == {"smoke": "none", "quick": "exploratory"}.get(preset, "exploratory")

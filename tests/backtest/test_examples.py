"""The examples run as they stand, and the page says what the adapters are."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = (ROOT / "docs" / "backtest.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)
# What each prints last, a number after costs in it; qlib and zipline are elsewhere.
PRINTED = {
    "with_alphalens.py": r"bp after costs of 5 bp",
    "with_backtesting_py.py": r"# Trades +\d+",
    "with_bt.py": r"after costs of 5 bp: total return [+-]\d",
    "with_skfolio.py": r"Sharpe ratio -?\d",
    "with_vectorbt.py": r"costs 5 bp: total return [+-]\d",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PRINTED)
def test_an_example_runs_as_it_stands_and_prints_its_result(name: str, tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, ROOT / "examples" / name],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert run.returncode == 0, run.stderr
    assert re.search(PRINTED[name], run.stdout), run.stdout
    assert "nan" not in run.stdout.lower()


def test_every_example_is_linked_from_the_page_and_has_its_test() -> None:
    files = {path.name for path in (ROOT / "examples").glob("*.py")}
    assert files == {name for name in files if f"examples/{name})" in PAGE}
    assert files - {"with_qlib.py", "with_zipline.py", "write_forecasts.py"} == set(PRINTED)


def calls(tree: ast.AST) -> list[ast.Call]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]


@pytest.mark.parametrize("code", BLOCKS, ids=range(len(BLOCKS)))
def test_the_page_calls_adapters_by_names_that_they_have(code: str) -> None:
    tree = ast.parse(code)
    adapters = {
        alias.name: getattr(importlib.import_module(node.module), alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module.startswith("fints.")
        for alias in node.names
    }
    assert adapters
    for call in calls(tree):
        if call.func.id in adapters:
            given = {word.arg: None for word in call.keywords}
            inspect.signature(adapters[call.func.id]).bind(*call.args, **given)


def test_the_extras_ask_for_what_the_adapters_ask_for() -> None:
    import tomllib

    from fints.backtest.prices import REQUIREMENTS

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extra = project["optional-dependencies"]["backtest"]
    assert {REQUIREMENTS["bt"], REQUIREMENTS["skfolio"]} <= set(extra)
    assert not [line for line in project["dependencies"] if line.startswith(("backtesting", "pandas"))]

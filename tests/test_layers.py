"""Imports point down: the table of CONTRIBUTING.md, kept by reading every file's syntax tree."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "fints"

# Unit of the package -> the units it may import, besides itself.
MAY_IMPORT = {
    "config": set(),
    "residual": {"config"},
    "data": {"config", "words"},
    "evaluation": {"config", "words"},
    "training": {"config"},
    "model": {"config", "residual"},
    "diagnostics": {"config", "residual", "model", "training"},
    "interventions": {"config", "residual", "model", "training"},
    "deep_baselines": {"config", "data", "evaluation", "model", "training"},
    "backtest": {"evaluation"},
    "saved": set(),
    "forecasting": {"config", "data", "model", "training"},
    "fitting": {
        "config",
        "data",
        "diagnostics",
        "forecasting",
        "interventions",
        "model",
        "training",
    },
    "forecaster": {
        "config",
        "data",
        "residual",
        "model",
        "training",
        "evaluation",
        "interventions",
        "fitting",
        "forecasting",
        "saved",
    },
    "refits": {"forecaster"},
    "walk_forward": {"config", "data", "forecaster", "refits"},
    "registry": {"data", "forecaster", "saved", "walk_forward"},
    "mlflow_model": {"data", "registry"},
    "words": set(),
    "study": {
        "config",
        "data",
        "deep_baselines",
        "words",
        "residual",
        "model",
        "training",
        "evaluation",
        "diagnostics",
        "interventions",
        "forecaster",
        "refits",
        "registry",
        "walk_forward",
    },
    "doctor": {"study"},
    "ui": {"study"},
    "terminal": {"words"},
    "cli_completion": {"data", "study", "terminal"},
    "cli_data": {"cli_completion", "data", "study", "terminal", "words"},
    "cli_kept": {"cli_completion", "cli_scale", "data", "study", "terminal", "words"},
    "cli_evaluate": {"cli_completion", "data", "evaluation", "terminal", "words"},
    "cli_scale": {"data", "study", "terminal"},
    "cli_simulate": {"data", "terminal", "words"},
    "cli_schemes": {
        "cli_completion",
        "config",
        "data",
        "diagnostics",
        "forecaster",
        "model",
        "residual",
        "study",
        "terminal",
        "words",
    },
    "cli": {
        "cli_completion",
        "cli_data",
        "cli_evaluate",
        "cli_kept",
        "cli_scale",
        "cli_schemes",
        "cli_simulate",
        "data",
        "doctor",
        "terminal",
        "ui",
    },
    "__main__": {"cli"},
}
TORCH_ALONE = {"residual", "model", "training"}
# The last is no module of ours but the model that MLflow loads by itself.
IMPORT_MLFLOW = {
    "fints/study/forget.py",
    "fints/study/tracking.py",
    "fints/study/stores.py",
    "fints/registry.py",
    "fints/mlflow_model.py",
}
# What a plain `import fints` or `fints --help` must not pay for.
HEAVY = {
    "torch",
    "mlflow",
    "optuna",
    "polars",
    "numpy",
    "pandas",
    "sklearn",
    "scipy",
    "statsmodels",
    "matplotlib",
}


def sources(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*.py") if "__pycache__" not in path.parts)


def imported(path: Path, *, at_import: bool = False) -> Iterator[str]:
    """Yield the dotted modules a file imports; `at_import`: only those that importing it loads."""
    pending = list(ast.iter_child_nodes(ast.parse(path.read_text(encoding="utf-8"))))
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute, so that their direction can be read"
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names if node.module == "fints")
        elif at_import and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        elif at_import and isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            pending.extend(node.orelse)
        else:
            pending.extend(ast.iter_child_nodes(node))


def unit(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def units_imported(path: Path) -> set[str]:
    names = {name for name in imported(path) if name.startswith("fints.")}
    # `from fints import load` yields fints.load, a name of the public surface and no unit.
    return {name.split(".")[1] for name in names} & {*MAY_IMPORT}


def test_every_unit_of_the_package_has_a_row_in_the_table() -> None:
    # `_datasets` holds the bundled data in a wheel; a clone has none.
    found = {unit(path) for path in sources(PACKAGE)} - {"__init__", "_datasets"}
    assert found <= {*MAY_IMPORT}, f"add a row for {sorted(found - {*MAY_IMPORT})}"


@pytest.mark.parametrize("name", sorted(MAY_IMPORT))
def test_imports_point_down(name: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports fints.{other}"
        for path in sources(PACKAGE)
        if unit(path) == name
        for other in sorted(units_imported(path) - MAY_IMPORT[name] - {name})
    ]
    assert wrong == []


def test_the_table_has_no_circle() -> None:
    remaining = {name: set(below) for name, below in MAY_IMPORT.items()}
    while remaining:
        free = {name for name, below in remaining.items() if not below & remaining.keys()}
        assert free, f"these import each other: {sorted(remaining)}"
        remaining = {name: below for name, below in remaining.items() if name not in free}


def test_the_lower_half_does_not_reach_the_public_surface() -> None:
    # `from fints import Forecaster` below the forecaster would be a circle hidden by laziness.
    wrong = [
        str(path.relative_to(ROOT))
        for path in sources(PACKAGE)
        if unit(path) != "__init__"
        and {f"fints.{name}" for name in ("Forecaster", "load")} & set(imported(path))
    ]
    assert wrong == []


@pytest.mark.parametrize("name", sorted(TORCH_ALONE))
def test_the_training_core_imports_torch_and_the_standard_library_only(name: str) -> None:
    allowed = sys.stdlib_module_names | {"torch", "fints"}
    wrong = [
        f"{path.relative_to(ROOT)} imports {module}"
        for path in sources(PACKAGE / name)
        for module in imported(path)
        if module.partition(".")[0] not in allowed
    ]
    assert wrong == []


def test_one_step_of_every_scheme_trains_with_all_other_packages_refused() -> None:
    run = subprocess.run(
        [sys.executable, ROOT / "tests" / "torch_alone.py", "--refuse"],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=ROOT,
        env={"PATH": "", "PYTHONPATH": str(ROOT)},
    )
    assert run.returncode == 0, run.stderr
    assert "trained one step" in run.stdout


def test_mlflow_is_imported_where_it_is_read_or_written_and_there_lazily() -> None:
    users = {
        path.relative_to(ROOT).as_posix()
        for path in sources(PACKAGE)
        if any(module.partition(".")[0] == "mlflow" for module in imported(path))
    }
    assert users <= IMPORT_MLFLOW
    at_once = [
        name
        for name in sorted(users)
        if any("mlflow" in module for module in imported(ROOT / name, at_import=True))
    ]
    assert at_once == ["fints/mlflow_model.py"]


@pytest.mark.parametrize(
    "name",
    [
        "study",
        "cli",
        "cli_data",
        "cli_evaluate",
        "cli_kept",
        "cli_schemes",
        "cli_simulate",
        "terminal",
        "doctor",
        "ui",
    ],
)
def test_the_command_line_loads_nothing_heavy_before_it_is_needed(name: str) -> None:
    files = (
        [PACKAGE / "study" / "__init__.py", PACKAGE / "study" / "design.py"]
        if name == "study"
        else [PACKAGE / f"{name}.py"]
    )
    wrong = [
        f"{path.relative_to(ROOT)} imports {module}"
        for path in files
        for module in imported(path, at_import=True)
        if module.partition(".")[0] in HEAVY
    ]
    assert wrong == []


@pytest.mark.parametrize(
    "statement",
    [
        "import fints; fints.__version__; dir(fints)",
        "import fints.cli",
        "import fints.study; from fints.study import Study, Contrast, Preset, Tuning, main",
    ],
)
def test_a_light_import_loads_nothing_heavy(statement: str) -> None:
    script = f"{statement}\nimport json, sys; print(json.dumps(sorted(sys.modules)))"
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=True
    )
    assert set(json.loads(run.stdout)) & HEAVY == set()


def test_a_study_imports_fints_and_the_standard_library_only() -> None:
    allowed = sys.stdlib_module_names | {"fints"}
    files = sources(ROOT / "studies")
    assert files
    wrong = [
        f"{path.relative_to(ROOT)} imports {module}"
        for path in files
        for module in imported(path)
        if module.partition(".")[0] not in allowed
    ]
    assert wrong == []

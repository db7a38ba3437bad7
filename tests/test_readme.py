"""What the documents say is what the code does."""

from __future__ import annotations

import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fints.residual import RESIDUALS

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
DOCUMENTS = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "LOG.md")] + sorted(
    (ROOT / "docs").glob("*.md")
)


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


def fints_commands() -> list[str]:
    return sorted(set(re.findall(r"`(fints [a-z][^`]*)`", README + CONTRIBUTING)))


def make_targets() -> set[str]:
    return set(re.findall(r"\bmake ([a-z-]+)", README + CONTRIBUTING)) - {"it"}


@pytest.mark.slow
def test_the_readmes_python_runs_as_it_stands_and_prints_four_forecasts(tmp_path: Path) -> None:
    (code,) = blocks(README, "python")
    assert len(code.strip().splitlines()) <= 10
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert run.returncode == 0, run.stderr
    assert "shape: (4, " in run.stdout
    assert run.stdout.count("2017-12-29") >= 4
    assert "null" not in run.stdout
    assert "NaN" not in run.stdout


def test_the_first_screen_is_forty_lines_and_has_the_two_commands_and_the_python() -> None:
    first = README.split("\n## ")[0]
    assert first.count("\n") <= 40
    assert "make study" in first
    assert "make test" in first
    assert len(blocks(first, "python")) == 1


@pytest.mark.parametrize("target", sorted(make_targets()))
def test_every_make_target_that_is_named_exists(target: str) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert re.search(rf"^{re.escape(target)}:", makefile, flags=re.MULTILINE)


@pytest.mark.parametrize("command", fints_commands())
def test_every_fints_command_that_is_named_exists(command: str) -> None:
    words = [word for word in shlex.split(command)[1:] if re.fullmatch(r"-{0,2}[a-z-]+", word)]
    run = subprocess.run(
        [sys.executable, "-m", "fints", *words, "--help"], capture_output=True, text=True, timeout=300
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("Usage: fints")


def test_the_study_commands_that_are_named_exist() -> None:
    commands = re.findall(r"python (studies/\w+\.py) ([a-z]+)([^`\n]*)", README)
    assert len(commands) >= 3
    for file, verb, options in set(commands):
        run = subprocess.run(
            [sys.executable, ROOT / file, verb, "--help"],
            capture_output=True,
            text=True,
            timeout=300,
            cwd=ROOT,
        )
        assert run.returncode == 0, run.stderr
        for option in re.findall(r"--[a-z-]+", options):
            assert option in run.stdout, f"{file} {verb} has no {option}"


def test_every_entry_of_the_tree_exists() -> None:
    tree = README.split("## Where things are")[1].split("```")[1]
    folder, entries = ROOT, 0
    for line in tree.strip("\n").splitlines():
        indent, name = re.match(r"( *)(\S+)", line).groups()
        path = (folder if indent else ROOT) / name
        assert path.exists(), name
        assert path.is_dir() == name.endswith("/"), name
        folder = folder if indent else path
        entries += 1
    assert entries >= 15


def test_every_package_and_file_of_fints_has_a_line_in_the_tree_or_serves_the_command_line() -> None:
    tree = README.split("## Where things are")[1].split("```")[1]
    quiet = {
        "__init__.py",
        "__main__.py",
        "__pycache__",
        "_datasets",
        "doctor.py",
        "py.typed",
        "terminal.py",
        "ui.py",
    }
    names = {path.name for path in (ROOT / "fints").iterdir() if not path.name.startswith("cli_")} - quiet
    assert {name for name in names if name not in tree} == set()


@pytest.mark.parametrize("name", sorted(RESIDUALS))
def test_every_scheme_stands_in_the_readme_and_the_table_as_the_code_has_it(name: str) -> None:
    scheme = RESIDUALS[name]
    assert f"`{name}`" in README
    table = (ROOT / "docs" / "schemes.md").read_text(encoding="utf-8").split("<!--")[1]
    (row,) = [line for line in table.splitlines() if line.startswith(f"| `{name}` |")]
    # A bar inside a cell is escaped, so a row splits into its nine cells.
    cells = [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", row)[1:-1]]
    _, equation, formula, count, start, *ratios, paper, file = cells
    assert equation == f"`{scheme.equation}`"
    assert formula == scheme.parameter_formula
    assert count == f"{scheme.extra_parameters(64, 24, norm='layer_norm'):,}"
    assert (start != "another function") == scheme.equals_pre_norm_at_start
    assert paper == scheme.paper
    assert f"class {scheme.__name__}" in (ROOT / "docs" / file.split("(")[1].rstrip(")")).read_text("utf-8")
    assert len(ratios) == 2
    assert all(re.fullmatch(r"–|\d+\.\d\d", ratio) for ratio in ratios)


def test_the_table_of_schemes_is_what_its_command_writes(capsys: pytest.CaptureFixture[str]) -> None:
    build = runpy.run_path(str(ROOT / "docs" / "build_schemes.py"))
    text = (ROOT / "docs" / "schemes.md").read_text(encoding="utf-8")
    assert build["page"](text, build["stored"]()) == text, "run: python docs/build_schemes.py"
    measured = {
        "sizes": {"depth": 16, "width": 64, "streams": 4, "batch": 64, "tokens": 32},
        "reference": "pre_norm, plain",
        "machine": "a machine",
        "command": "it",
        "rows": [{"arm": "post_norm, plain", "time": 1.2345}, {"arm": "pre_norm, compiled", "time": 0.9}],
    }
    table = build["table"](measured)
    assert re.search(r"^\| `post_norm` .* \| 1\.23 \| – \|", table, flags=re.MULTILINE)
    assert re.search(r"^\| `pre_norm` .* \| – \| 0\.90 \|", table, flags=re.MULTILINE)
    assert "over that of pre_norm, plain, at blocks 16, D 64" in table
    assert "on a machine, by `it`" in table


def test_the_example_of_your_own_network_works_with_every_scheme() -> None:
    text = (ROOT / "docs" / "own-model.md").read_text(encoding="utf-8")
    network, loop = blocks(text, "python")
    assert len([line for line in network.splitlines() if line.strip()]) <= 30
    imported = re.findall(r"^(?:from|import) (\S+)", network + loop, flags=re.MULTILINE)
    assert set(imported) == {"torch", "fints.residual"}
    for name in RESIDUALS:
        given: dict[str, object] = {}
        exec(compile(network, "own-model.md", "exec"), given)
        torch.manual_seed(0)
        before = {}
        code = loop.replace('"dynamic_hyper_connections", {"num_streams": 4}', repr(name))
        assert code != loop
        head, step = code.split("network(x)")
        exec(compile(head, "own-model.md", "exec"), given)
        before = {key: value.clone() for key, value in given["network"].named_parameters()}
        exec(compile("network(x)" + step, "own-model.md", "exec"), given)
        parameters = dict(given["network"].named_parameters())
        assert all(value.isfinite().all() for value in parameters.values()), name
        assert any(not torch.equal(value, before[key]) for key, value in parameters.items()), name
        grouped = [id(p) for group in given["groups"] for p in group["params"]]
        assert sorted(grouped) == sorted(map(id, parameters.values())), name


def test_the_documents_name_no_place_outside_the_repository() -> None:
    for document in DOCUMENTS:
        text = document.read_text(encoding="utf-8")
        assert not re.search(r"/(tmp|root|home|work)/", text), document.name


def test_the_examples_of_your_own_data_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "docs" / "your-own-data.md").read_text(encoding="utf-8")
    (table,) = blocks(text, "csv")
    (tmp_path / "prices.csv").write_text(table, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    examples = blocks(text, "python")
    assert len(examples) == 4
    for code in examples:
        exec(compile(code, "your-own-data.md", "exec"), {})

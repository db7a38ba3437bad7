"""The pages of the documentation: found from the index, linked without a gap, and followed to the letter."""

from __future__ import annotations

import doctest
import importlib
import os
import re
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
FOLLOW = runpy.run_path(str(DOCS / "follow.py"))
PAGES = sorted(DOCS.glob("*.md"))
KEPT_OUT = {".venv", "node_modules", ".git", "shared"}


def every_markdown() -> list[Path]:
    found = []
    for folder, folders, names in os.walk(ROOT):
        folders[:] = [name for name in folders if name not in KEPT_OUT and not name.startswith(".")]
        found += [Path(folder) / name for name in names if name.endswith(".md")]
    return sorted(found)


def anchors(page: Path) -> set[str]:
    """The anchors that a forge makes of headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


def python_after(page: str, file: str) -> str:
    (found,) = [block.text for block in FOLLOW["blocks"](page) if block.file == file]
    return found


@pytest.mark.parametrize("page", every_markdown(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_link_and_every_anchor_leads_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith(("http://", "https://", "mailto:")):
            continue
        name, _, anchor = target.partition("#")
        place = page.parent / name if name else page
        assert place.exists(), target
        if anchor and place.suffix == ".md":
            assert anchor in anchors(place), f"{target}: {sorted(anchors(place))}"


def test_nothing_tells_anybody_to_install_fints_by_its_name_alone() -> None:
    """On PyPI that name belongs to another project: fints is installed from a checkout."""
    by_name = re.compile(r"""pip3? install(?: -{1,2}[\w-]+)*\s+['"`]?fints(?![\w/.])""")
    assert by_name.search("pip install -U 'fints[postgres]'")
    assert by_name.search("pip install fints==0.1")
    assert not by_name.search("pip install '/path/to/fints[postgres]'")
    told = []
    for place in ("fints", "docs", "examples", "studies", "benchmarks", "README.md", "CONTRIBUTING.md"):
        path = ROOT / place
        for file in [path] if path.is_file() else sorted(path.rglob("*")):
            if file.suffix in {".py", ".md", ".toml", ".ipynb", ".yaml"}:
                lines = file.read_text(encoding="utf-8").splitlines()
                found = [number for number, line in enumerate(lines, 1) if by_name.search(line)]
                told += [f"{file.relative_to(ROOT)}:{number}" for number in found]
    assert told == []


def test_what_a_refusal_says_to_install_is_what_the_extra_asks_for() -> None:
    from fints.cli_scale import server
    from fints.study.launch import REQUIREMENTS
    from fints.study.shared_open import DRIVER

    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for extra, requirement in {"postgres": DRIVER, **REQUIREMENTS}.items():
        assert extras[extra] == [requirement]
    (pages,) = extras["dashboard"]
    assert f"pip install '{pages}'" in str(server.__doc__)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_the_index_leads_to_every_page(page: Path) -> None:
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    assert page.name == "index.md" or f"]({page.name})" in index


@pytest.mark.parametrize("picture", sorted(DOCS.glob("*.png")), ids=lambda path: path.name)
def test_every_picture_is_light_and_on_a_page(picture: Path) -> None:
    assert picture.stat().st_size < 200_000
    assert any(f"]({picture.name})" in page.read_text(encoding="utf-8") for page in PAGES)


@pytest.mark.parametrize(
    ("expected", "printed", "same"),
    [
        ("a\nb\n", "a\nb\n", True),
        ("a\nb\n", "a\nc\n", False),
        ("a\nb\n", "a\nb\nc\n", False),
        ("a\n...\nb\n", "a\nb\n", True),
        ("a\n...\nb\n", "a\nx\ny\nb\n", True),
        ("a\n...\nb\n", "a\nx\n", False),
        ("took ... s\n", "took 12.5 s\n", True),
        ("took ... s\n", "took 12.5\n s\n", False),
        ("took ... s\n", "took 12.5 min\n", False),
        ("a (b) [c]*\n", "a (b) [c]*   \n", True),
        ("a.b\n", "axb\n", False),
    ],
)
def test_only_what_three_dots_stand_for_may_differ(expected: str, printed: str, same: bool) -> None:
    assert (FOLLOW["shown"](expected).fullmatch(printed) is not None) == same


def test_a_reader_keeps_folder_and_variables_sees_failures_and_stops_what_would_run_for_ever(
    tmp_path: Path,
) -> None:
    def read(page: str) -> list[Any]:
        environment = FOLLOW["environment"](tmp_path, fresh=False)
        reader = FOLLOW["Reader"](tmp_path, environment, installs=False)
        try:
            return [block for block, _ in reader.follow(page)]
        finally:
            reader.close()

    kept = "```sh\nmkdir in\ncd in\nexport A=1\n```\n\nSave this as `b.sh`:\n\n"
    kept += "```sh\necho $A in ${PWD##*/}\n```\n\n"
    assert len(read(kept + "```sh\nbash b.sh\n```\n\n```text\n1 in in\n```\n")) == 3
    with pytest.raises(
        RuntimeError, match=r"the block at line 1 ended with code 3.*\n(.*\n)*.*why it failed"
    ):
        read("```sh\necho why it failed >&2\nexit 3\n```\n")
    with pytest.raises(RuntimeError, match=r"line 1 must print what the page shows:\n2\nIt printed:\n1"):
        read("```sh\necho 1\n```\n\n```text\n2\n```\n")
    endless = "import time\ntry:\n    print('here', flush=True)\n    while True:\n        time.sleep(0.05)\n"
    polite = f"{endless}except KeyboardInterrupt:\n    pass\n"
    assert len(read(f"```python\n{polite}```\n\n```text\nhere\n^C\n```\n")) == 1


def test_the_tutorial_shows_the_output_of_every_command_that_prints_what_can_be_told() -> None:
    blocks = FOLLOW["blocks"]((DOCS / "tutorial.md").read_text(encoding="utf-8"))
    kinds = [block.language for block in blocks]
    assert {"sh", "python", "text"} == set(kinds)
    shows = [kinds[at + 1 : at + 2] == ["text"] for at, block in enumerate(blocks) if block.language == "sh"]
    # Installing and making folders print nothing that is the same twice.
    assert shows.count(False) == 3
    saved = [block.file for block in blocks if block.language == "python"]
    assert None not in saved
    assert len(saved) == len(set(saved)) == 4


def test_a_scheme_of_ones_own_is_thirty_lines() -> None:
    page = (DOCS / "your-own-scheme.md").read_text(encoding="utf-8")
    code = python_after(page, "leaky_skip.py")
    assert len([line for line in code.splitlines() if line.strip()]) <= 30
    assert max(map(len, code.splitlines())) <= 110


@pytest.mark.slow
def test_the_scheme_of_ones_own_passes_the_tests_of_every_scheme(tmp_path: Path) -> None:
    page = (DOCS / "your-own-scheme.md").read_text(encoding="utf-8")
    (tmp_path / "leaky_skip.py").write_text(python_after(page, "leaky_skip.py"), encoding="utf-8")
    (words,) = re.findall(r"^PYTHONPATH=\. pytest (.+)$", page, flags=re.MULTILINE)
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *words.split(), "-n", "0", "-q", "-p", "no:cacheprovider"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(tmp_path), "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        timeout=580,
    )
    assert run.returncode == 0, run.stdout[-3000:]
    passed = re.search(r"(\d+) passed", run.stdout)
    assert passed, run.stdout
    assert int(passed[1]) >= 20


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", ["your-own-scheme.md"])
def test_a_how_to_does_what_it_says_when_it_is_followed_word_by_word(name: str) -> None:
    run = subprocess.run(
        [sys.executable, str(DOCS / "follow.py"), str(DOCS / name)],
        capture_output=True,
        text=True,
        timeout=1500,
    )
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.parametrize(
    "name",
    [
        "fints.backtest.prices",
        "fints.data.catalog",
        "fints.data.synthetic",
        "fints.evaluation.metrics",
        "fints.forecaster",
        "fints.interventions.reliefs",
        "fints.residual",
        "fints.study.design",
        "fints.study.estimates",
        "fints.walk_forward",
        "fints.words",
    ],
)
def test_the_examples_in_docstrings_print_what_they_show(name: str) -> None:
    module = importlib.import_module(name)
    assert "+SKIP" not in Path(module.__file__).read_text(encoding="utf-8")
    ran = doctest.testmod(module, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert ran.failed == 0
    assert ran.attempted > 0


def test_every_file_with_an_example_has_it_run() -> None:
    (listed,) = [
        mark.args[1]
        for mark in test_the_examples_in_docstrings_print_what_they_show.pytestmark
        if mark.name == "parametrize"
    ]
    files = [path for path in (ROOT / "fints").rglob("*.py") if ">>> " in path.read_text(encoding="utf-8")]
    names = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in files
    }
    assert names == set(listed)

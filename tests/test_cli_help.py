"""Every command and verb shows at least one example, and takes each of the examples that it shows."""

from __future__ import annotations

import argparse
import functools
import re
import runpy
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from fints.cli import app
from fints.study.options import panel_parser, study_parser
from fints.study.panel_design import PanelStudy

ROOT = Path(__file__).resolve().parent.parent
STUDIES = sorted((ROOT / "studies").glob("*.py"))
FINTS = typer.main.get_command(app)


def commands(command: Any = FINTS, name: str = "fints") -> Iterator[tuple[str, Any]]:
    """Yield every command, groups before what is in them."""
    yield name, command
    for word, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, f"{name} {word}")


def verbs(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    (own,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return dict(own.choices)


# A study is declared once: that checks all of its sizes.
@functools.cache
def parser_of(path: Path) -> argparse.ArgumentParser:
    study = runpy.run_path(str(path))["STUDY"]
    return panel_parser(path, study) if isinstance(study, PanelStudy) else study_parser(path, study)


def shown(page: str) -> list[str]:
    """Return the examples of a help page, lines that go on taken together."""
    _, section, after = page.partition("xamples:\n")
    assert section, page
    return [line.strip() for line in re.sub(r"\\\n\s*", "", after).splitlines() if line.strip()]


def take(words: list[str]) -> None:
    """Let the parsers read words, without doing what they say."""
    if words[0] == "python":
        parser_of(ROOT / words[1]).parse_args(words[2:])
        return
    context = FINTS.make_context("fints", words[1:])
    command = FINTS
    while getattr(command, "commands", None) and (rest := [*context._protected_args, *context.args]):
        name, command, rest = command.resolve_command(context, rest)
        context = command.make_context(name, rest, parent=context)


EACH = list(commands())


@pytest.mark.parametrize(("name", "command"), EACH, ids=[name for name, _ in EACH])
def test_every_command_takes_the_examples_that_its_help_shows(
    name: str, command: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Options that machines have in their environment are left out of examples.
    monkeypatch.setenv("FINTS_STORAGE", "postgresql+psycopg://fints@db/fints")
    page = command.get_help(typer.Context(command, info_name=name))
    found = shown(page)
    assert any(line.startswith(name) for line in found), found
    for line in found:
        take(shlex.split(line, comments=True))
    assert max(map(len, page.splitlines())) <= 80


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_every_verb_of_a_study_takes_the_examples_that_its_help_shows(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(ROOT)
    parser = parser_of(path)
    pages = {"": parser.format_help()}
    pages |= {verb: own.format_help() for verb, own in verbs(parser).items()}
    assert set(pages) >= {"", "plan", "run", "report"}
    for verb, page in pages.items():
        found = shown(page)
        assert any(line.startswith(f"python studies/{path.name} {verb}".strip()) for line in found), page
        for line in found:
            take(shlex.split(line, comments=True))


def test_an_example_that_its_command_would_not_take_is_found() -> None:
    with pytest.raises(typer.TyperException):
        take(["fints", "data", "check", "prices.csv", "--shet", "Close"])
    with pytest.raises(SystemExit):
        take(["python", "studies/residual_by_depth.py", "run", "--prest", "quick"])

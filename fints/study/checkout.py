"""What the clone that a study runs from says of it: its commit, and what no commit holds."""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from fints.study.commands import shown

if TYPE_CHECKING:
    from fints.study.design import Study
    from fints.study.panel_design import PanelStudy

__all__ = [
    "commit_of",
    "commit_of_claims",
    "declared_before",
    "declared_in",
    "refuse_uncommitted",
    "why_no_commit",
]


# Seconds for one answer of git.
PATIENCE_S = 30


def commit_of(path: Path) -> str | None:
    """Return the commit of the clone that holds a file, None where there is no clone."""
    return _git(path, "rev-parse", "--short=12", "HEAD")


def why_no_commit(path: Path) -> str:
    """Return why results of a study in this file will name no commit."""
    return "git names no commit of this clone" if _in_clone(path.resolve().parent) else "not a git checkout"


def commit_of_claims(study: Study | PanelStudy, path: Path, preset: str) -> str | None:
    """Return the commit that results of this size will name, None where there is no clone.

    Raises
    ------
    ValueError
        As `refuse_uncommitted`, if this size makes claims.
    """
    commit = commit_of(path)
    # In a clone that git cannot read there is something to be committed all the same.
    if study.presets[preset].claim != "none" and (commit or _in_clone(path.resolve().parent)):
        refuse_uncommitted(study, path)
    return commit


def refuse_uncommitted(study: Study | PanelStudy, path: Path) -> None:
    """Refuse to make claims from a study, or with code that affects its numbers, that no commit holds.

    Raises
    ------
    ValueError
        If something is not committed, or git cannot say whether it is.
    """
    from fints.study.baselines import SOURCES
    from fints.study.fingerprint import AFFECTS_BASELINES, AFFECTS_NUMBERS, PACKAGE
    from fints.study.panel_cells import PANEL_SOURCES
    from fints.study.panel_design import PanelStudy

    entries = {*AFFECTS_NUMBERS, *AFFECTS_BASELINES}
    for name in study.baselines:
        entries.update(SOURCES.get(name, ()))
    if isinstance(study, PanelStudy):
        entries = set(PANEL_SOURCES)
    trial = [name for name, size in study.presets.items() if size.claim == "none"]
    other = f", or use --preset {trial[0]}" if trial else ""
    asked = shown(path)
    try:
        changed = asked if _uncommitted(path, path.name) else ""
        # An installed package is under no version control, or ignored by it: git then names nothing.
        if not changed and _in_clone(PACKAGE):
            asked = "the code of fints"
            if lines := _uncommitted(PACKAGE / "config.py", *sorted(entries)):
                changed = lines[0].split(maxsplit=1)[-1]
                changed += f" (and {len(lines) - 1} more)" if lines[1:] else ""
    except _NoAnswer as error:
        raise ValueError(
            f"git cannot say whether {asked} is committed: {error}. Mend what `git status` says there{other}."
        ) from error
    if changed:
        raise ValueError(f"{changed} has changes that are not committed; commit them{other}.")


class _NoAnswer(Exception):
    """Git did not do what it was asked, and why."""


def _in_clone(folder: Path) -> bool:
    """Tell whether a folder lies in a clone, without git, which fails alike in none and in a broken one."""
    return any((place / ".git").exists() for place in (folder, *folder.parents))


def _uncommitted(path: Path, *names: str) -> list[str]:
    return _ask(path, "status", "--porcelain", "--", *names).splitlines()


def _git(path: Path, *words: str) -> str | None:
    try:
        return _ask(path, *words)
    except _NoAnswer:
        return None


def _ask(path: Path, *words: str) -> str:
    try:
        told = subprocess.run(
            ["git", *words], cwd=path.parent, capture_output=True, text=True, check=True, timeout=PATIENCE_S
        )
    except subprocess.TimeoutExpired as error:
        raise _NoAnswer(f"git {words[0]} took over {PATIENCE_S} s") from error
    except subprocess.CalledProcessError as error:
        last = (error.stderr.strip().splitlines() or [f"exit code {error.returncode}"])[-1]
        raise _NoAnswer(last.rstrip(".")) from error
    except OSError as error:
        raise _NoAnswer(str(error)) from error
    return told.stdout.strip()


def declared_in(path: Path, docstring: str) -> tuple[str, str] | None:
    """Return commit and time (ISO) since when a study's file has had this docstring without a break.

    None where there is no clone, or no commit holds the docstring.
    """
    listed = _git(path, "log", "--format=%h %cI", "--", path.name)
    since = None
    for line in (listed or "").splitlines():
        commit, when = line.split()
        if _docstring(path, commit) != docstring:
            break
        since = commit, when
    return since


def declared_before(path: Path, moment: str) -> tuple[str, str, str] | None:
    """Return commit, time and docstring of the last commit of a study's file until a moment (ISO).

    None where there is no clone, or no such commit holds a docstring.
    """
    listed = _git(path, "log", "-1", f"--until={moment}", "--format=%h %cI", "--", path.name)
    if not listed:
        return None
    commit, when = listed.split()
    told = _docstring(path, commit)
    return None if told is None else (commit, when, told)


def _docstring(path: Path, commit: str) -> str | None:
    text = _git(path, "show", f"{commit}:./{path.name}")
    try:
        return ast.get_docstring(ast.parse(text or ""), clean=False)
    except SyntaxError:
        return None

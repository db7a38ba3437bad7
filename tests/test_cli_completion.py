"""What the shell offers for Tab, asked as bash asks."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fints.cli import main
from fints.cli_completion import SCHEMES
from fints.data import simulate, store
from fints.residual import RESIDUALS


def offered(line: str) -> list[str]:
    """Return what is offered at the end of a line."""
    words = line.split(" ")
    asked = {"COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1), "_FINTS_COMPLETE": "complete_bash"}
    ended = subprocess.run(
        [sys.executable, "-m", "fints"],
        env=os.environ | asked,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert ended.stderr == ""
    return ended.stdout.split()


def test_the_schemes_that_are_offered_are_those_there_are() -> None:
    assert tuple(RESIDUALS) == SCHEMES


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("fints s", ["server", "schemes", "study"]),
        ("fints study d", ["disk", "delete"]),
        ("fints data show sp", ["sp500-20"]),
        ("fints schemes show layer_", ["layer_norm_scaling", "layer_scale"]),
        ("fints schemes show layer_norm_scaling --dep", ["--depth"]),
    ],
)
def test_tab_offers_commands_options_and_names(line: str, wanted: list[str]) -> None:
    assert sorted(offered(line)) == sorted(wanted)


def test_tab_offers_what_is_the_users_own(home_of_its_own: Path) -> None:
    store(simulate(num_assets=2, num_days=20, seed=1).panel, "mine")
    study = home_of_its_own / "depths" / "quick-mine"
    study.mkdir(parents=True)
    (study / "study.json").write_text("{}")
    assert offered("fints data show ") == ["sp500-20", "mine"]
    assert offered("fints data delete ") == ["mine"]
    assert offered("fints study delete d") == ["depths/quick-mine"]
    # A broken card is no reason to print anything at somebody who presses Tab.
    (home_of_its_own / "datasets" / "mine" / "card.json").write_text("no card")
    assert offered("fints data show m") == []


def test_bash_completes_by_the_script_that_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shellingham.detect_shell", lambda: ("bash", "/bin/bash"))
    with pytest.raises(SystemExit) as ended:
        main(["--show-completion"])
    assert ended.value.code == 0
    script = capsys.readouterr().out
    command = tmp_path / "fints"
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m fints "$@"\n')
    command.chmod(0o755)
    pressed = 'COMP_WORDS=(fints data sh); COMP_CWORD=2; _fints_completion fints; echo "${COMPREPLY[@]}"'
    bash = shutil.which("bash")
    assert bash is not None
    ended_bash = subprocess.run(
        [bash, "--norc", "-c", f"{script}\n{pressed}"],
        env=os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert ended_bash.stdout == "show\n"


@pytest.mark.parametrize("option", ["--show-completion", "--install-completion"])
def test_a_shell_that_is_none_is_refused_in_one_line(
    option: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("shellingham.detect_shell", lambda: ("tcsh", "/bin/tcsh"))
    assert main([option]) == 2
    told = capsys.readouterr()
    assert (told.out, told.err.count("\n")) == ("", 1)
    assert "bash, zsh, fish" in told.err
    assert list(tmp_path.iterdir()) == []

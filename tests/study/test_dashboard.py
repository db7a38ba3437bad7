"""The picture of a running study: true to every fit and to the terminal, which is clean when it stops."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import random
import re
import runpy
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from rich.console import Console

from fints.data import simulate
from fints.study.dashboard import Dashboard, Standing
from fints.study.grid import Block, Grid, Mark, grid_of_panels, grid_of_study
from fints.study.panel_plan import make_panel_plan
from fints.study.plan import make_plan
from fints.study.planned import Planned
from fints.study.progress import Report

TINY = Path(__file__).parent / "tiny.py"
STUDIES = sorted((TINY.parent.parent.parent / "studies").glob("*.py"))
PANELS = [path for path in STUDIES if "PanelStudy(" in path.read_text(encoding="utf-8")]
STANDING = Standing(
    done=3, total=8, elapsed=60.0, seconds_left=120.0, an_hour=180.0, workers=2, last=("one", "two")
)


@dataclass(frozen=True)
class Fit:
    """A fit as a grid knows it."""

    arm: str
    role: str
    place: tuple[int, ...]
    seconds: float = 1.0
    others: tuple[Fit, ...] = ()

    def cells(self) -> list[Fit]:
        return [*self.others, self]

    def __str__(self) -> str:
        return f"{self.arm} {self.role} {self.place}"


def grid(arms: int, *, points: int = 3, folds: int = 4, seeds: int = 3) -> Grid:
    blocks = {
        "tuning": Block(
            title="tuning: points", places=tuple((point,) for point in range(points)), together=1
        ),
        "final": Block(
            title="final: folds x seeds",
            places=tuple((fold, seed) for fold in range(folds) for seed in range(seeds)),
            together=seeds,
        ),
    }
    names = [f"scheme_with_a_long_name-depth_{number}" for number in range(arms)]
    return Grid(arms=names, blocks=blocks, place=lambda fit: fit.place)


def fits(of: Grid) -> Iterator[Fit]:
    for arm in of.arms:
        for role, block in of.blocks.items():
            for place in block.places:
                yield Fit(arm, role, place)  # type: ignore[arg-type]


def picture(of: Grid, *, width: int = 80, height: int = 24, encoding: str = "utf-8") -> list[str]:
    """Return the lines of a picture, in plain text."""
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    console = Console(file=file, width=width, height=height, force_terminal=True, color_system=None)
    console.print(Dashboard(of, STANDING))
    file.seek(0)
    return file.read().splitlines()


@pytest.mark.parametrize("arms", [1, 6, 60])
@pytest.mark.parametrize("fits_an_arm", [(1, 1, 1), (3, 4, 3), (8, 10, 10)], ids=str)
@pytest.mark.parametrize(("width", "height"), [(80, 24), (40, 10), (200, 60), (80, 8)])
def test_a_picture_keeps_to_its_terminal(
    arms: int, fits_an_arm: tuple[int, int, int], width: int, height: int
) -> None:
    points, folds, seeds = fits_an_arm
    lines = picture(grid(arms, points=points, folds=folds, seeds=seeds), width=width, height=height)
    assert max(map(len, lines)) <= width
    # The cursor stands below it.
    assert len(lines) < height


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_every_fit_has_the_sign_of_what_became_of_it(encoding: str) -> None:
    own, dice = grid(5), random.Random(1)
    wanted: dict[str, str] = {}
    for fit in fits(own):
        mark = dice.choice(list(Mark))
        own.put(fit, mark)
        wanted[fit.arm] = wanted.get(fit.arm, "") + (mark.sign if encoding == "utf-8" else mark.ascii_sign)
    shown = {line.split()[0]: "".join(line.split()[1:]) for line in picture(own, encoding=encoding)}
    assert {arm: shown[arm] for arm in own.arms} == wanted


def test_of_many_arms_those_are_shown_that_something_happens_to() -> None:
    own = grid(60)
    for number, mark in ((17, Mark.RUNNING), (41, Mark.FAILED), (59, Mark.DIVERGED)):
        own.put(Fit(own.arms[number], "final", (2, 1)), mark)
    lines = picture(own)
    for number in (17, 41, 59):
        assert any(line.startswith(own.arms[number] + " ") for line in lines)
    shown = sum(line.startswith("scheme") for line in lines)
    assert any(line.startswith(f"and {60 - shown} more arms: 0 done") for line in lines)


def test_a_sign_of_several_fits_is_that_of_the_worst() -> None:
    own = grid(1, points=1, folds=20, seeds=20)
    for fit in fits(own):
        own.put(fit, Mark.DONE)
    own.put(Fit(own.arms[0], "final", (7, 13)), Mark.DIVERGED)
    (row,) = [line for line in picture(own) if line.startswith("scheme")]
    assert row.count(Mark.DIVERGED.sign) == 1
    assert row.count(Mark.DONE.sign) > 10


def test_the_grid_of_a_study_has_a_place_for_each_of_its_fits(tmp_path: Path) -> None:
    path = tmp_path / "prices.parquet"
    simulate(num_assets=3, num_days=160, seed=1).panel.frame.write_parquet(path)
    study = runpy.run_path(str(TINY))["STUDY"]
    plan = make_plan(study, name="tiny", docstring="", preset="longer", data=str(path))
    own = grid_of_study(Planned(plan.spec()))
    for arm in plan.arms:
        for cell in [*plan.tuning_cells(arm), *plan.final_cells(arm, plan.study.tuning.points()[1])]:
            own.put(cell, Mark.DONE)
    assert sum(own.count(role, Mark.DONE) for role in own.blocks) == sum(plan.num_fits().values())
    assert sum(own.count(role, Mark.WAITING) for role in own.blocks) == 0


@pytest.mark.parametrize("path", PANELS, ids=lambda path: path.stem)
def test_the_grid_of_a_study_on_panels_has_a_place_for_each_of_its_fits(path: Path) -> None:
    study = runpy.run_path(str(path))["STUDY"]
    plan = make_panel_plan(study, name=path.stem, docstring="", preset="smoke")
    own = grid_of_panels(plan)
    for arm in plan.arms:
        for cell in [*plan.tuning_cells(arm), *plan.final_cells(arm, study.tuning.points()[-1])]:
            own.put(cell, Mark.DONE)
    assert sum(own.count(role, Mark.DONE) for role in own.blocks) == sum(plan.num_fits().values())
    assert sum(own.count(role, Mark.WAITING) for role in own.blocks) == 0


def told(console: Console, own: Grid | None) -> None:
    """Report a run in which everything happens."""
    first, second, third = list(fits(grid(1)))[:3]
    with Report(console, total=15, work=15.0, workers=2, grid=own) as report:
        report.kept(first)
        report.started(second)
        report.finished(second, {"validation_loss": 0.5, "outcome": "finished", "reason": ""}, 2.0)
        report.started(third)
        report.failed(third, "it broke", again=False)


@pytest.mark.parametrize("settings", [{"force_terminal": False}, {"force_terminal": True}], ids=str)
def test_what_is_no_terminal_gets_lines_alone(settings: dict[str, bool]) -> None:
    file = io.StringIO()
    told(Console(file=file, width=80, color_system=None, **settings), grid(1))
    lines = file.getvalue().splitlines()
    assert lines[0].startswith("[2/15] scheme_with_a_long_name-depth_0 tuning (1,)")
    assert "validation loss 0.50000, 2.0 s" in lines[1]
    assert lines[2] == "failed: scheme_with_a_long_name-depth_0 tuning (2,): it broke"
    assert len(lines) == 3


def test_of_fits_made_at_once_those_that_are_there_stay_there() -> None:
    own = grid(1)
    first, second, third = list(fits(own))[:3]
    with Report(Console(file=io.StringIO()), total=15, work=15.0, workers=2, grid=own) as report:
        for one in (first, second, third):
            report.started(one)
        report.finished(first, {"validation_loss": 0.5, "outcome": "finished", "reason": ""}, 2.0)
        report.failed(replace(third, others=(first, second)), "it broke", again=False)
    assert own.marks[own.arms[0], "tuning"] == [Mark.DONE, Mark.FAILED, Mark.FAILED]


SCRIPT = """
import sys, time
sys.path.insert(0, {tests!r})
import test_dashboard as t
from fints.study.command_line import answer, make_console
from fints.study.progress import Report

def verb():
    own = t.grid({arms})
    several = list(t.fits(own))
    with Report(make_console(), total=len(several), work=9.0, workers=2, grid=own) as report:
        report.started(several[0])
        report.finished(several[0], dict(validation_loss=0.25, outcome="finished", reason=""), 2.0)
        report.started(several[1])
        report.say("a line above")
        if {waits}:
            time.sleep(600)
    print("report: there")
    return 0

answer(verb, stopped="stopped; what is finished is kept.")
"""


class Screen:
    """What a terminal shows of what was written to it: cursor moves, erased lines, no colours."""

    def __init__(self) -> None:
        self.lines, self.row, self.column, self.cursor_shown = [""], 0, 0, True

    def feed(self, text: str) -> None:
        for found in re.finditer(r"\x1b\[([0-9;?]*)([A-Za-z])|([^\x1b])", text):
            if found[3] is not None:
                self._write(found[3])
            elif found[2] == "A":
                self.row -= int(found[1] or 1)
            elif found[2] == "K":
                self.lines[self.row] = ""
            elif found[1] == "?25":
                self.cursor_shown = found[2] == "h"

    def _write(self, character: str) -> None:
        if character == "\r":
            self.column = 0
        elif character == "\n":
            self.row, self.column = self.row + 1, 0
            self.lines += [""] * (self.row - len(self.lines) + 1)
        else:
            line = self.lines[self.row].ljust(self.column)
            self.lines[self.row] = line[: self.column] + character + line[self.column + 1 :]
            self.column += 1


@contextmanager
def on_a_terminal(words: list[str], **environment: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Start a process whose terminal is ours, 80 columns by 24 lines."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    usual = {
        name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS", "LINES")
    }
    process = subprocess.Popen(
        words,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={
            **usual,
            "TERM": "xterm-256color",
            "LANG": "C.UTF-8",
            "PYTHONIOENCODING": "utf-8",
            **environment,
        },
        # A terminal of its own to control, so that Ctrl-C is a signal to it.
        preexec_fn=lambda: (os.setsid(), fcntl.ioctl(0, termios.TIOCSCTTY, 0)),  # type: ignore[func-returns-value]
    )
    os.close(theirs)
    try:
        yield process, ours
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        os.close(ours)


def read(ours: int, until: str = "", *, patience: float = 300.0) -> str:
    """Read from a terminal until a text has come, or until its process has ended."""
    deadline, found = time.monotonic() + patience, b""
    while not until or until not in found.decode(errors="replace"):
        assert time.monotonic() < deadline, found
        if select.select([ours], [], [], 1.0)[0]:
            try:
                more = os.read(ours, 65536)
            except OSError:
                break
            if not more:
                break
            found += more
    return found.decode(errors="replace")


def screen_of(text: str) -> Screen:
    screen = Screen()
    screen.feed(text)
    return screen


def script(arms: int = 2, *, waits: bool = False) -> list[str]:
    text = SCRIPT.format(tests=str(Path(__file__).parent), arms=arms, waits=waits)
    return [sys.executable, "-c", text]


def test_a_terminal_keeps_the_last_picture_and_goes_on_below_it() -> None:
    with on_a_terminal(script(arms=60)) as (process, ours):
        screen = screen_of(read(ours))
        assert process.wait(timeout=300) == 0
    lines = [line.rstrip() for line in screen.lines]
    assert screen.cursor_shown
    assert lines[0] == "a line above"
    assert lines[1].endswith("left") or " fits  " in lines[1]
    assert sum("1/900 fits" in line for line in lines) == 1
    assert any("0.25000" in line for line in lines)
    assert lines[-2:] == ["report: there", ""]
    assert max(map(len, lines)) <= 80


def test_ctrl_c_leaves_a_clean_terminal_and_a_sentence() -> None:
    with on_a_terminal(script(waits=True)) as (process, ours):
        text = read(ours, until=Mark.RUNNING.sign)
        os.write(ours, b"\x03")
        text += read(ours)
        assert process.wait(timeout=300) == 130
    screen = screen_of(text)
    assert screen.cursor_shown
    assert [line for line in screen.lines if line.strip()][-1] == "error: stopped; what is finished is kept."
    assert "Traceback" not in text


@pytest.mark.parametrize(
    ("environment", "moves", "colours"),
    [({}, True, True), ({"NO_COLOR": "1"}, True, False), ({"TERM": "dumb"}, False, False)],
    ids=["as usual", "NO_COLOR", "TERM=dumb"],
)
def test_a_terminal_gets_what_it_asks_for(environment: dict[str, str], moves: bool, colours: bool) -> None:
    with on_a_terminal(script(), **environment) as (_, ours):
        text = read(ours)
    assert ("\x1b[?25l" in text) == moves
    assert bool(re.search(r"\x1b\[[0-9;]*3[0-9]", text)) == colours
    assert ("validation loss 0.25000" in text) == (not moves)

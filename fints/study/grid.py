"""Which fit of which arm stands where, and what has become of it: one mark a fit."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

from fints.config import fingerprint
from fints.words import counted

if TYPE_CHECKING:
    from fints.study.fits import Cell
    from fints.study.panel_cells import PanelFit
    from fints.study.panel_plan import PanelPlan
    from fints.study.planned import Planned

__all__ = ["Block", "Grid", "Mark", "grid_of_panels", "grid_of_study"]


class Mark(Enum):
    """What has become of a fit: its sign, its sign in ASCII, its colour.

    Signs differ in shape, so that they are told apart without colour. Of a group of fits behind one sign the
    worst is shown, which is the last of these.
    """

    KEPT = ("○", "=", "cyan", "kept")
    DONE = ("●", "#", "green", "done")
    WAITING = ("·", ".", "dim", "waiting")
    RUNNING = ("▶", ">", "yellow", "running")
    DIVERGED = ("×", "x", "magenta", "diverged")
    FAILED = ("!", "!", "bold red", "failed")

    def __init__(self, sign: str, ascii_sign: str, style: str, word: str) -> None:
        self.sign, self.ascii_sign, self.style, self.word = sign, ascii_sign, style, word


@dataclass(frozen=True, kw_only=True)
class Block:
    """The fits of one role, the same in every arm: their places, `together` of which stand together."""

    title: str
    places: tuple[Hashable, ...]
    together: int


@dataclass(kw_only=True)
class Grid:
    """Marks of all fits of a study, by arm and role.

    Parameters
    ----------
    arms : sequence of str
        In the order of the plan.
    blocks : mapping
        Role to its block, in the order of the screen.
    place : callable
        The place of a fit within its arm and role.
    """

    arms: Sequence[str]
    blocks: Mapping[str, Block]
    place: Callable[[Any], Hashable]
    marks: dict[tuple[str, str], list[Mark]] = field(init=False)
    _index: dict[tuple[str, Hashable], int] = field(init=False)

    def __post_init__(self) -> None:
        self.marks = {
            (arm, role): [Mark.WAITING] * len(block.places)
            for arm in self.arms
            for role, block in self.blocks.items()
        }
        self._index = {
            (role, place): number
            for role, block in self.blocks.items()
            for number, place in enumerate(block.places)
        }

    def put(self, fit: Any, mark: Mark) -> None:
        """Note what has become of a fit; one that the plan does not have has no place."""
        row, number = self._at(fit)
        if row is not None:
            row[number] = mark

    def end(self, fit: Any, mark: Mark) -> None:
        """Note how a fit ended that was made with others, unless it is there all the same."""
        row, number = self._at(fit)
        if row is not None and row[number] in (Mark.WAITING, Mark.RUNNING):
            row[number] = mark

    def _at(self, fit: Any) -> tuple[list[Mark] | None, int]:
        row = self.marks.get((fit.arm, fit.role))
        number = self._index.get((fit.role, self.place(fit)))
        return (None, 0) if row is None or number is None else (row, number)

    def stop(self) -> None:
        """Note that what was running waits again."""
        for row in self.marks.values():
            row[:] = [Mark.WAITING if mark is Mark.RUNNING else mark for mark in row]

    def count(self, role: str, *marks: Mark) -> int:
        """Return how many fits of a role bear one of `marks`."""
        return sum(mark in marks for (_, own), row in self.marks.items() if own == role for mark in row)

    def of(self, arm: str) -> list[Mark]:
        """Return all marks of an arm."""
        return [mark for role in self.blocks for mark in self.marks[arm, role]]


def grid_of_study(planned: Planned) -> Grid:
    """Return the grid of a study of one panel in time: final fits stand by fold, seeds together."""
    first = planned.arms[0]
    tuning = planned.tuning_cells(first)
    final = planned.final_cells(first, tuning[0].point)
    points, folds = len(planned.spec["tuning"]["points"]), len(planned.spec["folds"])
    blocks = {
        "tuning": _block("tuning", [_place_in_time(cell) for cell in tuning], points, "point"),
        "final": _block("final", [_place_in_time(cell) for cell in final], folds, "fold"),
    }
    return Grid(arms=planned.arms, blocks=blocks, place=_place_in_time)


def grid_of_panels(plan: PanelPlan) -> Grid:
    """Return the grid of a study of simulated panels: final fits stand by panel, seeds together."""
    points = plan.study.tuning.points()
    tuning = plan.tuning_cells(plan.arms[0])
    final = plan.final_cells(plan.arms[0], points[0])
    blocks = {
        "tuning": _block("tuning", [_place_of_panel(cell) for cell in tuning], len(points), "point"),
        "final": _block("final", [_place_of_panel(cell) for cell in final], len(plan.study.panels), "panel"),
    }
    # A study may tune nothing.
    blocks = {role: block for role, block in blocks.items() if block.places}
    return Grid(arms=[arm.name for arm in plan.arms], blocks=blocks, place=_place_of_panel)


def _block(role: str, places: Sequence[Hashable], groups: int, noun: str) -> Block:
    """Return the fits of a role; `groups` of as many fits each stand apart."""
    together = len(places) // groups
    title = f"{role}: {counted(groups, noun)}" + (f" x {together}" if together > 1 else "")
    return Block(title=title, places=tuple(places), together=max(together, 1))


def _place_in_time(cell: Cell) -> Hashable:
    # A final fit's point is known after its arm's tuning only.
    point = fingerprint(cell.point) if cell.role == "tuning" else ""
    return point, cell.fold, cell.seed


def _place_of_panel(cell: PanelFit) -> Hashable:
    point = fingerprint(cell.point) if cell.role == "tuning" else ""
    return point, cell.panel, cell.seed

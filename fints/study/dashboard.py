"""The picture of a running study on a terminal: progress, a grid of its fits, the last losses.

It is made anew several times a second, keeps to the size of the terminal, and shows of many arms those that
something happens to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from fints.study.estimates import duration
from fints.study.grid import Block, Grid, Mark
from fints.words import counted

__all__ = ["LAST", "Dashboard", "Standing"]

# Lines of what was finished last.
LAST = 3
BAR = 24
# Between the two roles, and between two arms side by side.
GAP = 2
SHORTEST_NAME = 12


@dataclass(frozen=True, kw_only=True)
class Standing:
    """Numbers of the moment: `seconds_left` from the estimates of the fits, `an_hour` what was done here."""

    done: int
    total: int
    elapsed: float
    seconds_left: float
    an_hour: float | None
    workers: int
    last: Sequence[str] = ()


class Dashboard:
    """What `rich` draws of a grid and of where the study stands."""

    def __init__(self, grid: Grid, standing: Standing) -> None:
        self._grid, self._standing = grid, standing

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the lines, at most as many as the terminal has."""
        width, height = options.max_width, (options.height or console.size.height) - 1
        signs = _Signs(console.encoding.lower().startswith("utf"))
        for line in self._lines(width, height, signs)[:height]:
            line.truncate(width)
            yield line

    def _lines(self, width: int, height: int, signs: _Signs) -> list[Text]:
        last = [Text(text, style="dim") for text in self._standing.last]
        above, below = self._head(signs), [signs.legend(), *last]
        # The grid's own heading and the line on what is not shown.
        room = height - len(above) - len(below) - 2
        return [*above, *_Rows(self._grid, signs, width).lines(max(room, 1)), *below]

    def _head(self, signs: _Signs) -> list[Text]:
        now, grid = self._standing, self._grid
        share = now.done / now.total if now.total else 1.0
        filled = round(BAR * share)
        full, empty = signs.bar
        bar = Text(full * filled, style="green") + Text(empty * (BAR - filled), style="dim")
        speed = "-" if now.an_hour is None else f"{now.an_hour:,.0f}"
        told = Text(
            f"  {now.done}/{now.total} fits  {speed} an hour  about {duration(now.seconds_left)} left"
        )
        parts = []
        for role, block in grid.blocks.items():
            total = len(block.places) * len(grid.arms)
            parts.append(f"{role} {total - grid.count(role, Mark.WAITING, Mark.RUNNING)}/{total}")
        running = sum(grid.count(role, Mark.RUNNING) for role in grid.blocks)
        parts.append(f"running {running} of {counted(now.workers, 'worker')}")
        parts.append(f"since {duration(now.elapsed)}")
        return [bar + told, Text("  ".join(parts))]


class _Signs:
    """Signs that the terminal can show."""

    def __init__(self, unicode: bool) -> None:
        self._unicode = unicode
        self.bar = ("█", "░") if unicode else ("#", "-")
        self.cut = "…" if unicode else "~"

    def of(self, mark: Mark) -> str:
        return mark.sign if self._unicode else mark.ascii_sign

    def legend(self) -> Text:
        told = Text()
        for mark in (Mark.DONE, Mark.KEPT, Mark.RUNNING, Mark.WAITING, Mark.DIVERGED, Mark.FAILED):
            told.append(self.of(mark), style=mark.style)
            told.append(f" {mark.word}  ")
        return told


class _Rows:
    """One row an arm, side by side where there is room for it."""

    def __init__(self, grid: Grid, signs: _Signs, width: int) -> None:
        self._grid, self._signs, self._width = grid, signs, width
        longest = max(map(len, grid.arms))
        blocks = grid.blocks.values()
        # Groups stand apart if there is room; else signs stand for several fits, and at last names are cut.
        room = width - GAP * len(grid.blocks)
        self._apart = longest + sum(_width(block, 1, apart=True) for block in blocks) <= room
        self._fold = 1
        while (
            min(longest, SHORTEST_NAME)
            + sum(_width(block, self._fold, apart=self._apart) for block in blocks)
            > room
        ):
            self._fold += 1
        widths = [_width(block, self._fold, apart=self._apart) for block in blocks]
        self._name = min(longest, room - sum(widths))
        self._row = self._name + sum(widths) + GAP * len(widths)
        self._most_columns = max(1, (width + GAP) // (self._row + GAP))
        self._columns = 1

    def lines(self, room: int) -> list[Text]:
        """Return the heading and at most `room` rows, with a line on arms that are not shown."""
        # Side by side only what would not stand one below the other.
        self._columns = min(self._most_columns, -(-len(self._grid.arms) // room))
        shown = self._shown(room * self._columns)
        high = -(-len(shown) // self._columns)
        rows = [Text() for _ in range(high)]
        for place, arm in enumerate(shown):
            if place >= high:
                rows[place % high].append(" " * GAP)
            rows[place % high].append_text(self._arm(arm))
        used = -(-len(shown) // high) if high else 1
        heading = (Text(" " * GAP)).join([self._heading()] * used)
        return [heading, *rows, *self._hidden(set(self._grid.arms) - set(shown))]

    def _shown(self, most: int) -> list[str]:
        """Return the arms to show, in the order of the plan: those at work or with failures before others."""
        if len(self._grid.arms) <= most:
            return list(self._grid.arms)
        urgent = (Mark.RUNNING, Mark.FAILED, Mark.DIVERGED)

        def rank(arm: str) -> tuple[int, int]:
            marks = self._grid.of(arm)
            begun = any(mark is not Mark.WAITING for mark in marks)
            worst = next((number for number, mark in enumerate(urgent) if mark in marks), len(urgent))
            return worst, 0 if begun and Mark.WAITING in marks else 1 if not begun else 2

        chosen = set(sorted(self._grid.arms, key=rank)[:most])
        return [arm for arm in self._grid.arms if arm in chosen]

    def _hidden(self, hidden: set[str]) -> list[Text]:
        if not hidden:
            return []
        waiting = sum(all(mark is Mark.WAITING for mark in self._grid.of(arm)) for arm in hidden)
        done = sum(Mark.WAITING not in self._grid.of(arm) for arm in hidden)
        told = f"and {counted(len(hidden), 'more arm')}: {done} done, {waiting} not begun"
        return [Text(told, style="dim")]

    def _heading(self) -> Text:
        told = Text(" " * self._name, style="dim")
        if self._fold > 1:
            told = Text(f"1 sign: {self._fold} fits"[: self._name].ljust(self._name), style="dim")
        *_, last = self._grid.blocks.values()
        for block in self._grid.blocks.values():
            own = _width(block, self._fold, apart=self._apart)
            if block is last and self._columns == 1:
                # Nothing stands beside it.
                own = max(own, self._width - len(told) - GAP)
            # A word that does not fit is shortened rather than pushing the others aside.
            word = next(
                (text for text in (block.title, block.title.partition(":")[0]) if len(text) <= own),
                block.title[:own],
            )
            told.append(" " * GAP + word.ljust(own), style="dim")
        return told

    def _arm(self, arm: str) -> Text:
        name = arm if len(arm) <= self._name else arm[: self._name - 1] + self._signs.cut
        told = Text(name.ljust(self._name))
        for role, block in self._grid.blocks.items():
            told.append(" " * GAP)
            marks = self._grid.marks[arm, role]
            start = len(told)
            for number in range(0, len(marks), self._fold):
                if self._apart and number and block.together > 1 and number % block.together == 0:
                    told.append(" ")
                worst = max(marks[number : number + self._fold], key=list(Mark).index)
                told.append(self._signs.of(worst), style=worst.style)
            told.append(" " * (_width(block, self._fold, apart=self._apart) - (len(told) - start)))
        return told


def _width(block: Block, fold: int, *, apart: bool) -> int:
    signs = -(-len(block.places) // fold)
    gaps = (len(block.places) - 1) // block.together if apart and block.together > 1 and fold == 1 else 0
    # As wide as its heading, if that is not what makes it too wide.
    return max(signs + max(gaps, 0), len(block.title.partition(":")[0]) if apart else 0)

"""What a study leaves undecided, how much more would decide it, and where that comes from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from fints.study.claims import FULL
from fints.study.document import Block, Code, Heading, Items, Text
from fints.study.selection import HELD_EQUAL
from fints.study.verdict import MOST_FOLDS
from fints.words import counted

if TYPE_CHECKING:
    from fints.study.analysis import Analysis

__all__ = ["open_chapter", "still_open"]


def open_chapter(undecided: Mapping[str, str], more: Sequence[Block], *, of: str) -> list[Block]:
    """Return the chapter on what is undecided, by name how many more would decide it.

    `more` says how to get them, `of` what they are.
    """
    heading = Heading(text="What is still open")
    if not undecided:
        return [heading, Text(text="No verdict of this size is left undecided.")]
    return [
        heading,
        Text(text=f"Undecided, with how many {of} would decide it at these estimates:"),
        Items(items=tuple(f"{name}: {told}." for name, told in undecided.items())),
        *more,
    ]


def still_open(analysis: Analysis) -> list[Block]:
    """Return a study in time's chapter on what is undecided; none for a size that claims nothing."""
    if analysis.claim == "none":
        return []
    spec = analysis.spec
    # All arms on one more fold, tuned as they are.
    fits = len(spec["arms"]) * len(spec["seeds"])
    untold = "how many cannot be told from so few"
    undecided: dict[str, str] = {}
    if analysis.selection is not None:
        undecided |= {
            f"which to pick at the {HELD_EQUAL[one.how]}": _more(one.folds_needed, one.clusters, fits, untold)
            for one in analysis.selection.comparisons
            if one.kind == "undecided"
        }
    undecided |= {
        row["contrast"]: _more(row["folds_needed"], row["clusters"], fits, f"more than {MOST_FOLDS:,}")
        for row in analysis.contrasts.iter_rows(named=True)
        if row["decision"] == "undecided"
    }
    more: list[Block] = [
        Text(text="More years or another market come with a panel of your own (`--data FILE`).")
    ]
    if command := spec.get("larger"):
        more += [
            Text(text=f"The preset `{FULL}` is made for one GPU, and uses the one that is there:"),
            Code(text=command),
        ]
    return open_chapter(undecided, more, of="folds more like these")


def _more(needed: int | None, clusters: int, fits: int, without: str) -> str:
    if needed is None:
        return without
    more = max(1, needed - clusters)
    return f"about {counted(more, 'more fold')} ({counted(more * fits, 'final fit')} of all arms)"

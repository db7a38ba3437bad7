"""How far mediators moved between two arms: what a manipulation check is asked of."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import polars as pl

from fints.diagnostics import MEDIATORS, Move, move, relieves
from fints.study.panel_store import Fits

__all__ = ["measured_move", "mediator_moves", "strongest_moves"]

GAP = "train_test_gap"
BY_SUBLAYER = [name for names in MEDIATORS.values() for name in names if name != GAP]


def mediator_moves(
    fits: Fits,
    before: pl.DataFrame,
    after: pl.DataFrame,
    panels: Sequence[int],
    *,
    least: float,
) -> dict[str, Move]:
    """Return how far each mediator moved between two arms, over moments and sublayers; the start is left out.

    Parameters
    ----------
    fits : Fits
        Of the study.
    before, after : DataFrame
        Fits of the two arms. A panel that either diverged on was not measured, and is left out.
    panels : sequence of int
        The clusters.
    least : float
        A gap between training and test smaller than this counts as this: what it moved by is not compared
        with next to nothing.
    """
    found = {name: measured_move(fits, (before, name), (after, name), panels) for name in BY_SUBLAYER}
    return _told(found | {GAP: _gap(before, after, panels, least)})


def strongest_moves(
    fits: Fits,
    before: pl.DataFrame,
    after: pl.DataFrame,
    panels: Sequence[int],
    *,
    least: float,
    until: int,
) -> dict[str, Move]:
    """Return how far each mediator moved at the moment where it moved most, over sublayers.

    A relief may act at all times, or only once a network falls ill: what it prevents shows at the moments
    from then on, and a mean over all would thin it out. Of each mediator that moment is taken at which it
    moved farthest the way that relieves; farthest the other way if it never does.

    Parameters
    ----------
    fits, before, after, panels, least
        As `mediator_moves`.
    until : int
        Moments after this step are left out, as is the start; of the gap there is the end alone.
    """
    measured = [_by_moment(fits, table, panels, until) for table in (before, after)]
    found: dict[str, Move | None] = {}
    for name in BY_SUBLAYER:
        moments = sorted(set(measured[0].get(name, {})) & set(measured[1].get(name, {})))
        moves = [_between(*(one[name][moment] for one in measured)) for moment in moments]
        kept = [one for one in moves if one is not None and not math.isnan(one.size)]
        found[name] = max(kept, key=lambda one: (relieves(name, one), one.size), default=None)
    return _told(found | {GAP: _gap(before, after, panels, least)})


def _told(found: Mapping[str, Move | None]) -> dict[str, Move]:
    return {name: moved for name, moved in found.items() if moved is not None}


def _gap(before: pl.DataFrame, after: pl.DataFrame, panels: Sequence[int], least: float) -> Move:
    gaps = [
        [
            [test - train]
            for test, train in table.filter(pl.col("panel").is_in(list(panels)))
            .sort("panel")
            .select("test_excess", "train_excess")
            .rows()
        ]
        for table in (before, after)
    ]
    return move(gaps[0], gaps[1], least=least)


def measured_move(
    fits: Fits,
    before: tuple[pl.DataFrame, str],
    after: tuple[pl.DataFrame, str],
    panels: Sequence[int],
) -> Move | None:
    """Compare two measures of two arms on those panels where both were measured at the same places."""
    measured = []
    for table, name in (before, after):
        rows = fits.watched(table, panels).filter(pl.col("measure") == name)
        measured.append(_by_panel(rows.sort("panel", "step", "layer")))
    return _between(*measured)


def _between(before: Mapping[int, list[float]], after: Mapping[int, list[float]]) -> Move | None:
    shared = [
        panel for panel, values in before.items() if panel in after and len(values) == len(after[panel])
    ]
    if not shared:
        return None
    longest = max(len(before[panel]) for panel in shared)
    shared = [panel for panel in shared if len(before[panel]) == longest]
    return move(*([by[panel] for panel in shared] for by in (before, after)))


def _by_moment(
    fits: Fits, table: pl.DataFrame, panels: Sequence[int], until: int
) -> dict[str, dict[int, dict[int, list[float]]]]:
    """Return measures by moment and panel, in the order of sublayers."""
    rows = fits.watched(table, panels).filter(pl.col("step") <= until).sort("panel", "layer")
    found: dict[str, dict[int, dict[int, list[float]]]] = {}
    parts = rows.partition_by("measure", "step", as_dict=True, maintain_order=True)
    for (name, step), part in parts.items():
        found.setdefault(str(name), {})[int(step)] = _by_panel(part)
    return found


def _by_panel(rows: pl.DataFrame) -> dict[int, list[float]]:
    return {
        int(panel): part["value"].to_list()
        for (panel,), part in rows.partition_by("panel", as_dict=True, maintain_order=True).items()
    }

"""The numbers that published claims are about, one a panel, from the finished fits of a panel study.

A cell is a scheme at a depth in a case (clipping, warm-up, ...), fitted at several learning rates on every
panel; panels are the clusters. Where one network of a cell is read, it is that at the rate whose validation
loss is lowest on the *other* panels, so that no panel chooses for itself; where cells are compared, all of
them choose among the rates that all were fitted at.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import polars as pl

from fints.diagnostics import learning_rate_range
from fints.study.cells import FINISHED
from fints.study.panel_design import PanelStudy
from fints.study.panel_store import Fits

__all__ = ["CELL", "MEASURES", "Cells", "Key", "Values"]

CELL = ("residual", "depth", "case")
Key = tuple[str, ...]
Values = dict[int, float]
RATE = "rate"


class Cells:
    """The fits of a study by cell, rate and panel.

    Parameters
    ----------
    study
        With the factors ``residual``, ``depth``, ``case`` and ``rate``, whose levels are learning rates.
    fits
        Finished ones.
    """

    def __init__(self, study: PanelStudy, fits: Fits) -> None:
        self._fits: dict[Key, dict[float, dict[int, dict[str, Any]]]] = {}
        by_arm = {arm.name: arm for arm in study.arms()}
        for row in fits.table.iter_rows(named=True):
            arm = by_arm.get(row["arm"])
            if arm is None or row["role"] != "final":
                continue
            key = tuple(arm.levels[factor] for factor in CELL)
            rate = float(arm.levels[RATE])
            self._fits.setdefault(key, {}).setdefault(rate, {})[row["panel"]] = row
        self._rows: dict[str, list[dict[str, Any]]] = {}
        for (name,), part in fits.rows.partition_by("key", as_dict=True).items() if fits.rows.height else ():
            self._rows[name] = part.sort("measure", "step", "layer", nulls_last=True).to_dicts()

    def has(self, *cells: Key) -> bool:
        """Tell whether every cell has a finished fit, and all have a rate in common."""
        return all(cell in self._fits for cell in cells) and bool(self._shared(cells))

    def chosen(self, *cells: Key) -> dict[int, tuple[dict[str, Any], ...]]:
        """Return a fit of each cell by panel, on the panels where every cell has all its fits."""
        rates = self._shared(cells)
        panels = set.intersection(*(set(self._fits[cell][rate]) for cell in cells for rate in rates))
        return {
            panel: tuple(self._fits[cell][self._best(cell, rates, panels, panel)][panel] for cell in cells)
            for panel in sorted(panels)
        }

    def shares(self, cell: Key) -> dict[int, float]:
        """Return by panel which share of the oracle a cell recovers, where something was planted."""
        found = {panel: row["share_of_oracle"] for panel, (row,) in self.chosen(cell).items()}
        return {panel: share for panel, share in found.items() if share is not None}

    def best_rate(self, cell: Key, panel: int, panels: set[int]) -> float:
        """Return the rate of all its rates that other panels choose for a cell."""
        return self._best(cell, sorted(self._fits[cell]), panels, panel)

    def by_rate(self, cell: Key) -> dict[float, dict[int, dict[str, Any]]]:
        """Return the fits of a cell by rate and panel."""
        return self._fits[cell]

    def layers(self, row: Mapping[str, Any], measure: str) -> list[float | None]:
        """Return a measure of a fit's network by sublayer; empty where it has none."""
        own = [one for one in self._rows.get(row["key"], ()) if one["measure"] == measure]
        return [one["value"] for one in own if one["step"] is None]

    def curve(self, row: Mapping[str, Any]) -> list[tuple[int, float]]:
        """Return step and distance to the signal on validation dates."""
        own = [one for one in self._rows.get(row["key"], ()) if one["measure"] == "validation_distance"]
        return [(one["step"], one["value"]) for one in own if one["value"] is not None]

    def _shared(self, cells: Sequence[Key]) -> list[float]:
        return sorted(set.intersection(*(set(self._fits.get(cell, {})) for cell in cells)))

    def _best(self, cell: Key, rates: Sequence[float], panels: set[int], panel: int) -> float:
        others = sorted(panels - {panel}) or [panel]

        def loss(rate: float) -> float:
            rows = [self._fits[cell][rate][other] for other in others if other in self._fits[cell][rate]]
            ended = all(row["outcome"] in FINISHED for row in rows)
            return statistics.fmean(row["validation_loss"] for row in rows) if ended else math.inf

        # Of equals, as where every rate diverged, the lowest.
        return min(rates, key=lambda rate: (loss(rate), rate))


def _compared(column: str, sign: float) -> Callable[..., Values]:
    """Return a measure of two cells: the first's column less the second's, times `sign`."""

    def found(cells: Cells, one: Key, other: Key) -> Values:
        pairs = cells.chosen(one, other)
        known = {panel: (a[column], b[column]) for panel, (a, b) in pairs.items()}
        return {panel: sign * (a - b) for panel, (a, b) in known.items() if None not in (a, b)}

    return found


def _mean_of(measure: str, *, late: bool) -> Callable[..., Values]:
    """Return a measure of one cell: the mean over its sublayers, or over the later half of them."""

    def found(cells: Cells, cell: Key) -> Values:
        values = {}
        for panel, (row,) in cells.chosen(cell).items():
            layers = cells.layers(row, measure)
            known = [value for value in layers[len(layers) // 2 if late else 0 :] if value is not None]
            if known:
                values[panel] = statistics.fmean(known)
        return values

    return found


def _slope_of(measure: str) -> Callable[..., Values]:
    """Return a measure of one cell: the slope of the logarithm on that of the sublayer's number from 1."""

    def found(cells: Cells, cell: Key) -> Values:
        values = {}
        for panel, (row,) in cells.chosen(cell).items():
            points = [
                (math.log(place + 1), math.log(value))
                for place, value in enumerate(cells.layers(row, measure))
                if value is not None and value > 0
            ]
            if len(points) > 1:
                x, y = zip(*points, strict=True)
                values[panel] = statistics.linear_regression(x, y).slope
        return values

    return found


def _first_to_last(measure: str) -> Callable[..., Values]:
    """Return a measure of one cell: that of the first block over that of the last, both its sublayers."""

    def found(cells: Cells, cell: Key) -> Values:
        values = {}
        for panel, (row,) in cells.chosen(cell).items():
            layers = [value or 0.0 for value in cells.layers(row, measure)]
            if len(layers) > 3 and min(layers[:2]) > 0 and min(layers[-2:]) > 0:
                values[panel] = math.hypot(*layers[:2]) / math.hypot(*layers[-2:])
        return values

    return found


def _variance_ratio(cells: Cells, one: Key, other: Key) -> Values:
    """Return the summed variance of the gradient between batches of one cell over that of another."""
    values = {}
    for panel, rows in cells.chosen(one, other).items():
        sums = [math.fsum(v for v in cells.layers(row, "gradient_variance") if v is not None) for row in rows]
        if min(sums) > 0:
            values[panel] = sums[0] / sums[1]
    return values


def _steps_ratio(cells: Cells, one: Key, other: Key) -> Values:
    """Return the steps of one cell to what the other ends with, over those of the other.

    The level is the other's last distance to the signal on validation dates, plus a tenth of what it had come
    nearer in all; between points of the curve steps are interpolated. Who never gets there has all its steps.
    """
    values = {}
    for panel, rows in cells.chosen(one, other).items():
        fast, slow = (cells.curve(row) for row in rows)
        if len(fast) < 2 or len(slow) < 2 or slow[-1][1] >= slow[0][1]:
            continue
        level = slow[-1][1] + 0.1 * (slow[0][1] - slow[-1][1])
        values[panel] = _steps_to(fast, level) / _steps_to(slow, level)
    return values


def _steps_to(curve: Sequence[tuple[int, float]], level: float) -> float:
    before = curve[0]
    for step, value in curve:
        if value <= level:
            if step == before[0]:
                return max(float(step), 1.0)
            return before[0] + (step - before[0]) * (before[1] - level) / (before[1] - value)
        before = step, value
    return float(curve[-1][0])


def _upper_rate_ratio(cells: Cells, one: Key, other: Key) -> Values:
    """Return the upper end of one cell's range of learning rates over that of another's.

    The range is that within 10 % of the best share of oracle on the same panel.
    """
    ends = []
    for cell in (one, other):
        by_rate = cells.by_rate(cell)
        panels = set.intersection(*(set(rows) for rows in by_rate.values()))
        found = {}
        for panel in panels:
            shares = {rate: rows[panel]["share_of_oracle"] for rate, rows in by_rate.items()}
            if None not in shares.values() and len(shares) > 1:
                around = learning_rate_range(shares)
                if around is not None:
                    found[panel] = around.high
        ends.append(found)
    return {panel: ends[0][panel] / ends[1][panel] for panel in sorted(set(ends[0]) & set(ends[1]))}


def _lost_at_the_others_rate(cells: Cells, one: Key, other: Key) -> Values:
    """Return the share of oracle that a cell loses at the rate that is best for another one."""
    by_rate = cells.by_rate(one)
    panels = set.intersection(*(set(rows) for rows in (*by_rate.values(), *cells.by_rate(other).values())))
    values: Values = {}
    if min(len(by_rate), len(cells.by_rate(other))) < 2:
        # Where there is one rate there is nothing to tune.
        return values
    for panel in sorted(panels):
        own, theirs = (cells.best_rate(cell, panel, panels) for cell in (one, other))
        if theirs in by_rate:
            shares = [by_rate[rate][panel]["share_of_oracle"] for rate in (own, theirs)]
            if None not in shares:
                values[panel] = shares[0] - shares[1]
    return values


def _lost_without(cells: Cells, one: Key, other: Key) -> Values:
    """Return the share of oracle of a cell less that of another, over all rates that both were fitted at."""
    by_rate = cells.by_rate(one), cells.by_rate(other)
    shared = sorted(set(by_rate[0]) & set(by_rate[1]))
    panels = set.intersection(*(set(rates[rate]) for rates in by_rate for rate in shared))
    values = {}
    for panel in sorted(panels):
        pairs = [tuple(rates[rate][panel]["share_of_oracle"] for rates in by_rate) for rate in shared]
        if all(None not in pair for pair in pairs):
            values[panel] = statistics.fmean(a - b for a, b in pairs)
    return values


def _late_blocks(cells: Cells, cell: Key) -> Values:
    """Return the mean rise when a block from the 21st on is skipped over that of the first 20."""
    values = {}
    for panel, (row,) in cells.chosen(cell).items():
        rises = [value or 0.0 for value in cells.layers(row, "block_rise")]
        if len(rises) > 20 and math.fsum(rises[:20]) > 0:
            values[panel] = statistics.fmean(rises[20:]) / statistics.fmean(rises[:20])
    return values


def _attribution(cells: Cells, cell: Key) -> Values:
    """Return the rank correlation over sublayers of weight in the read-out and rise when skipped."""
    values = {}
    for panel, (row,) in cells.chosen(cell).items():
        pairs = [
            (weight, rise)
            for weight, rise in zip(
                cells.layers(row, "source_weight"), cells.layers(row, "skip_rise"), strict=True
            )
            if weight is not None and rise is not None
        ]
        frame = pl.DataFrame(pairs, schema=["weight", "rise"], orient="row")
        if frame.height > 2:
            rank = frame.select(pl.corr("weight", "rise", method="spearman")).item()
            if rank is not None and math.isfinite(rank):
                values[panel] = float(rank)
    return values


MEASURES: Mapping[str, tuple[str, Callable[..., Values]]] = {
    "late_cosine": (
        "cosine of what neighbouring sublayers read, mean over the later half of the depth",
        _mean_of("adjacent_cosine", late=True),
    ),
    "diversity": (
        "1 less the mean cosine of two streams, mean over depth",
        _mean_of("diversity", late=False),
    ),
    "late_cosine_centred": (
        "the same, each less its mean token",
        _mean_of("adjacent_cosine_centred", late=True),
    ),
    "late_cosine_null": (
        "the same, of independent increments of equal length",
        _mean_of("adjacent_cosine_null", late=True),
    ),
    "late_cosine_initial": (
        "the same, before training",
        _mean_of("adjacent_cosine_initial", late=True),
    ),
    "entropy_read": ("entropy of the reading weights, mean over depth", _mean_of("entropy_read", late=False)),
    "entropy_write": (
        "entropy of the writing weights, mean over depth",
        _mean_of("entropy_write", late=False),
    ),
    "entropy_carry": (
        "entropy of the carrying weights, mean over depth",
        _mean_of("entropy_carry", late=False),
    ),
    "size_slope": ("slope of log size of the stream on log depth", _slope_of("trunk_size")),
    "share_slope": (
        "slope on log depth of the log share of the last output in what the next sublayer reads",
        _slope_of("recent_share"),
    ),
    "gradient_ends": (
        "gradient of the first block over that of the last, after training",
        _first_to_last("gradient_norm"),
    ),
    "gradient_ends_initial": (
        "gradient of the first block over that of the last, before training",
        _first_to_last("gradient_norm_initial"),
    ),
    "variance_ratio": ("variance of the gradient between batches, first over second", _variance_ratio),
    "steps_ratio": ("steps to nine tenths of what the second learns in all, first over second", _steps_ratio),
    "rate_ratio": ("highest learning rate within 10 % of the best, first over second", _upper_rate_ratio),
    "excess": ("test distance to the signal, first less second", _compared("test_excess", 1.0)),
    "gain": ("test distance to the signal, second less first", _compared("test_excess", -1.0)),
    "share_gap": ("share of oracle, first less second", _compared("share_of_oracle", 1.0)),
    "spikes": ("loss spikes in 1,000 steps, first less second", _compared("spikes_per_thousand", 1.0)),
    "lost_without": ("share of oracle over all shared rates, first less second", _lost_without),
    "lost_at_the_others_rate": (
        "share of oracle that the first loses at the second's best rate",
        _lost_at_the_others_rate,
    ),
    "late_blocks": ("rise when a block after the 20th is skipped over that before", _late_blocks),
    "attribution": ("rank correlation of weights over depth with the rise when skipped", _attribution),
}
"""Name of a measure to what it is, and what finds it in cells."""

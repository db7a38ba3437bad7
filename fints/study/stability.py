"""How stable schemes train: from finished fits to the widths and readings of each cell.

A cell is a scheme in a case (noise, inputs, target, ...) at a depth. It was fitted at every learning rate of
a grid on every panel; panels are the clusters.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from fints.diagnostics import RateRange, learning_rate_range
from fints.study.panel_design import PanelArm, PanelStudy
from fints.study.panel_store import Fits

__all__ = ["Key", "StableCell", "mean_of", "stable_cells"]

CELL = ("residual", "case", "depth")
Key = tuple[str, str, str]


@dataclass(frozen=True, kw_only=True)
class StableCell:
    """What was found in one cell, by panel.

    Attributes
    ----------
    scheme, case, depth
        Which.
    shares
        By panel, the share of oracle by learning rate, averaged over seeds; empty where nothing was planted.
    ranges
        By panel, the range of rates near its best; None where no rate has a share above 0.
    chosen
        By panel, the row of the fit at the rate of its lowest validation loss (the first seed).
    rows
        All fits of the cell.
    """

    scheme: str
    case: str
    depth: str
    shares: dict[int, dict[float, float]]
    ranges: dict[int, RateRange | None]
    chosen: dict[int, dict[str, Any]]
    rows: list[dict[str, Any]]

    @property
    def key(self) -> Key:
        """Scheme, case and depth."""
        return self.scheme, self.case, self.depth

    @property
    def name(self) -> str:
        """The cell in words."""
        return f"{self.scheme}, {self.case}, depth {self.depth}"

    def widths(self) -> dict[int, float]:
        """Return the width by panel, in decades."""
        return {panel: 0.0 if found is None else found.decades for panel, found in self.ranges.items()}

    def outcome(self, name: str) -> dict[int, float]:
        """Return by panel the "width", or the "share" of oracle at the rate of the lowest validation loss."""
        return self.widths() if name == "width" else self.read("share_of_oracle")

    def open_ends(self) -> float:
        """Return the share of panels whose range an end of the grid cuts off."""
        cut = [found is not None and (found.low_open or found.high_open) for found in self.ranges.values()]
        return sum(cut) / len(cut) if cut else 0.0

    def read(self, name: str) -> dict[int, float]:
        """Return a column by panel at the chosen rate, of those panels where it is known."""
        found = {panel: row.get(name) for panel, row in self.chosen.items()}
        return {panel: float(value) for panel, value in found.items() if value is not None}

    def over_rates(self, told: Callable[[dict[str, Any]], float | None]) -> dict[int, float]:
        """Return the mean of what is told of the fits of a panel, at all rates, where it is known."""
        found: dict[int, list[float]] = {}
        for row in self.rows:
            value = told(row)
            if value is not None:
                found.setdefault(int(row["panel"]), []).append(value)
        return {panel: statistics.fmean(values) for panel, values in found.items()}

    def failed(self) -> float:
        """Return the share of fits that diverged."""
        return sum(row["outcome"] == "diverged" for row in self.rows) / len(self.rows)

    def spikes(self) -> float | None:
        """Return loss spikes in 1,000 steps, over all rates and panels that did not diverge."""
        found = [row["spikes_per_thousand"] for row in self.rows if row["spikes_per_thousand"] is not None]
        return statistics.fmean(found) if found else None

    def seed_spread(self) -> float | None:
        """Return the standard deviation of the share over seeds of a panel, at the chosen rate."""
        groups: dict[int, list[float]] = {}
        for row in self.rows:
            panel = int(row["panel"])
            if row["rate"] == self.chosen[panel]["rate"] and row["share_of_oracle"] is not None:
                groups.setdefault(panel, []).append(row["share_of_oracle"])
        found = [statistics.variance(values) for values in groups.values() if len(values) > 1]
        return math.sqrt(statistics.fmean(found)) if found else None


def stable_cells(study: PanelStudy, fits: Fits) -> dict[Key, StableCell]:
    """Return every cell of a study that has a panel with all its rates, by scheme, case and depth."""
    arms: dict[Key, list[PanelArm]] = {}
    for arm in study.arms():
        scheme, case, depth = (arm.levels[factor] for factor in CELL)
        arms.setdefault((scheme, case, depth), []).append(arm)
    found = {}
    for key, own in arms.items():
        cell = _cell(key, own, fits, study.seeds)
        if cell is not None:
            found[key] = cell
    return found


def mean_of(values: Iterable[float | None]) -> float | None:
    """Return the mean of the known values, None of none."""
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def _cell(key: Key, arms: Sequence[PanelArm], fits: Fits, seeds: int) -> StableCell | None:
    rows = []
    for arm in arms:
        rate = arm.experiment.training.learning_rate
        rows += [row | {"rate": rate} for row in fits.of(arm.name).iter_rows(named=True)]
    rates = sorted(arm.experiment.training.learning_rate for arm in arms)
    by_panel: dict[int, list[dict[str, Any]]] = {}
    for row in rows:
        by_panel.setdefault(int(row["panel"]), []).append(row)
    whole = {
        panel: sorted(own, key=lambda row: (row["rate"], row["seed"]))
        for panel, own in sorted(by_panel.items())
        if len(own) == len(rates) * seeds
    }
    if not whole:
        return None
    shares: dict[int, dict[float, float]] = {}
    for panel, own in whole.items():
        if all(row["share_of_oracle"] is not None for row in own):
            shares[panel] = {
                rate: statistics.fmean(row["share_of_oracle"] for row in own if row["rate"] == rate)
                for rate in rates
            }
    scheme, case, depth = key
    return StableCell(
        scheme=scheme,
        case=case,
        depth=depth,
        shares=shares,
        ranges={panel: learning_rate_range(own) if len(rates) > 1 else None for panel, own in shares.items()},
        chosen={panel: _chosen(own) for panel, own in whole.items()},
        rows=[row for own in whole.values() for row in own],
    )


def _chosen(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the fit of the lowest validation loss among those of a panel's first seed."""
    first = min(row["seed"] for row in rows)
    return min((row for row in rows if row["seed"] == first), key=lambda row: row["validation_loss"])

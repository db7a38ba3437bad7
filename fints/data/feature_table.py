"""Features of a panel by blocks of assets, the same bits as `fints.data.features.features` gives.

Shapes: A assets (a in a block), D days, F features.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from fints.data.exact import Moments
from fints.data.features import History, rank_of, recipe_of
from fints.data.grid import Grid
from fints.data.scaling import StandardScaler, measure

__all__ = ["FeatureTable"]

Array = np.ndarray


class FeatureTable:
    """Features by name, computed a block of assets at a time.

    A feature of own trading days depends on its asset alone, so blocks of assets never meet. A rank is of all
    assets of a date: ranks and columns are laid out once as (A, D) arrays in the space of the grid.

    Raises
    ------
    ValueError
        As `fints.data.features.features`.
    """

    def __init__(self, grid: Grid, names: Sequence[str]) -> None:
        self.grid = grid
        self.names = tuple(names)
        self._recipes = {name: recipe_of(grid.panel, name) for name in self.names}
        for name in self.names:
            if name.startswith("rank_"):
                recipe_of(grid.panel, name.removeprefix("rank_"))
        self._laid_out: dict[str, Array] = {}

    def block(self, first: int, last: int) -> Iterator[Array]:
        """Yield each feature (a, D) float64 of the assets [first, last), NaN where null."""
        history = History.of_block(self.grid.prices[first:last])
        for name in self.names:
            yield self._values(name, history, first, last)

    def moments(self, first_day: int, end_day: int) -> dict[str, Moments]:
        """Return what a scaler learns from the days [first_day, end_day)."""
        found = {name: Moments() for name in self.names}
        for first, last in self.grid.blocks():
            for (name, moments), values in zip(found.items(), self.block(first, last), strict=True):
                here = values[:, first_day:end_day]
                measure(moments, name, here[~np.isnan(here)])
        return found

    def scaled(self, scaler: StandardScaler) -> Iterator[tuple[int, int, Array]]:
        """Yield first and end asset of each block, and its features (a, D, F) float32 as a network sees them.

        The array is used again for the next block.
        """
        room = np.empty((0, 0, 0), np.float32)
        for first, last in self.grid.blocks():
            if len(room) < last - first:
                room = np.empty((last - first, self.grid.shape[1], len(self.names)), np.float32)
            for place, values in enumerate(self.block(first, last)):
                room[: last - first, :, place] = scaler.scale(place, values)
            yield first, last, room[: last - first]

    def _values(self, name: str, history: History, first: int, last: int) -> Array:
        recipe = self._recipes[name]
        if recipe is None or recipe[0] == "rank":
            if name not in self._laid_out:
                self._laid_out[name] = self.grid.column(name) if recipe is None else self._rank(name)
            return self._laid_out[name][first:last]
        return history.spread(history.feature(*recipe)).reshape(last - first, -1)

    def _rank(self, name: str) -> Array:
        """Return a rank (A, D)."""
        grid, base = self.grid, name.removeprefix("rank_")
        recipe = recipe_of(grid.panel, base)
        if recipe is None:
            values = self._laid_out[base] if base in self._laid_out else grid.column(base)
        else:
            values = grid.array()
            for first, last in grid.blocks():
                history = History.of_block(grid.prices[first:last])
                values[first:last] = history.spread(history.feature(*recipe)).reshape(last - first, -1)
        ranks = grid.array()
        dates = grid.panel.frame["date"]
        for first, last in grid.slices():
            grid.put(ranks, first, last, rank_of(dates[first:last], grid.take(values, first, last)))
        return ranks

"""Targets of a panel laid out by asset and day: which may be learnt, and when they are known.

Shapes: A assets, D days.
"""

from __future__ import annotations

import datetime as dt

import numpy as np
import polars as pl

from fints.data.exact import Moments
from fints.data.features import History
from fints.data.grid import Grid
from fints.data.targets import NO_DATE, causal_volatility, check_target, forward_returns, in_units

__all__ = ["NEVER", "Labels"]

Array = np.ndarray

NEVER = np.iinfo(np.int32).max


class Labels:
    """The targets that `fints.data.targets.targets` gives, bit for bit.

    Attributes
    ----------
    values : numpy.ndarray
        (A, D) float64, NaN where there is no target.
    ends : numpy.ndarray
        (A, D) int32, place in ``grid.dates`` at which the target is known; `NEVER` where there is none.
    """

    def __init__(self, grid: Grid, name: str, horizon: int) -> None:
        check_target(name, horizon)
        self.grid = grid
        self.values = grid.array()
        self.ends = grid.array(np.int32, NEVER)
        sigma = grid.array() if name == "volatility_scaled" else self.values
        for first, last in grid.blocks():
            history = History.of_block(grid.prices[first:last])
            forward, ahead = forward_returns(history, horizon)
            known = history.left >= horizon
            ends = self.ends[first:last].reshape(-1)
            ends[history.rows[known]] = (history.rows % grid.shape[1])[ahead[known]]
            if name == "volatility_scaled":
                sigma[first:last] = history.spread(causal_volatility(history)).reshape(last - first, -1)
            self.values[first:last] = history.spread(forward).reshape(last - first, -1)
        if name != "log_return":
            self._in_units(name, horizon, sigma)

    def _in_units(self, name: str, horizon: int, sigma: Array) -> None:
        grid = self.grid
        days = grid.panel.dates.to_physical().to_numpy()
        ends = self.ends.reshape(-1)
        for first, last in grid.slices():
            cells = grid.cells[first:last]
            known = ends[cells]
            day = np.where(known == NEVER, NO_DATE, days[np.minimum(known, len(days) - 1)])
            made = in_units(
                grid.panel.frame[first:last]
                .select("date", "asset")
                .with_columns(
                    forward=grid.take(self.values, first, last),
                    sigma=grid.take(sigma, first, last),
                    label_end=pl.Series(day),
                )
                .with_columns(pl.when(pl.col("label_end") != NO_DATE).then("label_end").cast(pl.Date)),
                name,
                horizon,
            )
            grid.put(self.values, first, last, made["target"])
            place = np.searchsorted(days, made["label_end"].to_physical().fill_null(0).to_numpy())
            ends[cells] = np.where(made["label_end"].is_null().to_numpy(), NEVER, place)

    def days(self, start: dt.date | None, end: dt.date | None) -> tuple[int, int]:
        """Return first and end place of the days within two dates, both included."""
        dates = self.grid.dates
        first = 0 if start is None else int(np.searchsorted(dates, np.datetime64(start, "D")))
        stop = len(dates) if end is None else int(np.searchsorted(dates, np.datetime64(end, "D"), "right"))
        return first, max(first, stop)

    def known_dates(self, start: dt.date | None, end: dt.date | None) -> pl.Series:
        """Return the dates within two, both included, on which any asset has a target."""
        first, stop = self.days(start, end)
        known = np.zeros(stop - first, bool)
        for begin, last in self.grid.blocks():
            known |= ~np.isnan(self.values[begin:last, first:stop]).all(0)
        return self.grid.panel.dates[first:stop].filter(pl.Series(known))

    def purge(self, first: dt.date) -> None:
        """Take away the targets of days before `first` that are known only from `first` on."""
        place, _ = self.days(first, None)
        for begin, last in self.grid.blocks():
            ends = self.ends[begin:last, :place]
            reaches = (ends >= place) & (ends != NEVER)
            self.values[begin:last, :place][reaches] = np.nan
            ends[reaches] = NEVER

    def moments(self, start: dt.date | None, end: dt.date | None) -> Moments:
        """Return count and sums of the targets within two dates, both included."""
        first, stop = self.days(start, end)
        found = Moments()
        for begin, last in self.grid.blocks():
            here = self.values[begin:last, first:stop]
            found.add(here[~np.isnan(here)])
        return found

    def last_outcome(self, *spans: tuple[dt.date | None, dt.date | None] | None) -> dt.date:
        """Return the latest date at which a target within one of `spans` is known."""
        latest = -1
        for span in spans:
            if span is not None:
                first, stop = self.days(*span)
                for begin, last in self.grid.blocks():
                    ends = self.ends[begin:last, first:stop]
                    latest = max(latest, int(ends[ends != NEVER].max(initial=-1)))
        day: dt.date = self.grid.panel.dates[latest]
        return day

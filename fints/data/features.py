r"""Causal features: each value at t depends on the asset's own trading days up to t, in a stated window.

An asset's own trading days are its rows with a price. A halt or a late listing shortens nobody else's
history, and no value is carried forward over a gap: after a halt, `return_1` is the return over the halt.

With p the log price, :math:`r = \Delta p`, and lags counted in own trading days:

============================  ==========================================================================
name                          value at t
============================  ==========================================================================
``return_{k}``                :math:`p_t - p_{t-k}`
``volatility_{k}``            sample standard deviation (k - 1) of :math:`r_{t-k+1}, \dots, r_t`; daily
``log_volatility_{k}``        its natural logarithm; null where it is 0
``momentum_{far}_{near}``     :math:`p_{t-near} - p_{t-far}`
``rank_{feature}``            rank among the assets of that date, from -1/2 (lowest) to 1/2, ties averaged
a numeric column's name       the column itself
============================  ==========================================================================

No incremental rolling function is used: those of polars keep float residue of a shock for ever after it has
left their window (measured on 2.1). Windows are summed term by term in a fixed order, so a value's bits
depend on its window alone, whatever rows come before or after.
"""

from __future__ import annotations

import datetime as dt
import difflib
import re
from collections.abc import Sequence

import numpy as np
import polars as pl

from fints.data.panel import Panel

__all__ = ["FEATURES", "columns_read", "features", "longest_lag"]

Array = np.ndarray

FEATURES: dict[str, str] = {
    "return_{k}": "log return over the asset's last k own trading days",
    "volatility_{k}": "sample standard deviation of the last k daily log returns (daily, k at least 2)",
    "log_volatility_{k}": "natural logarithm of volatility_{k}; null where it is 0",
    "momentum_{far}_{near}": "log return from far to near own trading days ago (far above near)",
    "rank_{feature}": "rank of another feature among the assets of the date, -1/2 to 1/2, 0 if alone",
}

# Differences of log prices carry rounding errors of about 1e-15: a smaller spread than this is no spread.
NO_VOLATILITY = 1e-12


def features(panel: Panel, names: Sequence[str], *, since: dt.date | None = None) -> pl.DataFrame:
    """Compute features by name; with `since` those of the rows dated then or later, from the past of all.

    Returns
    -------
    polars.DataFrame
        ``date, asset`` and one Float64 column a name, row for row those of ``panel.frame``. Null where the
        asset's history is short, where it did not trade, or where the value is undefined; never NaN, never
        infinite.

    Raises
    ------
    ValueError
        If a name is no recipe and no column (the nearest is suggested), is both, or has impossible lags.
    """
    history = History.of(panel)
    first = 0 if since is None else int(panel.frame["date"].search_sorted(since))
    return panel.frame.slice(first).select(
        "date",
        "asset",
        *(pl.Series(name, _feature(panel, history, name, first), dtype=pl.Float64) for name in names),
    )


def longest_lag(panel: Panel, names: Sequence[str]) -> int:
    """Return how many own trading days before a date the features `names` look back from it.

    Raises
    ------
    ValueError
        As `features`.
    """
    return max((_longest_lag(panel, name) for name in names), default=0)


def columns_read(names: Sequence[str]) -> list[str]:
    """Return the columns of a panel that the features `names` read beside the price that recipes use."""
    read = [name.removeprefix("rank_") for name in names]
    return [name for name in dict.fromkeys(read) if _recipe(name) is None]


class History:
    """Log prices of assets one after another, own trading days only, dates ascending within an asset.

    Parameters
    ----------
    rows : numpy.ndarray
        (N,) where each observation stands in a table of `num_rows` rows.
    counts : numpy.ndarray
        Number of observations of each asset, in order; they add up to N.
    log_price : numpy.ndarray
        (N,).

    Attributes
    ----------
    age : numpy.ndarray
        (N,) number of earlier observations of the same asset.
    left : numpy.ndarray
        (N,) number of later observations of the same asset.
    log_return : numpy.ndarray
        (N,) that since the previous own trading day, meaningless at age 0.
    """

    def __init__(self, rows: Array, num_rows: int, counts: Array, log_price: Array) -> None:
        self.rows = rows
        self.num_rows = num_rows
        self.log_price = log_price
        ends = np.repeat(np.cumsum(counts), counts)
        self.left = ends - 1 - np.arange(len(rows))
        self.age = np.repeat(counts, counts) - 1 - self.left
        self.log_return = self.log_price - lag(self.log_price, 1)
        self._volatility: dict[int, Array] = {}

    @classmethod
    def of(cls, panel: Panel) -> History:
        """Return the history of a panel; `rows` are those of ``panel.frame``."""
        price = panel.frame[panel.price]
        # Rows stand by date, and a stable sort by asset keeps that; small numbers are sorted by counting.
        asset = panel.frame["asset"].cast(pl.Enum(panel.assets)).to_physical().to_numpy()
        asset = asset.astype(np.uint16 if len(panel.assets) <= 2**16 else np.uint32)
        traded = np.flatnonzero(price.is_not_null().to_numpy())
        rows = traded[np.argsort(asset[traded], kind="stable")]
        counts = np.bincount(asset[traded])
        return cls(rows, panel.frame.height, counts[counts > 0], logarithm(price.to_numpy()[rows]))

    @classmethod
    def of_block(cls, prices: Array) -> History:
        """Return the history of (A, D) prices, NaN where an asset did not trade; `rows` count A x D cells."""
        traded = ~np.isnan(prices)
        return cls(np.flatnonzero(traded), traded.size, traded.sum(1), logarithm(prices[traded]))

    def feature(self, family: str, lags: tuple[int, ...]) -> Array:
        """Return a recipe of own trading days (N,), NaN where it is undefined."""
        if family == "return":
            return self.difference(lags[0], 0)
        if family == "momentum":
            return self.difference(lags[0], lags[1])
        deviation = self.volatility(lags[0])
        if family == "volatility":
            return deviation
        assert family == "log_volatility"
        moves = deviation > 0
        values = np.full_like(deviation, np.nan)
        values[moves] = logarithm(deviation[moves])
        return values

    def difference(self, far: int, near: int) -> Array:
        """Return p_{t-near} - p_{t-far} (N,), NaN where the asset is younger than `far`."""
        values = np.full_like(self.log_price, np.nan)
        number = len(values)
        if far < number:
            values[far:] = self.log_price[far - near : number - near] - self.log_price[: number - far]
        values[self.age < far] = np.nan
        return values

    def volatility(self, window: int) -> Array:
        """Return the sample standard deviation (N,) of the last `window` log returns, NaN if younger."""
        if window not in self._volatility:
            self._volatility[window] = self._measure_volatility(window)
        return self._volatility[window]

    def _measure_volatility(self, window: int) -> Array:
        number = len(self.log_return)
        known = self.age >= window
        if not known.any():
            return np.full(number, np.nan)
        # Places before k have no k-th lag: no asset there is old enough to be known.
        mean, squares = np.zeros(number), np.zeros(number)
        for k in range(window):
            mean[k:] += self.log_return[: number - k]
        mean /= window
        room = np.empty(number)
        for k in range(window):
            apart = np.subtract(self.log_return[: number - k], mean[k:], out=room[: number - k])
            apart *= apart
            squares[k:] += apart
        squares /= window - 1
        deviation = np.sqrt(squares, out=squares)
        deviation[deviation < NO_VOLATILITY] = 0.0
        deviation[~known] = np.nan
        return deviation

    def on_rows(self, values: Array) -> pl.Series:
        """Return (N,) values as a column on all rows, null where missing."""
        return pl.Series(self.spread(values)).fill_nan(None)

    def spread(self, values: Array) -> Array:
        """Return (N,) values on all rows (num_rows,), NaN where there is no observation."""
        column = np.full(self.num_rows, np.nan)
        column[self.rows] = values
        return column


def logarithm(values: Array) -> Array:
    """Return natural logarithms whose bits do not depend on an element's place: polars makes a call each."""
    return pl.Series(values, dtype=pl.Float64).log().to_numpy()


def lag(values: Array, k: int) -> Array:
    """Return `values` k places later, the first k repeated from the start (callers mask them by age)."""
    if k == 0:
        return values
    shifted = np.empty_like(values)
    shifted[k:] = values[:-k]
    shifted[:k] = values[:1] if len(values) else 0.0
    return shifted


def _feature(panel: Panel, history: History, name: str, first: int) -> pl.Series:
    """Return one feature of the rows from `first` on."""
    recipe = recipe_of(panel, name)
    if recipe is None:
        return panel.frame[name].slice(first)
    family, lags = recipe
    if family == "rank":
        ranked = _feature(panel, history, name.removeprefix("rank_"), first)
        return rank_of(panel.frame["date"].slice(first), ranked)
    return history.on_rows(history.feature(family, lags)).slice(first)


def rank_of(dates: pl.Series, values: pl.Series) -> pl.Series:
    """Return the rank of each value among those of its date, -1/2 to 1/2; rows stand by date."""
    value = pl.col("value")
    count = value.count().over("date")
    rank = value.rank("average").over("date")
    centred = pl.when(count > 1).then((rank - 1) / (count - 1) - 0.5).otherwise(0.0)
    return (
        pl.DataFrame({"date": dates, "value": values})
        .select(pl.when(value.is_not_null()).then(centred))
        .to_series()
    )


def recipe_of(panel: Panel, name: str) -> tuple[str, tuple[int, ...]] | None:
    """Return family and lags of a feature, ("rank", ()) of a rank, None of a column of the panel.

    Raises
    ------
    ValueError
        As `features`.
    """
    recipe = _recipe(name)
    is_column = name in (panel.price, *panel.feature_columns)
    if recipe is not None and is_column:
        raise ValueError(
            f"feature {name!r} is a recipe and a column of {panel.name}: which is meant? Rename the column."
        )
    if recipe is None and not is_column:
        raise ValueError(_unknown(panel, name))
    return recipe


def _longest_lag(panel: Panel, name: str) -> int:
    recipe = recipe_of(panel, name)
    if recipe is None:
        return 0
    family, lags = recipe
    return _longest_lag(panel, name.removeprefix("rank_")) if family == "rank" else max(lags)


def _recipe(name: str) -> tuple[str, tuple[int, ...]] | None:
    """Return the family of a recipe's name and its lags; None if the name has no recipe's form."""
    if name.startswith("rank_"):
        if name.startswith("rank_rank_"):
            raise ValueError(f"feature {name!r} ranks a rank; use {name.removeprefix('rank_')!r}.")
        return "rank", ()
    if found := re.fullmatch(r"(return|volatility|log_volatility)_(\d+)", name):
        k = int(found[2])
        least = 1 if found[1] == "return" else 2
        if k < least:
            raise ValueError(f"feature {name!r}: its number of days must be at least {least}; got {k}.")
        return found[1], (k,)
    if found := re.fullmatch(r"momentum_(\d+)_(\d+)", name):
        far, near = int(found[1]), int(found[2])
        if far <= near:
            raise ValueError(
                f"feature {name!r}: momentum_FAR_NEAR needs FAR above NEAR; got {far} and {near}."
            )
        return "momentum", (far, near)
    return None


def _unknown(panel: Panel, name: str) -> str:
    columns = [panel.price, *panel.feature_columns]
    families = {family.split("_{")[0]: family for family in FEATURES if not family.startswith("rank_")}
    stem = re.sub(r"(?:_\d+)*\Z", "", name)
    lags = name.removeprefix(stem)
    near = difflib.get_close_matches(name, columns, n=1)
    if not near and (stems := difflib.get_close_matches(stem, list(families), n=1)):
        # A misspelt recipe is answered with its own lags, if it has as many as the recipe takes.
        family = families[stems[0]]
        near = [stems[0] + lags if lags.count("_") == family.count("{") else family]
    hint = f" Did you mean {near[0]}?" if near else ""
    return (
        f"unknown feature {name!r}.{hint} Known recipes: {', '.join(FEATURES)}; "
        f"columns of {panel.name}: {', '.join(columns)}."
    )

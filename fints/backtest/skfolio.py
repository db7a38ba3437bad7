"""skfolio: forecasts as expected returns, on returns that are earned when they can be."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from fints.backtest.alignment import place, read_forecasts
from fints.backtest.execution import Execution, traded
from fints.backtest.prices import check_above_zero, check_wide, require

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Inputs", "forecast_mu", "inputs"]


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """What skfolio's cross-validation needs, and when it trades.

    `returns` is X, simple returns of the prices traded at, row s from the price of s - 1 to that of s;
    `purged_size` is what ``WalkForward`` must be given: dates between the decision and the trade.
    """

    returns: pd.DataFrame
    purged_size: int


def inputs(
    close: pd.DataFrame | None = None,
    *,
    open: pd.DataFrame | None = None,
    execution: Execution = "next_open",
) -> Inputs:
    r"""Return X and the purge with which weights fitted on rows up to t earn what `execution` says.

    With ``WalkForward(train_size=..., test_size=1, purged_size=purged_size)`` the test row is t + 1 +
    `purged_size`: without a purge it is :math:`C_{t+1} / C_t - 1`, with one the return after the trade.

    Raises
    ------
    ValueError
        If the prices that `execution` trades at are not given, not above 0, or not on plain ascending dates.
    """
    prices, delay = traded(close, open, execution)
    name = "open" if prices is open else "close"
    check_wide(prices, name)
    check_above_zero(prices, name)
    return Inputs(returns=prices.pct_change(fill_method=None).iloc[1:], purged_size=delay)


def forecast_mu(
    forecasts: pl.DataFrame,
    *,
    horizon: int | None = None,
    unit_return: float = 1.0,
    missing: float | None = None,
) -> Any:
    r"""Return a ``BaseMu`` whose expected returns are the forecasts made at the last date of X.

    .. math:: \mu_i = p(t, i) \cdot u / h, \qquad t = \text{the last date of } X

    with h the horizon and u `unit_return`. For ``EmpiricalPrior(mu_estimator=...)``. A log return stands for
    a simple one: they differ by half a variance.

    Parameters
    ----------
    forecasts
        A forecast table.
    horizon
        Dates that a forecast is for; None: the table's own, else 1.
    unit_return
        Return over the horizon of one unit of forecast: 1 for forecasts in returns; for those in
        cross-sectional deviations what a deviation is worth.
    missing
        Expected return a date of an asset without a forecast; None refuses.

    Raises
    ------
    ModuleNotFoundError
        If skfolio is not installed.
    ValueError
        On ``fit``: as `fints.backtest.align_prices`; if the last date of X has no forecast, or an asset has
        none and `missing` is None.
    """
    return _forecast_mu()(forecasts=forecasts, horizon=horizon, unit_return=unit_return, missing=missing)


@cache
def _forecast_mu() -> Any:
    base = require("skfolio.moments").BaseMu

    # The base is known only once the optional library is imported, so mypy cannot follow it.
    class ForecastMu(base):  # type: ignore[misc, valid-type]
        def __init__(
            self,
            forecasts: pl.DataFrame,
            horizon: int | None = None,
            unit_return: float = 1.0,
            missing: float | None = None,
        ) -> None:
            self.forecasts = forecasts
            self.horizon = horizon
            self.unit_return = unit_return
            self.missing = missing

        def fit(self, X: pd.DataFrame, y: None = None) -> ForecastMu:
            self.mu_ = _expected(X, self.forecasts, self.horizon, self.unit_return, self.missing)
            self.n_features_in_ = X.shape[1]
            self.feature_names_in_ = X.columns.to_numpy(dtype=object)
            return self

    return ForecastMu


def _expected(
    returns: pd.DataFrame,
    forecasts: pl.DataFrame,
    horizon: int | None,
    unit_return: float,
    missing: float | None,
) -> np.ndarray:
    assets = check_wide(returns, "X")
    if returns.empty:
        raise ValueError("X has no row, so there is no date to take forecasts from.")
    dates = returns.index.date.tolist()
    table = read_forecasts(forecasts, horizon=horizon)
    # X ends at the decision; forecasts of later dates are not looked at.
    seen = table.frame.filter(pl.col("date").is_between(dates[0], dates[-1]))
    if seen.is_empty() or seen["date"].max() != dates[-1]:
        known = table.frame["date"].sort()
        raise ValueError(
            f"there is no forecast dated {dates[-1]}, the last date of X; they run from {known[0]} to "
            f"{known[-1]}. Let the first training window end inside them."
        )
    aligned = place(replace(table, frame=seen), dates, assets)
    mu = aligned.values[-1] * unit_return / aligned.horizon
    bare = [asset for asset, value in zip(assets, mu, strict=True) if not np.isfinite(value)]
    if bare and missing is None:
        raise ValueError(
            f"no forecast dated {dates[-1]} for {', '.join(bare[:5])}; drop these assets from X, or say what "
            "they are expected to return: missing=0.0."
        )
    return np.where(np.isfinite(mu), mu, np.nan if missing is None else missing)

r"""What would the forecasts have earned? Three portfolios, their costs, and when each return is earned.

A forecast dated t has seen the close of t. What its position earns depends on the price it trades at,
with C the close, O the open and t + 1 the next date of the price table:

==============  ============================================================================
execution       the position decided on t earns
==============  ============================================================================
``next_open``   :math:`O_{t+2} / O_{t+1} - 1`: traded at the next open
``next_close``  :math:`C_{t+2} / C_{t+1} - 1`: traded at the next close
``same_close``  :math:`C_{t+1} / C_t - 1`: traded at the very close the forecast has seen, so
                out of reach unless forecasts are made before the close; the cleanest match to
                a target over (t, t + 1]
==============  ============================================================================
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import polars as pl

from fints.evaluation.rows import require_columns

__all__ = ["EXECUTIONS", "PORTFOLIOS", "Backtest", "backtest", "period_returns", "target_weights"]

Execution = Literal["next_open", "next_close", "same_close"]
Kind = Literal["long_short", "decile", "volatility_targeted"]
EXECUTIONS: tuple[Execution, ...] = get_args(Execution)
PORTFOLIOS: tuple[Kind, ...] = get_args(Kind)

# Dates over which the volatility-targeted portfolio looks back, and the fewest it sizes itself with.
VOLATILITY_DATES, FEWEST_VOLATILITY_DATES = 63, 21
DAYS_A_YEAR = 252.0


@dataclass(frozen=True, kw_only=True)
class Backtest:
    """A portfolio's dates and what they sum up to.

    `dates` has one row a date with a position: `date` (the decision), `gross` and `net` (simple return
    of equity before and after costs), `turnover` (sum of absolute changes of weight, against the
    weights that the market has moved since), `leverage` (sum of absolute weights), `positions`.
    """

    kind: str
    execution: str
    cost_bps: float
    dates: pl.DataFrame

    @property
    def break_even_bps(self) -> float | None:
        """The cost in basis points of traded value at which the mean net return is 0.

        Negative where the portfolio loses before costs; None where it never trades.
        """
        turnover = float(self.dates["turnover"].sum())
        return 1e4 * float(self.dates["gross"].sum()) / turnover if turnover > 0 else None

    def summary(self, *, days_a_year: float = DAYS_A_YEAR) -> dict[str, float | int | None]:
        """Return annual figures: returns and volatility, turnover a date, drawdown, break-even cost."""
        gross, net = (self.dates[name].to_numpy() for name in ("gross", "net"))
        equity = np.cumprod(np.concatenate([[1.0], 1 + net]))
        volatility = float(net.std(ddof=1)) if len(net) > 1 else math.nan
        return {
            "dates": len(net),
            "gross_return": days_a_year * float(gross.mean()),
            "net_return": days_a_year * float(net.mean()),
            "volatility": math.sqrt(days_a_year) * volatility if math.isfinite(volatility) else None,
            "turnover": float(self.dates["turnover"].to_numpy().mean()),
            "leverage": float(self.dates["leverage"].to_numpy().mean()),
            "drawdown": float(1 - np.min(equity / np.maximum.accumulate(equity))),
            "break_even_bps": self.break_even_bps,
        }


def backtest(
    forecasts: pl.DataFrame,
    prices: pl.DataFrame,
    kind: Kind = "long_short",
    *,
    execution: Execution = "next_open",
    horizon: int = 1,
    cost_bps: float = 5.0,
    quantile: float = 0.1,
    volatility: float = 0.1,
    max_leverage: float = 4.0,
) -> Backtest:
    r"""Trade the forecasts on prices.

    ======================  ==================================================================
    kind                    weights of one date's forecasts, before `horizon`
    ======================  ==================================================================
    ``long_short``          rank less mean rank, scaled to :math:`\sum |w| = 1`
    ``decile``              the highest `quantile` of assets long, the lowest short, equal
                            weights, :math:`\sum |w| = 1` (at least one asset a side)
    ``volatility_targeted`` ``long_short``, scaled to an annual `volatility`: that which these
                            weights would have had over the last 63 dates, at most
                            `max_leverage` times
    ======================  ==================================================================

    All are neutral: weights sum to 0. A forecast over h days is held for h dates: the position is the
    mean of the weights of the forecasts at most h - 1 dates old. Weights drift with prices until that
    set changes, and only then is traded; the change, :math:`\sum |\Delta w|`, costs `cost_bps` each
    way, the first purchase too. An asset without a price at the time of trading is not traded: its
    weight stays; its return over a halt is earned on the first price after it.

    Parameters
    ----------
    forecasts
        `date`, `asset`, `forecast`; nulls have no position.
    prices
        `date`, `asset`, `close`, for ``next_open`` also `open`; all dates on which trading was possible.
        Adjusted for splits and dividends, a delisting return in the last price: no cash is booked here.

    Raises
    ------
    ValueError
        If a column is missing, a choice unknown, a number out of range, or no forecast can be traded.
    """
    _check(kind, execution, horizon=horizon, cost_bps=cost_bps, quantile=quantile)
    if not (volatility > 0 and max_leverage > 0):
        raise ValueError(
            f"volatility and max_leverage must be above 0; got {volatility!r}, {max_leverage!r}."
        )
    require_columns(forecasts, "date", "asset", "forecast")
    dates, assets, level = _grid(prices, "open" if execution == "next_open" else "close")
    returns = period_returns(level, execution)
    known = forecasts.filter(pl.col("forecast").is_not_null() & pl.col("forecast").is_not_nan())
    signal = _spread(known, dates, assets, "forecast")
    enough = np.flatnonzero(np.isfinite(signal).sum(axis=1) >= 2).tolist()
    decided: list[int] = [day for day in enough if day < len(returns)]
    if not decided:
        raise ValueError(
            "no date has two forecasts and a price to trade them at afterwards; check that forecasts and "
            f"prices cover the same dates ({dates[0]} to {dates[-1]}) and assets."
        )
    lag = 0 if execution == "same_close" else 1
    targets = {day: target_weights(signal[day], kind, quantile=quantile) for day in decided}
    if kind == "volatility_targeted":
        past = np.nan_to_num(_daily(_grid(prices, "close")[2]))
        for day, weights in targets.items():
            window = past[max(0, day - VOLATILITY_DATES) : day] @ weights
            spread = float(window.std(ddof=1)) if len(window) >= FEWEST_VOLATILITY_DATES else 0.0
            wanted = volatility / math.sqrt(DAYS_A_YEAR)
            targets[day] = weights * (min(wanted / spread, max_leverage) if spread > 0 else 0.0)
    tradable = np.isfinite(level)
    last = min(decided[-1] + horizon - 1, len(returns) - 1)
    position = np.zeros(len(assets))
    alive: list[int] = []
    rows = []
    for day in range(decided[0], last + 1):
        before = position
        now = [made for made in range(day - horizon + 1, day + 1) if made in targets]
        if now != alive:
            wanted_weights = np.mean([targets[made] for made in now], axis=0) if now else 0 * before
            position, alive = np.where(tradable[day + lag], wanted_weights, before), now
        turnover = float(np.abs(position - before).sum())
        gross = float(position @ returns[day])
        net = gross - 1e-4 * cost_bps * turnover
        rows.append(
            (dates[day], gross, net, turnover, float(np.abs(position).sum()), int((position != 0).sum()))
        )
        # After a day on which all equity is lost nothing is left to hold.
        position = position * (1 + returns[day]) / (1 + gross) if gross > -1 else 0 * position
    schema = ["date", "gross", "net", "turnover", "leverage", "positions"]
    return Backtest(
        kind=kind,
        execution=execution,
        cost_bps=cost_bps,
        dates=pl.DataFrame(rows, schema=schema, orient="row"),
    )


def period_returns(level: np.ndarray, execution: Execution) -> np.ndarray:
    """Return what a position decided on each date earns until the next trade, from prices (D, A).

    Row t is from the price of t + 1 to that of t + 2, or for ``same_close`` from t to t + 1; so it has 2
    (or 1) rows fewer. A missing price is the last one known; before the first one an asset earns 0.
    """
    return _daily(level)[0 if execution == "same_close" else 1 :]


def target_weights(forecast: np.ndarray, kind: Kind, *, quantile: float = 0.1) -> np.ndarray:
    """Return the weights (A,) of one date's forecasts (A,), NaN where there is none: 0 in sum, 1 in size.

    All 0 where fewer than two forecasts differ. See `backtest` for the kinds.
    """
    from scipy import stats

    known = np.isfinite(forecast)
    weights = np.zeros(len(forecast))
    values = forecast[known]
    if len(values) < 2 or np.ptp(values) == 0:
        return weights
    rank = stats.rankdata(values) - (len(values) + 1) / 2
    if kind == "decile":
        side = max(1, int(quantile * len(values)))
        # Ties at the edge share its place, so that the order of assets decides nothing.
        top, bottom = _edge(values, side), _edge(-values, side)
        weights[known] = (top - bottom) / (2 * side)
    else:
        weights[known] = rank / np.abs(rank).sum()
    return weights


def _edge(values: np.ndarray, side: int) -> np.ndarray:
    cut = np.sort(values)[-side]
    above, at = values > cut, values == cut
    return above + at * (side - above.sum()) / at.sum()


def _daily(level: np.ndarray) -> np.ndarray:
    filled = level.copy()
    for day in range(1, len(filled)):
        gone = ~np.isfinite(filled[day])
        filled[day, gone] = filled[day - 1, gone]
    with np.errstate(invalid="ignore"):
        return np.nan_to_num(filled[1:] / filled[:-1] - 1)


def _grid(prices: pl.DataFrame, column: str) -> tuple[list, list[str], np.ndarray]:
    if column == "open" and "open" not in prices.columns:
        raise ValueError(
            'execution "next_open" needs a column open; these prices have none. Choose "next_close", or '
            '"same_close" if forecasts are made before the close.'
        )
    require_columns(prices, "date", "asset", column)
    keyed = prices.select("date", "asset", pl.col(column).cast(pl.Float64).fill_nan(None).alias("level"))
    if keyed.select("date", "asset").is_duplicated().any():
        raise ValueError("prices have a (date, asset) twice; keep one row each.")
    if (keyed["level"].drop_nulls() <= 0).any():
        raise ValueError(f"{column} must be above 0, or null where the asset did not trade.")
    dates, assets = keyed["date"].unique().sort().to_list(), keyed["asset"].unique().sort().to_list()
    return dates, assets, _spread(keyed, dates, assets, "level")


def _spread(frame: pl.DataFrame, dates: list, assets: list[str], column: str) -> np.ndarray:
    """Return a column as (D, A), NaN where there is no row; rows of other dates and assets are left out."""
    place = {
        "date": pl.DataFrame({"date": dates, "row": np.arange(len(dates))}),
        "asset": pl.DataFrame({"asset": assets, "column": np.arange(len(assets))}),
    }
    found = frame.join(place["date"], on="date").join(place["asset"], on="asset").drop_nulls(column)
    grid = np.full((len(dates), len(assets)), np.nan)
    grid[found["row"].to_numpy(), found["column"].to_numpy()] = found[column].to_numpy()
    return grid


def _check(kind: str, execution: str, *, horizon: int, cost_bps: float, quantile: float) -> None:
    if kind not in PORTFOLIOS:
        raise ValueError(f"unknown portfolio {kind!r}. Known: {', '.join(PORTFOLIOS)}.")
    if execution not in EXECUTIONS:
        raise ValueError(f"unknown execution {execution!r}. Known: {', '.join(EXECUTIONS)}.")
    if horizon < 1 or not cost_bps >= 0 or not 0 < quantile <= 0.5:
        raise ValueError(
            "need horizon >= 1, cost_bps >= 0 and a quantile in (0, 0.5]; "
            f"got {horizon!r}, {cost_bps!r}, {quantile!r}."
        )

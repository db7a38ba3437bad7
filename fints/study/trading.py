"""What the forecasts of a study would have earned after costs, deflated for all that was tried."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np
import polars as pl

from fints.evaluation import (
    annual_sharpe,
    backtest,
    deflated_sharpe,
    probability_of_overfitting,
    sharpe_interval,
)
from fints.study.cells import KEYS, to_frame

__all__ = ["COST_BPS", "TRADABLE", "Trading", "trade"]

# Outcomes of these targets are log returns of the next day, in their own units.
TRADABLE = ("log_return", "volatility_scaled")
COST_BPS = 5.0
# Splits of the dates by which overfitting is told; each block needs two dates.
BLOCKS = 16
DAYS_A_YEAR = 252.0


@dataclass(frozen=True, kw_only=True)
class Trading:
    """One row an arm and baseline: what its long-short portfolio earned.

    `table` has `name, arm` (or null for a baseline), `gross, net, volatility` (a year), `turnover` (a date),
    `break_even_bps`, `sharpe` (net, a year) with `low` and `high`, and `deflated`: the probability that the
    true ratio exceeds the best expected of `trials` worthless strategies. `overfitting` is the probability
    that the best of all rows in one half of the dates falls below the median in the other half, None with
    too few dates.
    """

    table: pl.DataFrame
    trials: int
    overfitting: float | None


def trade(
    spec: Mapping[str, Any],
    averages: Mapping[str, pl.DataFrame | None],
    baselines: pl.DataFrame | None,
    rows: pl.DataFrame,
) -> Trading | None:
    """Trade the mean forecast of each arm's seeds, and each baseline, at the next close; None if none can be.

    The portfolio is "long_short" of `fints.evaluation.backtest` at 5 basis points of traded value a way.
    Prices are made of the judged outcomes themselves: with r the log return over (t, t + 1] of an asset, its
    price of t + 1 is that of t times exp(r); a day without an outcome leaves the price as it is. Every design
    point of every arm counts as a trial, and so does every baseline.
    """
    data = spec["arms"][0]["experiment"]["data"]
    if data["horizon"] != 1 or data["target"] not in TRADABLE or "unit_scale" not in rows.columns:
        return None
    prices = _prices(rows)
    frames: dict[tuple[str, str | None], pl.DataFrame] = {
        (name, name): frame.select(*KEYS, "forecast") for name, frame in averages.items() if frame is not None
    }
    if baselines is not None:
        for (name,), part in baselines.partition_by("baseline", as_dict=True, maintain_order=True).items():
            if name not in ("zero", "oracle"):
                own = rows.join(part.select(*KEYS, "forecast"), on=KEYS, how="inner", maintain_order="left")
                frames[str(name), None] = own.select(*KEYS, "forecast")
    points = len(spec["tuning"]["points"])
    trials = len(spec["arms"]) * points + sum(arm is None for _, arm in frames)
    table, series = [], {}
    for (name, arm), frame in frames.items():
        try:
            done = backtest(frame, prices, "long_short", execution="next_close", cost_bps=COST_BPS)
        except ValueError:
            # Too few dates to trade at a close after the forecast.
            return None
        summary, net = done.summary(), done.dates["net"].to_numpy()
        interval = sharpe_interval(net)
        low, high = (None, None) if interval is None else (math.sqrt(DAYS_A_YEAR) * end for end in interval)
        table.append(
            {
                "name": name,
                "arm": arm,
                "gross": summary["gross_return"],
                "net": summary["net_return"],
                "volatility": summary["volatility"],
                "turnover": summary["turnover"],
                "break_even_bps": summary["break_even_bps"],
                "sharpe": annual_sharpe(net),
                "low": low,
                "high": high,
                "deflated": deflated_sharpe(net, trials=trials),
            }
        )
        series[name] = done.dates.select("date", pl.col("net").alias(name))
    return Trading(table=to_frame(table), trials=trials, overfitting=_overfitting(series))


def _prices(rows: pl.DataFrame) -> pl.DataFrame:
    """Return closes of the judged dates and the day after the last of them."""
    wide = (
        rows.with_columns(log_return=pl.col("realised") * pl.col("unit_scale"))
        .pivot(on="asset", index="date", values="log_return", sort_columns=True)
        .sort("date")
    )
    assets = [name for name in wide.columns if name != "date"]
    moves = wide.select(assets).fill_null(0.0).fill_nan(0.0).to_numpy()
    level = np.exp(np.vstack([np.zeros(len(assets)), np.cumsum(moves, axis=0)]))
    dates = [*wide["date"].to_list(), wide["date"][-1] + timedelta(days=1)]
    frame = pl.DataFrame({"date": dates, **dict(zip(assets, level.T, strict=True))})
    return frame.unpivot(index="date", variable_name="asset", value_name="close")


def _overfitting(series: Mapping[str, pl.DataFrame]) -> float | None:
    joined: pl.DataFrame | None = None
    for frame in series.values():
        joined = frame if joined is None else joined.join(frame, on="date", how="inner")
    if joined is None or joined.width < 3 or joined.height < 2 * BLOCKS:
        return None
    values = joined.sort("date").drop("date").to_numpy()
    return probability_of_overfitting(values, blocks=BLOCKS).probability

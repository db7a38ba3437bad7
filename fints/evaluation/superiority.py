"""Which of many forecasts is best, once the search for it is paid for.

Each function takes `losses`, a frame with `date` and one column of daily losses a forecast
(`loss_table`), and resamples dates for all forecasts jointly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl

from fints.evaluation.bootstrap import block_length
from fints.evaluation.date_tests import date_means
from fints.evaluation.rows import known_rows
from fints.words import counted

__all__ = ["ConfidenceSet", "loss_table", "model_confidence_set", "stepwise_superior", "superior_ability"]


@dataclass(frozen=True, kw_only=True)
class ConfidenceSet:
    """The forecasts that may be the best, and for each forecast the level at which it drops out."""

    included: tuple[str, ...]
    p: dict[str, float]
    block: int


def loss_table(frames: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
    """Return `date` and each forecast's mean squared error over assets, on the rows that all have.

    Raises
    ------
    ValueError
        If there are fewer than two forecasts, they share no row, or their outcomes differ.
    """
    if len(frames) < 2:
        raise ValueError(f"a comparison needs two forecasts or more; got {len(frames)}.")
    both: pl.DataFrame | None = None
    for name, frame in frames.items():
        own = known_rows(frame).select(
            "date", "asset", pl.col("forecast").alias(f"f:{name}"), pl.col("realised").alias(f"r:{name}")
        )
        both = own if both is None else both.join(own, on=["date", "asset"], how="inner")
    assert both is not None
    both = both.sort("date", "asset")
    if both.height == 0:
        raise ValueError("the forecasts share no (date, asset); compare forecasts of the same test rows.")
    first = both[f"r:{next(iter(frames))}"]
    for name in frames:
        if not (both[f"r:{name}"] == first).all():
            raise ValueError(f"{name} has other outcomes than the first forecast; use one target for all.")
    losses = {name: date_means(both, (pl.col(f"r:{name}") - pl.col(f"f:{name}")) ** 2) for name in frames}
    return pl.DataFrame({"date": both["date"].unique().sort(), **losses})


def model_confidence_set(
    losses: pl.DataFrame, *, size: float = 0.05, horizon: int = 1, reps: int = 1000, seed: int = 0
) -> ConfidenceSet:
    """Return the forecasts among which the best one is, with probability 1 - `size`.

    The statistic is the largest distance from the average loss: with the range of pairwise differences,
    and with longer blocks, the best forecast dropped out more often than it should.
    Source: Hansen, Lunde, Nason (2011), statistic T_max; ``arch.bootstrap.MCS``.
    """
    from arch.bootstrap import MCS

    names, values = _columns(losses)
    block = _block(values, horizon)
    found = MCS(
        values, size=size, reps=reps, block_size=block, method="max", bootstrap="stationary", seed=seed
    )
    found.compute()
    table = found.pvalues["Pvalue"]
    places, values_p = table.index.to_numpy(), table.to_numpy()
    p = {names[place]: float(value) for place, value in zip(places, values_p, strict=True)}
    return ConfidenceSet(
        included=tuple(name for name in names if p[name] > size),
        p={name: p[name] for name in names},
        block=block,
    )


def superior_ability(
    losses: pl.DataFrame, benchmark: str, *, horizon: int = 1, reps: int = 1000, seed: int = 0
) -> float:
    """Return the p value of: no forecast is better than the benchmark (consistent version).

    The forecasts must not nest the benchmark: for a network against zero or a mean use `clark_west`.
    Source: Hansen (2005); ``arch.bootstrap.SPA``.
    """
    from arch.bootstrap import SPA

    base, others = _against(losses, benchmark)
    block = _block(base[:, None] - others, horizon)
    found = SPA(base, others, block_size=block, reps=reps, bootstrap="stationary", seed=seed)
    found.compute()
    return float(found.pvalues["consistent"])


def stepwise_superior(
    losses: pl.DataFrame,
    benchmark: str,
    *,
    size: float = 0.05,
    horizon: int = 1,
    reps: int = 1000,
    seed: int = 0,
) -> tuple[str, ...]:
    """Return the forecasts better than the benchmark, any false one with probability at most `size`.

    Source: Romano, Wolf (2005); ``arch.bootstrap.StepM``.
    """
    from arch.bootstrap import StepM

    base, others = _against(losses, benchmark)
    block = _block(base[:, None] - others, horizon)
    found = StepM(base, others, size=size, block_size=block, reps=reps, bootstrap="stationary", seed=seed)
    found.compute()
    names = [name for name in _columns(losses)[0] if name != benchmark]
    return tuple(names[place] for place in np.asarray(found.superior_models, dtype=np.intp))


def _columns(losses: pl.DataFrame) -> tuple[list[str], np.ndarray]:
    names = [name for name in losses.columns if name != "date"]
    values = losses.select(pl.col(names).cast(pl.Float64)).to_numpy()
    if len(names) < 2 or len(values) < 20 or not np.isfinite(values).all():
        raise ValueError(
            f"losses need two forecasts, 20 dates and a finite loss for each; got "
            f"{counted(len(names), 'forecast')}, {counted(len(values), 'date')}, "
            f"{counted(int((~np.isfinite(values)).sum()), 'loss', 'losses')} not finite."
        )
    return names, values


def _against(losses: pl.DataFrame, benchmark: str) -> tuple[np.ndarray, np.ndarray]:
    names, values = _columns(losses)
    if benchmark not in names:
        raise ValueError(f"unknown benchmark {benchmark!r}. The losses are of: {', '.join(names)}.")
    place = names.index(benchmark)
    return values[:, place], np.delete(values, place, axis=1)


def _block(values: np.ndarray, horizon: int) -> int:
    # What is averaged are differences between forecasts; the market's common part cancels in them.
    centred = values - values.mean(axis=1, keepdims=True) if values.shape[1] > 1 else values
    return block_length(centred, horizon=horizon)

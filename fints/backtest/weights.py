"""Portfolio weights of forecasts as an engine trades them: what is wanted on which date, and when to trade.

The portfolios are those of `fints.evaluation.portfolio`, so an engine and ``fints evaluate`` hold the same.
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np

from fints.evaluation.portfolio import target_weights

__all__ = ["KINDS", "SIDES", "held_weights"]

Kind = Literal["long_short", "decile", "as_given"]
Side = Literal["both", "long"]
KINDS: tuple[Kind, ...] = get_args(Kind)
SIDES: tuple[Side, ...] = get_args(Side)


def held_weights(
    forecasts: np.ndarray, kind: Kind, *, side: Side = "both", horizon: int = 1, quantile: float = 0.1
) -> np.ndarray:
    r"""Return the weights (D, A) to trade to after each date's close; a NaN row means: hold, do not trade.

    ==============  ==========================================================================
    kind            weights of one date's forecasts
    ==============  ==========================================================================
    ``long_short``  rank less mean rank, :math:`\sum |w| = 1`, :math:`\sum w = 0`
    ``decile``      the highest `quantile` long, the lowest short, :math:`\sum |w| = 1`
    ``as_given``    the forecasts are weights of your own; an asset without one has weight 0
    ==============  ==========================================================================

    ``side="long"`` keeps what is above 0, scaled to :math:`\sum w = 1`, of the first two kinds.

    A forecast over h dates is held for h dates, so with daily forecasts h of them overlap: weights are the
    mean over those at most h - 1 dates old, each with 1 / h of the money once h are there. Only when that set
    changes is there a trade; in between, weights drift with prices. When the set becomes empty the position
    is closed.

    Parameters
    ----------
    forecasts : numpy.ndarray
        (D, A), row t decided at the close of t; NaN where there is none.

    Raises
    ------
    ValueError
        If a choice is unknown, a number out of range, or no date has the two forecasts that a rank needs.
    """
    if kind not in KINDS:
        raise ValueError(f"unknown portfolio {kind!r}. Known: {', '.join(KINDS)}.")
    if side not in SIDES:
        raise ValueError(f"unknown side {side!r}. Known: {', '.join(SIDES)}.")
    if kind == "as_given" and side != "both":
        raise ValueError('side applies to ranks; kind "as_given" trades your weights as they are.')
    if horizon < 1 or not 0 < quantile <= 0.5:
        raise ValueError(f"need horizon >= 1 and a quantile in (0, 0.5]; got {horizon!r}, {quantile!r}.")
    fewest = 1 if kind == "as_given" else 2
    made = np.flatnonzero(np.isfinite(forecasts).sum(axis=1) >= fewest).tolist()
    if not made:
        raise ValueError(
            f"no date has the {fewest} forecasts that a {kind} portfolio needs; for one asset give weights "
            'of your own with kind "as_given".'
        )
    targets = {day: _target(forecasts[day], kind, side, quantile) for day in made}
    weights = np.full(forecasts.shape, np.nan)
    alive: list[int] = []
    for day in range(made[0], len(forecasts)):
        now = [past for past in range(day - horizon + 1, day + 1) if past in targets]
        if now != alive:
            weights[day] = np.mean([targets[past] for past in now], axis=0) if now else 0.0
            alive = now
    return weights


def _target(forecast: np.ndarray, kind: Kind, side: Side, quantile: float) -> np.ndarray:
    if kind == "as_given":
        return np.nan_to_num(forecast)
    weights = target_weights(forecast, kind, quantile=quantile)
    if side == "long":
        bought = np.maximum(weights, 0)
        return bought / bought.sum() if bought.sum() > 0 else bought
    return weights

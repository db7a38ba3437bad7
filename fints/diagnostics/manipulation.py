r"""Whether an intervention moved the mediator it aims at, and no other: sizes of moves over clusters.

P clusters (panels), each with the same fit without and with the intervention; K places at which a mediator
was measured (moments of training times sublayers).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fints.diagnostics.mediators import MEDIATORS

__all__ = ["ManipulationCheck", "Move", "manipulation_check", "move", "relieves"]

# What an intervention must move its own mediator by at least, and every other by less.
MOVED, UNMOVED = 0.5, 0.1
# Where a relief must bring its mediator: up (1), down (-1), or, for the norms of the gradient by sublayer,
# which are to become alike, either way (0).
RELIEVED = {
    "effective_rank": 1,
    "centred_cosine": -1,
    "window_share": 1,
    "gradient_norm": 0,
    "gradient_signal": 1,
    "train_test_gap": -1,
    "output_change": -1,
    "step_output_change": -1,
}


@dataclass(frozen=True, kw_only=True)
class Move:
    """How far a mediator moved.

    Attributes
    ----------
    size : float
        Typical move over places, relative to what it was, without what chance moves: 0.5 is by half. NaN
        where it cannot be compared.
    low, high : float
        Its 95 % interval over clusters (jackknife); NaN with fewer than three.
    mean : float
        Signed: the mean move over places and clusters.
    """

    size: float
    low: float
    high: float
    mean: float


LOST = Move(size=math.nan, low=math.nan, high=math.nan, mean=math.nan)


def move(
    before: Sequence[Sequence[float]], after: Sequence[Sequence[float]], *, least: float | None = None
) -> Move:
    r"""Return how far a mediator moved, from the same clusters without and with an intervention.

    .. math:: x_{pk} = \log\frac{m'_{pk}}{m_{pk}}, \qquad
        D = \frac{1}{P(P-1)} \sum_{p \ne q} \frac1K \sum_k x_{pk} x_{qk}, \qquad
        \mathrm{size} = e^{\sqrt{\max(D, 0)}} - 1

    Two fits of the same network differ by chance alone, and the mean of :math:`x^2` would count that as a
    move. Products of different clusters do not: D is an unbiased estimate of the mean square over places of
    the expected move, and 0 on average where only chance moves. With one cluster D is that mean square.

    Parameters
    ----------
    before, after
        (P, K) each; above 0, unless `least` is given.
    least
        For a mediator that may be 0 or below: x is then the difference over the mean of `before`, or over
        `least` if that is larger, and the size :math:`\sqrt{\max(D, 0)}`.

    Raises
    ------
    ValueError
        If the two differ in shape or are empty.
    """
    m, moved = torch.tensor(before, dtype=torch.float64), torch.tensor(after, dtype=torch.float64)
    if m.shape != moved.shape or m.ndim != 2 or not m.numel():
        raise ValueError(
            "a move needs as many numbers before as after, at each of the same clusters; got "
            f"{tuple(m.shape)} and {tuple(moved.shape)}."
        )
    if least is None:
        x = (moved / m).log() if bool((m > 0).all() and (moved > 0).all()) else torch.full_like(m, math.nan)
    else:
        x = (moved - m) / max(abs(float(m.mean())), least)
    if not bool(x.isfinite().all()):
        return LOST
    sized = math.expm1 if least is None else float
    square, low, high = _square(x @ x.T / x.shape[1])
    return Move(
        size=sized(math.sqrt(max(square, 0.0))),
        low=sized(math.sqrt(max(low, 0.0))),
        high=sized(math.sqrt(max(high, 0.0))),
        mean=sized(float(x.mean())),
    )


def _square(products: Tensor) -> tuple[float, float, float]:
    """Return D and its interval from the products of clusters (P, P)."""
    from scipy import stats

    number = len(products)
    own = products.diagonal()
    if number == 1:
        return float(own), math.nan, math.nan
    across = products.sum() - own.sum()
    square = float(across) / (number * (number - 1))
    if number == 2:
        return square, math.nan, math.nan
    without = (across - 2 * (products.sum(1) - own)) / ((number - 1) * (number - 2))
    error = math.sqrt(float((number - 1) / number * (without - without.mean()).square().sum()))
    half = float(stats.t.ppf(0.975, number - 1)) * error
    return square, square - half, square + half


@dataclass(frozen=True, kw_only=True)
class ManipulationCheck:
    """Whether a cell may carry a verdict.

    `deep` and `reference` have the `Move` of each mediator in the deep network and in the reference; `reason`
    says what failed.
    """

    cause: str
    passed: bool
    deep: dict[str, Move]
    reference: dict[str, Move]
    reason: str


def manipulation_check(
    deep: Mapping[str, Move], reference: Mapping[str, Move], *, cause: str
) -> ManipulationCheck:
    """Judge the moves of an intervention that aims at `cause`.

    It must reach its aim where the ill is: in the deep network one of its own mediators moves by at least
    50 %, and the way that relieves. That is to be asked of the time before the illness shows: a network that
    has fallen ill differs from a cured one in every mediator, whichever was the cause. And it must touch
    nothing else
    where there is nothing to cure: in the reference network every other cause's mediators move by less than
    10 % over all of training. In the deep network they need not stand still: a check that forbade this would
    let no cure pass.

    Parameters
    ----------
    deep
        Moves in the deep network at one moment or more before the illness shows; that of the gap between
        training and test at its end.
    reference
        Moves in the reference over all of training.
    cause
        A key of `MEDIATORS`.

    Raises
    ------
    ValueError
        If the cause is unknown.
    """
    if cause not in MEDIATORS:
        raise ValueError(f"unknown cause {cause!r}. Choose one of {', '.join(MEDIATORS)}.")
    own = [name for name in MEDIATORS[cause] if name in deep]
    others = [name for cause_, names in MEDIATORS.items() if cause_ != cause for name in names]
    reasons = []
    if not any(deep[name].size >= MOVED and relieves(name, deep[name]) for name in own):
        told = ", ".join(f"{name} {_told(deep[name])}" for name in own)
        reasons.append(f"too little moved in the deep network: {told}" if own else "not measured")
    missing = [name for name in others if name not in reference or math.isnan(reference[name].size)]
    astray = [name for name in others if name not in missing and not reference[name].size < UNMOVED]
    if missing:
        reasons.append("not measured in the reference: " + ", ".join(missing))
    if astray:
        told = ", ".join(f"{name} {_told(reference[name])}" for name in astray)
        reasons.append(f"moved in the reference too: {told}")
    return ManipulationCheck(
        cause=cause,
        passed=not reasons,
        deep=dict(deep),
        reference=dict(reference),
        reason="; ".join(reasons),
    )


def relieves(name: str, found: Move) -> bool:
    """Tell whether a mediator moved the way that a relief is to bring it."""
    return RELIEVED[name] == 0 or RELIEVED[name] * found.mean > 0


def _told(found: Move) -> str:
    return f"{found.size:.0%} (on average {found.mean:+.0%})"

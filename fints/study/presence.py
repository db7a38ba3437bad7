r"""Is a suspect there at all? What the deep network's mediators are, next to the reference's.

A relief changes a mediator on purpose; this only looks. A cause that acts through its mediator must show in
it before the penalty does. So a suspect whose mediators are no worse in the deep network until then did not
begin the illness. The reverse does not hold: what is worse may be a consequence of something else.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import polars as pl

from fints.study.intervals import interval
from fints.study.panel_store import Fits

__all__ = ["ILL", "SUSPECTS", "Presence", "before_the_penalty", "presence", "suspects", "worse_from"]

Presence = Literal["present", "absent", "unclear"]

# Which way each is ill: up (1) or down (-1).
ILL = {
    "effective_rank": -1,
    "centred_cosine": 1,
    "window_share": -1,
    "first_gradient_share": -1,
    "gradient_norm": -1,
    "gradient_signal": -1,
    "output_change": 1,
    "step_output_change": 1,
}
SUSPECTS = {
    "representation": ("effective_rank", "centred_cosine", "window_share"),
    "gradient": ("first_gradient_share", "gradient_norm", "gradient_signal"),
    "amplification": ("output_change", "step_output_change"),
}
# Of sublayer 0's gradient norm over the geometric mean of all: what vanishing takes from the first one.
FIRST = "first_gradient_share"
# AdamW divides by the size of each gradient: there a small one is no small step, and no suspect.
SIZES = (FIRST, "gradient_norm")
# A mediator is worse if it surely is so by a quarter.
WORSE = math.log(1.25)


def before_the_penalty(
    fits: Fits, deep: pl.DataFrame, reference: pl.DataFrame, panels: Sequence[int]
) -> int | None:
    r"""Return the last moment before the penalty shows, or None where it never does or was not watched.

    With :math:`d_m` the mean over panels of how much farther the deep network is from the planted signal than
    the reference at moment m, on the training windows that are watched, the penalty shows at the first moment
    from which on all :math:`d_m` are at least half of the last. The first moment counts as before it. Whether
    the last is surely above 0 is not asked here: that is the gate's.

    The penalty is a difference, so it shows only once the reference learns. A network that learns nothing may
    have fallen ill earlier.
    """
    distances = [_distances(fits, table, panels) for table in (deep, reference)]
    both = distances[0].join(distances[1], on=["panel", "step"], suffix="_reference")
    means = (
        both.group_by("step")
        .agg(d=(pl.col("value") - pl.col("value_reference")).mean())
        .sort("step")
        .filter(pl.col("step") > 0)
    )
    steps, farther = means["step"].to_list(), means["d"].to_list()
    if not steps or not farther[-1] > 0:
        return None
    shown = len(steps)
    while shown > 1 and farther[shown - 1] >= farther[-1] / 2:
        shown -= 1
    # steps[shown] is the first from which on it shows, steps[0] at the earliest is before it.
    return int(steps[shown - 1])


def presence(
    fits: Fits, deep: pl.DataFrame, reference: pl.DataFrame, panels: Sequence[int], *, until: int | None
) -> dict[str, list[float]]:
    r"""Return by mediator and panel how large it is in the deep network over the reference's, as a logarithm.

    .. math:: x_p = \frac1M \sum_m \Bigl(\frac1L \sum_k \log m_{pmk} - \frac1{L'} \sum_k \log m'_{pmk}\Bigr)

    over the M moments after the start and up to `until`, and the L and L' sublayers; of
    ``first_gradient_share`` it is :math:`\log m_{pm0} - \frac1L\sum_k \log m_{pmk}` of the gradient's norm.
    Panels on which either was not measured, or was not above 0, are left out.

    Parameters
    ----------
    fits : Fits
        Of the study.
    deep, reference : DataFrame
        Fits of the two arms, without a relief.
    panels : sequence of int
        The clusters.
    until : int, optional
        Later moments are left out.
    """
    by_moment = _by_moment(fits, deep, reference, panels)
    if until is not None:
        by_moment = by_moment.filter(pl.col("step") <= until)
    logs = by_moment.group_by("measure", "panel").agg(pl.col("x").mean()).filter(pl.col("x").is_finite())
    return _lists(logs)


def worse_from(
    fits: Fits, deep: pl.DataFrame, reference: pl.DataFrame, panels: Sequence[int]
) -> dict[str, int]:
    """Return by mediator the first moment at which it surely is a quarter worse in the deep network."""
    by_moment = _by_moment(fits, deep, reference, panels).filter(pl.col("x").is_finite())
    found: dict[str, int] = {}
    for (step,), rows in sorted(by_moment.partition_by("step", as_dict=True).items()):
        for name, logs in _lists(rows).items():
            if name not in found and len(logs) > 1 and _bounds(logs, ILL[name])[0] > WORSE:
                found[name] = int(step)
    return found


def suspects(
    present: Mapping[str, Sequence[float]],
    *,
    penalty: Sequence[float],
    generalisation: Sequence[float],
    optimizer: str,
) -> dict[str, Presence]:
    """Return of each suspect whether it is there before the penalty shows.

    One is present if the 95 % interval over panels of one of its mediators lies beyond a quarter worse than
    in the reference, absent if those of all lie below. A mediator that was not measured on every panel (one
    of the fits diverged) tells neither. The norms of gradients count under SGD alone. Fitted
    noise shows in the penalty itself: present if the generalisation part surely is above 0 and more than
    half of it, absent if it surely is less than half.

    Parameters
    ----------
    present
        From `presence`.
    penalty, generalisation
        By panel.
    optimizer
        As in `fints.config.TrainingConfig`.
    """
    found: dict[str, Presence] = {}
    for cause, names in SUSPECTS.items():
        judged = [name for name in names if optimizer == "sgd" or name not in SIZES]
        whole = [name for name in judged if len(present.get(name, ())) == len(penalty) > 1]
        bounds = [_bounds(present[name], ILL[name]) for name in whole]
        if any(low > WORSE for low, _ in bounds):
            found[cause] = "present"
        else:
            below = len(bounds) == len(judged) and all(high < WORSE for _, high in bounds)
            found[cause] = "absent" if below else "unclear"
    if len(penalty) > 1:
        _, least, _ = interval(generalisation)
        _, low, high = interval([g - p / 2 for g, p in zip(generalisation, penalty, strict=True)])
        # More than half of a penalty below 0 is no noise that was fitted.
        found["noise"] = "present" if min(low, least) > 0 else "absent" if high < 0 else "unclear"
    return found


def _bounds(logs: Sequence[float], ill: int) -> tuple[float, float]:
    """Return the 95 % interval of how much worse, as a logarithm."""
    _, low, high = interval([ill * x for x in logs])
    return low, high


def _lists(logs: pl.DataFrame) -> dict[str, list[float]]:
    ordered = logs.sort("panel")
    found = {name: ordered.filter(pl.col("measure") == name)["x"].to_list() for name in ILL}
    return {name: values for name, values in found.items() if values}


def _by_moment(
    fits: Fits, deep: pl.DataFrame, reference: pl.DataFrame, panels: Sequence[int]
) -> pl.DataFrame:
    """Return ``measure, panel, step, x``, x the logarithm of the deep network's over the reference's."""
    sizes = [_sizes(fits, table, panels) for table in (deep, reference)]
    both = sizes[0].join(sizes[1], on=["measure", "panel", "step"], suffix="_reference")
    return both.with_columns(x=pl.col("size") - pl.col("size_reference"))


def _sizes(fits: Fits, table: pl.DataFrame, panels: Sequence[int]) -> pl.DataFrame:
    """Return the logarithm of each mediator by panel and moment, a mean over sublayers."""
    rows = fits.watched(table, panels)
    log = pl.col("value").log()
    first = log.filter(pl.col("layer") == 0).first() - log.mean()
    sizes = rows.group_by("measure", "panel", "step").agg(size=log.mean(), first=first)
    gradients = sizes.filter(pl.col("measure") == "gradient_norm").select(
        measure=pl.lit(FIRST), panel="panel", step="step", size="first"
    )
    plain = sizes.filter(pl.col("measure").is_in(list(ILL))).select("measure", "panel", "step", "size")
    return pl.concat([plain, gradients])


def _distances(fits: Fits, table: pl.DataFrame, panels: Sequence[int]) -> pl.DataFrame:
    rows = fits.watched(table, panels).filter(pl.col("measure") == "signal_distance")
    return rows.select("panel", "step", "value")

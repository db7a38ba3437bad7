r"""Is a suspect there at all? What the deep network's mediators are, next to the reference's.

A relief changes a mediator on purpose; this only looks. A cause that acts through its mediator must show in
it before the network is ill, so a suspect whose mediators are no worse in the deep network's warm-up than in
the reference's did not begin the illness. The reverse does not hold: what is worse may be a consequence.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from fints.study.panel_store import Fits

__all__ = ["ILL", "presence"]

# Which way each is ill: up (1) or down (-1).
ILL = {
    "effective_rank": -1,
    "centred_cosine": 1,
    "first_gradient_share": -1,
    "gradient_signal": -1,
    "output_change": 1,
    "step_output_change": 1,
}
# Of sublayer 0's gradient norm over the geometric mean of all: what vanishing takes from the first one.
FIRST = "first_gradient_share"


def presence(
    fits: Fits, deep: pl.DataFrame, reference: pl.DataFrame, panels: Sequence[int], *, until: int | None
) -> dict[str, list[float]]:
    r"""Return by mediator and panel how large it is in the deep network over the reference's, as a logarithm.

    .. math:: x_p = \frac1M \sum_m \Bigl(\frac1L \sum_k \log m_{pmk} - \frac1{L'} \sum_k \log m'_{pmk}\Bigr)

    over the M moments after the start and up to `until`, and the L and L' sublayers; of the gradient's norm
    it is :math:`\log m_{pm0} - \frac1L\sum_k \log m_{pmk}`. Panels on which either was not measured, or was
    not above 0, are left out.

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
    sizes = [_sizes(fits, table, panels, until) for table in (deep, reference)]
    both = sizes[0].join(sizes[1], on=["measure", "panel", "step"], suffix="_reference")
    logs = (
        both.with_columns(x=pl.col("size") - pl.col("size_reference"))
        .group_by("measure", "panel")
        .agg(pl.col("x").mean())
        .filter(pl.col("x").is_finite())
        .sort("panel")
    )
    found = {name: logs.filter(pl.col("measure") == name)["x"].to_list() for name in ILL}
    return {name: values for name, values in found.items() if values}


def _sizes(fits: Fits, table: pl.DataFrame, panels: Sequence[int], until: int | None) -> pl.DataFrame:
    """Return the logarithm of each mediator by panel and moment, a mean over sublayers."""
    own = table.filter(pl.col("panel").is_in(list(panels))).select("key", "panel")
    rows = fits.rows.filter(pl.col("step") > 0).drop_nulls("value").join(own, on="key")
    if until is not None:
        rows = rows.filter(pl.col("step") <= until)
    log = pl.col("value").log()
    first = log.filter(pl.col("layer") == 0).first() - log.mean()
    sizes = rows.group_by("measure", "panel", "step").agg(size=log.mean(), first=first)
    gradients = sizes.filter(pl.col("measure") == "gradient_norm").select(
        measure=pl.lit(FIRST), panel="panel", step="step", size="first"
    )
    plain = sizes.filter(pl.col("measure").is_in(list(ILL))).select("measure", "panel", "step", "size")
    return pl.concat([plain, gradients])

r"""What the oracle of a simulation reaches where, and the targets a network would have without noise."""

from __future__ import annotations

import polars as pl

from fints.data.panel import Panel
from fints.data.synthetic import Simulation
from fints.data.targets import targets

__all__ = ["noise_free_targets", "oracle_by_volatility"]

# Targets whose expectation over one day is the planted signal in their own units.
LINEAR_TARGETS = ("log_return", "volatility_scaled")


def oracle_by_volatility(simulation: Simulation, *, bins: int = 5) -> pl.DataFrame:
    r"""Return the oracle's R2 in each of `bins` groups of rows of equal size, calm first.

    Rows are grouped by the noise's volatility of the next day, over all assets and dates.

    Returns
    -------
    polars.DataFrame
        ``bin`` (1: the calmest), ``rows``, ``volatility_from``, ``volatility_to``, ``oracle_r2`` =
        :math:`\sum s^2 / \sum (s^2 + \sigma^2)`, where the volatility is a known one, and
        ``realised_oracle_r2`` = :math:`1 - \sum (r - s)^2 / \sum r^2`. Only rows with a known outcome.

    Raises
    ------
    ValueError
        If there are fewer rows than bins, or `bins` is below 1.
    """
    outcome = targets(simulation.panel, "log_return", 1).select("date", "asset", "target").drop_nulls()
    rows = outcome.join(simulation.signal, on=["date", "asset"]).join(
        simulation.volatility, on=["date", "asset"]
    )
    if bins < 1 or rows.height < bins:
        raise ValueError(
            f"bins must be at least 1 and no more than rows with an outcome, {rows.height}; got {bins}."
        )
    s, r, sigma = pl.col("signal"), pl.col("target"), pl.col("volatility")
    place = (pl.int_range(pl.len()) * bins) // pl.len() + 1
    return (
        rows.sort("volatility", "date", "asset")
        .with_columns(bin=place.cast(pl.Int64))
        .group_by("bin")
        .agg(
            rows=pl.len().cast(pl.Int64),
            volatility_from=sigma.min(),
            volatility_to=sigma.max(),
            oracle_r2=(s**2).sum() / (s**2 + sigma**2).sum(),
            realised_oracle_r2=1 - ((r - s) ** 2).sum() / (r**2).sum(),
        )
        .sort("bin")
    )


def noise_free_targets(panel: Panel, signal: pl.DataFrame, name: str) -> pl.DataFrame:
    r"""Return what `fints.data.targets` gives over one day, with the noise taken out of the outcome.

    For a loss that is quadratic in the forecast p, the gradient against the outcome is that against its
    expectation :math:`s_t / c_t` (c the target's scale, known at t) plus noise of mean zero:

    .. math:: \nabla (p - y)^2 = \nabla (p - s / c)^2 - 2 (y - s / c) \nabla p

    so a gradient taken here, batch for batch, is the signal of a gradient signal-to-noise ratio.

    Parameters
    ----------
    panel, signal
        As `Simulation` has them, or `fints.data.load` and `fints.data.planted_signal`.
    name
        "log_return" or "volatility_scaled".

    Returns
    -------
    polars.DataFrame
        As `fints.data.targets` at horizon 1, row for row those of the panel; null wherever that is null or
        the signal is unknown.

    Raises
    ------
    ValueError
        If the expectation of the target is not the signal in the target's units.
    """
    if name not in LINEAR_TARGETS:
        raise ValueError(
            f"the planted signal is the expectation of {' and '.join(LINEAR_TARGETS)} only; got {name!r}, "
            "whose expectation is not known."
        )
    frame = targets(panel, name, 1).join(signal, on=["date", "asset"], how="left", maintain_order="left")
    known = pl.col("target").is_not_null() & pl.col("signal").is_not_null()
    return frame.select(
        "date",
        "asset",
        pl.when(known).then(pl.col("signal") / pl.col("scale")).alias("target"),
        "scale",
        pl.when(known).then("label_end").alias("label_end"),
    )

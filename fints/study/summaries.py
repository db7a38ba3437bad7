"""What the report shows beside the verdict: outcomes, trials, profiles, training, the planted signal."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from fints.study.cells import FAILED, plain_mean, to_frame

__all__ = ["mean_history", "mean_mixing", "mean_profiles", "oracle_bins", "outcome_counts", "tried_points"]

# Measured by sublayer; averaged over fits on a logarithm where the values span decades.
PROFILE_MEASURES = {
    "adjacent_cosine": "mean",
    "adjacent_cosine_centred": "mean",
    "adjacent_cosine_null": "mean",
    "adjacent_cosine_initial": "mean",
    "relative_update": "log",
    "increment_cosine": "mean",
    "effective_rank": "mean",
    "gradient_norm": "log",
    "gradient_norm_initial": "log",
    "update_to_weight": "log",
}


def outcome_counts(spec: Mapping[str, Any], final: pl.DataFrame, fits: pl.DataFrame) -> pl.DataFrame:
    """Return the number of fits by arm, role and outcome."""
    tuning = fits.filter(pl.col("role") != "final").select("arm", "role", "outcome")
    every = pl.concat([tuning, final.select("arm", pl.lit("final").alias("role"), "outcome")])
    order = {arm["name"]: number for number, arm in enumerate(spec["arms"])}
    return (
        every.group_by("arm", "role", "outcome")
        .len("fits")
        .with_columns(
            order=pl.col("arm").replace_strict(order, return_dtype=pl.Int64),
            fits=pl.col("fits").cast(pl.Int64),
        )
        .sort("order", pl.col("role") == "final", "outcome")
        .drop("order")
    )


def tried_points(spec: Mapping[str, Any], fits: pl.DataFrame) -> pl.DataFrame:
    """One row an arm and design point: the tuning loss, failures, and which one was chosen."""
    fields = list(spec["tuning"]["space"])
    fits = _with_points(fits, fields)
    rows = []
    for arm in spec["arms"]:
        own = fits.filter(pl.col("arm") == arm["name"])
        final = own.filter(pl.col("role") == "final").select(fields).unique()
        chosen = final.row(0) if fields and final.height == 1 else None
        tuning = own.filter(pl.col("role") != "final")
        for point in tuning.select(fields).unique().sort(fields).rows() if fields else []:
            here = tuning.filter(
                pl.all_horizontal(
                    pl.col(name).eq_missing(pl.lit(value)) for name, value in zip(fields, point, strict=True)
                )
            )
            losses = (
                here.filter(~pl.col("outcome").is_in(FAILED))["validation_loss"]
                .drop_nulls()
                .sort()
                .to_numpy()
            )
            rows.append(
                {
                    "arm": arm["name"],
                    **dict(zip(fields, point, strict=True)),
                    "fits": here.height,
                    "failed": int(here["outcome"].is_in(FAILED).sum()),
                    "validation_loss": float(losses.mean()) if len(losses) == here.height else None,
                    "chosen": chosen is not None and point == chosen,
                }
            )
    return to_frame(rows)


def _with_points(fits: pl.DataFrame, fields: Sequence[str]) -> pl.DataFrame:
    """Give each tuned field its whole dotted name; the fits table has the last part."""
    short = {name.rsplit(".", 1)[-1]: name for name in fields}
    missing = [name for name in short if name not in fits.columns]
    if missing:
        raise ValueError(
            f"fits.parquet lacks the tuned {', '.join(missing)}; it has {', '.join(fits.columns)}."
        )
    return fits.rename(short)


def mean_profiles(
    spec: Mapping[str, Any], profiles: pl.DataFrame | None, final: pl.DataFrame
) -> pl.DataFrame:
    """Mean and range over finished fits of each measure, by arm and sublayer, after the last step."""
    schema = {"arm": pl.String, "layer": pl.Int64, "kind": pl.String, "measure": pl.String, "fits": pl.Int64}
    schema |= dict.fromkeys(("mean", "low", "high"), pl.Float64)
    if profiles is None or not profiles.height:
        return pl.DataFrame(schema=schema)
    ok = final.filter("finished").select("arm", "fold", "seed")
    rows = profiles.join(ok, on=["arm", "fold", "seed"], how="semi")
    last = rows.group_by("arm", "fold", "seed").agg(pl.col("step").max())
    rows = rows.join(last, on=["arm", "fold", "seed", "step"], how="semi").sort(
        "arm", "layer", "fold", "seed"
    )
    order = {arm["name"]: number for number, arm in enumerate(spec["arms"])}
    table = []
    for (arm, layer), part in rows.partition_by("arm", "layer", as_dict=True, maintain_order=True).items():
        for measure, how in PROFILE_MEASURES.items():
            if measure not in part.columns:
                continue
            values = part[measure].cast(pl.Float64).fill_nan(None).drop_nulls().sort().to_numpy()
            values = values[values > 0] if how == "log" else values
            if len(values):
                mean = float(np.exp(np.log(values).mean())) if how == "log" else float(values.mean())
                kind = part["kind"][0] if "kind" in part.columns else ""
                table.append(
                    (arm, layer, kind, measure, len(values), mean, float(values[0]), float(values[-1]))
                )
    found = pl.DataFrame(table, schema=schema, orient="row")
    return found.sort(pl.col("arm").replace_strict(order, return_dtype=pl.Int64), "measure", "layer")


def mean_mixing(spec: Mapping[str, Any], mixing: pl.DataFrame | None, final: pl.DataFrame) -> pl.DataFrame:
    """Mean over finished fits of each entry of M, by arm, reader and source."""
    schema: dict[str, Any] = {"arm": pl.String, "reader": pl.Int64, "source": pl.Int64, "fits": pl.Int64}
    schema |= {"mean": pl.Float64, "composed": pl.Boolean}
    if mixing is None or not mixing.height:
        return pl.DataFrame(schema=schema)
    order = {arm["name"]: number for number, arm in enumerate(spec["arms"])}
    ok = final.filter("finished").select("arm", "fold", "seed")
    rows = mixing.join(ok, on=["arm", "fold", "seed"], how="semi").drop_nulls("mean")
    table = []
    keys = ["arm", "reader", "source"]
    for (arm, reader, source), part in (
        rows.sort([*keys, "fold", "seed"]).partition_by(keys, as_dict=True, maintain_order=True).items()
    ):
        mean = math.fsum(part["mean"].to_list()) / part.height
        table.append((arm, reader, source, part.height, mean, bool(part["composed"].all())))
    found = pl.DataFrame(table, schema=schema, orient="row")
    return found.sort(pl.col("arm").replace_strict(order, return_dtype=pl.Int64), "reader", "source")


def mean_history(spec: Mapping[str, Any], history: pl.DataFrame | None, final: pl.DataFrame) -> pl.DataFrame:
    """Mean training and validation loss by arm and step over the finished final fits."""
    schema = {"arm": pl.String, "step": pl.Int64, "fits": pl.Int64}
    schema |= dict.fromkeys(("train_loss", "validation_loss"), pl.Float64)
    if history is None or not history.height:
        return pl.DataFrame(schema=schema)
    ok = final.filter("finished").select("arm", "fold", "seed")
    rows = history.join(ok, on=["arm", "fold", "seed"], how="semi").sort("arm", "step", "fold", "seed")
    table = []
    for arm in spec["arms"]:
        own = rows.filter(pl.col("arm") == arm["name"])
        for (step,), part in own.partition_by("step", as_dict=True, maintain_order=True).items():
            losses = (plain_mean(part[name]) for name in ("train_loss", "validation_loss"))
            table.append((arm["name"], step, part.height, *losses))
    return pl.DataFrame(table, schema=schema, orient="row")


def oracle_bins(
    spec: Mapping[str, Any],
    frames: Mapping[tuple[str, int, int], pl.DataFrame],
    final: pl.DataFrame,
    bins: int = 20,
) -> pl.DataFrame:
    """Mean forecast by equal-count bin of the planted signal, pooled over an arm's finished fits."""
    schema = {"arm": pl.String, "bin": pl.Int64, "oracle": pl.Float64, "forecast": pl.Float64}
    table = []
    for arm in spec["arms"]:
        own = final.filter((pl.col("arm") == arm["name"]) & pl.col("finished"))
        parts = [frames[key] for key in own.select("arm", "fold", "seed").rows() if key in frames]
        parts = [part.drop_nulls("oracle") for part in parts if "oracle" in part.columns]
        if not parts or not sum(part.height for part in parts):
            continue
        oracle = np.concatenate([part["oracle"].to_numpy() for part in parts])
        forecast = np.concatenate([part["forecast"].to_numpy() for part in parts])
        order = np.argsort(oracle, kind="stable")
        for number, chosen in enumerate(np.array_split(order, min(bins, len(order)))):
            table.append((arm["name"], number, float(oracle[chosen].mean()), float(forecast[chosen].mean())))
    return pl.DataFrame(table, schema=schema, orient="row")

"""The rows of a report on levels: one an arm, one a baseline, each with its metrics and tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from fints.evaluation import ClusteredMean, SeriesTest, clark_west, clustered_mean, metrics
from fints.study.cells import KEYS, plain_mean, to_frame

__all__ = ["DISTRIBUTION", "arm_rows", "baseline_rows"]

# Of the arms whose head gives a distribution.
DISTRIBUTION = ("log_score", "crps", "coverage_50", "coverage_90")


def arm_rows(
    spec: Mapping[str, Any],
    cells: pl.DataFrame,
    averages: Mapping[str, pl.DataFrame | None],
    fits: pl.DataFrame,
    outcome: str,
    horizon: int,
) -> pl.DataFrame:
    """Return one row an arm: means over its (fold, seed), and tests of its seeds' mean forecast."""
    rows = []
    for arm in spec["arms"]:
        own = cells.filter(pl.col("arm") == arm["name"])
        row: dict[str, Any] = {"arm": arm["name"], **arm["levels"], "parameters": _parameters(arm, fits)}
        row |= {"fits": own.height, "failed": int(own["failed"].sum())}
        row["missing"] = int((own["outcome"] == "missing").sum())
        for name in dict.fromkeys([outcome, "r2_zero", "r2_mean", "rank_ic", "share_of_oracle"]):
            mean = _mean(own, name)
            row |= _spread(name, mean)
        for name in ("forecast_sd_ratio", *DISTRIBUTION):
            row[name] = plain_mean(own[name])
        rows.append(row | _tests(averages[arm["name"]], horizon))
    return to_frame(rows)


def _tests(forecasts: pl.DataFrame | None, horizon: int) -> dict[str, float | None]:
    """Return Clark-West against zero, and against the prevailing mean where it is known."""
    against: dict[str, SeriesTest | None] = {"clark_west": None, "clark_west_mean": None}
    if forecasts is not None:
        against["clark_west"] = clark_west(forecasts, horizon=horizon)
        if "prevailing_mean" in forecasts.columns:
            against["clark_west_mean"] = clark_west(forecasts, benchmark="prevailing_mean", horizon=horizon)
    found: dict[str, float | None] = {}
    for name, test in against.items():
        found[f"{name}_t"] = None if test is None else test.statistic
        found[f"{name}_p"] = None if test is None else test.p
    return found


def _parameters(arm: Mapping[str, Any], fits: pl.DataFrame) -> int | None:
    if arm.get("parameters") is not None:
        return int(arm["parameters"])
    if "parameters" not in fits.columns:
        return None
    found = fits.filter(pl.col("arm") == arm["name"])["parameters"].drop_nulls()
    return int(found[0]) if len(found) else None


def baseline_rows(
    baselines: pl.DataFrame | None, rows: pl.DataFrame, horizon: int, declared: Sequence[str]
) -> pl.DataFrame:
    """Return one row a baseline, in the order declared; zero first, the oracle last."""
    frames = {"zero": rows.with_columns(forecast=pl.lit(0.0))}
    if baselines is not None:
        for (name,), part in baselines.partition_by("baseline", as_dict=True, maintain_order=True).items():
            own = part.select(*KEYS, "forecast")
            frames[name] = rows.join(own, on=KEYS, how="inner", maintain_order="left")
    table = []
    order = {name: place for place, name in enumerate(["zero", *declared])}
    for name in sorted(frames, key=lambda name: (name == "oracle", order.get(name, len(order)), name)):
        if not frames[name].height:
            continue
        by_fold = [
            {"fold": fold, **metrics(part, horizon=horizon)}
            for (fold,), part in frames[name].partition_by("fold", as_dict=True, maintain_order=True).items()
        ]
        cells = pl.DataFrame(by_fold, infer_schema_length=None)
        row: dict[str, Any] = {"baseline": name, "folds": cells.height, "rows": frames[name].height}
        for metric in ("r2_zero", "r2_mean", "ic", "rank_ic", "share_of_oracle"):
            row |= _spread(metric, _mean(cells, metric))
        table.append(row | _tests(frames[name], horizon))
    return to_frame(table)


def _mean(cells: pl.DataFrame, name: str) -> ClusteredMean | None:
    if name not in cells.columns:
        return None
    known = cells.select("fold", pl.col(name).cast(pl.Float64)).drop_nulls(name)
    return clustered_mean(known, name) if known.height else None


def _spread(name: str, mean: ClusteredMean | None) -> dict[str, float | None]:
    if mean is None:
        return {name: None, f"{name}_low": None, f"{name}_high": None}
    return {name: mean.estimate, f"{name}_low": mean.low, f"{name}_high": mean.high}

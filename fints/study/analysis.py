"""From the stored forecasts, fits and profiles of a study to its tables and its verdict.

Nothing is trained here and no metric is stored: everything is computed from the parquet files in a
study's folder, in one fixed order, so that the same files give the same report byte for byte.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from fints.evaluation import (
    ClusteredMean,
    clark_west,
    clustered_mean,
    diebold_mariano,
    effective_assets,
    holm,
    metrics,
    paired_contrast,
    r2_standard_error,
)
from fints.study.cells import (
    KEYS,
    cell_frames,
    cell_metrics,
    final_fits,
    judged_rows,
    optional_table,
    plain_mean,
    read_table,
    seed_average,
    to_frame,
    with_references,
)
from fints.study.design import OUTCOMES
from fints.study.summaries import (
    mean_history,
    mean_mixing,
    mean_profiles,
    oracle_bins,
    outcome_counts,
    tried_points,
)
from fints.study.verdict import MEASURES, Measure, decide, describe, sentence

__all__ = ["DISTRIBUTION", "REFERENCE_R2", "Analysis", "analyse"]

# Of the arms whose head gives a distribution.
DISTRIBUTION = ("log_score", "crps", "coverage_50", "coverage_90")
# A daily R2 at the upper end of what is realistic; the standard error of the study is told for it.
REFERENCE_R2 = 0.001


@dataclass(frozen=True, kw_only=True)
class Analysis:
    """All that a report shows of a study.

    Frames, each sorted: `cells` one row a final fit with its metrics; `arms` one row an arm;
    `contrasts` one row a contrast, the primary first; `baselines` one row a baseline; `outcomes`
    counts of fits by arm, role and outcome; `tried` one row an arm and design point; `profiles`
    one row an arm, sublayer and measure; `mixing` one row an arm, reader and source; `history` one
    row an arm and step; `oracle` one row an arm and bin of the planted signal (empty on real data).
    """

    spec: dict[str, Any]
    measure: Measure
    claim: str
    decision: str
    verdict: str
    cells: pl.DataFrame
    arms: pl.DataFrame
    contrasts: pl.DataFrame
    baselines: pl.DataFrame
    outcomes: pl.DataFrame
    tried: pl.DataFrame
    profiles: pl.DataFrame
    mixing: pl.DataFrame
    history: pl.DataFrame
    oracle: pl.DataFrame
    scope: dict[str, float | int | None]

    @property
    def factors(self) -> dict[str, list[str]]:
        """Factor to its levels, in the order of declaration."""
        return {name: list(levels) for name, levels in self.spec["factors"].items()}

    @property
    def axis(self) -> str | None:
        """The factor drawn along the x axis: the first with two or more numeric levels."""
        return next(
            (
                name
                for name, levels in self.factors.items()
                if len(levels) > 1 and all(map(_is_number, levels))
            ),
            None,
        )


def analyse(spec: Mapping[str, Any], folder: Path) -> Analysis:
    """Compute every table of a study from its folder.

    Parameters
    ----------
    spec
        The content of `study.json`.
    folder
        Holds `forecasts.parquet` and `fits.parquet`; `profiles.parquet`, `mixing.parquet`,
        `history.parquet` and `baselines.parquet` are used where they exist.

    Notes
    -----
    A final fit that diverged enters as the zero forecast on the test rows of its fold, whatever it
    left behind, and is counted (`fints.study.cells`). A level with such fits is never declared
    better or equivalent. A fit that has not run is missing: its pair is dropped and counted. All
    arms and baselines of a fold are judged on the same rows, those that every finished fit of the
    fold could forecast.

    Raises
    ------
    ValueError
        If a file or a column is missing, or no final fit has a forecast.
    """
    spec = dict(spec)
    folder = Path(folder)
    outcome = spec["outcome"]
    if outcome not in OUTCOMES:
        raise ValueError(f"unknown outcome {outcome!r}. Known outcomes: {', '.join(OUTCOMES)}.")
    horizon = int(spec["arms"][0]["experiment"]["data"]["horizon"])
    fits = read_table(folder, "fits", ["arm", "role", "fold", "seed", "outcome"])
    forecasts = read_table(
        folder, "forecasts", ["arm", "fold", "seed", "date", "asset", "forecast", "realised"]
    )
    baselines = optional_table(folder, "baselines")
    final = final_fits(spec, fits)
    rows, dropped = judged_rows(forecasts, final)
    rows = with_references(rows, baselines)
    frames = cell_frames(forecasts, final, rows)
    cells = cell_metrics(final, frames, horizon)
    averages = {arm["name"]: seed_average(arm["name"], final, frames) for arm in spec["arms"]}
    arms = _arms(spec, cells, averages, fits, outcome, horizon)
    contrasts, primary = _contrasts(spec, cells, averages, outcome, horizon)
    first = contrasts.row(0, named=True)
    claim = spec["claim"]
    verdict = sentence(
        decide(
            primary,
            spec["smallest_effect"],
            any_finished=first["finished"] > 0,
            failed=(first["failed_compare"], first["failed_against"]),
        ),
        primary,
        compare=(first["factor"], first["compare"]),
        against=first["against"],
        within=_contrast_specs(spec)[0]["within"],
        measure=MEASURES[outcome],
        smallest_effect=spec["smallest_effect"],
        num_seeds=len(spec["seeds"]),
        claim=claim,
    )
    notes = (_incomplete_note(spec, final, fits), verdict, _failure_note(first))
    return Analysis(
        spec=spec,
        measure=MEASURES[outcome],
        claim=claim,
        decision=first["decision"],
        verdict=" ".join(note for note in notes if note),
        cells=cells,
        arms=arms,
        contrasts=contrasts,
        baselines=_baselines(baselines, rows, horizon),
        outcomes=outcome_counts(spec, final, fits),
        tried=tried_points(spec, fits),
        profiles=mean_profiles(spec, optional_table(folder, "profiles"), final),
        mixing=mean_mixing(spec, optional_table(folder, "mixing"), final),
        history=mean_history(spec, optional_table(folder, "history"), final),
        oracle=oracle_bins(spec, frames, final),
        scope=_scope(rows, dropped, final, fits, horizon),
    )


def _arms(
    spec: Mapping[str, Any],
    cells: pl.DataFrame,
    averages: Mapping[str, pl.DataFrame | None],
    fits: pl.DataFrame,
    outcome: str,
    horizon: int,
) -> pl.DataFrame:
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
        average = averages[arm["name"]]
        test = None if average is None else clark_west(average, horizon=horizon)
        row |= {"clark_west_t": test and test.statistic, "clark_west_p": test and test.p}
        rows.append(row)
    return to_frame(rows)


def _parameters(arm: Mapping[str, Any], fits: pl.DataFrame) -> int | None:
    if arm.get("parameters") is not None:
        return int(arm["parameters"])
    if "parameters" not in fits.columns:
        return None
    found = fits.filter(pl.col("arm") == arm["name"])["parameters"].drop_nulls()
    return int(found[0]) if len(found) else None


def _contrast_specs(spec: Mapping[str, Any]) -> list[dict[str, Any]]:
    """All contrasts, the primary first."""
    return [dict(spec["primary"]), *(dict(item) for item in spec["contrasts"])]


def _contrasts(
    spec: Mapping[str, Any],
    cells: pl.DataFrame,
    averages: Mapping[str, pl.DataFrame | None],
    outcome: str,
    horizon: int,
) -> tuple[pl.DataFrame, ClusteredMean | None]:
    rows: list[dict[str, Any]] = []
    found: list[ClusteredMean | None] = []
    for index, item in enumerate(_contrast_specs(spec)):
        (factor, compare), against, within = item["compare"], item["against"], item["within"]
        a = _arms_at(spec, {**within, factor: compare})
        b = _arms_at(spec, {**within, factor: against})
        pairs, unpaired = _pairs(cells, factor, a, b, outcome)
        contrast = paired_contrast(pairs) if pairs.height else None
        involved = cells.filter(pl.col("arm").is_in([arm["name"] for arm in (*a, *b)]))
        finished = int(involved["finished"].sum())
        found.append(contrast)
        test = None
        if len(a) == len(b) == 1:
            one, other = averages[a[0]["name"]], averages[b[0]["name"]]
            if one is not None and other is not None:
                test = diebold_mariano(one, other, horizon=horizon)
        rows.append(
            {
                "contrast": describe((factor, compare), against, within),
                "primary": index == 0,
                "factor": factor,
                "compare": compare,
                "against": against,
                **{
                    name: None if contrast is None else getattr(contrast, name)
                    for name in ("estimate", "se", "sd", "low", "high", "p", "clusters", "cells")
                },
                "p_holm": None,
                "unpaired": unpaired,
                "finished": finished,
                "fits_compare": int(cells["arm"].is_in([arm["name"] for arm in a]).sum()),
                "fits_against": int(cells["arm"].is_in([arm["name"] for arm in b]).sum()),
                "failed_compare": _failed(cells, a),
                "failed_against": _failed(cells, b),
                "diebold_mariano": test and test.statistic,
                "diebold_mariano_p": test and test.p,
                "dates": test and test.dates,
            }
        )
    # The primary contrast was named before the run and stands alone; Holm is over the others.
    smallest = spec["smallest_effect"]
    known = [
        {
            "any_finished": row["finished"] > 0,
            "failed": (row["failed_compare"], row["failed_against"]),
        }
        for row in rows
    ]
    decisions = [decide(contrast, smallest, **facts) for contrast, facts in zip(found, known, strict=True)]
    adjusted = holm([row["p"] for row in rows[1:]])
    same = holm([decision.equivalence_p for decision in decisions[1:]])
    for place, (row, p, equivalence_p) in enumerate(zip(rows[1:], adjusted, same, strict=True), start=1):
        row["p_holm"] = p
        decisions[place] = decide(found[place], smallest, p=p, equivalence_p=equivalence_p, **known[place])
    for row, decision in zip(rows, decisions, strict=True):
        row |= {
            "decision": decision.kind,
            "equivalence_p": decision.equivalence_p,
            "power": decision.power,
            "detectable": decision.detectable,
            "folds_needed": decision.folds_needed,
        }
    return to_frame(rows), found[0]


def _arms_at(spec: Mapping[str, Any], levels: Mapping[str, str]) -> list[Mapping[str, Any]]:
    found = [
        arm for arm in spec["arms"] if all(arm["levels"].get(name) == level for name, level in levels.items())
    ]
    if not found:
        raise ValueError(
            f"no arm has the levels {dict(levels)}; does this preset leave out a level of a contrast?"
        )
    return found


def _pairs(
    cells: pl.DataFrame,
    factor: str,
    a: Sequence[Mapping[str, Any]],
    b: Sequence[Mapping[str, Any]],
    outcome: str,
) -> tuple[pl.DataFrame, int]:
    """Paired differences by (fold, seed), averaged over factors the contrast leaves open."""

    def rest(arm: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
        return tuple((name, level) for name, level in arm["levels"].items() if name != factor)

    partner = {rest(arm): arm["name"] for arm in b}
    values = {
        (arm, fold, seed): value
        for arm, fold, seed, value in cells.select("arm", "fold", "seed", outcome).rows()
    }
    keys = cells.select("fold", "seed").unique().sort("fold", "seed").rows()
    rows, unpaired = [], 0
    for fold, seed in keys:
        differences = []
        for arm in a:
            one = values[arm["name"], fold, seed]
            other = values[partner[rest(arm)], fold, seed]
            if one is None or other is None:
                unpaired += 1
            else:
                differences.append(one - other)
        # A cell counts only whole, so that every cell averages over the same levels.
        if len(differences) == len(a):
            rows.append({"fold": fold, "seed": seed, "difference": float(np.mean(differences))})
    return pl.DataFrame(rows, schema={"fold": pl.Int64, "seed": pl.Int64, "difference": pl.Float64}), unpaired


def _failed(cells: pl.DataFrame, arms: Sequence[Mapping[str, Any]]) -> int:
    return int(cells.filter(pl.col("arm").is_in([arm["name"] for arm in arms]))["failed"].sum())


def _incomplete_note(spec: Mapping[str, Any], final: pl.DataFrame, fits: pl.DataFrame) -> str:
    tuning = spec["tuning"]
    planned = len(spec["arms"]) * len(tuning["points"]) * tuning["folds"] * len(tuning["seeds"])
    untuned = planned - fits.filter(pl.col("role") == "tuning").height
    parts = [
        f"{missing} of {total} {role} fits"
        for missing, total, role in (
            (int((final["outcome"] == "missing").sum()), final.height, "final"),
            (untuned, planned, "tuning"),
        )
        if missing > 0
    ]
    return f"Incomplete: {' and '.join(parts)} are missing." if parts else ""


def _failure_note(row: Mapping[str, Any]) -> str:
    parts = [
        f"{row[f'failed_{side}']} of {row[f'fits_{side}']} fits of {row[side]}"
        for side in ("compare", "against")
        if row[f"failed_{side}"]
    ]
    return f"({' and '.join(parts)} failed and entered as the zero forecast.)" if parts else ""


def _baselines(baselines: pl.DataFrame | None, rows: pl.DataFrame, horizon: int) -> pl.DataFrame:
    frames = {"zero": rows.with_columns(forecast=pl.lit(0.0))}
    if baselines is not None:
        for (name,), part in baselines.partition_by("baseline", as_dict=True, maintain_order=True).items():
            own = part.select(*KEYS, "forecast")
            frames[name] = rows.join(own, on=KEYS, how="inner", maintain_order="left")
    table = []
    for name in sorted(frames, key=lambda name: (_BASELINE_ORDER.get(name, 9), name)):
        if not frames[name].height:
            continue
        by_fold = [
            {"fold": fold, **metrics(part, horizon=horizon)}
            for (fold,), part in frames[name].partition_by("fold", as_dict=True, maintain_order=True).items()
        ]
        cells = pl.DataFrame(by_fold, infer_schema_length=None)
        test = clark_west(frames[name], horizon=horizon)
        row: dict[str, Any] = {"baseline": name, "folds": cells.height, "rows": frames[name].height}
        for metric in ("r2_zero", "r2_mean", "ic", "rank_ic", "share_of_oracle"):
            row |= _spread(metric, _mean(cells, metric))
        row |= {"clark_west_t": test and test.statistic, "clark_west_p": test and test.p}
        table.append(row)
    return to_frame(table)


_BASELINE_ORDER = {"zero": 0, "prevailing_mean": 1, "ar1": 2, "ar1_by_asset": 3, "ridge": 4, "oracle": 10}


def _scope(
    rows: pl.DataFrame, dropped: int, final: pl.DataFrame, fits: pl.DataFrame, horizon: int
) -> dict[str, float | int | None]:
    dates = rows["date"].n_unique()
    # Outcomes that overlap say the same thing again.
    outcomes = max(1, dates // horizon)
    assets = effective_assets(rows.unique(["date", "asset"], keep="first", maintain_order=True))
    return {
        "dates": dates,
        "assets": rows["asset"].n_unique(),
        "effective_assets": assets,
        "rows": rows.height,
        "rows_dropped": dropped,
        "final_fits": final.height,
        "tuning_fits": fits.filter(pl.col("role") != "final").height,
        "outcomes": outcomes,
        "r2_error": r2_standard_error(REFERENCE_R2, dates=outcomes, assets=assets),
    }


def _mean(cells: pl.DataFrame, name: str) -> ClusteredMean | None:
    if name not in cells.columns:
        return None
    known = cells.select("fold", pl.col(name).cast(pl.Float64)).drop_nulls(name)
    return clustered_mean(known, name) if known.height else None


def _spread(name: str, mean: ClusteredMean | None) -> dict[str, float | None]:
    if mean is None:
        return {name: None, f"{name}_low": None, f"{name}_high": None}
    return {name: mean.estimate, f"{name}_low": mean.low, f"{name}_high": mean.high}


def _is_number(level: str) -> bool:
    try:
        float(level)
    except ValueError:
        return False
    return True

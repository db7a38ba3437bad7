"""From the stored forecasts, fits and profiles of a study to its tables and its verdict.

Nothing is trained here and no metric is stored: everything is computed from the parquet files in a
study's folder, in one fixed order, so that the same files give the same report byte for byte.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from fints.evaluation import effective_assets, r2_standard_error
from fints.study.cells import (
    cell_frames,
    cell_metrics,
    final_fits,
    judged_rows,
    optional_table,
    overlapping,
    read_table,
    seed_average,
    with_references,
)
from fints.study.design import DEFAULT_BASELINES, OUTCOMES
from fints.study.differences import contrast_rows, contrast_specs
from fints.study.found import Found, found_by_arms
from fints.study.levels import arm_rows, baseline_rows
from fints.study.selection import Selection, select
from fints.study.summaries import (
    mean_history,
    mean_mixing,
    mean_profiles,
    oracle_bins,
    outcome_counts,
    tried_points,
)
from fints.study.trading import Trading, trade
from fints.study.verdict import MEASURES, Measure, decide, sentence
from fints.words import counted

__all__ = ["REFERENCE_R2", "Analysis", "analyse"]

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
    found: Found
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
    scope: dict[str, Any]
    selection: Selection | None = None
    trading: Trading | None = None

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
    # All of them before any is used: a damaged one is told at once.
    baselines, profiles, mixing, history = (
        optional_table(folder, name) for name in ("baselines", "profiles", "mixing", "history")
    )
    final = final_fits(spec, fits)
    rows, dropped = judged_rows(forecasts, final)
    baselines = overlapping(baselines, rows)
    rows = with_references(rows, baselines)
    frames = cell_frames(forecasts, final, rows)
    cells = cell_metrics(final, frames, horizon)
    averages = {arm["name"]: seed_average(arm["name"], final, frames) for arm in spec["arms"]}
    arms = arm_rows(spec, cells, averages, fits, outcome, horizon)
    contrasts, primary = contrast_rows(spec, cells, averages, outcome, horizon)
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
        within=contrast_specs(spec)[0]["within"],
        measure=MEASURES[outcome],
        smallest_effect=spec["smallest_effect"],
        num_seeds=len(spec["seeds"]),
        claim=claim,
    )
    decision, selection, trading = first["decision"], None, None
    if "matching" in spec:
        selection = select(spec, cells, averages, baselines, outcome=outcome, horizon=horizon)
        decision, verdict = selection.kind, selection.sentence
        trading = trade(spec, averages, baselines, rows)
    scope = _scope(rows, dropped, final, fits, horizon)
    notes = (
        _incomplete_note(spec, final, fits),
        verdict,
        _failure_note(first) if selection is None else _failures(final),
    )
    return Analysis(
        spec=spec,
        measure=MEASURES[outcome],
        claim=claim,
        decision=decision,
        verdict=" ".join(note for note in notes if note),
        found=found_by_arms(arms, claim=claim, scope=scope, simulated=spec["simulated"]),
        cells=cells,
        arms=arms,
        contrasts=contrasts,
        baselines=baseline_rows(baselines, rows, horizon, spec.get("baselines", DEFAULT_BASELINES)),
        outcomes=outcome_counts(spec, final, fits),
        tried=tried_points(spec, fits),
        profiles=mean_profiles(spec, profiles, final),
        mixing=mean_mixing(spec, mixing, final),
        history=mean_history(spec, history, final),
        oracle=oracle_bins(spec, frames, final),
        scope=scope,
        selection=selection,
        trading=trading,
    )


def _incomplete_note(spec: Mapping[str, Any], final: pl.DataFrame, fits: pl.DataFrame) -> str:
    tuning = spec["tuning"]
    planned = len(spec["arms"]) * len(tuning["points"]) * tuning["folds"] * len(tuning["seeds"])
    untuned = planned - fits.filter(pl.col("role") == "tuning").height
    parts = [
        f"{missing} of {counted(total, f'{role} fit')}"
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


def _failures(final: pl.DataFrame) -> str:
    failed = int(final["failed"].sum())
    of = counted(final.height, "final fit")
    return f"({failed} of {of} failed and entered as the zero forecast.)" if failed else ""


def _scope(
    rows: pl.DataFrame, dropped: int, final: pl.DataFrame, fits: pl.DataFrame, horizon: int
) -> dict[str, Any]:
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


def _is_number(level: str) -> bool:
    try:
        float(level)
    except ValueError:
        return False
    return True

"""The rows of a report on differences: one a contrast, paired on (fold, seed), decided by the rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from fints.evaluation import ClusteredMean, diebold_mariano, holm, paired_contrast
from fints.study.cells import to_frame
from fints.study.verdict import decide, describe

__all__ = ["contrast_rows", "contrast_specs"]


def contrast_specs(spec: Mapping[str, Any]) -> list[dict[str, Any]]:
    """All contrasts, the primary first."""
    return [dict(spec["primary"]), *(dict(item) for item in spec["contrasts"])]


def contrast_rows(
    spec: Mapping[str, Any],
    cells: pl.DataFrame,
    averages: Mapping[str, pl.DataFrame | None],
    outcome: str,
    horizon: int,
) -> tuple[pl.DataFrame, ClusteredMean | None]:
    """Return one row a contrast, the primary first, and the primary's paired difference.

    Where levels are matched the verdict is over all of them, and every contrast is a secondary one.
    """
    primaries = 0 if "matching" in spec else 1
    rows: list[dict[str, Any]] = []
    found: list[ClusteredMean | None] = []
    for index, item in enumerate(contrast_specs(spec)):
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
                "primary": index < primaries,
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
    secondary = rows[primaries:]
    adjusted = holm([row["p"] for row in secondary])
    same = holm([decision.equivalence_p for decision in decisions[primaries:]])
    for place, (row, p, equivalence_p) in enumerate(
        zip(secondary, adjusted, same, strict=True), start=primaries
    ):
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

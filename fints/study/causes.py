"""What limits deep networks: from finished fits to penalties, checks and verdicts, cell by cell.

A cell is a scheme at a tier of signal. Its clusters are panels; everything is paired on them. The rule is
`fints.evaluation.causes`, and the numbers it is fed are those of `fints.study.panel_fits`.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from fints.diagnostics import MEDIATORS, ManipulationCheck, manipulation_check, relative_move
from fints.evaluation.causes import CausesVerdict, judge_causes
from fints.study.cells import plain_mean
from fints.study.panel_design import PanelArm, PanelStudy
from fints.study.panel_store import Fits

__all__ = ["CauseCell", "cause_cells", "check_of", "interval", "mean_mediators", "plain_rows"]

# The factors of such a study; every other one is averaged over by none: there is no other.
CELL, DEPTH, RELIEF = ("residual", "tier"), "depth", "relief"
LEAST_CLUSTERS = 8
GAP = "train_test_gap"


@dataclass(frozen=True, kw_only=True)
class CauseCell:
    """What was found in one cell.

    Attributes
    ----------
    scheme, tier
        Which.
    penalty, optimisation, generalisation
        By panel, of the plain fits: test excess of the deep network less that of the reference; its parts.
    relieved, calibrated
        By relief level (``none`` too), the penalty by panel, and that after the best scalar calibration.
    by_depth
        By depth level, the penalty of the plain fits by panel against the same reference.
    share
        Mean share of the oracle by depth level of the plain fits; None where nothing was planted.
    checks
        By cause.
    chance
        Moves of the mediators between the even and the odd panels of the plain deep fits.
    direct
        How far the gradient relief moves the norms of the gradient at the same weights: what it does itself,
        before training on has answered; None without such a relief.
    verdict, verdict_calibrated
        Of the rule; None with fewer than 8 panels.
    panels
        Those that count: every fit of the cell is there.
    diverged
        Fits of the cell that did.
    """

    scheme: str
    tier: str
    penalty: list[float]
    optimisation: list[float]
    generalisation: list[float]
    relieved: dict[str, list[float]]
    calibrated: dict[str, list[float]]
    by_depth: dict[str, list[float]]
    share: dict[str, float | None]
    checks: dict[str, ManipulationCheck]
    chance: dict[str, float]
    direct: float | None
    verdict: CausesVerdict | None
    verdict_calibrated: CausesVerdict | None
    panels: list[int]
    diverged: int

    @property
    def name(self) -> str:
        """The cell in words."""
        return f"{self.scheme}, {self.tier}"


def cause_cells(study: PanelStudy, fits: Fits) -> list[CauseCell]:
    """Return every cell of a study that has a finished panel.

    The study's factors are ``residual, tier, depth, relief``, and its `settings`

    ==============  ==========================================================================
    reference,      levels of ``depth``
    deep
    causes          cause -> the level of ``relief`` that is its relief
    placebos        cause -> the level that is its placebo
    smallest        tier -> the smallest penalty of interest, in the unit of the excess
    ==============  ==========================================================================
    """
    arms = study.arms()
    found = []
    for scheme in study.factors["residual"]:
        for tier in study.factors["tier"]:
            own = {
                (arm.levels[DEPTH], arm.levels[RELIEF]): arm
                for arm in arms
                if [arm.levels[factor] for factor in CELL] == [scheme, tier]
            }
            cell = _cell(study, fits, scheme, tier, own)
            if cell is not None:
                found.append(cell)
    return found


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the mean over panels and its 95 % interval by Student's t; that of one panel is unbounded."""
    from scipy import stats

    number = len(values)
    mean = statistics.fmean(values)
    if number < 2:
        return mean, -math.inf, math.inf
    half = float(stats.t.ppf(0.975, number - 1)) * statistics.stdev(values) / math.sqrt(number)
    return mean, mean - half, mean + half


def _cell(
    study: PanelStudy, fits: Fits, scheme: str, tier: str, arms: Mapping[tuple[str, str], PanelArm]
) -> CauseCell | None:
    settings = study.settings
    deep, reference = settings["deep"], settings["reference"]
    levels = list(study.factors[RELIEF])
    tables = {key: fits.of(arm.name) for key, arm in arms.items()}
    depths = list(study.factors[DEPTH])
    wanted = [tables[depth, level] for depth in depths for level in levels]
    panels = sorted(set.intersection(*(set(table["panel"]) if table.height else set() for table in wanted)))
    if not panels:
        return None

    def column(depth: str, level: str, name: str) -> list[float]:
        table = tables[depth, level].filter(pl.col("panel").is_in(panels)).sort("panel")
        return [float(value) for value in table[name]]

    def penalties(level: str, name: str = "test_excess") -> list[float]:
        return _less(column(deep, level, name), column(reference, level, name))

    relieved = {level: penalties(level) for level in levels}
    calibrated = {level: penalties(level, "calibrated_excess") for level in levels}
    optimisation = penalties("none", "train_excess")
    causes = {cause: level for cause, level in settings["causes"].items() if level in levels}
    placebos = {cause: level for cause, level in settings["placebos"].items() if level in levels}
    means = {level: mean_mediators(fits, tables[deep, level], panels) for level in levels}
    checks = {cause: check_of(means["none"], means[level], cause) for cause, level in causes.items()}
    passed = {cause: check.passed for cause, check in checks.items()}
    halves = [mean_mediators(fits, tables[deep, "none"], panels[start::2]) for start in (0, 1)]
    chance = check_of(halves[0], halves[1], "noise").moves if len(panels) > 1 else {}

    def judged(by: Mapping[str, list[float]]) -> CausesVerdict | None:
        if len(panels) < LEAST_CLUSTERS:
            return None
        return judge_causes(
            by["none"],
            {cause: by[level] for cause, level in causes.items()},
            placebos={cause: by[level] for cause, level in placebos.items()},
            checked=passed,
            smallest=settings["smallest"][tier],
        )

    outcomes = [outcome for table in wanted for outcome in table["outcome"]]
    shares = {depth: plain_mean(tables[depth, "none"]["share_of_oracle"]) for depth in depths}
    plain = column(reference, "none", "test_excess")
    return CauseCell(
        scheme=scheme,
        tier=tier,
        penalty=relieved["none"],
        optimisation=optimisation,
        generalisation=_less(relieved["none"], optimisation),
        relieved=relieved,
        calibrated=calibrated,
        by_depth={depth: _less(column(depth, "none", "test_excess"), plain) for depth in depths},
        share=shares,
        checks=checks,
        chance=chance,
        direct=_direct(fits, tables, deep, causes.get("gradient"), panels),
        verdict=judged(relieved),
        verdict_calibrated=judged(calibrated),
        panels=panels,
        diverged=sum(outcome == "diverged" for outcome in outcomes),
    )


def check_of(
    before: Mapping[str, list[float]], after: Mapping[str, list[float]], cause: str
) -> ManipulationCheck:
    """Compare what was measured at the same places on both sides; fits that diverged were not measured."""
    alike = [name for name in before if name in after and len(before[name]) == len(after[name])]
    lost = sorted({*before, *after} - set(alike))
    if lost or not any(name in alike for name in MEDIATORS[cause]):
        moves = {name: relative_move(before[name], after[name]) for name in alike}
        reason = f"not measured on both sides: {', '.join(lost or MEDIATORS[cause])}"
        return ManipulationCheck(cause=cause, passed=False, moves=moves, reason=reason)
    return manipulation_check(before, after, cause=cause)


def _direct(
    fits: Fits,
    tables: Mapping[tuple[str, str], pl.DataFrame],
    deep: str,
    level: str | None,
    panels: Sequence[int],
) -> float | None:
    if level is None:
        return None
    own = tables[deep, level].filter(pl.col("panel").is_in(list(panels)))
    rows = fits.rows.filter(pl.col("key").is_in(own["key"].to_list()) & (pl.col("step") > 0))
    order = ["key", "step", "layer"]
    norms = [
        rows.filter(pl.col("measure") == name).drop_nulls("value").sort(order)["value"].to_list()
        for name in ("gradient_norm_plain", "gradient_norm")
    ]
    return relative_move(*norms) if norms[0] and len(norms[0]) == len(norms[1]) else None


def mean_mediators(fits: Fits, table: pl.DataFrame, panels: Sequence[int]) -> dict[str, list[float]]:
    """Return each mediator of an arm by moment and sublayer, as a mean over panels; its start is left out."""
    own = table.filter(pl.col("panel").is_in(list(panels)))
    names = [name for names in MEDIATORS.values() for name in names]
    rows = fits.rows.filter(
        pl.col("key").is_in(own["key"].to_list()) & (pl.col("step") > 0) & pl.col("measure").is_in(names)
    )
    means = (
        rows.group_by("measure", "step", "layer", maintain_order=True)
        .agg(pl.col("value").mean())
        .drop_nulls("value")
        .sort("measure", "step", "layer")
    )
    found = {
        name: part["value"].to_list() for (name,), part in means.partition_by("measure", as_dict=True).items()
    }
    gaps = _less(own["test_excess"].to_list(), own["train_excess"].to_list())
    return {str(name): values for name, values in found.items()} | (
        {GAP: [sum(gaps) / len(gaps)]} if gaps else {}
    )


def _less(first: Sequence[float], second: Sequence[float]) -> list[float]:
    return [a - b for a, b in zip(first, second, strict=True)]


def plain_rows(cells: Sequence[CauseCell]) -> list[dict[str, Any]]:
    """Return the penalties of all cells as rows: one a cell, relief and panel."""
    return [
        {
            "scheme": cell.scheme,
            "tier": cell.tier,
            "relief": level,
            "panel": panel,
            "penalty": cell.relieved[level][place],
            "penalty_calibrated": cell.calibrated[level][place],
        }
        for cell in cells
        for level in cell.relieved
        for place, panel in enumerate(cell.panels)
    ]

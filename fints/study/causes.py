"""What limits deep networks: from finished fits to penalties, checks and verdicts, cell by cell.

A cell is a scheme at a tier of signal. Its clusters are panels; everything is paired on them. The rule is
`fints.evaluation.causes`, and the numbers it is fed are those of `fints.study.panel_fits`.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from fints.diagnostics import ManipulationCheck, Move, manipulation_check
from fints.evaluation.causes import CausesVerdict, Share, judge_causes, share_removed
from fints.study.cells import plain_mean
from fints.study.intervals import interval
from fints.study.mediator_moves import measured_move, mediator_moves, strongest_moves
from fints.study.panel_design import PanelArm, PanelStudy
from fints.study.panel_store import Fits
from fints.study.presence import Presence, before_the_penalty, presence, suspects, worse_from

__all__ = ["CauseCell", "aims", "cause_cells", "plain_rows"]

# The factors of such a study; every other one is averaged over by none: there is no other.
CELL, DEPTH, RELIEF = ("residual", "tier"), "depth", "relief"
LEAST_CLUSTERS = 8


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
        By relief level (``none`` too), the penalty by panel, and that after the best scalar calibration. It
        is counted from the better of the two references, the plain and the relieved one: a relief that
        spoils the reference has removed no penalty.
    by_depth
        By depth level, the penalty of the plain fits by panel against the same reference.
    share
        Mean share of the oracle by depth level of the plain fits; None where nothing was planted.
    gained
        By further depth level, the share of the oracle by panel less that at the first; empty where nothing
        was planted.
    checks
        By relief level, those at further doses too: its moves are those between it and the plain networks at
        its own design points, where the study has these fitted (`fints.study.panel_design.Yoked`).
    removed
        By level of relief or placebo, whether its check passed or not, the share of the penalty that it
        removes; empty unless there surely is a penalty.
    before
        The last moment before the penalty shows; None where it never does or was not watched.
    watched
        Whether the distance to the planted signal was: results from before that was done lack it.
    present
        By span of training ("to step N", "all of training") and mediator, the logarithm of the deep network's
        over the reference's, a panel each, without a relief; see `fints.study.presence`.
    worse_from
        By mediator, the first moment at which it surely is worse in the deep network.
    suspects
        By span ("warm-up", "before the penalty") and cause, whether it is there by then; the second, on which
        the verdict rests, only where there is a `before`.
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
    gained: dict[str, list[float]]
    checks: dict[str, ManipulationCheck]
    removed: dict[str, Share]
    before: int | None
    watched: bool
    present: dict[str, dict[str, list[float]]]
    worse_from: dict[str, int]
    suspects: dict[str, dict[str, Presence]]
    direct: Move | None
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
    further         level that is a relief at another dose -> its cause: checked and shown, without a
                    verdict; may be left out
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


def aims(study: PanelStudy) -> dict[str, str]:
    """Return the cause that each relief level of a study aims at, those with a verdict first."""
    settings = study.settings
    found = {level: cause for cause, level in settings["causes"].items()} | settings.get("further", {})
    return {level: cause for level, cause in found.items() if level in study.factors[RELIEF]}


def _cell(
    study: PanelStudy, fits: Fits, scheme: str, tier: str, arms: Mapping[tuple[str, str], PanelArm]
) -> CauseCell | None:
    settings = study.settings
    deep, reference = settings["deep"], settings["reference"]
    levels = list(study.factors[RELIEF])
    tables = {key: fits.of(arm.name) for key, arm in arms.items()}
    depths = list(study.factors[DEPTH])
    plain_at = {(depth, level): _at_its_point(study, fits, arms, depth, level) for depth, level in tables}
    wanted = [*tables.values(), *plain_at.values()]
    panels = sorted(set.intersection(*(set(table["panel"]) if table.height else set() for table in wanted)))
    if not panels:
        return None

    def column(depth: str, level: str, name: str) -> list[float]:
        table = tables[depth, level].filter(pl.col("panel").is_in(panels)).sort("panel")
        return [float(value) for value in table[name]]

    def penalties(level: str, name: str) -> list[float]:
        references = [column(reference, one, name) for one in ("none", level)]
        return _less(column(deep, level, name), min(references, key=statistics.fmean))

    relieved = {level: penalties(level, "test_excess") for level in levels}
    calibrated = {level: penalties(level, "calibrated_excess") for level in levels}
    optimisation = penalties("none", "train_excess")
    reliefs = aims(study)
    causes = {cause: level for cause, level in settings["causes"].items() if level in levels}
    placebos = {cause: level for cause, level in settings["placebos"].items() if level in levels}
    least = settings["smallest"][tier]
    plain_fits = (tables[deep, "none"], tables[reference, "none"])
    before = before_the_penalty(fits, *plain_fits, panels)
    # Where no penalty shows, nothing is before it: the warm-up, in which networks are apt to fall ill.
    warm_up = study.base.training.warmup_steps
    early = before or warm_up
    checks = {}
    for level, cause in reliefs.items():
        # A plain network at the relief's rate falls ill in its own time.
        shown = before_the_penalty(fits, plain_at[deep, level], tables[reference, "none"], panels)
        pairs = {depth: (plain_at[depth, level], tables[depth, level]) for depth in (deep, reference)}
        checks[level] = manipulation_check(
            strongest_moves(fits, *pairs[deep], panels, least=least, until=shown or warm_up),
            mediator_moves(fits, *pairs[reference], panels, least=least),
            cause=cause,
        )
    passed = {cause: checks[level].passed for cause, level in causes.items()}

    spans = {f"to step {until}": until for until in sorted({warm_up, early})} | {"all of training": None}
    present = {span: presence(fits, *plain_fits, panels, until=until) for span, until in spans.items()}

    def there(until: int) -> dict[str, Presence]:
        return suspects(
            present[f"to step {until}"],
            penalty=relieved["none"],
            generalisation=_less(relieved["none"], optimisation),
            optimizer=study.base.training.optimizer,
        )

    by_then = {"warm-up": there(warm_up)} | ({} if before is None else {"before the penalty": there(before)})

    def judged(by: Mapping[str, list[float]]) -> CausesVerdict | None:
        if len(panels) < LEAST_CLUSTERS:
            return None
        return judge_causes(
            by["none"],
            {cause: by[level] for cause, level in causes.items()},
            placebos={cause: by[level] for cause, level in placebos.items()},
            checked=passed,
            # Nothing is before a penalty that never shows; fitted noise is a matter of the end.
            present=by_then.get("before the penalty", {"noise": by_then["warm-up"].get("noise", "unclear")}),
            smallest=least,
        )

    outcomes = [outcome for table in wanted for outcome in table["outcome"]]
    shares = {depth: plain_mean(tables[depth, "none"]["share_of_oracle"]) for depth in depths}
    gained = {}
    if None not in shares.values():
        first, *further = (column(depth, "none", "share_of_oracle") for depth in depths)
        gained = {depth: _less(own, first) for depth, own in zip(depths[1:], further, strict=True)}
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
        gained=gained,
        checks=checks,
        removed=_removed(relieved, [*reliefs, *placebos.values()], least),
        before=before,
        watched=all(_was_watched(fits, table) for table in plain_fits),
        present=present,
        worse_from=worse_from(fits, *plain_fits, panels),
        suspects=by_then,
        direct=_direct(fits, tables, deep, causes.get("gradient"), panels),
        verdict=judged(relieved),
        verdict_calibrated=judged(calibrated),
        panels=panels,
        diverged=sum(outcome == "diverged" for outcome in outcomes),
    )


def _at_its_point(
    study: PanelStudy, fits: Fits, arms: Mapping[tuple[str, str], PanelArm], depth: str, level: str
) -> pl.DataFrame:
    """Return the plain fits of a depth at the design point of a relieved arm.

    That is one for all, or nothing is fitted beside it, unless the study has them yoked.
    """
    plain, relieved = fits.of(arms[depth, "none"].name), fits.of(arms[depth, level].name)
    yoked = study.yoked
    if yoked is None or yoked.factor != RELIEF or level not in yoked.levels or not relieved.height:
        return plain
    point = relieved["point"][0]
    if plain.height and plain["point"][0] == point:
        return plain
    return fits.of(arms[depth, "none"].name, role="yoked").filter(pl.col("point") == point)


def _removed(
    relieved: Mapping[str, Sequence[float]], levels: Sequence[str], least: float
) -> dict[str, Share]:
    plain = relieved["none"]
    if len(plain) < 2 or interval(plain)[1] <= least:
        return {}
    return {level: share_removed(plain, relieved[level]) for level in levels}


def _was_watched(fits: Fits, table: pl.DataFrame) -> bool:
    own = fits.rows.filter(pl.col("key").is_in(table["key"].to_list()))
    return bool((own["measure"] == "signal_distance").any())


def _direct(
    fits: Fits,
    tables: Mapping[tuple[str, str], pl.DataFrame],
    deep: str,
    level: str | None,
    panels: Sequence[int],
) -> Move | None:
    if level is None:
        return None
    own = tables[deep, level]
    return measured_move(fits, (own, "gradient_norm_plain"), (own, "gradient_norm"), panels)


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

"""What a study of stability claims: the gate at each depth, the predictions of its mechanism, and rivals.

Every contrast is a sum of cells on the same panel, judged over panels by `fints.evaluation.predictions`.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fints.diagnostics import learning_rate_range
from fints.evaluation.predictions import Finding, judge_gate, judge_prediction
from fints.study.panel_design import PanelStudy
from fints.study.stability import Key, StableCell

__all__ = ["PREDICTIONS", "Claim", "Gate", "claims_at", "gates", "mechanism", "rivals_at"]

# More of the panels than this with a range that an end of the grid cuts off: widths are bounds.
MOST_OPEN = 0.25
# Shares of a gap: "more than half of it".
HALF = 0.5
# Of the best share: as of `learning_rate_range`.
WITHIN = 0.1
# That the mechanism makes, fitted or not.
PREDICTIONS = 7
# Why a difference of widths says nothing where that around the common best does not agree with it.
OTHERWISE = {
    "more": "wider only around a best share that is worse",
    "less": "narrower only around a best share that is better",
}
# A sum over cells: weight by cell.
Weights = Mapping[Key, float]


@dataclass(frozen=True, kw_only=True)
class Gate:
    """Stage 0 at a depth: the difference of widths by panel, and what it says.

    `common` is the difference of widths around the better of both best shares: a scheme that learns little
    at any rate has a wide range around its own best, and none around that.
    """

    depth: str
    values: list[float]
    common: list[float]
    finding: Finding


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A prediction of the mechanism, or of a rival: what it says, its value by panel, what was found.

    `unit` is "decades", "log" (of a ratio), "R2" or "share" (of the oracle); `smallest` is its margin in it.
    """

    name: str
    text: str
    unit: str
    kind: str
    smallest: float
    values: list[float]
    finding: Finding


def gates(study: PanelStudy, cells: Mapping[Key, StableCell], outcome: str = "width") -> list[Gate]:
    """Return stage 0 at each depth of the study's question that was fitted.

    `outcome` is "width", the primary one, or "share", the secondary.
    """
    settings = study.settings
    depths = [depth for depth in settings["depths"] if _gap(settings, settings["centre"], depth, cells)]
    found = []
    for depth in depths:
        weights = _gap(settings, settings["centre"], depth, cells)
        assert weights is not None
        values = _sum(cells, weights, outcome)
        if values:
            least = settings["smallest"][outcome]
            # Over all depths that were asked about, fitted here or not.
            finding = judge_gate(
                values, smallest=least, gates=len(settings["depths"]), **_bounds(cells, weights, outcome)
            )
            common = _common([cells[key] for key in weights])
            if outcome == "width" and finding.decision in OTHERWISE:
                sign = 1 if finding.decision == "more" else -1
                if sign * statistics.fmean(common) <= 0:
                    reason = OTHERWISE[finding.decision]
                    finding = replace(finding, decision="undecided", reason=reason, more_clusters=None)
            found.append(Gate(depth=depth, values=values, common=common, finding=finding))
    return found


def claims_at(
    study: PanelStudy, cells: Mapping[Key, StableCell], depth: str, outcome: str = "width"
) -> list[Claim]:
    """Return the predictions of the mechanism at a depth whose cells are there, in their order.

    `outcome` is as of `gates`; the last two predictions are of neither.
    """
    settings = study.settings
    pre, post, centre = settings["pre"], settings["post"], settings["centre"]
    least, null = settings["smallest"][outcome], settings["smallest"]["null"]
    unit = "decades" if outcome == "width" else "share"
    gap = _gap(settings, centre, depth, cells)
    wanted: list[tuple[str, str, str, float, float, Weights | None]] = [
        (
            "dose",
            "the gap grows with vol-of-vol",
            "above",
            least,
            least,
            _dose(settings, depth, cells),
        ),
        (
            "no volatility",
            "no gap without vol-of-vol",
            "zero",
            least,
            0.0,
            _gap(settings, _calmest(settings), depth, cells),
        ),
        (
            "oracle sigma",
            "no gap with inputs over their true volatility",
            "zero",
            least,
            0.0,
            _gap(settings, settings["oracle"], depth, cells),
        ),
        (
            "re-scaled once",
            "Pre-Norm re-scaled at the entrance gains more than half of the gap",
            "above",
            0.0,
            HALF * least,
            _half(gap, (settings["rescaled"], centre, depth), (pre, centre, depth), cells),
        ),
        (
            "scale restored",
            "Post-Norm given its scale back loses more than half of the gap",
            "above",
            0.0,
            HALF * least,
            _half(gap, (post, centre, depth), (settings["restored"], centre, depth), cells),
        ),
    ]
    number = PREDICTIONS
    claims = []
    for name, text, kind, smallest, true, contrast in wanted:
        if contrast is None:
            continue
        values, bounds = _sum(cells, contrast, outcome), _bounds(cells, contrast, outcome)
        claims += _claim(name, text, unit, kind, smallest, true, values, number, bounds)
    moved = _moved(settings, cells, depth)
    further = settings["smallest"]["moved"]
    text = "do(x := c x) moves Pre-Norm's forecasts more"
    claims += _claim("do(c)", text, "log", "above", further, further, moved, number, {})
    empty = _difference(
        cells, (post, settings["null"], depth), (pre, settings["null"], depth), "calibrated_excess"
    )
    text = "equally good without signal, but for the variance of forecasts"
    return claims + _claim("no signal", text, "R2", "zero", null, 0.0, empty, number, {})


def rivals_at(study: PanelStudy, cells: Mapping[Key, StableCell], depth: str) -> list[Claim]:
    """Return what rival explanations say at a depth, of the cells that are there, exploratory.

    All are stated as the mechanism would have them.
    """
    settings = study.settings
    pre, post, centre = settings["pre"], settings["post"], settings["centre"]
    width, null = settings["smallest"]["width"], settings["smallest"]["null"]
    gap = _gap(settings, centre, depth, cells)
    claims = []
    for case, text in (
        ("student_t", "heavy tails without volatility clusters give no gap"),
        ("long_warmup", "the gap is not that of a longer warm-up"),
        ("no_warmup", "the gap is not that of no warm-up"),
        ("conditional", "the gap is that of a signal matched conditional"),
        ("raw", "the gap is that of raw inputs"),
        ("ewma", "the gap is that of inputs over an estimated volatility"),
        ("instance", "the gap is that of inputs scaled by window"),
        ("target_scaled", "the gap is that of a target over its volatility"),
        ("target_ranked", "the gap is that of a cross-sectional target"),
    ):
        own = _gap(settings, case, depth, cells)
        if own is None or gap is None:
            continue
        weights = own if case == "student_t" else _added((1.0, gap), (-1.0, own))
        values, bounds = _sum(cells, weights), _bounds(cells, weights)
        claims += _claim(case, text, "decades", "zero", width, 0.0, values, 1, bounds)
    shock, shallow = _gap(settings, "shock", depth, cells), _gap(settings, centre, "2", cells)
    frozen = _half(gap, (post, centre, depth), ("frozen_scale_post_norm", centre, depth), cells)
    more: list[tuple[str, str, str, float, float, Weights | None]] = []
    if gap is not None and shock is not None:
        text = "a shock of volatility at test time widens the gap"
        more.append(("shock", text, "above", width, width, _added((1.0, shock), (-1.0, gap))))
    if gap is not None and shallow is not None and depth != "2":
        text = "the gap is that of 2 blocks"
        more.append(("shallow", text, "zero", width, 0.0, _added((1.0, gap), (-1.0, shallow))))
    text = "Post-Norm of frozen scale loses more than half of the gap"
    more.append(("frozen scale", text, "above", 0.0, HALF * width, frozen))
    for name, text, kind, smallest, true, contrast in more:
        if contrast is not None:
            values, bounds = _sum(cells, contrast), _bounds(cells, contrast)
            claims += _claim(name, text, "decades", kind, smallest, true, values, 1, bounds)
    sides = [
        _difference(cells, (pre, centre, depth), (post, centre, depth), name)
        for name in ("test_excess", "calibrated_excess")
    ]
    hidden = [plain - calibrated for plain, calibrated in zip(*sides, strict=True)]
    text = "what Post-Norm gains is not what any forecast gains by shrinking"
    claims += _claim("shrinkage", text, "R2", "zero", null, 0.0, hidden, 1, {})
    loud, calm = (
        _difference(cells, (post, centre, depth), (pre, centre, depth), name)
        for name in ("volatile_share", "calm_share")
    )
    where = [one - other for one, other in zip(loud, calm, strict=True)]
    text = "Post-Norm gains more of the oracle in volatile windows than in calm ones"
    least = settings["smallest"]["share"]
    return claims + _claim("volatile windows", text, "share", "above", least, least, where, 1, {})


def mechanism(gate: Gate | None, claims: Sequence[Claim]) -> str:
    """Return "supported", "refuted", "undecided" or "void" of the predictions at a depth."""
    if gate is None or gate.finding.decision == "undecided":
        return "undecided"
    if gate.finding.decision != "more":
        return "void"
    decisions = [claim.finding.decision for claim in claims]
    if "failed" in decisions:
        return "refuted"
    # All of them, so that a depth at which a few were fitted supports nothing.
    return "supported" if decisions.count("held") == PREDICTIONS else "undecided"


def _gap(
    settings: Mapping[str, Any], case: str, depth: str, cells: Mapping[Key, StableCell]
) -> dict[Key, float] | None:
    """Return Post-Norm's width less Pre-Norm's in a case; None where a cell is not there."""
    weights = {(settings["post"], case, depth): 1.0, (settings["pre"], case, depth): -1.0}
    return weights if all(key in cells for key in weights) else None


def _common(pair: Sequence[StableCell]) -> list[float]:
    """Return the difference of two cells' widths, by panel, around the better of their two best shares."""
    panels = sorted(set.intersection(*(set(cell.shares) for cell in pair)))
    found = []
    for panel in panels:
        level = (1 - WITHIN) * max(max(cell.shares[panel].values()) for cell in pair)
        widths = []
        for cell in pair:
            best = max(cell.shares[panel].values())
            own = None
            if best >= level > 0:
                own = learning_rate_range(cell.shares[panel], within=1 - level / best)
            widths.append(0.0 if own is None else own.decades)
        found.append(widths[0] - widths[1])
    return found


def _dose(
    settings: Mapping[str, Any], depth: str, cells: Mapping[Key, StableCell]
) -> dict[Key, float] | None:
    """Return the least-squares slope of the gap on the dose, times the range of doses."""
    doses = {case: dose for case, dose in settings["doses"].items() if _gap(settings, case, depth, cells)}
    if len(doses) < len(settings["doses"]):
        return None
    middle = statistics.fmean(doses.values())
    size = sum((dose - middle) ** 2 for dose in doses.values())
    reach = max(doses.values()) - min(doses.values())
    parts = []
    for case, dose in doses.items():
        gap = _gap(settings, case, depth, cells)
        assert gap is not None
        parts.append(((dose - middle) / size * reach, gap))
    return _added(*parts)


def _calmest(settings: Mapping[str, Any]) -> str:
    doses: Mapping[str, float] = settings["doses"]
    return min(doses, key=lambda case: doses[case])


def _half(
    gap: Weights | None, more: Key, less: Key, cells: Mapping[Key, StableCell]
) -> dict[Key, float] | None:
    """Return the width of `more` less that of `less`, less half of the gap."""
    if gap is None or more not in cells or less not in cells:
        return None
    return _added((1.0, {more: 1.0}), (-1.0, {less: 1.0}), (-HALF, gap))


def _added(*parts: tuple[float, Weights]) -> dict[Key, float]:
    total: dict[Key, float] = {}
    for factor, weights in parts:
        for key, weight in weights.items():
            total[key] = total.get(key, 0.0) + factor * weight
    return {key: weight for key, weight in total.items() if weight}


def _sum(cells: Mapping[Key, StableCell], weights: Weights, outcome: str = "width") -> list[float]:
    """Return a weighted sum of widths, or of shares, by panel that all its cells have."""
    widths = {key: cells[key].outcome(outcome) for key in weights}
    panels = sorted(set.intersection(*(set(own) for own in widths.values())))
    return [sum(weight * widths[key][panel] for key, weight in weights.items()) for panel in panels]


def _bounds(cells: Mapping[Key, StableCell], weights: Weights, outcome: str = "width") -> dict[str, bool]:
    """Return whether a sum of widths is a lower, or an upper, bound in too many panels."""
    if outcome != "width":
        return {}
    return {
        name: any(weight * sign > 0 and cells[key].open_ends() > MOST_OPEN for key, weight in weights.items())
        for name, sign in (("at_least", 1), ("at_most", -1))
    }


def _moved(settings: Mapping[str, Any], cells: Mapping[Key, StableCell], depth: str) -> list[float]:
    """Return by panel the mean logarithm of how far Pre-Norm's forecasts move over Post-Norm's."""
    keys = [(settings[name], settings["centre"], depth) for name in ("pre", "post")]
    if any(key not in cells for key in keys):
        return []
    pre, post = (cells[key] for key in keys)
    names = sorted({name for row in pre.rows for name in row if name.startswith("moved_at_")})
    by_name = [(pre.read(name), post.read(name)) for name in names]
    panels = sorted(set(pre.chosen) & set(post.chosen))
    found = []
    for panel in panels:
        pairs = [(one.get(panel), other.get(panel)) for one, other in by_name]
        logs = [math.log(one / other) for one, other in pairs if one and other]
        if logs and len(logs) == len(names):
            found.append(statistics.fmean(logs))
    return found


def _difference(cells: Mapping[Key, StableCell], one: Key, other: Key, name: str) -> list[float]:
    """Return a column of one cell less that of another by panel, each at its chosen rate."""
    if one not in cells or other not in cells:
        return []
    first, second = cells[one].read(name), cells[other].read(name)
    return [first[panel] - second[panel] for panel in sorted(set(first) & set(second))]


def _claim(
    name: str,
    text: str,
    unit: str,
    kind: Any,
    smallest: float,
    true: float,
    values: list[float],
    number: int,
    bounds: Mapping[str, bool],
) -> list[Claim]:
    """Return a claim with what was found of it, or nothing where no panel is whole."""
    if not values:
        return []
    finding = judge_prediction(
        values, kind=kind, smallest=smallest, true=true, predictions=number, **dict(bounds)
    )
    return [
        Claim(name=name, text=text, unit=unit, kind=kind, smallest=smallest, values=values, finding=finding)
    ]

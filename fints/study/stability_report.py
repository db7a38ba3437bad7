"""The answer of a study of stability: stage 0, the predictions of the mechanism, rivals, and every cell."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fints.evaluation.predictions import Finding
from fints.study.document import Block, Heading, Picture, Table, Text
from fints.study.panel_design import Answer, PanelStudy
from fints.study.panel_store import Fits
from fints.study.stability import Key, StableCell, mean_of, stable_cells
from fints.study.stability_claims import (
    PREDICTIONS,
    Claim,
    Gate,
    claims_at,
    gates,
    mechanism,
    rivals_at,
)
from fints.study.stability_figures import draw_stability
from fints.study.stability_power import power_of_stability
from fints.study.stability_rows import claim_rows, gate_rows, width_rows

__all__ = ["answer_stability", "power_of_stability"]

GATE_WORDS = {
    "width": {
        "more": "more stable",
        "less": "less stable",
        "same": "as stable, to within the smallest difference of interest",
        "undecided": "undecided",
    },
    "share": {
        "more": "better",
        "less": "worse",
        "same": "as good, to within the smallest difference of interest",
        "undecided": "undecided",
    },
}
GATE_UNITS = {"width": "decades", "share": "share"}
SECONDARY = (
    "How stably a scheme trains and how well it ends are two questions: a narrow range may lie around a "
    "much better best. So the gate and the predictions are read once more of the share of oracle, every "
    "arm at the rate of its lowest validation loss on the panel. Secondary: at its own 5 %, not adjusted "
    "for the primary."
)
UNITS = {
    "decades": "decades",
    "share": "of the oracle",
    "log": "log ratio",
    "R2": "of the target's mean square",
}
RULE = (
    "The rule, fixed beforehand: stage 0 is at 5 % over all depths that are asked about; the mechanism is "
    "asked only where Post-Norm is more stable, elsewhere it is void whatever its numbers. A prediction of "
    "growth holds if its 95 % interval lies above 0 and not below the margin; one of nothing if two "
    "one-sided tests put it within the margin. All must hold; one that fails (at 5 % over their number) "
    "refutes. Where more than a quarter of the panels have a range that the grid cuts off, no claim is made "
    "that the truth beyond could overturn."
)


def answer_stability(study: PanelStudy, fits: Fits, folder: Path) -> Answer:
    """Draw the figures of a study of stability and return its answer."""
    cells = stable_cells(study, fits)
    if not cells:
        return Answer(sentence="No cell has a finished panel yet.", blocks=[], tables={})
    first = gates(study, cells)
    fitted = {cell.depth for cell in cells.values()}
    depths = [depth for depth in study.settings["depths"] if depth in fitted]
    claims = {depth: claims_at(study, cells, depth) for depth in depths}
    second = gates(study, cells, "share")
    shares = {depth: claims_at(study, cells, depth, "share") for depth in depths}
    rivals = {depth: rivals_at(study, cells, depth) for depth in depths}
    figures = {figure.name: figure for figure in draw_stability(study, cells, first, claims, folder)}

    def shown(*names: str) -> list[Block]:
        found = [figures[name] for name in names if name in figures]
        return [Picture(path=f"figures/{one.name}.svg", caption=one.caption, alt=one.alt) for one in found]

    blocks: list[Block] = [
        *shown("rates"),
        Heading(text="Stage 0: is Post-Norm more stable at all?"),
        *_gates(study, first, "width"),
        Text(text=RULE),
        *_secondary(study, cells, first),
        Heading(text="What the mechanism predicts"),
    ]
    for depth in depths:
        if claims[depth]:
            blocks += _claims(first, claims[depth], depth, "width")
    blocks += [
        Heading(text="Secondary: the same of the share of oracle at a tuned rate"),
        Text(text=SECONDARY),
    ]
    blocks += _gates(study, second, "share")
    for depth in depths:
        if shares[depth]:
            blocks += _claims(second, shares[depth], depth, "share")
    blocks += [*shown("predictions", "dose"), Heading(text="Rivals and where it gains, exploratory")]
    for depth in depths:
        if rivals[depth]:
            blocks.append(_table(rivals[depth], depth))
    blocks += [Heading(text="Every cell"), *_cells(cells), *shown("widths")]
    return Answer(
        sentence=_sentence(first, claims, "width") + _secondly(second, shares),
        blocks=blocks,
        tables={
            "claims": gate_rows("", first, claims)
            + gate_rows("secondary ", second, shares)
            + claim_rows("rival", rivals),
            "widths": width_rows(cells),
        },
        undecided=_undecided(first, claims),
    )


def _undecided(first: Sequence[Gate], claims: Mapping[str, Sequence[Claim]]) -> dict[str, int | None]:
    """Return the open verdicts of the primary outcome: of predictions, where they are asked at all."""
    found: dict[str, int | None] = {}
    for gate in first:
        if gate.finding.decision == "undecided":
            found[f"stage 0 at {gate.depth} blocks"] = gate.finding.more_clusters
        if mechanism(gate, claims.get(gate.depth, [])) == "undecided":
            for claim in claims.get(gate.depth, []):
                if claim.finding.decision == "undecided":
                    found[f"{claim.name}, at {gate.depth} blocks"] = claim.finding.more_clusters
    return found


def _sentence(first: Sequence[Gate], claims: Mapping[str, Sequence[Claim]], outcome: str) -> str:
    if not first:
        return "Stage 0 has no finished panel yet."
    told = []
    for gate in first:
        found, depth = gate.finding, gate.depth
        decision = GATE_WORDS[outcome][found.decision]
        said = f"At {depth} blocks Post-Norm is {decision}: {_number(found, GATE_UNITS[outcome])}"
        if found.decision == "undecided":
            said += f"; {_why(found)}"
        own = claims.get(depth, [])
        verdict = mechanism(gate, own)
        if found.decision in ("less", "same"):
            said += ", so its re-scaling of variance explains nothing here (void)"
        elif verdict != "undecided":
            said += f", and the mechanism is {verdict}"
        else:
            said += f"; the mechanism is undecided ({_counts(own)}"
            said += f", {PREDICTIONS - len(own)} not fitted)" if len(own) < PREDICTIONS else ")"
        told.append(said + ".")
    return " ".join(told)


def _secondly(second: Sequence[Gate], shares: Mapping[str, Sequence[Claim]]) -> str:
    return (
        f" Secondary, share of oracle at a tuned rate: {_sentence(second, shares, 'share')}" if second else ""
    )


def _counts(claims: Sequence[Claim]) -> str:
    decisions = [claim.finding.decision for claim in claims]
    return ", ".join(f"{decisions.count(one)} {one}" for one in ("held", "failed", "undecided"))


def _gates(study: PanelStudy, first: Sequence[Gate], outcome: str) -> list[Block]:
    least = study.settings["smallest"][outcome]
    rows = tuple(
        (
            gate.depth,
            _number(gate.finding, GATE_UNITS[outcome]),
            _mean_interval(gate.common) if outcome == "width" else "–",
            f"{least:g}",
            _spread(gate.finding),
            f"{gate.finding.power:.0%}",
            GATE_WORDS[outcome][gate.finding.decision],
            _more(gate.finding),
            gate.finding.reason or "–",
        )
        for gate in first
    )
    note = {
        "width": "Width of Post-Norm's range of learning rates less that of Pre-Norm's, in decades (0.3: a "
        "factor 2), mean and 95 % interval over panels; the same around the better of both best shares, "
        "since a scheme that learns little at any rate has a wide range around its own best, and one that "
        "learns much may have a narrow one: where the two disagree in sign, nothing is claimed.",
        "share": "Share of oracle of Post-Norm less that of Pre-Norm, mean and 95 % interval over panels.",
    }[outcome]
    return [
        Table(
            columns=(
                "blocks",
                "difference",
                "around the common best",
                "smallest",
                "sd",
                "power",
                "verdict",
                "panels to decide",
                "why",
            ),
            rows=rows,
            left=("verdict", "why"),
            note=f"{note} Spread over panels, and the chance to find the smallest at that spread.",
        )
    ]


def _secondary(study: PanelStudy, cells: Mapping[Key, StableCell], first: Sequence[Gate]) -> list[Block]:
    """Return the secondary measures of stability: differences by panel, Post-Norm less Pre-Norm."""
    settings, rows = study.settings, []
    for gate in first:
        post, pre = (cells[settings[name], settings["centre"], gate.depth] for name in ("post", "pre"))
        measured = {
            "share of diverged fits": [cell.over_rates(_diverged) for cell in (post, pre)],
            "loss spikes in 1,000 steps": [cell.over_rates(_spikes) for cell in (post, pre)],
            "share of oracle, worst block": [cell.read("worst_block_share") for cell in (post, pre)],
            "share of oracle": [cell.read("share_of_oracle") for cell in (post, pre)],
        }
        for name, (one, other) in measured.items():
            shared = sorted(set(one) & set(other))
            values = [one[panel] - other[panel] for panel in shared]
            rows.append((gate.depth, name, _mean_interval(values), str(len(values))))
    return [
        Table(
            columns=("blocks", "secondary", "difference", "panels"),
            rows=tuple(rows),
            left=("secondary",),
            note="Post-Norm less Pre-Norm at the centre, mean and 95 % interval over panels, not adjusted. "
            "The first two over all rates, shares at the rate of the lowest validation loss.",
        )
    ]


def _diverged(row: dict[str, Any]) -> float:
    return float(row["outcome"] == "diverged")


def _spikes(row: dict[str, Any]) -> float | None:
    found: float | None = row["spikes_per_thousand"]
    return found


def _claims(first: Sequence[Gate], own: Sequence[Claim], depth: str, outcome: str) -> list[Block]:
    gate = next((one for one in first if one.depth == depth), None)
    verdict = mechanism(gate, own)
    word = GATE_WORDS[outcome]["more"]
    told = {
        "supported": "all predictions held: the mechanism is supported.",
        "refuted": "a prediction failed: the mechanism is refuted.",
        "void": f"Post-Norm is not {word}, so there is nothing to explain. The mechanism is void; what its "
        "predictions come to is shown, and carries no verdict.",
        "undecided": "undecided.",
    }[verdict]
    fitted = f"{len(own)} of {PREDICTIONS} predictions were fitted: {_counts(own)}."
    return [Text(text=f"At {depth} blocks {told} {fitted}"), _table(own, depth)]


def _table(claims: Sequence[Claim], depth: str) -> Table:
    rows = tuple(
        (
            claim.name,
            claim.text,
            _number(claim.finding, claim.unit),
            ("± " if claim.kind == "zero" else "") + f"{claim.smallest:g}",
            _spread(claim.finding),
            f"{claim.finding.power:.0%}",
            claim.finding.decision,
            _more(claim.finding),
            claim.finding.reason or "–",
        )
        for claim in claims
    )
    return Table(
        columns=("", "says", "found", "margin", "sd", "power", "verdict", "panels to decide", "why"),
        rows=rows,
        left=("", "says", "verdict", "why"),
        note=f"At {depth} blocks. Widths and gaps in decades, do(c) in logarithms, volatile windows in "
        "shares of the oracle, no signal and shrinkage in the target's mean square. Power: the chance that "
        "it is found to hold if it is true as written (a gap of the smallest size), at this spread. Panels "
        "to decide: how many more at these estimates.",
    )


def _cells(cells: Mapping[Key, StableCell]) -> list[Block]:
    rows = []
    for cell in cells.values():
        chosen = cell.chosen.values()
        rows.append(
            (
                cell.name,
                _mean_interval(list(cell.widths().values())),
                f"{cell.open_ends():.0%}",
                *(
                    _plain(mean_of(row.get(name) for row in chosen))
                    for name in (
                        "share_of_oracle",
                        "worst_block_share",
                        "calm_share",
                        "volatile_share",
                        "forecast_variance_ratio",
                    )
                ),
                f"{cell.failed():.0%}",
                _plain(cell.spikes()),
                _plain(cell.seed_spread()),
                _plain(mean_of(row.get("input_share") for row in chosen)),
                *(
                    _plain(mean_of(row.get(name) for row in chosen))
                    for name in ("moved_at_0.25", "moved_at_4")
                ),
                str(len(cell.chosen)),
            )
        )
    return [
        Table(
            columns=(
                "cell",
                "width",
                "cut off",
                "share of oracle",
                "worst block",
                "calm",
                "volatile",
                "variance",
                "diverged",
                "spikes",
                "sd of seeds",
                "input's share",
                "moved at 1/4",
                "moved at 4",
                "panels",
            ),
            rows=tuple(rows),
            left=("cell",),
            note="Width in decades with its 95 % interval; cut off: panels whose range an end of the grid "
            "ends. Shares of oracle at the rate of the lowest validation loss: on all test days, the worst "
            "of five blocks of them, the quarter of windows of least and of most volatility. Variance: of "
            "forecasts over the oracle's. Diverged and loss spikes in 1,000 steps over all rates. Input's "
            "share: of the embedded stream, from the features whose scale is asked about. Moved: by do(x := "
            "c x), over the forecasts' own size.",
        )
    ]


def _why(found: Finding) -> str:
    if found.reason:
        return found.reason
    if found.more_clusters is None:
        return "at these estimates no number of panels would decide"
    return f"about {found.more_clusters} more panels would decide at these estimates"


def _more(found: Finding) -> str:
    return "–" if found.more_clusters is None else str(found.more_clusters)


def _spread(found: Finding) -> str:
    return "–" if found.sd is None else f"{found.sd:.2g}"


def _number(found: Finding, unit: str) -> str:
    digits = 4 if unit == "R2" else 2
    told = f"{found.estimate:+.{digits}f}"
    if math.isfinite(found.low):
        told += f" [{found.low:+.{digits}f}, {found.high:+.{digits}f}]"
    return f"{told} {UNITS[unit]}" if unit in ("decades", "share") else told


def _mean_interval(values: Sequence[float]) -> str:
    if not values:
        return "–"
    from fints.study.intervals import interval

    mean, low, high = interval(values)
    return f"{mean:.2f}" if len(values) < 2 else f"{mean:.2f} [{low:.2f}, {high:.2f}]"


def _plain(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"

"""The tables of a study of stability: its verdicts and widths as rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fints.evaluation.predictions import Finding
from fints.study.stability import Key, StableCell
from fints.study.stability_claims import Claim, Gate

__all__ = ["claim_rows", "gate_rows", "width_rows"]


def gate_rows(
    rank: str, first: Sequence[Gate], claims: Mapping[str, Sequence[Claim]]
) -> list[dict[str, object]]:
    """Return a row a gate and a prediction of an outcome, whose kind begins with `rank`."""
    found: list[dict[str, object]] = [
        {"kind": f"{rank}gate", "depth": gate.depth, "name": "stage 0", **_numbers(gate.finding)}
        for gate in first
    ]
    return found + claim_rows(f"{rank}prediction", claims)


def claim_rows(kind: str, claims: Mapping[str, Sequence[Claim]]) -> list[dict[str, object]]:
    """Return a row a claim, by depth."""
    return [
        {"kind": kind, "depth": depth, "name": claim.name, **_numbers(claim.finding)}
        for depth, own in claims.items()
        for claim in own
    ]


def _numbers(found: Finding) -> dict[str, object]:
    return {
        "decision": found.decision,
        "estimate": found.estimate,
        "low": found.low,
        "high": found.high,
        "sd": found.sd,
        "clusters": found.clusters,
        "more_clusters": found.more_clusters,
        "power": found.power,
    }


def width_rows(cells: Mapping[Key, StableCell]) -> list[dict[str, object]]:
    """Return a row a cell and panel: its width, and whether an end of the grid cuts it off."""
    return [
        {
            "scheme": cell.scheme,
            "case": cell.case,
            "depth": cell.depth,
            "panel": panel,
            "width": width,
            "low_open": found is not None and found.low_open,
            "high_open": found is not None and found.high_open,
        }
        for cell in cells.values()
        for (panel, width), found in zip(cell.widths().items(), cell.ranges.values(), strict=True)
    ]

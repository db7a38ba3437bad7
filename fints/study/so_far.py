"""What a report is made from: the tables of a run that has ended, or tables of the fits that are there."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fints.study.assemble import STAMP, assemble, table_spec
from fints.study.fits import Cell
from fints.study.planned import Planned
from fints.study.restore import Kept
from fints.study.store import StudyFolder, write_json
from fints.words import counted

if TYPE_CHECKING:
    from fints.study.plan import Plan
    from fints.study.published_fits import Committed

__all__ = ["Ground", "ground_of"]

# What a study file does not say: the same design gives the same fits whatever these are.
CIRCUMSTANCES = ("sources", "torch", "device", "commit", "command", "restored")


@dataclass(frozen=True, kw_only=True)
class Ground:
    """What a report is made from.

    `tables` is the folder that holds them, None before a final fit is there; `cells` are all that is there,
    and `spec` the study as the run that counts has told it.
    """

    tables: Path | None
    cells: list[Cell]
    spec: Mapping[str, Any]

    def left_out(self) -> list[str]:
        """Return a line where the tables hold fits that are no longer there, so that no other table would."""
        known = set() if self.tables is None else _keys(self.tables)
        gone = len(known - {cell.key for cell in self.cells})
        return [f"left out: {counted(gone, 'fit')} of the report, no longer in the folder"] if gone else []


def ground_of(kept: Kept) -> Ground:
    """Restore committed fits, and make tables where those of the last run lack a fit that is there.

    Once every fit is there the tables stand in the study's folder, before that apart from it, so that a
    run that goes on there is not disturbed.

    Raises
    ------
    ValueError
        If the last run's tables are not as it wrote them, or a run holds the folder that is about to write
        them.
    DamagedFit
        If a fit is not as it was written.
    """
    plan, folder = kept.plan, kept.folder
    told = _told_here(plan, folder)
    spec = told or _told_there(plan, kept.committed)
    # The fits of a run have the keys that it gave them, which those of the code here may not be.
    kept = dataclasses.replace(kept, spec=told)
    while kept.restore(cells := kept.cells()):
        pass
    ended = _ended(folder.path, cells, spec={} if told else spec)
    if ended:
        return Ground(tables=folder.path, cells=cells, spec=ended)
    if not any(cell.role == "final" for cell in cells):
        return Ground(tables=None, cells=cells, spec=spec)
    if len(cells) < Planned(spec).total + len(plan.baseline_cells()):
        folder.so_far.mkdir(exist_ok=True)
        assemble(folder.path, cells, spec, into=folder.so_far)
        return Ground(tables=folder.so_far, cells=cells, spec=spec)
    with folder.held():
        if not told:
            write_json(folder.path / "study.json", {**spec, "restored": True})
        assemble(folder.path, cells, spec)
    return Ground(tables=folder.path, cells=cells, spec=spec)


def _told_here(plan: Plan, folder: StudyFolder) -> dict[str, Any]:
    """Return the study as the run told it that last began in the folder, on this panel; empty without one."""
    try:
        told = dict(json.loads((folder.path / "study.json").read_text(encoding="utf-8")))
        panel = told["checksum"], told["sealed_from"]
    except (OSError, ValueError, TypeError, LookupError):
        return {}
    until = plan.dataset.until
    same = panel == (plan.dataset.checksum, None if until is None else until.isoformat())
    return told if same and "restored" not in told else {}


def _told_there(plan: Plan, committed: Committed) -> dict[str, Any]:
    """Return the committed study if it is the one that is planned, else the plan's own."""
    own = json.loads(json.dumps({**plan.spec(), "commit": None, "command": ""}))
    return dict(committed.spec) if _declared(committed.spec) == _declared(own) else own


def _declared(spec: Mapping[str, Any]) -> dict[str, Any]:
    declared = {name: value for name, value in spec.items() if name not in CIRCUMSTANCES}
    # The same panel may lie at another path.
    return declared | {"dataset": {**declared.get("dataset", {}), "reference": None}}


def _ended(folder: Path, cells: list[Cell], *, spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the study as the run told it that made the tables, if they hold all of `cells`; else nothing.

    A `spec` that is given must be what it told.
    """
    if not (folder / STAMP).is_file():
        return {}
    told = table_spec(folder)
    told.pop("earlier", None)
    whole = _keys(folder) >= {cell.key for cell in cells} and (not spec or told == spec)
    return told if whole else {}


def _keys(folder: Path) -> set[str]:
    import polars as pl

    return set(pl.read_parquet(folder / "timing.parquet", columns=["key"])["key"])

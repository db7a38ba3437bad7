"""Committed fits as folders again, under the key that each has today; and which fits of a study are there."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fints.study.fits import Cell, read_result
from fints.study.origin import ORIGIN, Made, origin_of
from fints.study.plan import loss_or_infinity
from fints.study.planned import Planned, choose
from fints.study.published_fits import FORECASTS, NOTHING, SHARED, Committed
from fints.study.store import StudyFolder, file_text, finish_folder
from fints.words import counted

if TYPE_CHECKING:
    import polars as pl

    from fints.study.plan import Plan

__all__ = ["Kept", "drop_restored", "reached", "restored_keys"]

# Folders on their way into `fits` or out of it.
GROWING = ".restored-"


@dataclass(frozen=True)
class Kept:
    """The fits of a plan that are there: in its folder, or committed and to be restored into it.

    `spec` is that of the run whose cells are meant, where it is not the plan's own. Fits whose keys are
    `ignored` count as not there.
    """

    plan: Plan
    folder: StudyFolder
    committed: Committed = NOTHING
    spec: Mapping[str, Any] = field(default_factory=dict)
    ignored: frozenset[str] = frozenset()

    def cells(self) -> list[Cell]:
        """Return the cells of arms and baselines that are there, an arm's final ones once it is tuned.

        What is damaged is not there: a run makes it again.
        """
        whole = self.folder.whole() - self.ignored

        def loss(cell: Cell) -> float | None:
            if cell.key in whole:
                return loss_or_infinity(read_result(self.folder.fit(cell.key)))
            return self.committed.loss(self.plan.design(cell))

        return reached(self.spec or self.plan.spec(), self.plan.baseline_cells(), loss)

    def num_committed(self, cells: Iterable[Cell]) -> int:
        """Return how many fits of `cells` were or would be restored; baselines are not counted."""
        fits = [self.folder.fit(cell.key) for cell in cells if cell.role != "baseline"]
        return sum(not fit.is_dir() or (fit / ORIGIN).is_file() for fit in fits)

    def restore_all(self, say: Callable[[str], None]) -> None:
        """Restore all that is committed and not in the folder, and say how much that was."""
        if not self.committed.fits:
            return
        cells: list[Cell] = []
        # What is restored may tell of another design point that final fits are at.
        while fresh := self.restore(self.cells()):
            cells += fresh
        fits = sum(cell.role != "baseline" for cell in cells)
        if cells:
            with_baselines = f", and {len(cells) - fits} of baselines" if fits < len(cells) else ""
            say(f"{counted(fits, 'committed fit')} restored{with_baselines}")

    def restore(self, cells: Iterable[Cell]) -> list[Cell]:
        """Let those of `cells` that are committed and not in the folder appear there; return them.

        One that was restored from an earlier commit of another fit makes room for it.
        """
        if not self.committed.fits:
            return []
        wanted: dict[str, tuple[Cell, str]] = {}
        for cell in cells:
            made = self.committed.made(design := self.plan.design(cell))
            if made is None:
                continue
            place = self.folder.fit(cell.key)
            here = origin_of(place) if place.is_dir() else None
            if not place.is_dir() or (here is not None and here != made):
                wanted[cell.key] = cell, design
        if not wanted:
            return []
        self.folder.fits.mkdir(parents=True, exist_ok=True)
        # Not under `tmp`, which a run that begins would empty.
        growing = Path(tempfile.mkdtemp(prefix=GROWING, dir=self.folder.path))
        try:
            for cell, design in wanted.values():
                place = self.folder.fit(cell.key)
                if place.is_dir():
                    place.rename(growing / f"{cell.key}-old")
                fresh = growing / cell.key
                fresh.mkdir()
                _write(cell, self.committed.fits[design], self._tables, fresh)
                finish_folder(fresh, place)
        finally:
            shutil.rmtree(growing, ignore_errors=True)
        return [cell for cell, _ in wanted.values()]

    @cached_property
    def _tables(self) -> dict[str, dict[str, pl.DataFrame]]:
        return self.committed.tables()


def reached(
    spec: Mapping[str, Any], baselines: Sequence[Cell], loss: Callable[[Cell], float | None]
) -> list[Cell]:
    """Return the cells of a study of which `loss` knows one; an arm's final ones once it is tuned."""
    planned = Planned(spec)
    found = [cell for cell in baselines if loss(cell) is not None]
    for arm in planned.arms:
        tuning = planned.tuning_cells(arm)
        losses = {cell.key: known for cell in tuning if (known := loss(cell)) is not None}
        found += [cell for cell in tuning if cell.key in losses]
        if len(losses) == len({cell.key for cell in tuning}):
            final = planned.final_cells(arm, choose(tuning, losses))
            found += [cell for cell in final if loss(cell) is not None]
    return found


def restored_keys(folder: StudyFolder) -> frozenset[str]:
    """Return the keys of the fits that were restored."""
    return frozenset(path.parent.name for path in folder.fits.glob(f"*/{ORIGIN}"))


def drop_restored(folder: StudyFolder) -> int:
    """Remove every restored fit, so that it is made here; return how many those were."""
    keys = restored_keys(folder)
    for key in keys:
        # In one step, as it came: what is half removed would be taken for damaged.
        gone = Path(tempfile.mkdtemp(prefix=GROWING, dir=folder.path))
        folder.fit(key).rename(gone / key)
        shutil.rmtree(gone)
    return len(keys)


def _write(
    cell: Cell, row: Mapping[str, Any], tables: Mapping[str, Mapping[str, pl.DataFrame]], fresh: Path
) -> None:
    """Write the files of one fit."""
    identity = {name: getattr(cell, name) for name in ("key", "arm", "role", "fold", "seed", "point")}
    told = {"result.json": {**identity, **json.loads(row["result"])}, ORIGIN: Made.of(row).to_dict()}
    told |= {f"{name}.json": json.loads(row[name]) for name in ("timing", "metrics") if row[name] is not None}
    for name, value in told.items():
        # `finish_folder` sees to it that what was written stays.
        (fresh / name).write_text(file_text(value), encoding="utf-8", newline="\n")
    for name, schema in json.loads(row["schemas"]).items():
        frame = tables[name].get(row["key"])
        if name == FORECASTS and frame is not None:
            frame = _with_outcomes(frame, tables["outcomes"][row["outcomes"]], row["unit"])
        _as_written(frame, schema).write_parquet(fresh / f"{name}.parquet")


def _with_outcomes(frame: pl.DataFrame, shared: pl.DataFrame, unit: float | None) -> pl.DataFrame:
    import polars as pl

    if unit is not None:
        frame = frame.with_columns(forecast=pl.col("scaled").cast(pl.Float64) * unit)
    keys = [name for name in ("date", "asset") if name in shared.columns]
    if not frame.select(keys).equals(shared.select(keys)):
        raise ValueError("a committed fit must have its outcomes' dates and assets, and has others.")
    return frame.with_columns(shared.select(name for name in shared.columns if name in SHARED))


def _as_written(frame: pl.DataFrame | None, schema: Sequence[Sequence[str]]) -> pl.DataFrame:
    """Return the columns that a fit wrote, in its order and with its types; None stands for no row."""
    import polars as pl

    kinds: dict[str, Any] = {
        str(kind): kind
        for kind in (pl.Int64, pl.Int32, pl.UInt32, pl.Float64, pl.Float32, pl.String, pl.Boolean, pl.Date)
    } | {"Null": pl.Null}
    if frame is None:
        return pl.DataFrame(schema={name: kinds[kind] for name, kind in schema})
    return frame.select(pl.col(name).cast(kinds[kind]) for name, kind in schema)

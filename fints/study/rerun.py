"""One fit of a study made again from its key, and compared with the stored one."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fints.study.grouping import jobs_of
from fints.study.origin import ORIGIN
from fints.study.plan import Plan
from fints.study.pool import PANEL_WORKER, Pool
from fints.study.run_contents import Fitted
from fints.study.store import MANIFEST, StudyFolder, damage

if TYPE_CHECKING:
    from fints.study.panel_plan import PanelPlan

__all__ = ["Rerun", "find_job", "rerun"]

# What says how long a fit took, or what made it that is restored here; and the checksums of all files.
OF_ITS_OWN = ("timing.json", ORIGIN, MANIFEST)


@dataclass(frozen=True)
class Rerun:
    """A fit made again.

    `same` and `different` are the files that the stored fit and this one have, or one of them lacks; both are
    empty where no fit was stored, or one that is damaged, which `reason` says.
    """

    cell: Fitted
    folder: Path
    same: tuple[str, ...] = ()
    different: tuple[str, ...] = ()
    reason: str = ""

    def lines(self) -> list[str]:
        """Return what a person reads."""
        lines = [f"{self.cell} is made again in {self.folder}"]
        if self.reason:
            return [*lines, f"nothing to compare it with: {self.reason}"]
        if self.different:
            return [*lines, f"not the bytes of the stored fit: {', '.join(self.different)}"]
        return [*lines, f"the same bytes as the stored fit: {', '.join(self.same)}"]


def rerun(plan: Plan | PanelPlan, key: str, *, stored: StudyFolder, out: Path | None) -> Rerun:
    """Make one fit again, in a process like that of a run, and compare its files with the stored ones.

    The final fits of every design point are looked at, whichever was chosen. Of fits that are made at once
    all are made again.

    Parameters
    ----------
    plan : Plan or PanelPlan
        Of the study.
    key : str
        Of the fit, the tag ``fints.key`` of its run.
    stored : StudyFolder
        Where the study's own fits lie; nothing is changed there.
    out : Path or None
        A folder for this fit, which is made; one for temporary files if None.

    Raises
    ------
    ValueError
        If the plan has no such fit, or `out` holds it already.
    RuntimeError
        If the fit fails, with the place of its log.
    """
    cell, job = find_job(plan, key)
    # Only now, so that a wrong key leaves no folder.
    out = out.resolve() if out is not None else Path(tempfile.mkdtemp(prefix="fints-rerun-"))
    fresh = StudyFolder(out, plan.name, plan.label)
    if fresh.finished(key):
        raise ValueError(f"{fresh.fit(key)} is there already: give another folder with --out.")
    weights = (stored.fit(key) / "forecaster").is_dir() or not stored.finished(key)
    with fresh.held():
        pool = _pool(plan, fresh, weights=weights)
        try:
            _make(pool, job, fresh)
        finally:
            pool.stop()
    made = fresh.fit(key)
    if not stored.finished(key):
        return Rerun(cell, made, reason=f"{stored.fit(key)} is not there.")
    if wrong := damage(stored.fit(key)):
        return Rerun(cell, made, reason=f"{stored.fit(key)} is damaged ({wrong}).")
    return Rerun(cell, made, *_compared(made, stored.fit(key)))


def find_job(plan: Plan | PanelPlan, key: str) -> tuple[Fitted, Any]:
    """Return the fit of this key, and the job that makes it: itself, or the fits that are made at once."""
    for job in _jobs(plan):
        for cell in job.cells():
            if cell.key == key:
                return cell, job
    raise ValueError(
        f"no fit of this plan has the key {key}, which stands for data, options and the code of a commit: "
        "check out the commit that the tag fints.commit of its run names, and give the options of its run."
    )


def _jobs(plan: Any) -> Iterator[Any]:
    for arm in plan.arms:
        yield from jobs_of(plan.tuning_cells(arm))
        for point in plan.study.tuning.points():
            yield from jobs_of(plan.final_cells(arm, point))
            if not isinstance(plan, Plan):
                yield from jobs_of(plan.cells_at(arm, point))


def _pool(plan: Plan | PanelPlan, fresh: StudyFolder, *, weights: bool) -> Pool:
    start: dict[str, Any] = {"folder": str(fresh.path)}
    if not isinstance(plan, Plan):
        return Pool(1, start, fresh.logs, module=PANEL_WORKER)
    start |= {
        "dataset": plan.dataset.reference,
        "opens_seal": plan.study.opens_seal,
        "checksum": plan.dataset.checksum,
        "keep_weights": weights,
    }
    return Pool(1, start, fresh.logs)


def _make(pool: Pool, job: Any, folder: StudyFolder) -> None:
    while True:
        if not pool.busy:
            for slot in pool.idle():
                pool.send(slot, job, job)
        found = pool.next_event()
        if found is None:
            continue
        slot, event = found
        if event["event"] in ("failed", "gone") and slot in pool.busy:
            why = event.get("error") or f"its process ended with code {event['code']}"
            raise RuntimeError(f"{job} failed: {why}; what it printed is in {folder.logs}.")
        if event["event"] == "done":
            return


def _compared(made: Path, stored: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    names = sorted({*_files(made), *_files(stored)})
    alike = {
        name: (made / name).is_file()
        and (stored / name).is_file()
        and (made / name).read_bytes() == (stored / name).read_bytes()
        for name in names
    }
    return tuple(name for name in names if alike[name]), tuple(name for name in names if not alike[name])


def _files(folder: Path) -> list[str]:
    every = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return [name for name in every if name not in OF_ITS_OWN]

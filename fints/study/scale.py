"""A study on many machines: whoever starts it, whoever works on it, whoever ends it.

One machine plans and enqueues; any number of workers, one of them beside the driver if wanted, take cells
from the shared store; the last to leave completes the record. Each of them may vanish.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fints.study.addresses import one_line
from fints.study.assemble import arm_rows, assemble, mean_profile
from fints.study.company import Many
from fints.study.engine import Engine
from fints.study.fits import Cell, read_result
from fints.study.launch import Crew, Launcher, order_of
from fints.study.liveness import MISSED, Beats, new_worker
from fints.study.plan import Plan, loss_or_infinity
from fints.study.pool import Pool
from fints.study.progress import Report
from fints.study.published_fits import NOTHING, Committed
from fints.study.recorder import TRACKING_PATIENCE_S, NoRecord, Recorder
from fints.study.restore import Kept
from fints.study.runner import Outcome, caught_signals
from fints.study.same_numbers import code_hash, refuse_other_numbers
from fints.study.shared import KEPT, SharedStore
from fints.study.shared_open import RESTART_S, open_shared
from fints.study.shared_queue import SharedQueue, Standing
from fints.study.store import DamagedFit, StudyFolder, append_line, parts_of, write_json
from fints.study.tracking import Tracker

__all__ = ["HEARTBEAT_S", "enqueue_study", "hand_in", "run_shared", "study_cells", "work"]

# Seconds between signs of life; a worker counts as dead after MISSED times as many.
HEARTBEAT_S = 60.0
# How often damaged fits are fetched again: a disk that damages more is not to be trusted.
FETCHES = 3


@dataclass(frozen=True, kw_only=True)
class _Part:
    """What a process needs to take part in a study."""

    store: SharedStore
    name: str
    queue: SharedQueue
    folder: StudyFolder
    report: Report
    workers: int
    tracking_uri: str | None
    record: bool
    dataset: str
    crew: Crew | None = None


def enqueue_study(
    store: SharedStore,
    plan: Plan,
    folder: StudyFolder,
    *,
    told: Mapping[str, Any],
    keep_weights: bool,
    interval: float,
) -> str:
    """Write a study into the store, with the fits of it that the folder has, and return its name there.

    Parameters
    ----------
    told : mapping
        Commit and command.
    keep_weights : bool
        Whether final fits keep their forecasters.
    interval : float
        Seconds between the signs of life of its workers.

    Raises
    ------
    ValueError
        If another plan has its name there.
    """
    name = f"{plan.name}/{plan.label}"
    baselines = plan.baseline_cells()
    facts = {
        "interval": interval,
        "code": code_hash(),
        "dataset": plan.dataset.reference,
        "opens_seal": plan.study.opens_seal,
        "keep_weights": keep_weights,
        **told,
    }
    store.put_study(name, spec=plan.spec(), baselines=[cell.to_dict() for cell in baselines], facts=facts)
    hand_in(store, name, folder)
    return name


def hand_in(store: SharedStore, name: str, folder: StudyFolder) -> int:
    """Store the whole fits of a folder that are not stored yet, and return how many those were."""
    here = sorted(folder.whole() - store.losses(name).keys())
    for key in here:
        fit = folder.fit(key)
        store.put_fit(name, key, fit, loss=loss_or_infinity(read_result(fit)), attempt=f"{KEPT}{folder.path}")
    return len(here)


def run_shared(
    plan: Plan,
    folder: StudyFolder,
    report: Report,
    *,
    workers: int,
    storage: str,
    tracking_uri: str | None = None,
    commit: str | None = None,
    command: str = "",
    keep_weights: bool = True,
    interval: float = HEARTBEAT_S,
    launcher: Launcher | None = None,
    committed: Committed = NOTHING,
    replace: bool = False,
) -> Outcome:
    """Enqueue a study, work on it with `workers` processes, wait for all others, write its tables.

    The processes are here, or where `launcher` starts them. With none it returns when all is enqueued: its
    outcome counts what was finished before. Another plan of the same name is refused, or withdrawn if
    `replace`.

    Raises
    ------
    ValueError
        If the storage cannot be used, or another driver holds the folder.
    RuntimeError
        If the storage stays away, or workers do not start, or all that were launched end early.
    """
    started, clock = time.time(), time.perf_counter()
    store = open_shared(storage, wait=RESTART_S)
    try:
        with folder.held(), caught_signals() as caught, ExitStack() as launched:
            told = {"commit": commit, "command": command}
            write_json(folder.path / "study.json", spec := {**plan.spec(), **told})
            write_json(folder.baselines, [cell.to_dict() for cell in plan.baseline_cells()])
            for line in folder.set_aside_damaged():
                report.say(line)
            Kept(plan, folder, committed).restore_all(report.say)
            if replace:
                store.withdraw_study(f"{plan.name}/{plan.label}")
            name = enqueue_study(store, plan, folder, told=told, keep_weights=keep_weights, interval=interval)
            queue = SharedQueue(store, name, me := new_worker(name))
            standing = queue.settle(report.say, again=True)
            total = sum(plan.num_fits().values())
            if workers == 0:
                return Outcome(finished=_fits(standing), total=total)
            crew = None
            if launcher is not None:
                watch = Many(store, name, me.name, interval)
                orders = [order_of(name, storage, tracking_uri)] * workers
                crew = Crew(launcher, orders, say=report.say, others=lambda: len(_others(store, name, watch)))
                launched.enter_context(crew)
            part = _Part(
                store=store,
                name=name,
                queue=queue,
                folder=folder,
                report=report,
                workers=workers,
                tracking_uri=tracking_uri,
                record=True,
                dataset=plan.dataset.reference,
                crew=crew,
            )
            engine, company = _take_part(part, me, caught)
            outcome = Outcome(signal=caught[0] if caught else 0, finished=_fits(engine.standing), total=total)
            outcome.failures = _given_up(engine.standing)
            if not caught:
                _end(part, engine, company, outcome)
                if crew is not None:
                    crew.wait(MISSED * interval)
                done = list(engine.standing.finished.values())
                if any(cell.role == "final" for cell in done):
                    _on_whole_fits(engine, lambda: assemble(folder.path, done, spec))
                    outcome.assembled = True
            append_line(
                folder.path / "runs.jsonl",
                {
                    "started": started,
                    "command": command,
                    "commit": commit,
                    "workers": workers,
                    "status": "KILLED" if caught else "FAILED" if outcome.failures else "FINISHED",
                    "fits": engine.fitted,
                    "wall_seconds": time.perf_counter() - clock,
                },
            )
            return outcome
    finally:
        store.close()


def work(
    store: SharedStore,
    name: str,
    report: Report,
    *,
    workers: int,
    tracking_uri: str | None,
    scratch: Path,
    data: str | None = None,
) -> Outcome:
    """Work on a study that another machine enqueued, until nothing of it is left.

    Parameters
    ----------
    store : SharedStore
        Where it is; it stays open.
    name : str
        Of the study there.
    report : Report
        Tells a person.
    workers : int
        Fits at a time.
    tracking_uri : str or None
        MLflow server; without one the fits are recorded by whoever ends the study.
    scratch : Path
        Where fits and checkpoints lie while they are made.
    data : str, optional
        Where the dataset is on this machine, if not where the study says.

    Raises
    ------
    ValueError
        If this machine would give other numbers than the one that planned the study.
    """
    queue = SharedQueue(store, name, me := new_worker(name))
    refuse_other_numbers(queue.spec, queue.facts)
    folder = StudyFolder(scratch.resolve(), *parts_of(name))
    with folder.held(), caught_signals() as caught:
        part = _Part(
            store=store,
            name=name,
            queue=queue,
            folder=folder,
            report=report,
            workers=workers,
            tracking_uri=tracking_uri,
            record=tracking_uri is not None,
            dataset=data or queue.facts["dataset"],
        )
        engine, company = _take_part(part, me, caught)
        outcome = Outcome(
            signal=caught[0] if caught else 0,
            finished=_fits(engine.standing),
            total=queue.planned.total,
            failures=_given_up(engine.standing),
        )
        if not caught and part.record and not _others(store, name, company):
            # The last one out completes the record: the driver may be gone.
            _end(part, engine, company, outcome)
    return outcome


def study_cells(store: SharedStore, name: str) -> Standing:
    """Return where a study stands."""
    return SharedQueue(store, name, new_worker(name)).standing()


def _take_part(part: _Part, me: Any, caught: list[int]) -> tuple[Engine, Many]:
    """Work until nothing is left; then this process has left the study and written its own record."""
    interval = float(part.queue.facts["interval"])
    beats = Beats(part.store, me, interval)
    company = Many(part.store, part.name, me.name, interval)
    recorder: Recorder | NoRecord = NoRecord()
    if part.record:
        recorder = Recorder(
            _tracker(part, company), part.folder.fits, part.report.say, patience=TRACKING_PATIENCE_S
        )
    start = {
        "folder": str(part.folder.path),
        "dataset": part.dataset,
        "opens_seal": part.queue.facts["opens_seal"],
        "checksum": part.queue.spec["checksum"],
        "keep_weights": part.queue.facts["keep_weights"],
        "beats": interval,
    }
    pool: Pool | Crew | None = None
    try:
        pool = part.crew or Pool(part.workers, start, part.folder.logs)
        engine = Engine(
            part.name,
            store=part.store,
            queue=part.queue,
            pool=pool,
            recorder=recorder,
            report=part.report,
            folder=part.folder,
            worker=me.name,
            interval=interval,
        )
        engine.run(caught)
    finally:
        if pool is not None:
            pool.stop()
        recorder.leave()
        beats.close()
    return engine, company


def _end(part: _Part, engine: Engine, company: Many, outcome: Outcome) -> None:
    """Bring all fits here, and complete the record once everybody else has left."""
    _fetch(engine)
    _wait_for_others(part, company)
    tracker = _tracker(part, company)
    outcome.tracker = tracker

    def complete() -> None:
        with tracker.exclusive():
            tracker.open(part.folder.fits)
            outcome.rows = _complete_record(tracker, part, engine.standing)
            tracker.close("FAILED" if outcome.failures else "FINISHED")

    outcome.untracked = _patiently(lambda: _on_whole_fits(engine, complete), TRACKING_PATIENCE_S)
    outcome.link = "" if outcome.untracked else tracker.link


def _fetch(engine: Engine) -> None:
    if lines := engine.fetch():
        raise RuntimeError(f"{lines[0]} ({len(lines)} such fits): run again, which makes them anew.")


def _on_whole_fits(engine: Engine, call: Callable[[], None]) -> None:
    """Do what reads the fits here; one that was damaged since it was fetched is fetched again."""
    for _ in range(FETCHES):
        try:
            return call()
        except DamagedFit:
            _fetch(engine)
    return call()


def _complete_record(tracker: Tracker, part: _Part, standing: Standing) -> dict[str, list[dict[str, Any]]]:
    """Record every finished fit that is not recorded yet, and close the arms that are complete."""
    fits, by_arm = part.folder.fits, dict[str, list[Cell]]()
    for cell in standing.finished.values():
        if cell.role != "baseline":
            tracker.finish(cell, fits / cell.key)
            by_arm.setdefault(cell.arm, []).append(cell)
    planned = part.queue.planned
    rows = {}
    for arm in planned.arms:
        cells = by_arm.get(arm, [])
        if len(cells) == planned.total // len(planned.arms):
            rows[arm] = arm_rows(fits, cells)
            tracker.close_arm(arm, rows[arm], mean_profile(fits, cells))
    return rows


def _wait_for_others(part: _Part, company: Many) -> None:
    """Wait until whoever else records fits of this study has left, or is dead."""
    deadline = time.monotonic() + 2 * MISSED * float(part.queue.facts["interval"])
    told = False
    while others := _others(part.store, part.name, company):
        if time.monotonic() > deadline:
            return
        if not told:
            part.report.say(f"waiting for {len(others)} others to end their records")
            told = True
        time.sleep(1.0)


def _others(store: SharedStore, name: str, company: Many) -> list[str]:
    """Return who else gives signs of life in a study."""
    return [other for other in store.workers(name) if other != company.me and company.living(other)]


def _patiently(call: Callable[[], None], patience: float) -> str:
    """Do what may fail while a server is away; return why it failed for good, in one line."""
    deadline = time.monotonic() + patience
    while True:
        try:
            call()
        except Exception as error:  # of MLflow, its drivers and the network, which share no base
            if time.monotonic() > deadline:
                return one_line(error)
            time.sleep(2.0)
        else:
            return ""


def _tracker(part: _Part, company: Many) -> Tracker:
    return Tracker(
        part.queue.spec,
        root=part.folder.root,
        label=part.folder.label,
        uri=part.tracking_uri,
        commit=part.queue.facts["commit"],
        command=part.queue.facts.get("command", ""),
        company=company,
    )


def _fits(standing: Standing) -> int:
    return sum(cell.role != "baseline" for cell in standing.finished.values())


def _given_up(standing: Standing) -> list[str]:
    return [f"{cell}: {error}" for cell, error in standing.given_up.values()]

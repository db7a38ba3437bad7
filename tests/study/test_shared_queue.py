"""Whoever works on a shared study, and however they end: each cell is done once, and the study goes on."""

from __future__ import annotations

import json
import os
import runpy
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy

from fints.data import simulate
from fints.study import shared
from fints.study.fits import Cell
from fints.study.liveness import MISSED, Liveness
from fints.study.plan import Plan, make_plan
from fints.study.shared import SharedStore, Worker
from fints.study.shared_open import open_shared
from fints.study.shared_queue import FAILED, INTERRUPTED, SUPERSEDED, SharedQueue
from fints.study.store import finish_folder, write_json
from fints.study.trials import MOST_REQUEUES, Claim

TINY = runpy.run_path(str(Path(__file__).parent / "tiny.py"))["STUDY"]
INTERVAL = 10.0


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    path = tmp_path_factory.mktemp("data") / "prices.parquet"
    simulate(num_assets=3, num_days=160, seed=5).panel.frame.write_parquet(path)
    return make_plan(TINY, name="tiny", docstring="Words.", preset="smoke", data=str(path))


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedStore]:
    """One database for all studies of this file: Optuna's tables take seconds."""
    store = open_shared(f"sqlite:///{tmp_path_factory.mktemp('store') / 'shared.db'}")
    for engine in (store.storage.engine, store._engine):
        # Nothing here is pulled out of a running machine.
        engine.dispose()
        sqlalchemy.event.listen(engine, "connect", lambda raw, _: raw.execute("pragma synchronous = off"))
    yield store
    store.close()


class World:
    """A study in a store, and the workers on it."""

    def __init__(self, store: SharedStore, plan: Plan, name: str, folder: Path) -> None:
        self.store, self.name, self.folder = store, name, folder
        self.now = 0.0
        # One arm and one baseline: two tuning and two final fits are enough to go wrong.
        spec = json.loads(json.dumps(plan.spec()))
        spec["arms"] = spec["arms"][:1]
        baselines = [cell.to_dict() for cell in plan.baseline_cells()[:1]]
        store.put_study(name, spec=spec, baselines=baselines, facts={"interval": INTERVAL})
        # A real worker's name is its own for ever.
        for worker in ("first", "second"):
            store.leave(worker)

    def join(self, name: str) -> SharedQueue:
        worker = Worker(name, self.name, "elsewhere", 1, 0)
        self.store.beat(worker)
        queue = SharedQueue(self.store, self.name, worker)
        queue._liveness = Liveness(INTERVAL, clock=lambda: self.now)
        queue.settle()
        return queue

    def beat(self, name: str) -> None:
        self.store.beat(Worker(name, self.name, "elsewhere", 1, 0))

    def fit(self, cell: Cell, attempt: str, loss: float = 0.5) -> bool:
        final = self.folder / "fits" / f"{cell.key}-{attempt}"
        fresh = self.folder / "fresh"
        fresh.mkdir(parents=True)
        final.parent.mkdir(exist_ok=True)
        write_json(fresh / "result.json", {"key": cell.key})
        finish_folder(fresh, final)
        return self.store.put_fit(self.name, cell.key, final, loss=loss, attempt=attempt)

    def finish(self, queue: SharedQueue, claim: Claim, attempt: str = "a") -> None:
        assert self.fit(claim.cell, attempt)
        queue.complete(claim, 0.5)


@pytest.fixture
def world(stores: SharedStore, plan: Plan, tmp_path: Path, request: pytest.FixtureRequest) -> World:
    return World(stores, plan, f"tiny/{request.node.name}", tmp_path)


def taken(queue: SharedQueue) -> Claim:
    claim = queue.claim()
    assert claim is not None
    return claim


def work_off(world: World, *queues: SharedQueue) -> Counter[str]:
    """Let workers take turns until nothing is left; return how often each cell was fitted."""
    fitted: Counter[str] = Counter()
    while True:
        claims = [claim for queue in queues if (claim := queue.claim()) is not None]
        for queue, claim in zip(queues, claims, strict=False):
            fitted[claim.cell.key] += 1
            world.finish(queue, claim)
        if not claims and all(queue.settle().done for queue in queues):
            return fitted


def states(queue: SharedQueue) -> Counter[tuple[str, str]]:
    """Return how many trials of each role are in each state."""
    return Counter(
        (name.split("/")[-2], trial.state.name)
        for name, study in queue._studies.items()
        for trial in study.get_trials(deepcopy=False)
    )


def test_two_workers_share_all_cells_and_the_final_ones_are_enqueued_once(world: World) -> None:
    first, second = world.join("first"), world.join("second")
    fitted = work_off(world, first, second)
    assert set(fitted.values()) == {1}
    assert len(fitted) == 5
    standing = second.settle()
    assert standing.done
    assert fitted.keys() == standing.finished.keys()
    assert states(first) == {
        ("tuning", "COMPLETE"): 2,
        ("final", "COMPLETE"): 2,
        ("baseline", "COMPLETE"): 1,
    }


def test_what_a_silent_worker_held_is_taken_back_and_its_late_result_finds_it_so(world: World) -> None:
    first, second = world.join("first"), world.join("second")
    claim = taken(first)
    said: list[str] = []
    assert claim.cell.key in second.settle(said.append).running
    world.now = MISSED * INTERVAL + 1
    assert claim.cell.key in second.settle(said.append).waiting
    assert said == [f"{claim.cell} was taken back from first, which gives no sign of life"]
    assert not first.holds(claim)
    fitted = work_off(world, second)
    assert fitted[claim.cell.key] == 1
    # It comes back from the dead with a result of its own.
    assert not world.fit(claim.cell, "late")
    first.give_back(claim, ended=SUPERSEDED)
    first.complete(claim, 0.1)
    assert first.settle().done
    assert states(second)["tuning", "COMPLETE"] == 2


def test_a_worker_that_beats_keeps_its_cell_however_long_it_takes(world: World) -> None:
    first, second = world.join("first"), world.join("second")
    claim = taken(first)
    for _ in range(5):
        world.now += MISSED * INTERVAL - 1
        world.beat("first")
        assert claim.cell.key in second.settle().running
    assert first.holds(claim)


def test_a_worker_killed_before_it_said_its_name_loses_its_trial_too(world: World) -> None:
    queue = world.join("first")
    # What Optuna does between popping a trial and the next statement.
    study = next(iter(queue._studies.values()))
    key = study.ask().user_attrs["cell"]["key"]
    assert key in queue.settle().running
    world.now = MISSED * INTERVAL + 1
    assert key in queue.settle().waiting


def test_a_worker_killed_after_it_stored_a_fit_has_done_it(world: World) -> None:
    first, second = world.join("first"), world.join("second")
    claim = taken(first)
    assert world.fit(claim.cell, "a")
    second.settle()
    world.now = MISSED * INTERVAL + 1
    fitted = work_off(world, second)
    assert claim.cell.key not in fitted
    assert states(second)["tuning", "COMPLETE"] == 2


def test_a_worker_killed_after_it_gave_a_cell_back_leaves_it_to_be_found(world: World) -> None:
    first, second = world.join("first"), world.join("second")
    claim = taken(first)
    first.give_back(claim, ended=INTERRUPTED)
    assert work_off(world, second)[claim.cell.key] == 1


def test_a_cell_that_fails_is_tried_again_three_times_and_one_that_is_interrupted_for_ever(
    world: World,
) -> None:
    queue = world.join("first")
    fails, breaks = taken(queue), taken(queue)
    tries: Counter[str] = Counter()
    claims = [fails, breaks]
    for _ in range(2 * MOST_REQUEUES):
        for claim in claims:
            ended = FAILED if claim.cell.key == fails.cell.key else INTERRUPTED
            tries[claim.cell.key] += 1
            again = queue.give_back(claim, ended=ended, error="OSError: disk full")
            assert again == (ended == INTERRUPTED or claim.failures < MOST_REQUEUES)
        standing = queue.settle()
        claims = []
        while (claim := queue.claim()) is not None:
            if claim.cell.key in tries:
                claims.append(claim)
            else:
                world.finish(queue, claim)
    assert tries == {fails.cell.key: MOST_REQUEUES + 1, breaks.cell.key: 2 * MOST_REQUEUES}
    assert standing.given_up == {fails.cell.key: (fails.cell, "OSError: disk full")}
    assert fails.cell.key in queue.settle(again=True).waiting


def test_another_plan_takes_a_name_only_after_the_first_was_withdrawn(world: World) -> None:
    stored = world.store.study(world.name)
    same = {"baselines": stored["baselines"], "facts": stored["facts"]}
    # Words are no plan.
    world.store.put_study(world.name, spec={**stored["spec"], "title": "In other words"}, **same)
    other = {**stored["spec"], "sources": "another", "checksum": "another"}
    with pytest.raises(ValueError, match="holds one that differs in checksum, sources: rename") as caught:
        world.store.put_study(world.name, spec=other, **same)
    assert "\n" not in str(caught.value)
    assert world.store.study(world.name)["spec"]["sources"] == stored["spec"]["sources"]
    world.store.withdraw_study(world.name)
    world.store.put_study(world.name, spec=other, **same)
    assert world.store.study(world.name)["spec"]["sources"] == "another"


def test_a_process_that_keeps_the_lock_of_a_file_is_named_and_not_waited_for_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared, "HELD_TIMES", 0.5)
    address = f"sqlite:///{tmp_path / 'shared.db'}"
    holder, waiting = open_shared(address), open_shared(address)
    with (
        holder.exclusive("settle", seconds=1),
        pytest.raises(RuntimeError, match=rf"process {os.getpid()} on .* holds it: end that process"),
        waiting.exclusive("settle", seconds=1),
    ):
        pass
    with waiting.exclusive("settle", seconds=1):
        pass
    holder.close()
    waiting.close()


def test_a_fit_that_was_forgotten_is_made_again(world: World) -> None:
    queue = world.join("first")
    work_off(world, queue)
    key = next(iter(queue.settle().finished))
    world.store.drop_fit(world.name, key)
    assert work_off(world, queue) == {key: 1}


def test_nothing_is_enqueued_twice_by_workers_that_settle_at_once(
    storage_url: str, plan: Plan, tmp_path: Path
) -> None:
    import threading

    store = open_shared(storage_url)
    world = World(store, plan, "tiny/at-once", tmp_path)
    failed: list[BaseException] = []

    def settle(number: int) -> None:
        try:
            world.join(f"w{number}")
        except BaseException as error:  # a thread's own would be lost
            failed.append(error)

    threads = [threading.Thread(target=settle, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert states(world.join("last")) == {("tuning", "WAITING"): 2, ("baseline", "WAITING"): 1}
    store.close()

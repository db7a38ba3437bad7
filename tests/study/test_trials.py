"""Optuna as a queue: every cell is claimed once, whatever died before."""

from __future__ import annotations

import math
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState

from fints.study.fits import Cell
from fints.study.trials import MOST_REQUEUES, Queue, open_storage


def cell(number: int) -> Cell:
    return Cell(
        key=f"key{number}",
        arm="pre_norm",
        role="tuning",
        fold=0,
        seed=1000,
        point={"training.learning_rate": 10.0**-number, "training.keep": "best"},
        dates={"train": ["2000-01-03", "2001-01-03"]},
        experiment={"model": {"depth": 2}},
    )


CELLS = [cell(number) for number in range(1, 4)]


def nothing(key: str) -> float | None:
    return None


@pytest.fixture
def url(tmp_path: Path) -> Path:
    return tmp_path / "optuna.db"


def opened(url: Path, loss: Any = nothing) -> Queue:
    queue = Queue(open_storage(url), "tiny/quick")
    queue.add("pre_norm", "tuning", CELLS, loss)
    return queue


def states(url: Path) -> list[str]:
    storage = open_storage(url)
    name = optuna.get_all_study_names(storage=storage)[0]
    return [trial.state.name for trial in optuna.load_study(storage=storage, study_name=name).trials]


def drained(queue: Queue) -> list[str]:
    keys = []
    while (claim := queue.claim()) is not None:
        keys.append(claim.cell.key)
        queue.complete(claim, 1.0)
    return keys


def test_every_cell_is_claimed_once_in_its_order(url: Path) -> None:
    queue = opened(url)
    assert queue.num_waiting() == 3
    assert drained(queue) == ["key1", "key2", "key3"]
    assert states(url) == ["COMPLETE"] * 3


def test_a_cell_survives_the_queue_unchanged(url: Path) -> None:
    claim = opened(url).claim()
    assert claim is not None
    assert claim.cell == CELLS[0]
    assert claim.trial.params == CELLS[0].point


def test_two_drivers_never_get_the_same_cell(url: Path) -> None:
    first, second = opened(url), opened(url)
    claims = [queue.claim() for queue in (first, second, first, second)]
    assert [claim and claim.cell.key for claim in claims] == ["key1", "key2", "key3", None]


def test_what_a_dead_driver_was_running_is_enqueued_again(url: Path) -> None:
    opened(url).claim()
    again = opened(url)
    assert drained(again) == ["key2", "key3", "key1"]
    assert states(url) == ["FAIL", "COMPLETE", "COMPLETE", "COMPLETE"]


def test_a_finished_fit_that_was_never_told_is_told_and_not_run(url: Path) -> None:
    opened(url).claim()
    again = opened(url, lambda key: 0.5 if key == "key1" else None)
    assert drained(again) == ["key2", "key3"]
    assert states(url) == ["COMPLETE"] * 3


def test_a_finished_trial_whose_fit_is_gone_is_run_again(url: Path) -> None:
    drained(opened(url))
    again = opened(url, lambda key: None if key == "key2" else 1.0)
    assert drained(again) == ["key2"]


def test_a_failing_cell_is_tried_again_three_times_and_no_more(url: Path) -> None:
    queue = opened(url)
    tries = 0
    while (claim := queue.claim()) is not None:
        if claim.cell.key != "key2":
            queue.complete(claim, 1.0)
            continue
        tries += 1
        assert queue.requeue(claim, failed=True) == (tries <= MOST_REQUEUES)
    assert tries == MOST_REQUEUES + 1 == 4


def test_an_interruption_is_not_counted_as_a_failure(url: Path) -> None:
    queue = opened(url)
    for _ in range(10):
        claim = queue.claim()
        assert claim is not None
        assert queue.requeue(claim, failed=False)
    assert sorted(drained(queue)) == ["key1", "key2", "key3"]


def test_a_diverged_fit_is_complete_with_an_infinite_loss(url: Path) -> None:
    queue = opened(url)
    claim = queue.claim()
    assert claim is not None
    queue.complete(claim, math.inf)
    assert states(url)[0] == "COMPLETE"


def test_a_trial_without_a_cell_ends_at_once(url: Path) -> None:
    queue = opened(url)
    storage = open_storage(url)
    study = optuna.load_study(storage=storage, study_name=optuna.get_all_study_names(storage=storage)[0])
    study.enqueue_trial({})
    assert drained(queue) == ["key1", "key2", "key3"]
    assert study.trials[-1].state == TrialState.FAIL


def test_other_cells_make_another_queue(url: Path) -> None:
    drained(opened(url))
    queue = Queue(open_storage(url), "tiny/quick")
    queue.add("pre_norm", "tuning", CELLS[:2], nothing)
    assert drained(queue) == ["key1", "key2"]


def test_a_database_that_fails_in_a_run_is_one_line_that_names_it(url: Path) -> None:
    queue = opened(url)
    with closing(sqlite3.connect(url)) as store:
        store.execute("drop table trials")
        store.commit()
    with pytest.raises(RuntimeError, match=r"no such table: trials.*finished fits are kept") as caught:
        queue.claim()
    assert str(url) in str(caught.value)
    assert "\n" not in str(caught.value)

"""A study that was begun on one machine goes on in a shared database, and is reported from it alone."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fints.data import simulate
from fints.study.liveness import new_worker
from fints.study.move import move_study
from fints.study.remote_report import find_study, report_stored
from fints.study.same_numbers import refuse_other_numbers
from fints.study.shared_open import open_shared
from fints.study.shared_queue import SharedQueue
from fints.study.status import study_status


def tables(folder: Path) -> dict[str, str]:
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.glob("*.parquet"))
    }


def test_a_moved_study_is_done_there_and_its_tables_are_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_study: Callable[..., Any]
) -> None:
    panel = tmp_path / "prices.parquet"
    simulate(num_assets=3, num_days=160, seed=3).panel.frame.write_parquet(panel)
    run = run_study(monkeypatch, tmp_path / "root", panel)
    folder, url = run.folder.path, f"sqlite:///{tmp_path / 'shared.db'}"
    before = tables(folder)
    lines = move_study(folder, url)
    assert lines[0].startswith("moved 16 fits of tiny/smoke-prices-")
    assert lines[1].startswith("8 of 8 fits are finished there")
    assert tables(folder) == before

    # A study that was run on a shared database has no queue of its own.
    for path in folder.glob("optuna.db*"):
        path.unlink()
    here = sorted(folder.iterdir())
    elsewhere = f"sqlite:///{tmp_path / 'elsewhere.db'}"
    assert move_study(folder, elsewhere)[0] == lines[0].replace("shared.db", "elsewhere.db")
    assert sorted(folder.iterdir()) == here
    other = open_shared(elsewhere)

    store = open_shared(url)
    name = find_study(store, "tiny")
    assert other.study(name)["baselines"] == store.study(name)["baselines"] != []
    other.close()
    assert name == f"tiny/{folder.name}"
    queue = SharedQueue(store, name, new_worker(name))
    standing = queue.settle()
    assert standing.done
    assert queue.claim() is None
    found = study_status(store, name)
    assert (found.finished, found.total, found.waiting, found.seconds_left) == (8, 8, 0, 0.0)
    assert found.to_dict()["an_hour"] is None, "fits that were made before say nothing of the rate"
    with pytest.raises(ValueError, match="must name one study: study 'other' was asked for"):
        find_study(store, "other")
    for fact, told in (("code", "the code that affects numbers"), ("torch", "torch")):
        spec, facts = {**queue.spec}, {**queue.facts}
        (facts if fact == "code" else spec)[fact] = "another"
        with pytest.raises(ValueError, match=f"{told} must be as where the study was planned"):
            refuse_other_numbers(spec, facts)
    store.close()

    page, damaged, _ = report_stored(url, name, tmp_path / "elsewhere")
    assert damaged == []
    # Times travel with the fits, so even they are the same.
    assert tables(page.parent) == before
    assert page.with_suffix(".md").read_bytes() == run.report().encode()
    again = move_study(folder, url)
    assert again[0].startswith("moved 0 fits")

    spec = json.loads((folder / "study.json").read_text())
    (folder / "study.json").write_text(json.dumps({**spec, "format": 9}))
    with pytest.raises(ValueError, match="is of format 9 and this fints reads format 1"):
        move_study(folder, url)

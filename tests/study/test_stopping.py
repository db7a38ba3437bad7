"""A stopped run leaves the queue as it must be, whatever its workers did in the last moment."""

from __future__ import annotations

import os
import signal
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from fints.data import simulate
from fints.study import runner
from fints.study.fits import run_cell


def states(folder: Path) -> dict[str, int]:
    with closing(sqlite3.connect(folder / "optuna.db")) as store:
        return dict(store.execute("select state, count(*) from trials group by state").fetchall())


@pytest.mark.parametrize("finishes", [True, False])
def test_a_fit_that_ends_between_the_signal_and_its_workers_end_is_counted_once(
    finishes: bool, run_study: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prices = tmp_path / "prices.parquet"
    simulate(num_assets=4, num_days=160, seed=3).panel.frame.write_parquet(prices)
    run_study.replace(monkeypatch, lambda cell: "")

    class Signalled(runner.Pool):
        """Its driver gets a SIGTERM while the first cell runs, which may end before its worker does."""

        def next_event(self, timeout: float = 0.5) -> None:
            os.kill(os.getpid(), signal.SIGTERM)

        def stop(self) -> None:
            for claim in self.busy.values() if finishes else ():
                places = {"tmp": self._folder / "tmp", "fits": self._folder / "fits"}
                if not (places["fits"] / claim.cell.key).exists():
                    run_cell(claim.cell, self._dataset.panel, signal=self._dataset.signal, **places)

    with monkeypatch.context() as patch:
        patch.setattr(run_study, "replace", staticmethod(lambda *arguments: None))
        patch.setattr(runner, "Pool", Signalled)
        stopped = run_study(patch, tmp_path / "root", prices)
    assert stopped.outcome.signal == signal.SIGTERM
    assert "RUNNING" not in states(stopped.folder.path)
    assert states(stopped.folder.path).get("COMPLETE", 0) == int(finishes)
    assert stopped.outcome.finished == int(finishes)
    again = run_study(monkeypatch, tmp_path / "root", prices)
    assert again.outcome.finished == again.outcome.total
    assert len(again.fits()) == again.fits()["key"].n_unique()

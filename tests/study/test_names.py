"""Names that come from a database or a file lead nowhere but into the results."""

from __future__ import annotations

from pathlib import Path

import pytest
from filelock import FileLock

from fints.study import store as store_of
from fints.study.fits import Cell
from fints.study.remote_report import report_stored
from fints.study.shared_open import open_shared
from fints.study.store import StudyFolder, parts_of

LEADING_AWAY = ["", ".", "..", "../victim", "a/b", "/victim", "a\\b", "a\0b"]


@pytest.mark.parametrize("name", LEADING_AWAY)
def test_a_name_that_is_a_path_makes_no_folder(tmp_path: Path, name: str) -> None:
    for study, label in ((name, "smoke"), ("study", name)):
        with pytest.raises(ValueError, match="must be one plain name"):
            StudyFolder(tmp_path, study, label)
    with pytest.raises(ValueError, match="must be one plain name"):
        StudyFolder(tmp_path, "study", "smoke").fit(name)
    with pytest.raises(ValueError, match="key of a fit must be a plain name"):
        Cell(key=name, arm="a", role="baseline", fold=0, seed=0, point={}, dates={}, experiment={})


def test_a_stored_study_whose_name_leads_away_is_refused_and_nothing_there_is_touched(tmp_path: Path) -> None:
    address = f"sqlite:///{tmp_path / 'shared.db'}"
    name = "x/../../../victim"
    shared = open_shared(address)
    shared.put_study(name, spec={}, baselines=[], facts={})
    shared.close()
    precious = tmp_path / "victim" / "tmp" / "thesis.txt"
    precious.parent.mkdir(parents=True)
    precious.write_text("precious")
    with pytest.raises(ValueError, match="must be one plain name"):
        report_stored(address, name, tmp_path / "root" / "deep")
    assert precious.read_text() == "precious"


def test_a_stored_name_without_two_parts_is_refused() -> None:
    assert parts_of("study/smoke-sp500-20") == ("study", "smoke-sp500-20")
    with pytest.raises(ValueError, match="must be STUDY/LABEL"):
        parts_of("study")


def test_a_worker_that_outlives_its_driver_is_named_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_of, "WORKER_S", 0.1)
    folder = StudyFolder(tmp_path, "study", "smoke")
    folder.locks.mkdir(parents=True)
    lock = folder.locks / "worker-0.lock"
    with (
        FileLock(lock),
        pytest.raises(ValueError, match=r"worker-0\.lock, and does not end: end it"),
        folder.held(),
    ):
        pass

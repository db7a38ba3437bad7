"""A study that was begun on one machine, taken to a database that many share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fints.study.liveness import new_worker
from fints.study.plan import SPEC_FORMAT
from fints.study.same_numbers import code_hash
from fints.study.scale import HEARTBEAT_S, hand_in
from fints.study.shared_open import open_shared
from fints.study.shared_queue import SharedQueue
from fints.study.store import StudyFolder
from fints.study.trials import open_storage
from fints.words import counted

__all__ = ["move_study"]


def move_study(path: Path, storage: str) -> list[str]:
    """Store a study with all its finished fits, and return what was done, line by line.

    The folder stays as it is and can be gone on with as before. MLflow is not copied: an experiment keeps
    the place of its artifacts, so the next run makes one on the server, from the fits.

    Parameters
    ----------
    path : Path
        ``ROOT/STUDY/PRESET-DATASET``.
    storage : str
        Address of the shared database.

    Raises
    ------
    ValueError
        If the folder holds no study, another release wrote it, it is at work, or the database cannot be
        used.
    """
    path = path.expanduser().resolve()
    spec = _spec(path)
    folder = StudyFolder(path.parent.parent, path.parent.name, path.name)
    name = f"{folder.name}/{folder.label}"
    store = open_shared(storage)
    try:
        with folder.held():
            lines = folder.set_aside_damaged()
            commit, command = spec.pop("commit", None), spec.pop("command", "")
            facts = {
                "interval": HEARTBEAT_S,
                "code": code_hash(),
                "dataset": spec["dataset"]["reference"],
                "opens_seal": spec["opens_seal"],
                "keep_weights": True,
                "commit": commit,
                "command": command,
            }
            store.put_study(name, spec=spec, baselines=_baselines(folder), facts=facts)
            handed = hand_in(store, name, folder)
            queue = SharedQueue(store, name, new_worker(name))
            standing = queue.settle(again=True)
        fits = sum(cell.role != "baseline" for cell in standing.finished.values())
        return [
            *lines,
            f"moved {counted(handed, 'fit')} of {name}, baselines among them, to {store.shown}.",
            f"{fits} of {queue.planned.total} fits are finished there; the folder {path} is as it was.",
        ]
    finally:
        store.close()


def _spec(path: Path) -> dict[str, Any]:
    try:
        spec: dict[str, Any] = json.loads((path / "study.json").read_text(encoding="utf-8"))
        found = spec["format"]
    except FileNotFoundError:
        raise ValueError(f"{path} must be the folder of a study and has no study.json.") from None
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path / 'study.json'} cannot be read ({error}); run the study again.") from error
    if found != SPEC_FORMAT:
        raise ValueError(
            f"{path} is of format {found} and this fints reads format {SPEC_FORMAT}: use the release "
            "that wrote it."
        )
    return spec


def _baselines(folder: StudyFolder) -> list[dict[str, Any]]:
    """Return the cells of the newest plan's baselines."""
    import optuna

    if folder.baselines.is_file():
        told: list[dict[str, Any]] = json.loads(folder.baselines.read_text(encoding="utf-8"))
        return told
    # An earlier release left them in the study's own queue alone.
    if not (folder.path / "optuna.db").is_file():
        raise ValueError(
            f"{folder.path} must say which baselines belong to the study, in {folder.baselines.name}, and "
            "does not: run the study there once more, which fits nothing again."
        )
    storage = open_storage(folder.path / "optuna.db")
    prefix = f"{folder.name}/{folder.label}/baselines/baseline/"
    studies = [study for study in storage.get_all_studies() if study.study_name.startswith(prefix)]
    if not studies:
        return []
    newest = max(studies, key=lambda study: study._study_id)
    trials = optuna.load_study(storage=storage, study_name=newest.study_name).get_trials(deepcopy=False)
    cells = {trial.user_attrs["cell"]["key"]: trial.user_attrs["cell"] for trial in trials}
    return list(cells.values())

"""What a run looks at before anything is fitted: its folder, the shared database, the tracker."""

from __future__ import annotations

import argparse
import json
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from fints.study.addresses import without_secrets
from fints.study.command_line import check_folder
from fints.study.store import StudyFolder, write_json

__all__ = ["check_stores", "note_tracker"]

# In a study's folder: the tracker that its last run could reach.
TRACKER = "tracker.json"


def check_stores(folder: StudyFolder, arguments: argparse.Namespace) -> bool:
    """Look at the folder of the results and at the databases before anything is fitted.

    Returns whether there is a tracker of the user's own and it answers.

    A tracker that is away is refused at the first run, whose address may be wrong. A run that goes on with
    one that was there, or joins a study in a shared storage, does so without it, as workers do: the fits are
    recorded once it is back.

    Raises
    ------
    ValueError
        If nothing can be written there, a database is damaged or the tracker does not answer.
    """
    # What is refused leaves no folder behind.
    made = [place for place in (folder.path, *folder.path.parents) if not place.exists()]
    check_folder(folder)
    try:
        return _checked(folder, arguments)
    except ValueError:
        for place in made:
            with suppress(OSError):
                place.rmdir()
        raise


def _checked(folder: StudyFolder, arguments: argparse.Namespace) -> bool:
    from fints.study.embedded import check_database
    from fints.study.tracking import TrackerAway, check_tracker

    begun = False
    if arguments.storage:
        from fints.study.shared_open import RESTART_S, open_shared

        with closing(open_shared(arguments.storage, wait=RESTART_S)) as store:
            begun = f"{folder.name}/{folder.label}" in store.studies()
    queue = folder.path / "optuna.db"
    if not arguments.storage and queue.exists():
        check_database(queue)
    try:
        check_tracker(folder.root, arguments.tracking_uri)
    except TrackerAway:
        if not begun and _told(folder.path / TRACKER) != _tracker(arguments):
            raise
        return False
    return arguments.tracking_uri is not None


def note_tracker(folder: StudyFolder, arguments: argparse.Namespace) -> None:
    """Leave in the study's folder which tracker a run that begins there could reach."""
    write_json(folder.path / TRACKER, _tracker(arguments))


def _tracker(arguments: argparse.Namespace) -> dict[str, Any]:
    uri = arguments.tracking_uri
    return {"tracking_uri": None if uri is None else without_secrets(uri)}


def _told(path: Path) -> object:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None

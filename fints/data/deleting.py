"""What is removed from the user's folder: in one step for whoever looks, then from the disk."""

from __future__ import annotations

import difflib
import os
import shutil
import tempfile
from pathlib import Path

from fints.data.catalog import home, is_bundled

__all__ = ["DELETED", "delete_dataset", "folder_bytes", "own_dataset", "remove_folder"]

# What begins so is on its way out: a kill while it is removed leaves it, for the next removal there.
DELETED = ".deleted-"


def own_dataset(name: str) -> Path:
    """Return the folder of one of the user's datasets.

    Only what lies right under the folder of datasets is one, so no name leads elsewhere.

    Raises
    ------
    ValueError
        If there is none of that name, it comes with fints, or its folder is a link.
    """
    place = home() / "datasets"
    folders = {} if not place.is_dir() else {path.name: path for path in place.iterdir() if path.is_dir()}
    own = {one: path for one, path in sorted(folders.items()) if not one.startswith(".")}
    if name not in own:
        if is_bundled(name):
            raise ValueError(
                f"{name!r} comes with fints and stays: only datasets of your own can be deleted."
            )
        near = difflib.get_close_matches(name, own, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ValueError(
            f"there is no dataset of yours {name!r} in {place}.{hint} Yours: {', '.join(own) or 'none'}."
        )
    if own[name].is_symlink():
        raise ValueError(f"{own[name]} is a link to somewhere else; remove the link yourself.")
    return own[name]


def delete_dataset(name: str) -> int:
    """Remove one of the user's datasets and return how many bytes that freed.

    Raises
    ------
    ValueError
        As `own_dataset`.
    """
    folder = own_dataset(name)
    freed = folder_bytes(folder)
    remove_folder(folder)
    return freed


def remove_folder(folder: Path) -> None:
    """Remove a folder: it is gone in one step, and then from the disk.

    Raises
    ------
    OSError
        If it cannot be renamed, nothing is removed then; or not be removed wholly.
    """
    for left in folder.parent.glob(f"{DELETED}*"):
        shutil.rmtree(left, ignore_errors=True)
    # One level down, where nothing that looks for datasets or studies would see it.
    aside = Path(tempfile.mkdtemp(prefix=DELETED, dir=folder.parent))
    try:
        os.rename(folder, aside / folder.name)
    except OSError:
        aside.rmdir()
        raise
    shutil.rmtree(aside)


def folder_bytes(folder: Path) -> int:
    """Return what the files under a folder take, links not followed; 0 if it is not there."""
    total = 0
    for place, _, files in os.walk(folder):
        for file in files:
            try:
                total += os.lstat(os.path.join(place, file)).st_size
            except FileNotFoundError:
                # A run beside us has renamed it.
                continue
    return total

"""Checkpoints: written whole or not at all, read without running anything.

A checkpoint is a `torch.save` archive of tensors and plain Python values. It is read with
``weights_only=True``, so a file from elsewhere can hold no code, and its checksums are verified
first, so a damaged file is refused and not trained on.
"""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import Any

import torch

__all__ = ["UnusableCheckpoint", "read_checkpoint", "write_checkpoint"]

FORMAT = "fints.training.checkpoint"
VERSION = 1
REMEDY = "Delete the file to start the fit anew, or give another path."


class UnusableCheckpoint(ValueError):
    """A file that a fit cannot go on from; without it the fit begins anew."""


def write_checkpoint(path: Path, identity: str, content: dict[str, Any]) -> None:
    """Replace `path` by a checkpoint of `content`, which holds only tensors and plain values.

    The bytes reach the disk under another name before they take the place of the old ones, so an
    interruption at any moment leaves the old checkpoint or the new one.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with temporary.open("wb") as file:
            torch.save({"format": FORMAT, "version": VERSION, "identity": identity, "content": content}, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    _sync_folder(path.parent)


def read_checkpoint(path: Path, identity: str) -> dict[str, Any]:
    """Return the content of the checkpoint at `path`.

    Raises
    ------
    UnusableCheckpoint
        A ValueError, if the file is damaged, is no checkpoint, has another version, or is another fit's.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
        if damaged is not None:
            raise UnusableCheckpoint(
                f"checkpoint {path} is damaged: its part {damaged} fails its checksum. {REMEDY}"
            )
        payload = torch.load(path, map_location="cpu", weights_only=True)
    except UnusableCheckpoint:
        raise
    except Exception as error:  # zipfile and torch have no common base for what garbled headers lead to
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UnusableCheckpoint(f"checkpoint {path} cannot be read ({reason}). {REMEDY}") from error
    if not isinstance(payload, dict) or payload.get("format") != FORMAT:
        raise UnusableCheckpoint(f"{path} is not a checkpoint of a fit. {REMEDY}")
    if payload.get("version") != VERSION:
        raise UnusableCheckpoint(
            f"checkpoint {path} has format version {payload.get('version')}; this fints reads version "
            f"{VERSION}. {REMEDY}"
        )
    if payload.get("identity") != identity:
        raise UnusableCheckpoint(
            f"checkpoint {path} belongs to another fit: the model, its initial weights, the data, the "
            f"training configuration or the seed differ. {REMEDY}"
        )
    return payload["content"]


def _sync_folder(folder: Path) -> None:
    """Make the new name survive a power cut, where the system can open a folder."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

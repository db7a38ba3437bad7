"""The folder of a finished fit as one string of bytes, and back, checked on both ways."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import tarfile
import threading
from pathlib import Path, PurePosixPath

from fints.study.store import MANIFEST, damage

__all__ = ["checksum", "pack", "unpack"]


def pack(folder: Path) -> bytes:
    """Return a finished fit as an uncompressed tar archive (parquet is compressed already).

    Equal files give equal bytes: names are sorted, and neither times nor owners are kept.

    Raises
    ------
    ValueError
        If the folder is damaged: what another machine is given must be whole.
    """
    if reason := damage(folder):
        raise ValueError(f"{folder} must be a whole fit to be handed on, and is not: {reason}.")
    manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name in sorted([*manifest, MANIFEST]):
            content = (folder / name).read_bytes()
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return whole.getvalue()


def unpack(content: bytes, wanted: str, final: Path, *, tmp: Path) -> None:
    """Let `content` become the folder `final` in one step; a folder that is there stays as it is.

    Nothing in the archive is run or unpickled, and no name in it leaves the folder.

    Parameters
    ----------
    content : bytes
        What `pack` returned.
    wanted : str
        Its `checksum`.
    final : Path
        ``fits/KEY``.
    tmp : Path
        Where the folder grows, on the same file system.

    Raises
    ------
    ValueError
        If the bytes are not those that were packed, or hold anything but a whole fit.
    """
    if checksum(content) != wanted:
        raise ValueError(f"fit {final.name} in the storage must be as it was stored, and has changed.")
    fresh = tmp / f"{final.name}-{os.getpid()}-{threading.get_ident()}"
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    try:
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as archive:
            for entry in archive:
                path = PurePosixPath(entry.name)
                stream = archive.extractfile(entry) if entry.isreg() else None
                if stream is None or path.is_absolute() or ".." in path.parts:
                    raise ValueError(
                        f"fit {final.name} in the storage holds {entry.name!r}, no file of a fit."
                    )
                place = fresh / path
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(stream.read())
        if reason := damage(fresh):
            raise ValueError(f"fit {final.name} in the storage must be whole, and is not: {reason}.")
        for place in fresh.rglob("*"):
            if place.is_file():
                with place.open("rb+") as file:
                    os.fsync(file.fileno())
        final.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.rename(fresh, final)
        except OSError:
            if not final.is_dir():
                raise
    except tarfile.TarError as error:
        raise ValueError(f"fit {final.name} in the storage cannot be read ({error}).") from error
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def checksum(content: bytes) -> str:
    """Return the SHA-256 of `content` in hex."""
    return hashlib.sha256(content).hexdigest()

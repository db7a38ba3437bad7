"""Tables that are committed beside a study's file: written whole with a digest of each, checked when read.

``study.json`` in their folder tells the format, the digests and the study, and is written last.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fints.study.store import digest, write_json

if TYPE_CHECKING:
    import polars as pl

__all__ = ["ANEW", "FORMAT", "STUDY", "read_study", "read_table", "write_tables"]

FORMAT = 1
STUDY = "study.json"
ANEW = "or fit all of it here with --anew"
# Fixed, so that fits that come later leave the pages before them, and what Git keeps of them, as they are.
ROWS_A_GROUP = 50_000


def write_tables(place: Path, tables: Mapping[str, pl.DataFrame], spec: Mapping[str, Any]) -> None:
    """Write tables by name as parquet in place of those that lie there, and the study that they are of."""
    place.mkdir(parents=True, exist_ok=True)
    files = {}
    for name, frame in tables.items():
        path = place / f"{name}.parquet"
        fresh = path.with_name(f".{path.name}-{os.getpid()}")
        frame.rechunk().write_parquet(
            fresh, compression="zstd", compression_level=9, row_group_size=ROWS_A_GROUP, statistics=False
        )
        os.replace(fresh, path)
        files[path.name] = digest(path)
    for path in place.glob("*.parquet"):
        if path.name not in files:
            path.unlink()
    write_json(place / STUDY, {"format": FORMAT, "files": files, "spec": dict(spec)})


def read_study(place: Path) -> dict[str, Any] | None:
    """Return the study whose tables lie in a folder, None where none do.

    Raises
    ------
    ValueError
        If a file is not the one that was written, or a newer fints wrote them.
    """
    if not (place / STUDY).is_file():
        if any(place.glob("*.parquet")):
            raise ValueError(f"{place / STUDY} is missing: restore it from its commit, {ANEW}.")
        return None
    try:
        told = json.loads((place / STUDY).read_text(encoding="utf-8"))
        version, files, spec = int(told["format"]), dict(told["files"]), dict(told["spec"])
    except (OSError, ValueError, TypeError, LookupError):
        raise ValueError(f"{place / STUDY} cannot be read: restore it from its commit, {ANEW}.") from None
    if version > FORMAT:
        raise ValueError(
            f"the fits in {place} were published by a newer fints (format {version}, here {FORMAT}): "
            f"install that one, {ANEW}."
        )
    for name, wanted in files.items():
        path = place / name
        if not path.is_file() or digest(path) != wanted:
            fault = "is not as it was published" if path.is_file() else "is missing"
            raise ValueError(f"{path} {fault}: restore it from its commit, {ANEW}.")
    return spec


def read_table(path: Path) -> pl.DataFrame:
    """Return a table.

    Raises
    ------
    ValueError
        If the file is no parquet.
    """
    import polars as pl

    try:
        return pl.read_parquet(path)
    # Some damage makes polars panic, which is no Exception.
    except (OSError, pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise ValueError(
            f"{path} must hold parquet and cannot be read: restore it from its commit."
        ) from error

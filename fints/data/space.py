"""Where large arrays lie: in memory, or in unnamed files that are mapped into it."""

from __future__ import annotations

import tempfile
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["Files", "Memory", "Space"]

# Bytes written at once.
CHUNK = 1 << 24


class Space(ABC):
    """Makes arrays that are large for a large panel."""

    @abstractmethod
    def array(self, shape: Sequence[int], dtype: Any, fill: float) -> np.ndarray:
        """Return a new array, every element `fill`."""


class Memory(Space):
    """Arrays like any other."""

    def array(self, shape: Sequence[int], dtype: Any, fill: float) -> np.ndarray:
        """Return a new array, every element `fill`."""
        return np.full(tuple(shape), fill, dtype)


class Files(Space):
    """Arrays in files without a name: they go with the process, however it ends.

    Their pages are the system's to write out when memory is short; they count as file, not as anonymous
    memory.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def array(self, shape: Sequence[int], dtype: Any, fill: float) -> np.ndarray:
        """Return a new array, every element `fill`.

        Raises
        ------
        OSError
            If the disk is full. Written rather than set to its length: a hole in a file of a full disk kills
            the process that touches it.
        """
        kind = np.dtype(dtype)
        number = int(np.prod(shape, dtype=np.int64))
        part = np.full(max(1, CHUNK // kind.itemsize), fill, kind)
        with tempfile.TemporaryFile(dir=self.folder) as file:
            for start in range(0, number, len(part)):
                file.write(part[: number - start].data)
            file.flush()
            if not number:
                return np.full(tuple(shape), fill, kind)
            return np.asarray(np.memmap(file, kind, "r+", shape=tuple(shape)))

"""What made a fit that was restored from a committed result, kept in its folder."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fints.study.store import fit_json

__all__ = ["ORIGIN", "Made", "origin_of"]

ORIGIN = "origin.json"


@dataclass(frozen=True, kw_only=True)
class Made:
    """What made a fit: its key there, hash of the sources ("" for a baseline), release of torch, device."""

    key: str
    sources: str
    torch: str
    device: str

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> Made:
        """Return what a mapping with these fields, and maybe others, says."""
        return cls(**{one.name: str(told[one.name]) for one in dataclasses.fields(cls)})

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, JSON-able."""
        return dataclasses.asdict(self)

    def like(self, spec: Mapping[str, Any]) -> bool:
        """Tell whether a run of `spec` would have made this fit with the same code, on the same device."""
        return (self.sources, self.torch, self.device) == (spec["sources"], spec["torch"], spec["device"])


def origin_of(folder: Path) -> Made | None:
    """Return what made a restored fit; None if the fit was made where it lies.

    Raises
    ------
    DamagedFit
        If it is not as it was written.
    """
    return Made.of(fit_json(folder, ORIGIN)) if (folder / ORIGIN).is_file() else None

"""One training of a panel study, as values that travel to a worker."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["PANEL_SOURCES", "Days", "PanelFit"]

# What such a fit runs through, for `fints.study.fingerprint.sources_hash`.
PANEL_SOURCES = (
    "config.py",
    "data",
    "residual",
    "model",
    "training",
    "diagnostics",
    "interventions",
    "study/panel_cells.py",
    "study/panel_fits.py",
)


@dataclass(frozen=True, kw_only=True)
class Days:
    """How a panel's days are used, in order; no outcome of one part falls into the next."""

    train: int
    validation: int
    test: int

    @property
    def total(self) -> int:
        """Days of the panel; the last has no outcome."""
        return self.train + self.validation + self.test + 1


@dataclass(frozen=True, kw_only=True)
class PanelFit:
    """One training: an arm at a design point on a panel with a seed.

    `design` names what is fitted, `key` that with the code (`sources`) and the release of torch.
    `simulation` is what `fints.data.simulate` is called with. A fit of role "tuning" is told its validation
    loss alone; `watched` says whether a final one stores mediators, profiles and probes.
    """

    key: str
    design: str
    arm: str
    role: str
    panel: int
    seed: int
    point: dict[str, Any]
    experiment: dict[str, Any]
    simulation: dict[str, Any]
    days: dict[str, int]
    sources: str = ""
    watched: bool = False
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return what `PanelFit(**...)` takes, JSON-able."""
        return asdict(self)

    def __str__(self) -> str:
        """Say which fit this is in a few words."""
        point = ", ".join(f"{name.rsplit('.', 1)[-1]} {value}" for name, value in self.point.items())
        return f"{self.arm} {self.role} panel {self.panel}" + (f", {point}" if self.role == "tuning" else "")

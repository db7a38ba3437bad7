"""Panels, features, targets, scaling, windows, simulation and datasets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fints.data.catalog import Card, card, datasets, home, load, planted_signal, store, store_simulation
from fints.data.check import Finding, Report, check
from fints.data.features import FEATURES, features
from fints.data.importing import Imported, import_file
from fints.data.panel import Panel
from fints.data.scaling import StandardScaler
from fints.data.semi_synthetic import semi_synthetic
from fints.data.sources import LAYOUTS, Factor, Repairs, read
from fints.data.synthetic import Simulation, simulate
from fints.data.synthetic_oracle import noise_free_targets, oracle_by_volatility
from fints.data.targets import TARGETS, targets

if TYPE_CHECKING:
    from fints.data.windows import Windows, WindowSet

__all__ = [
    "FEATURES",
    "LAYOUTS",
    "TARGETS",
    "Card",
    "Factor",
    "Finding",
    "Imported",
    "Panel",
    "Repairs",
    "Report",
    "Simulation",
    "StandardScaler",
    "WindowSet",
    "Windows",
    "card",
    "check",
    "datasets",
    "features",
    "home",
    "import_file",
    "load",
    "noise_free_targets",
    "oracle_by_volatility",
    "planted_signal",
    "read",
    "semi_synthetic",
    "simulate",
    "store",
    "store_simulation",
    "targets",
]


def __getattr__(name: str) -> Any:
    """Load the windows on first use: they are the one part of the data that needs torch."""
    if name in ("Windows", "WindowSet"):
        from fints.data import windows

        return getattr(windows, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

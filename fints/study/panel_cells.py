"""One training of a panel study, as values that travel to a worker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["ASKED", "PANEL_SOURCES", "Days", "PanelFit", "check_asked"]

# What such a fit runs through, for `fints.study.fingerprint.sources_hash`.
PANEL_SOURCES = (
    "config.py",
    "data",
    "residual",
    "model",
    "training",
    "diagnostics",
    "interventions",
    "study/grouping.py",
    "study/panel_cells.py",
    "study/panel_fits.py",
    "study/panel_inside.py",
    "study/panel_measures.py",
    "study/panel_planted.py",
    "study/panel_windows.py",
)

# What a final fit may be asked; `fints.study.panel_measures` and, of the last two, `fints.study.panel_inside`
# say what each is.
ASKED = ("blocks", "volatility", "scales", "scaled_features", "inside", "curve")


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
    loss alone; others are "final", or "yoked" with an arm that chose another design point
    (`fints.study.panel_design.Yoked`). `watched` says whether such a one stores mediators, profiles and
    probes, `asked` what else it is asked (`fints.study.panel_measures`).

    `members` holds several fits as `to_dict` gives them: this one then stands for all of them, which are made
    at once (`fints.study.grouping`), and is no fit itself.
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
    asked: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    members: Sequence[dict[str, Any]] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return what `PanelFit(**...)` takes, JSON-able."""
        return asdict(self)

    def cells(self) -> list[PanelFit]:
        """Return the fits that this is: itself, or its members."""
        return [PanelFit(**member) for member in self.members] or [self]

    def __str__(self) -> str:
        """Say which fit this is in a few words."""
        if self.members:
            first, *_, last = self.cells()
            return f"{len(self.members)} fits at once, {first} to {last}"
        point = ", ".join(f"{name.rsplit('.', 1)[-1]} {value}" for name, value in self.point.items())
        return f"{self.arm} {self.role} panel {self.panel}" + (f", {point}" if self.role == "tuning" else "")


def check_asked(asked: Mapping[str, Any], features: Sequence[str]) -> None:
    """Refuse what cannot be asked of a fit on these features.

    Raises
    ------
    ValueError
        If a name is unknown, or features are to be scaled that the network does not see.
    """
    for name in asked:
        if name not in ASKED:
            raise ValueError(f"asked = {name!r} is unknown. Choose of {', '.join(ASKED)}.")
    unseen = [name for name in asked.get("scaled_features", ()) if name not in features]
    if unseen or ("scales" in asked and not asked.get("scaled_features")):
        raise ValueError(
            f"scaled_features must name features of the experiment ({', '.join(features)}); got "
            f"{list(asked.get('scaled_features', ()))}."
        )

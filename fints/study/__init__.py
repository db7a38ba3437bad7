"""Turn a question into arms, tuned trials, tracked runs and a report.

`Study` and its parts declare a question to one panel in time, `PanelStudy` one to independent simulated
panels; `main` and `panel_main` give the file that declares it its verbs. Names are resolved on first use, so
importing the package loads nothing heavy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fints.study.declared import refuse_in_one_line

if TYPE_CHECKING:
    from fints.study.cli import main
    from fints.study.design import Contrast, Preset, Study, Tuning
    from fints.study.matching import Matching
    from fints.study.panel_cells import Days
    from fints.study.panel_cli import main as panel_main
    from fints.study.panel_design import PanelPreset, PanelStudy, PanelTuning, Yoked

__all__ = [
    "Contrast",
    "Days",
    "Matching",
    "PanelPreset",
    "PanelStudy",
    "PanelTuning",
    "Preset",
    "Study",
    "Tuning",
    "Yoked",
    "main",
    "panel_main",
]

_HOME = {
    "Contrast": "fints.study.design",
    "Days": "fints.study.panel_cells",
    "Matching": "fints.study.matching",
    "PanelPreset": "fints.study.panel_design",
    "PanelStudy": "fints.study.panel_design",
    "PanelTuning": "fints.study.panel_design",
    "Preset": "fints.study.design",
    "Study": "fints.study.design",
    "Tuning": "fints.study.design",
    "Yoked": "fints.study.panel_design",
    "main": "fints.study.cli",
    "panel_main": "fints.study.panel_cli",
}
_ALIASES = {"panel_main": "main"}


refuse_in_one_line()


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(
            f"fints.study has no attribute {name!r}; its public names are {', '.join(__all__)}."
        )
    return getattr(import_module(_HOME[name]), _ALIASES.get(name, name))


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

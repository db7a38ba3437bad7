"""Turn a question into arms, tuned trials, tracked runs and a report.

`Study` and its parts declare a question, `main` gives the file that declares it its verbs. Names
are resolved on first use, so importing the package loads nothing heavy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fints.study.cli import main
    from fints.study.design import Contrast, Preset, Study, Tuning

__all__ = ["Contrast", "Preset", "Study", "Tuning", "main"]

_HOME = {
    "Contrast": "fints.study.design",
    "Preset": "fints.study.design",
    "Study": "fints.study.design",
    "Tuning": "fints.study.design",
    "main": "fints.study.cli",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(
            f"fints.study has no attribute {name!r}; its public names are {', '.join(__all__)}."
        )
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

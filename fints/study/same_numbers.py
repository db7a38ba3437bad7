"""Whether this machine would give the numbers of the one that planned a study."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fints.study.baselines import SOURCES
from fints.study.fingerprint import (
    AFFECTS_BASELINES,
    AFFECTS_NUMBERS,
    device_type,
    sources_hash,
    torch_version,
)

__all__ = ["code_hash", "refuse_other_numbers"]


def refuse_other_numbers(spec: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
    """Refuse to fit where the numbers would not be those of the machine that planned the study.

    Raises
    ------
    ValueError
        If the code, torch or the device differ.
    """
    device = device_type(spec["arms"][0]["experiment"]["training"]["device"])
    for what, wanted, here in (
        ("the code that affects numbers", facts["code"], code_hash()),
        ("torch", spec["torch"], torch_version()),
        ("the device", spec["device"], device),
    ):
        if wanted != here:
            raise ValueError(
                f"{what} must be as where the study was planned ({wanted}), and is {here} here: install the "
                "same fints and torch under the same Python, or plan the study for this device."
            )


def code_hash() -> str:
    """Return a hash of all that can change a fit's or a baseline's numbers."""
    baselines = sorted({entry for entries in SOURCES.values() for entry in entries})
    return sources_hash(entries=(*AFFECTS_NUMBERS, *AFFECTS_BASELINES, *baselines))

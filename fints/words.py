"""What is told: numbers with their nouns, so that no message counts "1 assets", and strict JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

__all__ = ["byte_text", "counted", "json_text"]


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun, in the plural (`plural`, else the noun with an s) unless it is 1.

    >>> counted(1, "asset"), counted(2520, "day"), counted(0, "study", "studies")
    ('1 asset', '2,520 days', '0 studies')
    """
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def byte_text(size: float) -> str:
    """Return a number of bytes as a person reads it.

    >>> byte_text(0), byte_text(2_500), byte_text(3 * 2**30)
    ('0 B', '2.4 KiB', '3.0 GiB')
    """
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def json_text(value: Any) -> str:
    """Return a value as one indented JSON document; a number that is not finite is null.

    >>> print(json_text([1.5, float("nan")]))
    [
      1.5,
      null
    ]
    """
    return json.dumps(_finite(value), indent=2, ensure_ascii=False, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value

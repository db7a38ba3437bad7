"""Numbers with their nouns, so that no message counts "1 assets"."""

from __future__ import annotations

__all__ = ["counted"]


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun, in the plural (`plural`, else the noun with an s) unless it is 1.

    >>> counted(1, "asset"), counted(2520, "day"), counted(0, "study", "studies")
    ('1 asset', '2,520 days', '0 studies')
    """
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"

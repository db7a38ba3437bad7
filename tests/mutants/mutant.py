"""What a planted mistake is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One mistake seen in public code: its patch and the test that must notice."""

    mistake: str
    file: str
    old: str
    new: str
    test: str

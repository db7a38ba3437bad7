"""The panel a study may see: the named dataset up to its seal."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import polars as pl

    from fints.data import Card, Panel

__all__ = ["Dataset", "open_dataset"]


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """A panel without its sealed dates, with the checksum of the whole.

    `until` is the first sealed date, None where nothing is sealed or the study opens the seal.
    `signal` is what was planted in a simulated panel (`fints.data.planted_signal`), None elsewhere.
    """

    reference: str
    name: str
    panel: Panel
    checksum: str
    until: date | None
    signal: pl.DataFrame | None = None

    @property
    def label(self) -> str:
        """What tells this dataset's folder from others: a file's name alone would not."""
        return self.name if _card(self.reference) is not None else f"{self.name}-{self.checksum[:8]}"

    @property
    def signal_checksum(self) -> str:
        """16 hex digits of the signal's content, empty where none is known."""
        if self.signal is None:
            return ""
        return hashlib.sha256(self.signal.write_csv().encode()).hexdigest()[:16]

    def describe(self) -> dict[str, Any]:
        """Return the dataset's card, or what is known of a panel without one, JSON-able."""
        known: dict[str, Any] = {"name": self.name, "checksum": self.checksum, "reference": self.reference}
        found = _card(self.reference)
        return {**known, **found.to_dict(), "checksum": self.checksum} if found is not None else known


def open_dataset(reference: str, *, opens_seal: bool) -> Dataset:
    """Load a dataset by name or path and drop every row from its seal on.

    Raises
    ------
    ValueError
        If the dataset is unknown or nothing of it lies before the seal.
    """
    from fints.data import load, planted_signal
    from fints.data.catalog import seal

    whole = load(reference)
    found = _card(reference)
    own = None if found is None else found.sealed_from
    seals = [day for day in (own, seal(whole)) if day is not None]
    until = None if opens_seal else min(seals, default=None)
    panel = whole
    if until is not None:
        if until <= whole.dates[0]:
            raise ValueError(
                f"every date of dataset {reference!r} is sealed from {until} on; nothing is left to fit."
            )
        panel = whole[: until - timedelta(days=1)]
    name = re.sub(r"[^A-Za-z0-9_.+-]+", "_", whole.name).strip("._-") or "panel"
    return Dataset(
        reference=reference,
        name=name,
        panel=panel,
        checksum=whole.checksum,
        until=until,
        signal=planted_signal(reference),
    )


def _card(reference: str) -> Card | None:
    from fints.data import card
    from fints.data.catalog import is_dataset

    return card(reference) if is_dataset(reference) else None

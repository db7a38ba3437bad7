"""What a caller says about a file before it is read."""

from __future__ import annotations

from dataclasses import dataclass, field

from fints.data.readers.repairs import Repairs

__all__ = ["Asking"]


@dataclass(frozen=True, kw_only=True)
class Asking:
    """The layout and what to take from it.

    Attributes
    ----------
    layout : str
        A name of `fints.data.readers.LAYOUTS`, or "auto".
    price : str or None
        The price column (the column of returns where `returns` is set); None for the layout's own.
    block : str or None
        Which of several stacked tables: a number from 1, or part of a title.
    sheet : str or None
        Which sheet of a workbook.
    returns : {"simple", "log"} or None
        The price column, or a wide file, holds returns of this kind.
    repairs : Repairs
        Decisions about what is broken or ambiguous.
    """

    layout: str = "auto"
    price: str | None = None
    block: str | None = None
    sheet: str | None = None
    returns: str | None = None
    repairs: Repairs = field(default_factory=Repairs)

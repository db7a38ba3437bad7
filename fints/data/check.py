"""What a file or panel holds and what looks wrong with it, before anything is trained on it."""

from __future__ import annotations

import os
import textwrap
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import polars as pl

from fints.data.findings import Finding
from fints.data.health import inspect
from fints.data.panel import Panel
from fints.data.readers import Reading, Repairs
from fints.data.readers.qlib import recognises_qlib
from fints.data.sources import NO_REPAIRS, open_file
from fints.words import counted

__all__ = ["Finding", "Report", "check", "inspect", "report_of"]

WIDTH = 80


@dataclass(frozen=True)
class Report:
    """Everything `check` found.

    Attributes
    ----------
    subject : str
        The file or panel.
    recognised : str
        What the file was taken for; empty for a panel.
    summary : dict
        Span, counts and checksum; empty if there is no panel.
    findings : tuple of Finding
        Errors first.
    notes, repairs : tuple of str
        What the layout's own rules did to values, and what was changed because the caller asked for it.
    panel : Panel or None
        The panel, if the file is one.
    """

    subject: str
    recognised: str
    summary: dict[str, Any]
    findings: tuple[Finding, ...]
    notes: tuple[str, ...] = ()
    repairs: tuple[str, ...] = ()
    panel: Panel | None = None

    @property
    def ok(self) -> bool:
        """True if the file is a panel; warnings may remain."""
        return not any(finding.level == "error" for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON-able values."""
        fields = {name: getattr(self, name) for name in ("subject", "recognised", "summary")}
        told = {"notes": list(self.notes), "repairs": list(self.repairs)}
        return fields | told | {"ok": self.ok, "findings": [asdict(finding) for finding in self.findings]}

    def __str__(self) -> str:
        """Return the report as text, 80 columns wide."""
        lines = [self.subject]
        if self.recognised:
            lines += _wrapped("read as", self.recognised)
        for key, value in self.summary.items():
            lines += _wrapped(key, f"{value:,}" if isinstance(value, int) else str(value))
        for key, texts in (("layout", self.notes), ("repaired", self.repairs)):
            for text in texts:
                lines += _wrapped(key, text)
        for finding in self.findings:
            lines += _wrapped(finding.level, finding.message)
        errors = sum(finding.level == "error" for finding in self.findings)
        warnings = sum(finding.level == "warning" for finding in self.findings)
        verdict = "cannot be used as it stands" if errors else "can be used"
        lines.append(f"  {verdict}: {counted(errors, 'error')}, {counted(warnings, 'warning')}")
        return "\n".join(lines)


def check(
    path: str | os.PathLike[str] | Panel,
    *,
    layout: str = "auto",
    price: str | None = None,
    block: str | int | None = None,
    sheet: str | None = None,
    returns: str | None = None,
    repairs: Repairs = NO_REPAIRS,
) -> Report:
    """Look through a file (or a panel) for what breaks or misleads a forecaster.

    A file that cannot be a panel gives a report with errors: everything wrong that can be told at once. The
    options are those of `fints.data.read`.

    Raises
    ------
    ValueError
        If there is no such file or folder.
    """
    if isinstance(path, Panel):
        return Report(path.name, "", _summary(path), tuple(inspect(path)), panel=path)
    subject = os.fspath(path)
    if not os.path.isfile(subject) and not recognises_qlib(Path(subject)):
        raise ValueError(
            f"{subject}: there is no such file{' (it is a folder)' if os.path.isdir(subject) else ''}."
        )
    try:
        reading = open_file(
            path, layout=layout, price=price, block=block, sheet=sheet, returns=returns, repairs=repairs
        )
    except ValueError as error:
        return Report(subject, "", {}, (Finding("error", "unreadable", str(error)),))
    faults = reading.faults()
    if faults:
        errors = tuple(Finding("error", fault.kind, reading.explain(fault)) for fault in faults)
        return Report(subject, reading.recognised, {}, errors, reading.notes, reading.repairs)
    return report_of(reading, Panel(reading.frame, price=reading.price, name=subject))


def report_of(reading: Reading, panel: Panel) -> Report:
    """Return the report on a file that is a panel."""
    told = reading.notes, reading.repairs
    findings = tuple(inspect(panel))
    return Report(str(reading.path), reading.recognised, _summary(panel), findings, *told, panel)


def _wrapped(key: str, text: str) -> list[str]:
    """Return a text under a key in the margin, no line beyond `WIDTH` but for a word longer than that."""
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=f"  {key:<10}",
        subsequent_indent=" " * 12,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _summary(panel: Panel) -> dict[str, Any]:
    traded = panel.frame.select(pl.col(panel.price).is_not_null().sum()).item()
    return {
        "span": f"{panel.dates[0]} to {panel.dates[-1]}",
        "dates": len(panel.dates),
        "assets": len(panel.assets),
        "rows": len(panel),
        "prices": traded,
        "price": panel.price,
        "features": ", ".join(panel.feature_columns) or "none",
        "checksum": panel.checksum,
    }

"""What a file or panel holds and what looks wrong with it, before anything is trained on it."""

from __future__ import annotations

import math
import os
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import polars as pl

from fints.data.panel import PERCENT_MEDIAN, Panel, find_faults
from fints.data.sources import open_file

__all__ = ["Finding", "Report", "check", "inspect"]

# A daily move beyond a factor of 5 is rarer than an unadjusted split or a change of unit.
JUMP = math.log(5)
# Prices in pence for pounds, cents for dollars: within 20 % of a factor of 100.
HUNDREDFOLD = (math.log(80), math.log(125))
# Five equal closes in a row are one in thousands for a liquid stock, and the mark of a filled-in holiday or
# halt.
STALE_RUN = 5
# A tick above 10 bp of the price makes rounding show in daily returns of about 1 %.
COARSE_TICK = 0.001
GAP_DAYS = 10


@dataclass(frozen=True)
class Finding:
    """One finding: a `level`, a `kind` and a sentence with first examples.

    The level is "error" (this is no panel), "warning" (look at it before you trust a result) or "note".
    """

    level: str
    kind: str
    message: str


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
    """

    subject: str
    recognised: str
    summary: dict[str, Any]
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """True if the file is a panel; warnings may remain."""
        return not any(finding.level == "error" for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON-able values."""
        return asdict(self) | {"ok": self.ok, "findings": [asdict(finding) for finding in self.findings]}

    def __str__(self) -> str:
        """Return the report as text, a line a finding."""
        lines = [self.subject]
        if self.recognised:
            lines.append(f"  read as   {self.recognised}")
        lines += [f"  {key:<10}{value}" for key, value in self.summary.items()]
        lines += [f"  {finding.level:<9} {finding.message}" for finding in self.findings]
        errors = sum(finding.level == "error" for finding in self.findings)
        warnings = sum(finding.level == "warning" for finding in self.findings)
        verdict = "cannot be used as it stands" if errors else "can be used"
        lines.append(f"  {verdict}: {_count(errors, 'error')}, {_count(warnings, 'warning')}")
        return "\n".join(lines)


def check(path: str | os.PathLike[str] | Panel, *, layout: str = "auto", price: str = "close") -> Report:
    """Look through a file (or a panel) for what breaks or misleads a forecaster.

    A file that cannot be a panel gives a report with errors: everything wrong that can be told at once.

    Raises
    ------
    ValueError
        If there is no such file.
    """
    if isinstance(path, Panel):
        return Report(path.name, "", _summary(path), tuple(inspect(path)))
    subject = os.fspath(path)
    if not os.path.isfile(subject):
        raise ValueError(
            f"{subject}: there is no such file{' (it is a folder)' if os.path.isdir(subject) else ''}."
        )
    try:
        reading = open_file(path, layout=layout, price=price)
    except ValueError as error:
        return Report(subject, "", {}, (Finding("error", "unreadable", str(error)),))
    faults = find_faults(reading.frame, reading.price)
    if faults:
        errors = tuple(Finding("error", fault.kind, reading.explain(fault)) for fault in faults)
        return Report(subject, reading.recognised, {}, errors)
    panel = Panel(reading.frame, price=reading.price, name=subject)
    return Report(subject, reading.recognised, _summary(panel), tuple(inspect(panel)))


def inspect(panel: Panel) -> list[Finding]:
    """Return warnings and notes on a valid panel."""
    price = panel.price
    traded = (
        panel.frame.filter(pl.col(price).is_not_null())
        .sort("asset", "date")
        .select(
            "date",
            "asset",
            price=pl.col(price),
            move=pl.col(price).log().diff().over("asset"),
            days=(pl.col("date") - pl.col("date").shift(1).over("asset")).dt.total_days(),
        )
    )
    findings = [
        *_empty_assets(panel, traded),
        *_constant_assets(traded),
        *_jumps(traded),
        *_units(panel, traded),
        *_stale(traded),
        *_ticks(traded),
        *_gaps(panel, traded),
        *_shape(panel, traded),
    ]
    return sorted(findings, key=lambda finding: ("error", "warning", "note").index(finding.level))


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


def _empty_assets(panel: Panel, traded: pl.DataFrame) -> list[Finding]:
    empty = sorted(set(panel.assets) - set(traded["asset"].unique()))
    if not empty:
        return []
    return [
        Finding(
            "warning",
            "no_price",
            f"{_names(empty)} without a single price: no feature, no forecast. Drop or repair.",
        )
    ]


def _constant_assets(traded: pl.DataFrame) -> list[Finding]:
    spread = traded.group_by("asset").agg(
        constant=(pl.col("price").max() == pl.col("price").min()) & (pl.len() > 1)
    )
    constant = sorted(spread.filter("constant")["asset"])
    if not constant:
        return []
    return [
        Finding(
            "warning",
            "constant",
            f"{_names(constant)} with a price that never changes: no volatility, no scaled target.",
        )
    ]


def _jumps(traded: pl.DataFrame) -> list[Finding]:
    findings = []
    size = pl.col("move").abs()
    hundredfold = size.is_between(*HUNDREDFOLD)
    units = traded.filter(hundredfold)
    if units.height:
        findings.append(
            Finding(
                "warning",
                "hundredfold",
                f"{_count(units.height, 'move')} of about a factor of 100, first {_moves(units)}: pence and "
                "pounds? Bring the asset to one unit.",
            )
        )
    jumps = traded.filter((size > JUMP) & ~hundredfold)
    if jumps.height:
        findings.append(
            Finding(
                "warning",
                "jump",
                f"{_count(jumps.height, 'move')} beyond a factor of 5, first {_moves(jumps)}: an unadjusted "
                "or doubly adjusted split, or genuine? Compare with another source; nothing is repaired.",
            )
        )
    return findings


def _units(panel: Panel, traded: pl.DataFrame) -> list[Finding]:
    findings = []
    median = traded.filter(pl.col("move") != 0)["move"].abs().median()
    if isinstance(median, float) and median > PERCENT_MEDIAN:
        findings.append(
            Finding(
                "warning",
                "not_prices",
                f"the median absolute move of {panel.price!r} is {median:.0%}: these may be returns. Use "
                "Panel.from_returns.",
            )
        )
    for column in panel.feature_columns:
        if "ret" not in column.casefold():
            continue
        size = panel.frame[column].abs().median()
        if isinstance(size, float) and size > PERCENT_MEDIAN:
            findings.append(
                Finding(
                    "warning",
                    "percent",
                    f"{column!r} has median absolute value {size:.3g}: percent? Divide it by 100.",
                )
            )
    return findings


def _stale(traded: pl.DataFrame) -> list[Finding]:
    runs = (
        traded.with_columns(run=pl.col("move").rle_id().over("asset"))
        .filter(pl.col("move") == 0)
        .group_by("asset", "run")
        .agg(pl.len().alias("length"), pl.col("date").min())
        .filter(pl.col("length") >= STALE_RUN)
        .sort("length", "asset", "date", descending=[True, False, False])
    )
    zeros = traded["move"].drop_nulls()
    share = (zeros == 0).sum() / len(zeros) if len(zeros) else 0.0
    findings = []
    if runs.height:
        first = runs.row(0, named=True)
        findings.append(
            Finding(
                "warning",
                "stale",
                f"{_count(runs.height, 'run')} of {STALE_RUN} or more exact zero returns, longest "
                f"{first['length']} for "
                f"{first['asset']} from {first['date']}: forward-filled holidays or halts? Leave such days "
                "out.",
            )
        )
    if share > 0:
        findings.append(Finding("note", "zero_returns", f"{share:.1%} of all returns are exactly zero."))
    return findings


def _ticks(traded: pl.DataFrame) -> list[Finding]:
    """Find prices written with so few decimals that rounding is a visible part of a return."""
    coarse = []
    for (asset,), prices in traded.group_by("asset", maintain_order=True):
        values = prices["price"].to_numpy()
        decimals = next(
            (d for d in range(7) if np.abs(values * 10**d - np.round(values * 10**d)).max() < 1e-6), None
        )
        if decimals is None:
            continue
        share = 10.0**-decimals / values
        affected = float((share > COARSE_TICK).mean())
        if affected:
            coarse.append((affected, str(asset), decimals, float(share.max())))
    if not coarse:
        return []
    worst = max(coarse)
    return [
        Finding(
            "warning",
            "rounding",
            f"{_count(len(coarse), 'asset')} with days on which the last decimal is worth more than "
            f"{COARSE_TICK * 1e4:.0f} bp, "
            f"most {worst[1]} ({worst[0]:.0%} of its days, {worst[2]} decimals, up to {worst[3] * 1e4:.0f} "
            "bp): rounding fakes reversal. Start later or find finer prices.",
        )
    ]


def _gaps(panel: Panel, traded: pl.DataFrame) -> list[Finding]:
    calendar = pl.DataFrame({"date": panel.dates, "place": range(len(panel.dates))}).with_columns(
        pl.col("place").cast(pl.Int64)
    )
    placed = traded.join(calendar, on="date").sort("asset", "date")
    holes = placed.with_columns(lost=pl.col("place") - pl.col("place").shift(1).over("asset") - 1).filter(
        pl.col("lost") > 0
    )
    findings = []
    if holes.height:
        longest = holes.sort("lost", "asset", "date", descending=[True, False, False]).row(0, named=True)
        findings.append(
            Finding(
                "note",
                "missing_days",
                f"{_count(int(holes['lost'].sum()), 'asset-day')} missing inside listings, longest "
                f"{longest['lost']} days of "
                f"{longest['asset']} before {longest['date']}: kept as missing, never filled.",
            )
        )
    steps = panel.dates.diff().dt.total_days().drop_nulls()
    usual = steps.median()
    if isinstance(usual, float) and usual <= 3:
        wide = (steps > GAP_DAYS).arg_true()
        if len(wide):
            place = int(wide[0])
            findings.append(
                Finding(
                    "warning",
                    "calendar_gap",
                    f"{_count(len(wide), 'gap')} of more than {GAP_DAYS} days in the calendar, first "
                    f"{panel.dates[place]} to {panel.dates[place + 1]}: a missing part of the file?",
                )
            )
    elif isinstance(usual, float):
        findings.append(
            Finding(
                "note",
                "frequency",
                f"dates are {usual:g} days apart (median): one row is one period, not one day.",
            )
        )
    return findings


def _shape(panel: Panel, traded: pl.DataFrame) -> list[Finding]:
    findings = []
    if len(panel.assets) == 1:
        findings.append(
            Finding(
                "note",
                "one_asset",
                "one asset: cross-sectional ranks are 0, cross-sectional targets do not exist.",
            )
        )
    late = traded.group_by("asset").agg(
        pl.col("date").min().alias("first"), pl.col("date").max().alias("last")
    )
    for kind, column, bound, word in (
        ("late_listing", "first", panel.dates[0], "start after the panel does"),
        ("delisted", "last", panel.dates[-1], "end before the panel does"),
    ):
        names = sorted(late.filter(pl.col(column) != bound)["asset"])
        if names:
            findings.append(Finding("note", kind, f"{_names(names)} {word}: the others keep their history."))
    weekend = panel.dates.filter(panel.dates.dt.weekday() > 5)
    if len(weekend):
        findings.append(
            Finding("note", "weekend", f"{_count(len(weekend), 'date')} on a weekend, first {weekend[0]}.")
        )
    return findings


def _moves(rows: pl.DataFrame) -> str:
    shown = [
        f"{row['asset']} on {row['date']} (x{math.exp(row['move']):.4g})"
        for row in rows.sort("date", "asset").head(3).iter_rows(named=True)
    ]
    return ", ".join(shown)


def _names(names: list[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return f"{_count(len(names), 'asset')} ({', '.join(names[:5])}{more})"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"

"""What looks wrong in a valid panel: each fault by its kind, with first examples and what to do."""

from __future__ import annotations

import math
import re

import numpy as np
import polars as pl

from fints.data.findings import Finding, moves, names, traded_moves
from fints.data.health_dates import dependence, filled_holidays, future, gaps, shape, survivorship
from fints.data.panel import Panel
from fints.data.panel_rules import PERCENT_MEDIAN
from fints.words import counted

__all__ = ["decimals", "inspect", "split_suspects"]

# A daily move beyond a factor of 5 is rarer than an unadjusted split or a change of unit.
JUMP = math.log(5)
# Prices in pence for pounds, cents for dollars: within 20 % of a factor of 100.
HUNDREDFOLD = (math.log(80), math.log(125))
# A column of returns follows the price's own moves; its size beside theirs tells its units, whatever it is.
SAME_MOVES, PERCENT_OF = 0.9, (50.0, 200.0)
# Five equal closes in a row are one in thousands for a liquid stock, and the mark of a filled-in holiday or
# halt.
STALE_RUN = 5
# A tick above 10 bp of the price makes rounding show in daily returns of about 1 %.
COARSE_TICK = 0.001
# Ratios of splits and reverse splits, beside the day's own move; 3 for 2 cannot be told from bad news.
SPLITS = (2.0, 3.0, 4.0, 5.0)
SPLIT_WITHIN = 0.03
# Of the asset's median absolute move, which is two thirds of its standard deviation under the normal law.
SPLIT_SCALE = 15.0


def inspect(panel: Panel) -> list[Finding]:
    """Return warnings and notes on a valid panel."""
    traded = traded_moves(panel)
    findings = [
        *_empty_assets(panel, traded),
        *_constant_assets(traded),
        *_jumps(traded),
        *_splits(traded),
        *_units(panel, traded),
        *_alike_names(panel),
        *_repeated_names(panel),
        *_stale(traded),
        *filled_holidays(traded),
        *_live_bar(panel),
        *future(panel),
        *dependence(traded),
        *survivorship(panel, traded),
        *_ticks(traded),
        *gaps(panel, traded),
        *shape(panel, traded),
    ]
    return sorted(findings, key=lambda finding: ("error", "warning", "note").index(finding.level))


def _empty_assets(panel: Panel, traded: pl.DataFrame) -> list[Finding]:
    empty = sorted(set(panel.assets) - set(traded["asset"].unique()))
    if not empty:
        return []
    return [
        Finding(
            "warning",
            "no_price",
            f"{names(empty)} without a single price: no feature, no forecast. Drop or repair.",
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
            f"{names(constant)} with a price that never changes: no volatility, no scaled target.",
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
                f"{counted(units.height, 'move')} of about a factor of 100, first {moves(units)}: pence and "
                "pounds? Bring the asset to one unit.",
            )
        )
    jumps = traded.filter((size > JUMP) & ~hundredfold)
    if jumps.height:
        findings.append(
            Finding(
                "warning",
                "jump",
                f"{counted(jumps.height, 'move')} beyond a factor of 5, first {moves(jumps)}: an unadjusted "
                "or doubly adjusted split, or genuine? Compare with another source; nothing is repaired.",
            )
        )
    return findings


def split_suspects(traded: pl.DataFrame) -> pl.DataFrame:
    """Return moves by the ratio of a split, far outside the asset's own, that no day beside takes back."""
    scale = pl.col("move").abs().median().over("asset")
    after = pl.col("move").shift(-1).over("asset").fill_null(0.0)
    before = pl.col("move").shift(1).over("asset").fill_null(0.0)
    size = pl.col("move").abs()
    near = pl.any_horizontal((size - math.log(ratio)).abs() < SPLIT_WITHIN for ratio in SPLITS)
    return traded.filter(
        near
        & (size > SPLIT_SCALE * scale)
        & (scale > 0)
        & (size <= JUMP)
        & ((after + pl.col("move")).abs() > size / 2)
        & ((before + pl.col("move")).abs() > size / 2)
    )


def _splits(traded: pl.DataFrame) -> list[Finding]:
    suspects = split_suspects(traded)
    if not suspects.height:
        return []
    return [
        Finding(
            "warning",
            "split",
            f"{counted(suspects.height, 'move')} by the ratio of a split, first {moves(suspects)}: "
            "unadjusted? Compare with another source; nothing is repaired.",
        )
    ]


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
    findings += [found for column in panel.feature_columns for found in _percent(panel, traded, column)]
    return findings


def _percent(panel: Panel, traded: pl.DataFrame, column: str) -> list[Finding]:
    """Find returns in percent: a column a hundredfold of the price's moves, or a large one of that name."""
    values = panel.frame.select("date", "asset", value=pl.col(column).cast(pl.Float64).fill_nan(None))
    both = traded.select("date", "asset", move=pl.col("move").exp() - 1).join(values, on=["date", "asset"])
    both = both.drop_nulls().filter(pl.col("value").is_finite() & pl.col("move").is_finite())
    correlation = both.select(pl.corr("move", "value")).item() if both.height > 2 else None
    said = ""
    if correlation is not None and correlation > SAME_MOVES:
        spread = both.select(pl.col("value").std() / pl.col("move").std()).item()
        if PERCENT_OF[0] < spread < PERCENT_OF[1]:
            said = f"{column!r} is {spread:.4g} times the returns of {panel.price!r}"
    elif "ret" in column.casefold():
        size = values["value"].abs().median()
        if isinstance(size, float) and size > PERCENT_MEDIAN:
            said = f"{column!r} has median absolute value {size:.3g}"
    return [Finding("warning", "percent", f"{said}: percent? Divide it by 100.")] if said else []


def _repeated_names(panel: Panel) -> list[Finding]:
    """Find assets named as pandas names a column that stood twice: X.1 beside X."""
    numbered = [re.fullmatch(r"(.+)\.\d+", asset) for asset in panel.assets]
    known = set(panel.assets)
    again = [match for match in numbered if match is not None and match[1] in known]
    if not again:
        return []
    shown = ", ".join(f"{match[0]!r} beside {match[1]!r}" for match in again[:3])
    more = f" and {len(again) - 3} more" if len(again) > 3 else ""
    return [
        Finding(
            "warning",
            "repeated_names",
            f"assets named as pandas names a column that stood twice: {shown}{more}: one asset twice? Leave "
            "out the repeated column (drop), or give it a name of its own.",
        )
    ]


def _alike_names(panel: Panel) -> list[Finding]:
    """Find assets whose names differ only by case or by blanks."""
    groups: dict[str, list[str]] = {}
    for asset in panel.assets:
        groups.setdefault("".join(asset.split()).casefold(), []).append(asset)
    alike = [group for group in groups.values() if len(group) > 1]
    if not alike:
        return []
    shown = "; ".join(", ".join(map(repr, group)) for group in alike[:3])
    more = f" and {len(alike) - 3} more" if len(alike) > 3 else ""
    return [
        Finding(
            "warning",
            "alike_names",
            f"assets whose names differ only by case or blanks: {shown}{more}: one asset under two names? "
            "Each is a series of its own here; give them one name, or names that differ.",
        )
    ]


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
                f"{counted(runs.height, 'run')} of {STALE_RUN} or more exact zero returns, longest "
                f"{first['length']} for {first['asset']} from {first['date']}: forward-filled holidays or "
                "halts? Leave such days out.",
            )
        )
    if share > 0:
        findings.append(Finding("note", "zero_returns", f"{share:.1%} of all returns are exactly zero."))
    return findings


def _live_bar(panel: Panel) -> list[Finding]:
    """Find a last date that repeats the one before it in every number."""
    numbers = [panel.price, *panel.feature_columns]
    if len(panel.dates) < 3 or len(numbers) < 2:
        return []
    last = panel.frame.filter(pl.col("date") == panel.dates[-1])
    before = panel.frame.filter(pl.col("date") == panel.dates[-2])
    if not last.drop("date").equals(before.drop("date")):
        return []
    return [
        Finding(
            "warning",
            "live_bar",
            f"the last date, {panel.dates[-1]}, repeats the one before it in every number: a live bar? "
            "Leave it out (drop_live_bar).",
        )
    ]


def decimals(prices: np.ndarray) -> int | None:
    """Return with how many decimals prices are written, up to 6, or None if with more."""
    return next((d for d in range(7) if np.abs(prices * 10**d - np.round(prices * 10**d)).max() < 1e-6), None)


def _ticks(traded: pl.DataFrame) -> list[Finding]:
    """Find prices written with so few decimals that rounding is a visible part of a return."""
    coarse = []
    for (asset,), prices in traded.group_by("asset", maintain_order=True):
        values = prices["price"].to_numpy()
        places = decimals(values)
        if places is None:
            continue
        share = 10.0**-places / values
        affected = float((share > COARSE_TICK).mean())
        if affected:
            coarse.append((affected, str(asset), places, float(share.max())))
    if not coarse:
        return []
    worst = max(coarse)
    return [
        Finding(
            "warning",
            "rounding",
            f"{counted(len(coarse), 'asset')} with days on which the last decimal is worth more than "
            f"{COARSE_TICK * 1e4:.0f} bp, most {worst[1]} ({worst[0]:.0%} of its days, {worst[2]} decimals, "
            f"up to {worst[3] * 1e4:.0f} bp): rounding fakes reversal. Start later or find finer prices.",
        )
    ]

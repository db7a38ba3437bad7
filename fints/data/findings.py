"""What a finding is, and the moves that all findings start from."""

from __future__ import annotations

import math
from dataclasses import dataclass

import polars as pl

from fints.data.panel import Panel
from fints.words import counted

__all__ = ["Finding", "moves", "names", "traded_moves"]


@dataclass(frozen=True)
class Finding:
    """One finding: a `level`, a `kind` and a sentence with first examples.

    The level is "error" (this is no panel), "warning" (look at it before you trust a result) or "note".
    """

    level: str
    kind: str
    message: str


def traded_moves(panel: Panel) -> pl.DataFrame:
    """Return date, asset, price, log move since the asset's last price, and the calendar days between."""
    price = panel.price
    return (
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


def moves(rows: pl.DataFrame) -> str:
    """Return the first moves as text: asset, date, factor."""
    shown = [
        f"{row['asset']} on {row['date']} (x{math.exp(row['move']):.4g})"
        for row in rows.sort("date", "asset").head(3).iter_rows(named=True)
    ]
    return ", ".join(shown)


def names(assets: list[str]) -> str:
    """Return how many assets, and the first of them."""
    more = f" and {len(assets) - 5} more" if len(assets) > 5 else ""
    return f"{counted(len(assets), 'asset')} ({', '.join(assets[:5])}{more})"

"""Files as people bring them, from prices known by construction, and the way from a file to a panel."""

from __future__ import annotations

import datetime as dt
import runpy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from fints.data import Panel, import_file, load

DAYS, ASSETS = 230, 4


@dataclass(frozen=True)
class Bars:
    """Prices (days, assets), NaN where the asset has no row, and extra columns of the same shape."""

    dates: list[dt.date]
    prices: np.ndarray
    columns: dict[str, np.ndarray]

    def until(self, stop: int) -> Bars:
        """The first `stop` days of the same file."""
        columns = {name: values[:stop] for name, values in self.columns.items()}
        return Bars(self.dates[:stop], self.prices[:stop], columns)

    def shocked(self, start: int, factor: float = 1000.0) -> Bars:
        """Prices and columns times a factor from day number `start` on."""
        later = np.arange(len(self.dates))[:, None] >= start
        columns = {name: np.where(later, factor * values, values) for name, values in self.columns.items()}
        return Bars(self.dates, np.where(later, factor * self.prices, self.prices), columns)


def draw(seed: int = 0, *, signal: float = 0.0, days: int = DAYS, assets: int = ASSETS) -> Bars:
    """Walks with a late listing, an early delisting and a halt; column a is `signal` of the next move."""
    rng = np.random.default_rng(seed)
    moves, noise = 0.01 * rng.standard_normal((days, assets)), rng.standard_normal((days, assets))
    prices = 100 * np.exp(np.cumsum(moves, axis=0))
    ahead = np.vstack([moves[1:] / 0.01, np.zeros((1, assets))])
    gone = np.zeros(prices.shape, dtype=bool)
    if assets > 2:
        gone[: days // 8, 1] = True
        gone[days - days // 10 :, 2] = True
        gone[2 * days // 3 : 2 * days // 3 + 6, 0] = True
    step = np.busday_offset("2001-01-02", np.arange(days), roll="forward").astype(object).tolist()
    columns = {"a": signal * ahead + np.sqrt(1 - signal**2) * noise, "b": rng.standard_normal(prices.shape)}
    return Bars(step, np.where(gone, np.nan, prices), columns)


def write(bars: Bars, path: Path) -> Path:
    """A file of Kaggle's: a saved index, m/d/Y dates, one line an asset and day, newest assets first."""
    lines = [",".join(["", "date", "close", *bars.columns, "Name"])]
    for asset in reversed(range(bars.prices.shape[1])):
        for place, day in enumerate(bars.dates):
            if np.isfinite(bars.prices[place, asset]):
                values = [bars.prices[place, asset], *(c[place, asset] for c in bars.columns.values())]
                cells = ",".join(repr(float(value)) for value in values)
                lines.append(f"{len(lines) - 1},{day:%m/%d/%Y},{cells},S{asset}")
    path.write_text("\n".join([*lines, ""]), encoding="utf-8")
    return path


@pytest.fixture
def imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Panel]:
    """Bars written as a foreign file, imported under a name, loaded by that name."""
    monkeypatch.setenv("FINTS_HOME", str(tmp_path / "home"))

    def bring(bars: Bars, name: str = "mine") -> Panel:
        path = write(bars, tmp_path / f"{name}.csv")
        import_file(path, name, replace=True)
        panel = load(name)
        if len(panel) != np.isfinite(bars.prices).sum():
            raise RuntimeError("the file did not come back as it was written")
        return panel

    return bring


@pytest.fixture
def bars() -> Callable[..., Bars]:
    return draw


def add_column(panel: Panel, name: str, value: pl.Expr) -> Panel:
    """A panel with one more column: where a leak is planted, it is planted here."""
    return Panel(panel.frame.sort("asset", "date").with_columns(value.alias(name)), name=panel.name)


@pytest.fixture
def with_column() -> Callable[[Panel, str, pl.Expr], Panel]:
    return add_column


@pytest.fixture(scope="session")
def run_study() -> Callable[..., Any]:
    """`Run` of tests/study/inline.py: a study in this process, with its queue, fits, tables and report."""
    return runpy.run_path(str(Path(__file__).parent.parent / "study" / "inline.py"))["Run"]

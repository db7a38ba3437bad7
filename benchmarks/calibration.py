r"""Print how often every test rejects a true null, and finds a true signal beside what its formula says.

    python benchmarks/calibration.py                          # 1,000 simulations a cell, one core, minutes
    python benchmarks/calibration.py --simulations 100        # rough: a size is then known to +-2 points
    python benchmarks/calibration.py --write docs/statistics.md   # puts the tables into the document

The null is real: a random stretch of the panel with one random sign a date, the same for all assets, so
that volatility, tails and correlation are those of the market and the conditional mean is exactly 0
(`fints.data.semi_synthetic.flip_returns`). Forecasts are drawn, not trained: they cannot know the signs.
Under the alternative a signal of known R2 is planted, independent over assets and dates, and the forecast
is that signal. A size between 3.6 and 6.4 % cannot be told from 5 % with 1,000 simulations (two standard
errors).
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from calibration_tests import (
    LEVEL,
    Draw,
    Test,
    draw,
    dropped_tests,
    power_tests,
    selection_measures,
    size_tests,
)

from fints.data import Panel, load
from fints.evaluation import forecast_power

R2S = (0.001, 0.005, 0.02)
HORIZONS = (5, 21)
# The bootstraps over many forecasts have no formula to be compared with: their power is from a tenth.
FEWER = 10


def shares(make: Callable[[int], Draw], tests: Mapping[str, Test], simulations: int) -> dict[str, float]:
    """Return how often each test rejects, of the times it says something; NaN if it never does."""
    found: dict[str, list[bool]] = {name: [] for name in tests}
    for seed in range(simulations):
        one = make(seed)
        for name, test in tests.items():
            verdict = test(one)
            found[name] += [] if verdict is None else [verdict]
    return {name: sum(values) / len(values) if values else math.nan for name, values in found.items()}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is simulated: on which panel, how often, how many dates and assets."""

    panel: Panel
    simulations: int
    dates: int
    long_dates: int
    assets: int

    def maker(self, r2: float, horizon: int) -> Callable[[int], Draw]:
        """Return the function from a seed to a draw."""
        return lambda seed: draw(
            self.panel,
            r2=r2,
            dates=self.dates if horizon == 1 else self.long_dates,
            assets=self.assets,
            horizon=horizon,
            seed=seed,
        )

    @property
    def fewer(self) -> int:
        """How many simulations where each is slow."""
        return max(1, self.simulations // FEWER)


Rows = dict[str, dict[str, float]]


def measure_sizes(plan: Plan) -> dict[str, Rows]:
    """Return the tables of sizes: of what is used, and of what is not."""
    sizes: Rows = {}
    dropped: Rows = {}
    for horizon in (1, *HORIZONS):
        kept, left = size_tests(horizon), dropped_tests(horizon) if horizon > 1 else {}
        found = shares(plan.maker(0.0, horizon), kept | left, plan.simulations)
        for name in kept:
            sizes.setdefault(name, {})[f"h = {horizon}"] = found[name]
        for name in left:
            row = name.replace(f"{horizon - 1} lags", "h - 1 lags")
            dropped.setdefault(row, {})[f"h = {horizon}"] = found[name]
    return {"size": sizes, "dropped": dropped}


def measure_powers(plan: Plan) -> dict[str, Rows]:
    """Return the table of powers."""
    powers: Rows = {}
    for r2 in R2S:
        make = plan.maker(r2, 1)
        correlation = float(np.mean([make(seed).correlation for seed in range(min(50, plan.simulations))]))
        chosen = power_tests()
        tests = {name: test for name, (test, _) in chosen.items()}
        slow = {name: tests.pop(name) for name, (_, formula) in chosen.items() if formula is None}
        found = shares(make, tests, plan.simulations) | shares(make, slow, plan.fewer)
        for name, (_, formula) in chosen.items():
            row = powers.setdefault(name, {})
            row[f"{100 * r2:g} %"] = found[name]
            if formula is not None:
                row[f"{100 * r2:g} % by formula"] = forecast_power(
                    formula, r2, dates=plan.dates, assets=plan.assets, correlation=max(correlation, 0.0)
                )
    return {"power": powers}


def measure_selection(plan: Plan) -> dict[str, Rows]:
    """Return the table of what the best of many worthless strategies shows."""
    make = plan.maker(0.0, 1)
    rows = [selection_measures(make(seed)) for seed in range(plan.fewer)]
    return {"selection": {name: {"mean": float(np.mean([row[name] for row in rows]))} for name in rows[0]}}


MEASURES = {"size": measure_sizes, "power": measure_powers, "selection": measure_selection}
TITLES = {
    "size": "Size: how often a true null is rejected, in % (* is outside {low:.1f} to {high:.1f})",
    "dropped": "Not used over overlapping outcomes: how often these reject a true null, in %",
    "power": "Power: how often a planted signal is found, in %, and what the formula says",
    "selection": "The best of 20 worthless strategies, on average",
}


def table(kind: str, rows: Mapping[str, Mapping[str, float]], *, band: float) -> list[tuple[str, ...]]:
    """Return a table as text cells, its header first."""
    if kind == "power":
        columns = [f"{100 * r2:g} %" for r2 in R2S]
        head = ("planted R2", *(column for name in columns for column in (name, "formula")))
        body = []
        for name, row in rows.items():
            cells = []
            for column in columns:
                formula = row.get(f"{column} by formula")
                cells += [f"{100 * row[column]:.0f}", "–" if formula is None else f"{100 * formula:.0f}"]
            body.append((name, *cells))
        return [head, *body]
    columns = list(dict.fromkeys(column for row in rows.values() for column in row))
    head = ("test" if kind != "selection" else "measure", *columns)
    body = []
    for name, row in rows.items():
        cells = []
        for column in columns:
            value = row.get(column)
            if value is None or math.isnan(value):
                cells.append("– " if kind == "size" else "–")
            elif kind == "selection":
                cells.append(f"{value:.2f}")
            else:
                mark = "*" if kind == "size" and abs(value - LEVEL) > band else " "
                cells.append(f"{100 * value:.1f}{mark}")
        body.append((name, *cells))
    return [head, *body]


def as_text(title: str, cells: list[tuple[str, ...]]) -> str:
    """Return a table for the terminal."""
    widths = [max(len(row[place]) for row in cells) for place in range(len(cells[0]))]
    lines = [title, ""]
    for number, row in enumerate(cells):
        lines.append(
            "  ".join(
                cell.ljust(width) if place == 0 else cell.rjust(width)
                for place, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
        )
        if number == 0:
            lines.append("  ".join("─" * width for width in widths))
    return "\n".join(lines)


def as_markdown(title: str, cells: list[tuple[str, ...]]) -> str:
    """Return a table for a document."""
    rows = ["| " + " | ".join(cell.strip().replace("*", "\\*") for cell in row) + " |" for row in cells]
    rule = "|" + "|".join(["---"] + ["---:"] * (len(cells[0]) - 1)) + "|"
    return "\n".join([f"**{title.replace('*', chr(92) + '*')}**", "", rows[0], rule, *rows[1:]])


BEGIN, END = "<!-- calibration: begin -->", "<!-- calibration: end -->"


def write(path: Path, text: str) -> None:
    """Put text between the two marks of a document."""
    document = path.read_text(encoding="utf-8")
    if document.count(BEGIN) != 1 or document.count(END) != 1:
        raise SystemExit(f"{path} needs the lines {BEGIN} and {END}, once each.")
    before, after = document.split(BEGIN)[0], document.split(END)[1]
    path.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", encoding="utf-8")


def main(arguments: list[str] | None = None) -> None:
    """Simulate, print each table when it is finished, and write what was asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--simulations", type=int, default=1000)
    parser.add_argument("--dates", type=int, default=504, help="judged dates at horizon 1")
    parser.add_argument("--long-dates", type=int, default=2520, help="judged dates at longer horizons")
    parser.add_argument("--assets", type=int, default=5)
    parser.add_argument("--panel", default="sp500-20")
    parser.add_argument("--only", nargs="+", choices=MEASURES, help="some of the tables")
    parser.add_argument("--json", type=Path, help="file for the numbers")
    parser.add_argument("--write", type=Path, help="document to put the tables into")
    options = parser.parse_args(arguments)
    panel = load(options.panel)
    # Before 1995 the prices of the bundled panel are rounded too coarsely; later ones are sealed.
    if options.panel == "sp500-20":
        panel = panel["1995-01-03":"2017-12-31"]
    started = time.monotonic()
    asked = f"--simulations {options.simulations} --dates {options.dates} --long-dates {options.long_dates} "
    asked += f"--assets {options.assets} --panel {options.panel}"
    print(f"python benchmarks/calibration.py {asked}\n")
    # Two standard errors of a share of 5 %.
    band = 2 * math.sqrt(LEVEL * (1 - LEVEL) / options.simulations) + 1e-12
    found, documents = {}, [f"Printed by `python benchmarks/calibration.py {asked}`:"]
    plan = Plan(
        panel=panel,
        simulations=options.simulations,
        dates=options.dates,
        long_dates=options.long_dates,
        assets=options.assets,
    )
    for part in options.only or MEASURES:
        for kind, rows in MEASURES[part](plan).items():
            cells = table(kind, rows, band=band)
            title = TITLES[kind].format(low=100 * (LEVEL - band), high=100 * (LEVEL + band))
            print(as_text(title, cells), "\n", flush=True)
            documents.append(as_markdown(title, cells))
            found[kind] = rows
    print(f"{time.monotonic() - started:.0f} s")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1), encoding="utf-8")
    if options.write:
        write(options.write, "\n\n".join(documents))


if __name__ == "__main__":
    main(sys.argv[1:])

"""Count how often the verdict's gate finds a penalty where nothing is planted and nothing differs.

    python benchmarks/null_cells.py [--cells 200] [--panels 8] [--workers 2] [--depth 2] [--width 8]
                                    [--steps 40] [--keep FILE]

A null cell has panels of its own with R2 0, and on each two fits of the same network, which differ by their
seed alone (branch weights, batches): every difference between the two is chance. The gate of
`studies/collapse_or_vanishing.py` (`fints.evaluation.causes`, Student's t over panels) is asked as if one
were the deep network. Printed are the share of cells whose 95 % interval excludes 0, which may be 5 %, and of
those called a penalty, however small, which may be 2.5 %; each with the 95 % interval of a share of so many
cells (Clopper-Pearson). Half of the cells are Pre-Norm, half Post-Norm. Exit code 1 if an interval lies above
its level. A cell is kept in FILE as soon as it is done, and not done again.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fixed_steps import fixed_steps

from fints.evaluation.causes import judge_causes
from fints.study.intervals import interval
from fints.study.panel_cells import PanelFit
from fints.study.panel_fits import train_on_panels

# Panels of the studies are below this.
FIRST_PANEL = 100_000
SCHEMES = ("pre_norm", "post_norm")
DAYS = {"train": 120, "validation": 20, "test": 60}
PANEL = {"num_assets": 16, "signal": "linear", "r2": 0.0}
# Any penalty counts: what is asked is how often chance is called one.
SMALLEST = 1e-12


def main() -> int:
    """Fit what is not yet kept, print the shares."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    sizes = {"cells": 200, "panels": 8, "workers": 2, "depth": 2, "width": 8, "steps": 40}
    for name, default in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--keep", type=Path, help="a file of cells, one JSON line each")
    asked = parser.parse_args()
    size = {name: getattr(asked, name) for name in ("panels", "depth", "width", "steps")}
    wanted = [{"number": number, **size} for number in range(asked.cells)]
    kept = _read(asked.keep)
    penalties = [kept[_key(cell)] for cell in wanted if _key(cell) in kept]
    for cell, found in _fitted([cell for cell in wanted if _key(cell) not in kept], asked.workers):
        penalties.append(found)
        if asked.keep is not None:
            with asked.keep.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"cell": _key(cell), "penalty": found}) + "\n")
        if len(penalties) % 20 == 0:
            print(f"{len(penalties)} of {asked.cells} cells", file=sys.stderr, flush=True)

    excluded = sum(low > 0 or high < 0 for _, low, high in map(interval, penalties))
    called = sum(
        judge_causes(penalty, {}, smallest=SMALLEST).decision not in ("no_penalty", "undecided_penalty")
        for penalty in penalties
    )
    print(f"{len(penalties)} null cells of {asked.panels} panels, R2 0, two seeds of one network")
    within = [
        _row("95 % interval excludes 0", excluded, len(penalties), 0.05),
        _row("called a penalty", called, len(penalties), 0.025),
    ]
    return 0 if all(within) else 1


def _row(name: str, count: int, total: int, level: float) -> bool:
    from scipy import stats

    bounds = stats.binomtest(count, total).proportion_ci(0.95, method="exact")
    within = bounds.low <= level
    told = "within its level" if within else "above its level"
    print(f"{name:28}{count / total:>7.1%}  [{bounds.low:.1%}, {bounds.high:.1%}]  level {level:.1%}: {told}")
    return within


def _fitted(cells: list[dict[str, Any]], workers: int) -> Iterator[tuple[dict[str, Any], list[float]]]:
    # One thread a fit: two processes would fight over the cores.
    os.environ["OMP_NUM_THREADS"] = "1"
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        yield from pool.imap_unordered(_cell, cells)


def _cell(cell: dict[str, Any]) -> tuple[dict[str, Any], list[float]]:
    """Return the penalty of one cell by panel."""
    first = FIRST_PANEL + cell["number"] * cell["panels"]
    experiment = fixed_steps(
        cell["steps"],
        {
            "data.context": 8,
            "model.residual": SCHEMES[cell["number"] % 2],
            "model.depth": cell["depth"],
            "model.width": cell["width"],
            "model.num_heads": 2,
            "training.learning_rate": 3e-3,
            "training.batch_size": 32,
            "training.warmup_steps": cell["steps"] // 10,
        },
    )
    fits = [
        PanelFit(
            key="",
            design="",
            arm="",
            role="final",
            panel=panel,
            seed=2 * panel + other,
            point={},
            experiment=experiment.to_dict(),
            simulation=PANEL,
            days=DAYS,
            watched=False,
        )
        for panel in range(first, first + cell["panels"])
        for other in (0, 1)
    ]
    excess = [result["test_excess"] for result, _ in train_on_panels(fits)]
    return cell, [one - other for one, other in zip(excess[::2], excess[1::2], strict=True)]


def _key(cell: dict[str, Any]) -> str:
    return json.dumps(cell, sort_keys=True)


def _read(keep: Path | None) -> dict[str, list[float]]:
    if keep is None or not keep.is_file():
        return {}
    lines = [json.loads(line) for line in keep.read_text(encoding="utf-8").splitlines()]
    return {line["cell"]: line["penalty"] for line in lines}


if __name__ == "__main__":
    sys.exit(main())

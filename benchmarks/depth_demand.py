"""Does a signal demand depth? What networks of several depths reach of its oracle.

    python benchmarks/depth_demand.py [--demands 1,2,3] [--depths 1,2,4,8] [--seeds 3] [--wide] [--null]
                                      [--keep FILE]

A study of depth is void on a signal that a shallow network learns as well as a deep one. This trains
Pre-Norm networks (width 32, 4 heads, 24 days, batches of 64, 800 steps of AdamW at 2e-3, through the
`Forecaster` that a study uses) on the memory chain of `fints.data.simulate` at each `depth_demand`,
and prints

    share of oracle = 1 - E(p - s)^2 / E s^2,  p the forecast, s the planted signal, on later days,

with 95 % intervals over seeds (Student t; a seed is another panel and another network), then the
difference of the deepest network to each other one, seed by seed. No window is seen twice, so what a
shallow network lacks is not data. `--wide` adds the shallowest network at the width at which it has
as many parameters as the deepest: what it still lacks is not parameters. `--null` adds panels of R2 0,
with the R2 out of sample, which must not lie above 0 by its error. A fit is kept in FILE as soon as
it is done, and not done again. Exit code 1 if at the largest demand the deepest network does not beat
the shallowest by more than the error of their paired difference.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from fints.config import Experiment, ModelConfig, override
from fints.data import simulate
from fints.evaluation import r2_zero, share_of_oracle
from fints.forecaster import Forecaster
from fints.model import parameter_count

TRAIN_DAYS, TEST_DAYS, ASSETS = 1200, 100, 64
WIDTH, CONTEXT = 32, 24
# Seeds 0 to 9 were used when the signal was designed.
FIRST_SEED = 100


def main() -> int:
    """Fit what is not yet kept, print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--signal", default="memory_chain", help="of fints.data.simulate")
    parser.add_argument("--demands", type=_numbers, default=[1, 2, 3])
    parser.add_argument("--depths", type=_numbers, default=[1, 2, 4, 8])
    parser.add_argument("--seeds", type=int, default=3, help="how many, at least 2")
    parser.add_argument("--r2", type=float, default=0.5, help="of the oracle")
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--wide", action="store_true", help="add a shallow network of the deepest's size")
    parser.add_argument("--null", action="store_true", help="add panels without a signal")
    parser.add_argument("--keep", type=Path, help="a file of fits, one JSON line each")
    asked = parser.parse_args()
    if asked.seeds < 2 or len(asked.depths) < 2:
        parser.error("an interval needs at least 2 seeds, a comparison at least 2 depths.")
    if not 0 < asked.r2 < 1:
        parser.error("--r2 must lie between 0 and 1; --null adds panels of R2 0.")
    depths, demands = sorted(asked.depths), sorted(asked.demands)
    common = {"signal": asked.signal, "steps": asked.steps}
    rows = {
        (f"demand {demand}", f"depth {depth}"): common
        | {"demand": demand, "depth": depth, "width": WIDTH, "r2": asked.r2}
        for demand in demands
        for depth in depths
    }
    wide = _width_of_size(depths[0], _size(depths[-1], WIDTH))
    if asked.wide:
        for demand in demands:
            rows[f"demand {demand}", f"depth {depths[0]}, width {wide}"] = rows[
                f"demand {demand}", f"depth {depths[0]}"
            ] | {"width": wide}
    if asked.null:
        for depth in depths:
            rows["R2 0", f"depth {depth}"] = rows[f"demand {demands[-1]}", f"depth {depth}"] | {"r2": 0.0}
    seeds = range(FIRST_SEED, FIRST_SEED + asked.seeds)
    found = _fit_all(rows, seeds, asked.keep)

    print(
        f"{asked.signal}, oracle R2 {asked.r2:.0%}, {asked.steps} steps, {asked.seeds} seeds: share of oracle"
    )
    print(
        "demand " + "".join(f"{f'depth {depth}':>22}" for depth in depths) + f"{'as large':>22}" * asked.wide
    )
    for demand in demands:
        names = [f"depth {depth}" for depth in depths]
        names += [f"depth {depths[0]}, width {wide}"] * asked.wide
        cells = (_interval([row["share"] for row in found[f"demand {demand}", name]]) for name in names)
        print(f"{demand:6} " + "".join(f"{cell:>22}" for cell in cells))
    print(f"\ndepth {depths[-1]} minus the others, seed by seed")
    for demand in demands:
        deepest = [row["share"] for row in found[f"demand {demand}", f"depth {depths[-1]}"]]
        gaps = [
            np.subtract(deepest, [row["share"] for row in found[f"demand {demand}", name]])
            for name in (*(f"depth {depth}" for depth in depths[:-1]), *([names[-1]] * asked.wide))
        ]
        shown = [_interval(gap) for gap in gaps]
        shown.insert(len(depths) - 1, "")
        print(f"{demand:6} " + "".join(f"{cell:>22}" for cell in shown))
    if asked.null:
        print("\nwithout a signal: R2 out of sample, %")
        cells = (_interval([100 * row["r2_out"] for row in found["R2 0", f"depth {d}"]], 3) for d in depths)
        print("       " + "".join(f"{cell:>22}" for cell in cells))
    # The loop ends with the largest demand, whose first gap is that to the shallowest network.
    decided = gaps[0].mean() > _half_width(gaps[0])
    verdict = "cannot reach" if decided else "is not shown to miss"
    print(f"\nAt demand {demands[-1]} depth {depths[0]} {verdict} what depth {depths[-1]} reaches.")
    return 0 if decided else 1


def _fit_all(
    rows: dict[tuple[str, str], dict[str, Any]], seeds: Sequence[int], keep: Path | None
) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Return for each row one result a seed; what is kept already is not fitted again."""
    kept: list[dict[str, Any]] = []
    if keep is not None and keep.is_file():
        kept = [json.loads(line) for line in keep.read_text(encoding="utf-8").splitlines()]
    found: dict[tuple[str, str], list[dict[str, Any]]] = {name: [] for name in rows}
    # Seed by seed, so that an interrupted run has something to say of every depth.
    for seed in seeds:
        for name, row in rows.items():
            cell = row | {"seed": seed}
            result = next((old for old in kept if cell.items() <= old.items()), None)
            if result is None:
                result = _fit(cell)
                line = json.dumps(result)
                print(line, file=sys.stderr, flush=True)
                if keep is not None:
                    with keep.open("a", encoding="utf-8") as file:
                        file.write(line + "\n")
            found[name].append(result)
    return found


def _fit(cell: dict[str, Any]) -> dict[str, Any]:
    """Return `cell` with what its network reaches, and the seconds it took."""
    started = time.perf_counter()
    made = simulate(
        num_assets=ASSETS,
        num_days=TRAIN_DAYS + TEST_DAYS,
        r2=cell["r2"],
        signal=cell["signal"],
        depth_demand=cell["demand"],
        seed=cell["seed"],
    )
    experiment = override(
        Experiment(),
        {
            "data.features": ["a", "b"],
            "data.target": "log_return",
            "data.context": CONTEXT,
            "model.residual": "pre_norm",
            "model.depth": cell["depth"],
            "model.width": cell["width"],
            "training.learning_rate": 2e-3,
            "training.steps": cell["steps"],
            "training.evaluate_every": cell["steps"],
            "training.keep": "last",
            "training.device": "cpu",
        },
    )
    dates = made.panel.dates
    forecaster = Forecaster(experiment, seed=cell["seed"])
    forecaster.fit(made.panel, train=(dates[0], dates[TRAIN_DAYS - 2]), validation=0.0)
    judged = forecaster.evaluate_frame(made.panel, dates[TRAIN_DAYS], dates[-1])
    share = share_of_oracle(judged.join(made.signal, on=["date", "asset"]).rename({"signal": "oracle"}))
    seconds = round(time.perf_counter() - started, 1)
    return cell | {"share": share, "r2_out": r2_zero(judged), "seconds": seconds}


def _size(depth: int, width: int) -> int:
    return parameter_count(ModelConfig(depth=depth, width=width), num_features=2, context=CONTEXT)


def _width_of_size(depth: int, size: int) -> int:
    """Return the least width, a multiple of the heads, at which a network has `size` parameters."""
    heads = ModelConfig().num_heads
    return next(width for width in itertools.count(heads, heads) if _size(depth, width) >= size)


def _half_width(values: Sequence[float] | np.ndarray) -> float:
    count = len(values)
    return float(stats.t.ppf(0.975, count - 1) * np.std(values, ddof=1) / math.sqrt(count))


def _interval(values: Sequence[float] | np.ndarray, digits: int = 2) -> str:
    mean, half = float(np.mean(values)), _half_width(values)
    return f"{mean:.{digits}f} [{mean - half:.{digits}f}, {mean + half:.{digits}f}]"


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


if __name__ == "__main__":
    sys.exit(main())

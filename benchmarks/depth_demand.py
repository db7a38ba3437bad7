"""Does a signal demand depth? What networks of several depths reach of its oracle.

    python benchmarks/depth_demand.py [--demands 1,2,3] [--depths 1,2,4,8] [--seeds 3] [--keep FILE]

A study of depth is void on a signal that a shallow network learns as well as a deep one. This trains
Pre-Norm networks (width 32, 4 heads, 24 days, batches of 64, 800 steps of AdamW at 2e-3, as in any
study, never twice on one window) on the memory chain of `fints.data.simulate` at each `depth_demand`,
and prints

    share of oracle = 1 - E(p - s)^2 / E s^2,  p the forecast, s the planted signal, on later days,

with 95 % intervals over seeds (Student t; a seed is another panel and another network), then how much
of the deepest network's share the others reach. Training rows outnumber those that are seen, so that
what a shallow network lacks is not data. A fit is kept in FILE as soon as it is done, and not done
again. Exit code 1 if at the largest demand the deepest network does not beat the shallowest by more
than the error of the paired difference.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from fints.config import Experiment, override
from fints.data import simulate
from fints.evaluation import share_of_oracle
from fints.forecaster import Forecaster

TRAIN_DAYS, TEST_DAYS, ASSETS = 1200, 100, 64
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
    parser.add_argument("--keep", type=Path, help="a file of fits, one JSON line each")
    asked = parser.parse_args()
    if asked.seeds < 2 or len(asked.depths) < 2:
        parser.error("an interval needs at least 2 seeds, a comparison at least 2 depths.")
    kept = _read(asked.keep)
    seeds = range(FIRST_SEED, FIRST_SEED + asked.seeds)
    # Seed by seed, so that an interrupted run has something to say of every depth.
    cells = [(demand, depth, seed) for seed in seeds for demand in asked.demands for depth in asked.depths]
    for demand, depth, seed in cells:
        cell = {
            "signal": asked.signal,
            "demand": demand,
            "depth": depth,
            "seed": seed,
            "r2": asked.r2,
            "steps": asked.steps,
        }
        if any(cell.items() <= row.items() for row in kept):
            continue
        kept.append(_fit(cell))
        print(json.dumps(kept[-1]), file=sys.stderr, flush=True)
        if asked.keep is not None:
            with asked.keep.open("a", encoding="utf-8") as file:
                file.write(json.dumps(kept[-1]) + "\n")
    shares = {
        (demand, depth): [_share(kept, asked, demand=demand, depth=depth, seed=seed) for seed in seeds]
        for demand in asked.demands
        for depth in asked.depths
    }
    return _print(shares, asked.demands, sorted(asked.depths), asked)


def _fit(cell: dict[str, Any]) -> dict[str, Any]:
    """Return `cell` with the share of oracle that its network reaches, and the seconds it took."""
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
            "model.residual": "pre_norm",
            "model.depth": cell["depth"],
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
    return cell | {"share": share, "seconds": seconds}


def _print(
    shares: dict[tuple[int, int], list[float]],
    demands: Sequence[int],
    depths: Sequence[int],
    asked: argparse.Namespace,
) -> int:
    print(
        f"{asked.signal}, oracle R2 {asked.r2:.0%}, {asked.steps} steps, {asked.seeds} seeds: share of oracle"
    )
    print("demand " + "".join(f"{f'depth {depth}':>24}" for depth in depths))
    for demand in demands:
        cells = (_interval(shares[demand, depth]) for depth in depths)
        print(f"{demand:6} " + "".join(f"{cell:>24}" for cell in cells))
    deepest = depths[-1]
    print(f"\ndepth {deepest} minus, the same seeds")
    for demand in demands:
        gaps = (np.subtract(shares[demand, deepest], shares[demand, depth]) for depth in depths[:-1])
        print(f"{demand:6} " + "".join(f"{_interval(gap):>24}" for gap in gaps))
    print(f"\nshare of depth {deepest}'s share")
    for demand in demands:
        whole = np.mean(shares[demand, deepest])
        print(f"{demand:6} " + "".join(f"{np.mean(shares[demand, d]) / whole:>24.2f}" for d in depths[:-1]))
    gap = np.subtract(shares[demands[-1], deepest], shares[demands[-1], depths[0]])
    decided = gap.mean() > _half_width(gap)
    verdict = "cannot reach" if decided else "is not shown to miss"
    print(f"\nAt demand {demands[-1]} depth {depths[0]} {verdict} what depth {deepest} reaches.")
    return 0 if decided else 1


def _half_width(values: Sequence[float] | np.ndarray) -> float:
    count = len(values)
    return float(stats.t.ppf(0.975, count - 1) * np.std(values, ddof=1) / math.sqrt(count))


def _interval(values: Sequence[float] | np.ndarray) -> str:
    mean, half = float(np.mean(values)), _half_width(values)
    return f"{mean:.2f} [{mean - half:.2f}, {mean + half:.2f}]"


def _share(kept: list[dict[str, Any]], asked: argparse.Namespace, **wanted: int) -> float:
    wanted_all = {"signal": asked.signal, "r2": asked.r2, "steps": asked.steps, **wanted}
    return next(float(row["share"]) for row in kept if wanted_all.items() <= row.items())


def _read(path: Path | None) -> list[dict[str, Any]]:
    if path is None or not path.is_file():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


if __name__ == "__main__":
    sys.exit(main())

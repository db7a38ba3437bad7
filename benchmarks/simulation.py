"""What the simulators promise and what they realise.

    python benchmarks/simulation.py [--seeds 40]

Four tables, of 50 assets and 10 years a panel but the last: the oracle's realised R2 beside the
R2 by construction; the R2 by construction in each fifth of the rows by volatility; the noise's
variance and the variation of its conditional variance at each dose of vol-of-vol; and the
semi-synthetic tier on the bundled panel. Means over seeds, with the standard deviation of one panel.
"""

from __future__ import annotations

import argparse
import functools
import math
import sys
from collections.abc import Sequence

import numpy as np

from fints.data import Simulation, load, oracle_by_volatility, semi_synthetic, simulate

ASSETS, DAYS = 50, 2520
# Every drawn panel of this file; the rows of the tables add to it.
_garch = functools.partial(simulate, num_assets=ASSETS, num_days=DAYS, noise="garch")


def main() -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=40, help="panels a row, at least 2")
    asked = parser.parse_args()
    if asked.seeds < 2:
        parser.error("a standard deviation needs at least 2 seeds.")
    seeds = range(asked.seeds)

    for table in (_realised, _by_fifth, _noise, _semi_synthetic):
        table(seeds)
    return 0


def _realised(seeds: range) -> None:
    print("realised R2 of the oracle, %              target    mean  sd of one panel")
    for r2 in (0.001, 0.005, 0.02):
        for scale in ("constant", "proportional"):
            made = [_garch(r2=r2, signal_scale=scale, seed=seed) for seed in seeds]
            _line(f"garch, {scale}", r2, made)


def _by_fifth(seeds: range) -> None:
    print("\nR2 by construction, %, by fifth of volatility   calm                             wild")
    for scale in ("constant", "proportional"):
        tables = [oracle_by_volatility(_garch(r2=0.005, signal_scale=scale, seed=seed)) for seed in seeds]
        means = np.mean([table["oracle_r2"].to_numpy() for table in tables], axis=0)
        print(f"garch, {scale:35}" + "".join(f"{100 * mean:9.3f}" for mean in means))


def _noise(seeds: range) -> None:
    print("\nnoise at R2 0, daily volatility 1 %      variance / 1e-4      sd  variation of the variance")
    for label, dose, degrees, news, leverage in (
        ("gaussian", 0.0, math.inf, "square", 0.0),
        ("gaussian, vol-of-vol 0.5", 0.5, math.inf, "square", 0.0),
        ("t 5, score, vol-of-vol 0.5", 0.5, 5.0, "score", 0.0),
        ("t 4, score, vol-of-vol 0.5", 0.5, 4.0, "score", 0.0),
        ("t 4, score, 0.5, leverage 1", 0.5, 4.0, "score", 1.0),
    ):
        made = [
            _garch(
                r2=0.0,
                vol_of_vol=dose,
                degrees=degrees,
                news=news,
                leverage=leverage,
                common_share=0.0,
                seed=seed,
            )
            for seed in seeds
        ]
        variances = np.array([_returns(x).var() / 1e-4 for x in made])
        spreads = [_conditional(x).std() / _conditional(x).mean() for x in made]
        print(f"{label:38} {variances.mean():17.4f} {variances.std(ddof=1):7.4f} {np.mean(spreads):26.2f}")


def _semi_synthetic(seeds: range) -> None:
    print("\nsemi-synthetic on sp500-20, realised, %     target    mean  sd of one panel")
    panel = load("sp500-20")
    for signal, scale in (
        ("linear", "constant"),
        ("memory_chain", "constant"),
        ("reversal", "constant"),
    ):
        made = [semi_synthetic(panel, r2=0.005, signal=signal, signal_scale=scale, seed=s) for s in seeds]
        _line(f"{signal}, {scale}", 0.005, made)


def _line(label: str, target: float, made: Sequence[Simulation]) -> None:
    found = [simulation.realised_oracle_r2 for simulation in made]
    mean, deviation = 100 * float(np.mean(found)), 100 * float(np.std(found, ddof=1))
    print(f"{label:38} {100 * target:9.3f} {mean:7.3f} {deviation:16.3f}", flush=True)


def _returns(simulation: Simulation) -> np.ndarray:
    close = simulation.panel.frame["close"].to_numpy().reshape(-1, ASSETS)
    return np.diff(np.log(close), axis=0)


def _conditional(simulation: Simulation) -> np.ndarray:
    return simulation.volatility["volatility"].to_numpy() ** 2


if __name__ == "__main__":
    sys.exit(main())

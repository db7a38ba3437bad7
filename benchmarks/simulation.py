"""What the simulators promise and what they realise.

    python benchmarks/simulation.py [--seeds 40]

Four tables, 50 assets and 10 years a panel unless said otherwise: the oracle's realised R2 beside the
R2 by construction; the R2 by construction in each fifth of the rows by volatility; the noise's
variance and the variation of its conditional variance at each dose of vol-of-vol; and the
semi-synthetic tier on the bundled panel. Means over seeds, with the standard deviation of one panel.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import numpy as np

from fints.data import Simulation, load, oracle_by_volatility, semi_synthetic, simulate

SIZE = {"num_assets": 50, "num_days": 2520}


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

    print("realised R2 of the oracle, %              target    mean  sd of one panel")
    for r2 in (0.001, 0.005, 0.02):
        for scale in ("constant", "proportional"):
            found = [
                simulate(r2=r2, noise="garch", signal_scale=scale, seed=s, **SIZE).realised_oracle_r2
                for s in seeds
            ]
            _line(f"garch, {scale}", r2, found)

    print("\nR2 by construction, %, by fifth of volatility   calm                             wild")
    for scale in ("constant", "proportional"):
        tables = [
            oracle_by_volatility(simulate(r2=0.005, noise="garch", signal_scale=scale, seed=s, **SIZE))
            for s in seeds
        ]
        means = np.mean([table["oracle_r2"].to_numpy() for table in tables], axis=0)
        print(f"garch, {scale:35}" + "".join(f"{100 * mean:9.3f}" for mean in means))

    print("\nnoise at R2 0, daily volatility 1 %      variance / 1e-4      sd  variation of the variance")
    for label, dials in (
        ("gaussian", {"vol_of_vol": 0.0}),
        ("gaussian, vol-of-vol 0.5", {"vol_of_vol": 0.5}),
        ("t 5, score, vol-of-vol 0.5", {"vol_of_vol": 0.5, "degrees": 5.0, "news": "score"}),
        ("t 4, score, vol-of-vol 0.5", {"vol_of_vol": 0.5, "degrees": 4.0, "news": "score"}),
        (
            "t 4, score, 0.5, leverage 1",
            {"vol_of_vol": 0.5, "degrees": 4.0, "news": "score", "leverage": 1.0},
        ),
    ):
        made = [simulate(r2=0.0, noise="garch", common_share=0.0, seed=s, **SIZE, **dials) for s in seeds]
        variances = np.array([_returns(x).var() / 1e-4 for x in made])
        spreads = [_conditional(x).std() / _conditional(x).mean() for x in made]
        print(f"{label:38} {variances.mean():17.4f} {variances.std(ddof=1):7.4f} {np.mean(spreads):26.2f}")

    print("\nsemi-synthetic on sp500-20, realised R2, %  target    mean  sd of one panel")
    panel = load("sp500-20")
    for signal in ("linear", "memory_chain", "reversal"):
        for scale in ("constant", "proportional"):
            made = [semi_synthetic(panel, r2=0.005, signal=signal, signal_scale=scale, seed=s) for s in seeds]
            _line(f"{signal}, {scale}", 0.005, [x.realised_oracle_r2 for x in made])
    return 0


def _line(label: str, target: float, found: Sequence[float]) -> None:
    mean, deviation = 100 * float(np.mean(found)), 100 * float(np.std(found, ddof=1))
    print(f"{label:38} {100 * target:9.3f} {mean:7.3f} {deviation:16.3f}")


def _returns(simulation: Simulation) -> np.ndarray:
    close = simulation.panel.frame["close"].to_numpy().reshape(-1, SIZE["num_assets"])
    return np.diff(np.log(close), axis=0)


def _conditional(simulation: Simulation) -> np.ndarray:
    return simulation.volatility["volatility"].to_numpy() ** 2


if __name__ == "__main__":
    sys.exit(main())

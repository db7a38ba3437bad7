"""Fits per hour one by one and several at once (`fints.training.fit_together`), on one CPU thread.

    python benchmarks/vectorised.py
    python benchmarks/vectorised.py --schemes pre_norm --widths 32 --depths 2 --batches 64 --members 4 8 16
    python benchmarks/vectorised.py --reliefs decorrelation output_change_step --schemes post_norm --depths 16
    python benchmarks/vectorised.py --json out.json

A fit is `--steps` training steps and one evaluation of 0.8 windows for each window trained on, which are the
proportions of studies/residual_by_depth.py; its other sizes (context 24, 7 features, 4 heads, batches of 64)
are the defaults, and panel studies have batches of 32. Nothing is profiled, simulated, read or written: it is
the training alone. One by one is measured twice, plain as the studies have it, and with `training.compile`
(not under a relief of `fints.interventions`, which needs the plain pass).

All ways take turns, round by round, in one process on one thread, and time is that of the processor, so what
else the machine does falls on all alike. A ratio is that of one round: (time of K fits one by one) / (time of
K at once), where the former is K times one fit's. Printed are the median over rounds and, in brackets, the
lowest and the highest. Fits per hour are of `--fit-steps` steps.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fints.config import ModelConfig, TrainingConfig
from fints.interventions import intervene
from fints.model import build
from fints.training import Member, fit, fit_together

TOKENS, FEATURES = 24, 7
SHARE_EVALUATED = 0.8


class Windows:
    """Random windows; a `fints.training.Batches`."""

    def __init__(self, number: int) -> None:
        generator = torch.Generator().manual_seed(number)
        self.inputs = torch.randn(number, TOKENS, FEATURES, generator=generator)
        self.targets = torch.randn(number, TOKENS, generator=generator)

    def __len__(self) -> int:
        """Return the number of windows."""
        return len(self.inputs)

    def gather(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return those at `positions`."""
        return self.inputs[positions], self.targets[positions]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument(
        "--schemes", nargs="+", default=["pre_norm", "post_norm", "dynamic_hyper_connections"]
    )
    parser.add_argument(
        "--reliefs", nargs="+", default=["none"], metavar="NAME", help="none, or INTERVENTIONS"
    )
    parser.add_argument("--widths", nargs="+", type=int, default=[16, 32])
    parser.add_argument("--depths", nargs="+", type=int, default=[2, 4, 16])
    parser.add_argument("--batches", nargs="+", type=int, default=[64, 32, 8])
    parser.add_argument("--members", nargs="+", type=int, default=[4, 8, 16])
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--fit-steps", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", metavar="PATH")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(
        f"T {TOKENS}, {FEATURES} features, one thread, {arguments.rounds} rounds, torch {torch.__version__}"
    )
    names = [f"K {members}" for members in arguments.members]
    print(f"fits per hour of {arguments.fit_steps} steps; behind K the ratio to plain, and to compiled\n")
    print(f"{'':<46} {'plain':>7} {'compiled':>8} " + " ".join(f"{name:>31}" for name in names))
    rows = []
    for scheme, relief, width, depth, batch in itertools.product(
        arguments.schemes, arguments.reliefs, arguments.widths, arguments.depths, arguments.batches
    ):
        times = _times(scheme, relief, width, depth, batch, arguments)
        sizes = {"scheme": scheme, "relief": relief, "width": width, "depth": depth, "batch": batch}
        row = {**sizes, "seconds": times}
        rows.append(row)
        print(_line(row, arguments), flush=True)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(rows, indent=1) + "\n")


def _times(
    scheme: str, relief: str, width: int, depth: int, batch: int, arguments: argparse.Namespace
) -> dict[str, list[float]]:
    """Return the processor seconds of a fit, a round each, for every way."""
    config = ModelConfig(residual=scheme, width=width, depth=depth)
    train = Windows(arguments.steps * batch)
    validation = Windows(round(SHARE_EVALUATED * arguments.steps) * batch)
    interventions = {} if relief == "none" else {relief: {"dose": 0.5}}

    def member(seed: int, *, compiled: bool = False) -> Member:
        model = build(config, num_features=FEATURES, context=TOKENS, seed=seed)
        return Member(
            model=model,
            train=train,
            validation=validation,
            config=TrainingConfig(
                steps=arguments.steps,
                warmup_steps=1,
                batch_size=batch,
                evaluate_every=arguments.steps,
                device="cpu",
                compile=compiled,
                interventions=interventions,
            ),
            seed=seed,
            steering=intervene(model, interventions, seed=seed),
        )

    def alone(one: Member) -> None:
        fit(one.model, one.train, one.validation, one.config, seed=one.seed, steering=one.steering)

    def seconds(run: Callable[[Any], Any], given: Any) -> float:
        started = time.process_time()
        run(given)
        return time.process_time() - started

    times: dict[str, list[float]] = {}
    for turn in range(arguments.rounds + 1):
        found = {
            "plain": seconds(alone, member(0)),
            **({} if interventions else {"compiled": seconds(alone, member(0, compiled=True))}),
            **{
                f"K {number}": seconds(fit_together, [member(seed) for seed in range(number)]) / number
                for number in arguments.members
            },
        }
        if turn:  # the first round warms up
            for name, value in found.items():
                times.setdefault(name, []).append(value)
    return times


def _line(row: dict[str, Any], arguments: argparse.Namespace) -> str:
    times = row["seconds"]
    an_hour = 3600 * arguments.steps / arguments.fit_steps
    cells = []
    for number in arguments.members:
        own = times[f"K {number}"]
        cells.append(
            f"{an_hour / statistics.median(own):7.0f} "
            + " ".join(_ratio(times[name], own) for name in ("plain", "compiled") if name in times)
        )
    under = "" if row["relief"] == "none" else f", {row['relief']}"
    name = f"{row['scheme']}{under}, D {row['width']}, depth {row['depth']}, B {row['batch']}"
    plain, compiled = (
        f"{an_hour / statistics.median(times[way]):.0f}" if way in times else "-"
        for way in ("plain", "compiled")
    )
    return f"{name:<46} {plain:>7} {compiled:>8} " + " ".join(f"{cell:>31}" for cell in cells)


def _ratio(one: list[float], several: list[float]) -> str:
    ratios = [a / b for a, b in zip(one, several, strict=True)]
    return f"{statistics.median(ratios):4.2f} ({min(ratios):4.2f}-{max(ratios):4.2f})"


if __name__ == "__main__":
    main()

"""Step time and peak memory of every residual scheme on one CUDA device, as ratios to Pre-Norm.

    python benchmarks/gpu.py
    python benchmarks/gpu.py --schemes pre_norm dynamic_hyper_connections --width 512 --json out.json
    python benchmarks/gpu.py --schemes --together 8 32     # only small networks, one by one and at once
    python benchmarks/gpu.py --device cpu --smoke          # the same code on a CPU, in seconds

Needs torch and this package, nothing else. Under bfloat16 autocast, one step is forward, backward and
AdamW on random windows; networks are built and measured in turn, round by round. "compiled" is what
`training.compile` gives there: regions compiled once for all depths. The clock waits for the device.
The command measures until `--minutes` are over (8 by default, compilation included) and says which arms it
left out; an arm that fails is a row with its error.

A second table is of small networks (`benchmarks/together.py`): K of them trained one by one, at once as one
network with stacked parameters (`training.vectorise`), and at once with the whole step in a CUDA graph.
`--together` names the K, and nothing measures only this.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from arms import Arm, Sizes, arms_of, step_of
from together import measure_together, table_of

from fints.residual import RESIDUALS

# Steps between two readings of the clock: a reading waits for the device.
STEPS = 5


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    Sizes.add_arguments(parser)
    parser.set_defaults(width=256, batch=256, tokens=64)
    parser.add_argument("--schemes", nargs="*", default=list(RESIDUALS), metavar="NAME")
    parser.add_argument("--together", nargs="*", type=int, default=[4, 8, 16, 32], metavar="K")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--precision", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, one round")
    parser.add_argument("--json", metavar="PATH")
    arguments = parser.parse_args()
    if arguments.device == "cuda" and not torch.cuda.is_available():
        parser.error("no CUDA device answers; try the code with --device cpu --smoke")
    sizes, rounds = Sizes.of(arguments), arguments.rounds
    if arguments.smoke:
        sizes, rounds = Sizes(depth=2, width=32, streams=2, batch=4, tokens=8), 1
    if arguments.schemes and "pre_norm" not in arguments.schemes:
        arguments.schemes.insert(0, "pre_norm")
    told: dict[str, Any] = {}
    if arguments.schemes:
        rows = _measure(arms_of(arguments.schemes, packages=False), sizes, rounds, arguments)
        _print(rows, sizes, arguments)
        told = {"sizes": dataclasses.asdict(sizes), "rows": rows}
    if arguments.together:
        counts = [2] if arguments.smoke else arguments.together
        told["together"] = measure_together(
            counts, device=arguments.device, rounds=rounds, smoke=arguments.smoke
        )
        print()
        for line in table_of(told["together"]):
            print(line)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(told, indent=1) + "\n")


def _measure(
    arms: list[Arm], sizes: Sizes, rounds: int, arguments: argparse.Namespace
) -> list[dict[str, Any]]:
    """Return one row an arm: three quarters of the time may go into building, the rest into rounds."""
    started = time.perf_counter()
    seconds = 60 * arguments.minutes
    rows: list[dict[str, Any]] = []
    steps: dict[str, Callable[[], None]] = {}
    for arm in arms:
        row: dict[str, Any] = {"arm": arm.name, "times": []}
        rows.append(row)
        if time.perf_counter() - started > 0.75 * seconds:
            row["left_out"] = f"no time left of {arguments.minutes:g} minutes"
            continue
        try:
            row["bytes"], row["first_seconds"], steps[arm.name] = _first(arm, sizes, arguments)
        except (RuntimeError, ValueError) as error:
            row["left_out"] = f"{type(error).__name__}: {error}".splitlines()[0]
    for _ in range(rounds):
        if time.perf_counter() - started > seconds and all(
            row["times"] for row in rows if row["arm"] in steps
        ):
            break
        for row in rows:
            if row["arm"] in steps:
                row["times"].append(_seconds(steps[row["arm"]], arguments.device))
    return rows


def _first(arm: Arm, sizes: Sizes, arguments: argparse.Namespace) -> tuple[int, float, Callable[[], None]]:
    """Return the peak of a step beyond what was there, the time of the first step, and the step."""
    cuda = arguments.device.startswith("cuda")
    before = torch.cuda.memory_allocated() if cuda else 0
    _, step = step_of(arm, sizes, device=arguments.device, precision=arguments.precision)
    started = time.perf_counter()
    step()
    _wait(arguments.device)
    first = time.perf_counter() - started
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    step()
    step()
    _wait(arguments.device)
    return (torch.cuda.max_memory_allocated() - before if cuda else 0), first, step


def _seconds(step: Callable[[], None], device: str) -> float:
    _wait(device)
    started = time.perf_counter()
    for _ in range(STEPS):
        step()
    _wait(device)
    return (time.perf_counter() - started) / STEPS


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def _print(rows: list[dict[str, Any]], sizes: Sizes, arguments: argparse.Namespace) -> None:
    name = torch.cuda.get_device_name() if arguments.device.startswith("cuda") else arguments.device
    print(
        f"{name}: {sizes.depth} blocks, D {sizes.width}, n {sizes.streams}, B {sizes.batch}, "
        f"T {sizes.tokens}, {arguments.precision}, torch {torch.__version__}"
    )
    references = [row for row in rows if row["arm"].startswith("pre_norm,") and row["times"]]
    if not references:
        print("Pre-Norm could not be measured:", *(row.get("left_out") for row in rows[:2]))
        return
    base = min(references, key=lambda row: statistics.median(row["times"]))
    print(f"ratios to: {base['arm']}\n")
    print(f"{'':<46} {'ms':>8} {'time':>5} {'quartiles':>11} {'memory':>6} {'first':>6}")
    for row in rows:
        if "left_out" in row:
            print(f"{row['arm']:<46} {row['left_out']}")
            continue
        ratios = [own / other for own, other in zip(row["times"], base["times"], strict=True)]
        low, _, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
        memory = f"{row['bytes'] / base['bytes']:6.2f}" if base["bytes"] else f"{'-':>6}"
        print(
            f"{row['arm']:<46} {1e3 * statistics.median(row['times']):8.2f} {statistics.median(ratios):5.2f} "
            f"{low:4.2f} - {high:4.2f} {memory} {row['first_seconds']:5.1f}s"
        )


if __name__ == "__main__":
    main()

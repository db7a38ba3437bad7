"""Time, memory, parameters and operations of every residual scheme, as ratios to Pre-Norm.

    python benchmarks/schemes.py
    python benchmarks/schemes.py --schemes pre_norm dynamic_hyper_connections --depth 48 --json out.json
    python benchmarks/schemes.py --times-only
    python benchmarks/schemes.py --packages ~/.cache/fints/benchmark-packages

One step is forward, backward and AdamW on random windows. All networks live in one process and take
turns, and right before each step of an arm stands one of the reference, so that whatever else the machine
does falls on both alike; a ratio is the median over rounds of (time of the arm / time of the reference
just before it), with the quartiles behind it. The reference is the faster of the two modes of Pre-Norm,
plain and compiled (`training.compile`).

Peak memory is the growth of the process from before a network is built until three steps are done,
measured in a process of its own that gives freed memory back at once. Operations are those of matrix
products in a plain step, forward and backward, by `torch.utils.flop_counter`: sums over streams that are
no matrix product are not in it. Attention is counted in its plain form everywhere, all T x T scores, though
a causal one may leave out half (torch's own fused attention would not be counted at all). "first" is the
time of the first step, with what it has to compile, after the kernels of this machine have been built; how
long that takes from nothing stands below the table, unless only times are measured.

The arm of `torch.nn.TransformerEncoder` has the sizes of ours, LayerNorm before each branch and at the end,
exact GELU, a causal mask, biases and no dropout, and runs in its training mode. It lacks the learned bias by
distance and the indicators of missing values, so "param." is a little below 1 for it.

With --packages FOLDER the public packages `hyper-connections` and `x-transformers` are installed into that
folder (not into the environment) and measured too; without it they are skipped.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from arms import PACKAGES, Arm, Sizes, arms_of, step_of
from packages import install
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from fints.residual import RESIDUALS

# What the packages import beyond torch and numpy; torch itself must stay the one that is measured.
_WANTED = (*PACKAGES, "einops", "einx", "frozendict", "loguru", "torch-einops-utils")


def main() -> None:
    """Measure and print."""
    arguments = _arguments()
    torch.set_num_threads(arguments.threads)
    sizes = Sizes.of(arguments)
    packages = arguments.packages is not None and _install(arguments.packages)
    arms = arms_of(arguments.schemes, packages=packages)
    if arguments.memory_of is not None:
        (arm,) = [arm for arm in arms if arm.name == arguments.memory_of]
        print(json.dumps(_memory(arm, sizes)))
        return
    if not packages:
        print(f"skipped: {' and '.join(PACKAGES)} (give --packages FOLDER to install and measure them)\n")
    if arguments.times_only:
        rows = [{"arm": arm.name, **_counts(arm, sizes)} for arm in arms]
    else:
        rows = [{"arm": arm.name, **_memory_apart(arm)} for arm in arms]
    reference, times = _paired(arms, sizes, arguments.rounds)
    base = next(row for row in rows if row["arm"] == reference)
    for row in rows:
        ratios = [own / other for own, other in times[row["arm"]]]
        row["milliseconds"] = 1e3 * statistics.median(own for own, _ in times[row["arm"]])
        row["time"] = statistics.median(ratios)
        row["quartiles"] = statistics.quantiles(ratios, n=4)[::2] if len(ratios) > 1 else ratios * 2
        for name in ("bytes", "parameters", "flops"):
            if name in row:
                row[f"{name}_ratio"] = row[name] / base[name]
    rate = _matrix_rate(sizes, arguments.rounds)
    share = base["flops"] / min(other for pairs in times.values() for _, other in pairs) / rate
    built = None if arguments.times_only else _seconds_to_build()
    _print(rows, sizes, reference, rate, share, arguments)
    if built is not None:
        print(f"kernels built from nothing, once a machine: {built:.1f} s")
    if arguments.json:
        table = {
            "command": " ".join(["python benchmarks/schemes.py", *sys.argv[1:]]),
            "machine": f"{arguments.threads} threads of {_processor()}, torch {torch.__version__}",
            "sizes": vars(sizes),
            "reference": reference,
            "matrix_rate": rate,
            "share": share,
            "kernels_seconds": built,
            "rows": rows,
        }
        Path(arguments.json).write_text(json.dumps(table, indent=1) + "\n")


def _processor() -> str:
    """Return what the machine calls its processor."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    Sizes.add_arguments(parser)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--schemes", nargs="+", default=list(RESIDUALS), metavar="NAME")
    parser.add_argument("--packages", type=Path, metavar="FOLDER")
    parser.add_argument("--times-only", action="store_true", help="no memory, which takes longest")
    parser.add_argument("--json", metavar="PATH")
    parser.add_argument("--memory-of", metavar="ARM", help="measure one arm's memory, in this process")
    arguments = parser.parse_args()
    if "pre_norm" not in arguments.schemes:
        arguments.schemes.insert(0, "pre_norm")
    return arguments


def _install(folder: Path) -> bool:
    """Install the packages into `folder` if they are not there; return whether they can be imported."""
    reason = install(folder, _WANTED, proof="x_transformers")
    if reason is not None:
        print(f"could not install {', '.join(PACKAGES)}: {reason}")
    return reason is None


def _paired(arms: list[Arm], sizes: Sizes, rounds: int) -> tuple[str, dict[str, list[tuple[float, float]]]]:
    """Return the reference and, for each arm and round, the seconds of its step and of the reference's."""
    steps = {arm.name: step_of(arm, sizes)[1] for arm in arms}
    for step in steps.values():
        step()
        step()

    def seconds(name: str) -> float:
        started = time.perf_counter()
        steps[name]()
        return time.perf_counter() - started

    modes: dict[str, list[float]] = {
        name: [] for name in ("pre_norm, plain", "pre_norm, compiled") if name in steps
    }
    for _ in range(rounds):
        for name, found in modes.items():
            found.append(seconds(name))
    reference = min(modes, key=lambda name: statistics.median(modes[name]))
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name in steps:
            other = seconds(reference)
            times[name].append((seconds(name), other))
    return reference, times


def _memory_apart(arm: Arm) -> dict[str, Any]:
    command = [sys.executable, __file__, *sys.argv[1:], "--memory-of", arm.name]
    # Large blocks are mapped one by one and unmapped when freed: the peak is then what is in use.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _memory(arm: Arm, sizes: Sizes) -> dict[str, Any]:
    # Imports and threads are not the network's.
    _, tiny = step_of(arm, Sizes(depth=1, width=16, streams=sizes.streams, batch=1, tokens=4))
    tiny()
    before = _resident()
    network, step = step_of(arm, sizes)
    started = time.perf_counter()
    step()
    first = time.perf_counter() - started
    step()
    step()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    del network, step
    return {"bytes": peak - before, **_counts(arm, sizes), "first_seconds": first}


def _counts(arm: Arm, sizes: Sizes) -> dict[str, Any]:
    network, step = step_of(Arm(arm.name, arm.build), sizes)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        step()
    return {
        "parameters": sum(parameter.numel() for parameter in network.parameters()),
        "flops": counter.get_total_flops(),
    }


def _seconds_to_build() -> float:
    """Return how long the kernels take to build where there are none."""
    code = (
        "import time; from fints.residual.native import kernels; started = time.perf_counter(); kernels(); "
        "print(time.perf_counter() - started)"
    )
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "XDG_CACHE_HOME": folder}
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return float(done.stdout)


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def _matrix_rate(sizes: Sizes, rounds: int) -> float:
    """Return operations a second of the matrix products of a block, at their own shapes, forward and back."""
    rows, d = sizes.batch * sizes.tokens, sizes.width
    heads, scores = sizes.batch * sizes.heads, (sizes.tokens, sizes.tokens)
    shapes: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    for a, b in ((d, 3 * d), (d, d), (d, 4 * d), (4 * d, d)):
        shapes += [((rows, a), (a, b)), ((rows, b), (b, a)), ((b, rows), (rows, a))]
    inner = (sizes.tokens, d // sizes.heads)
    shapes += 3 * [((heads, *inner), (heads, *inner[::-1])), ((heads, *scores), (heads, *inner))]
    pairs = [(torch.randn(left), torch.randn(right)) for left, right in shapes]
    flops = sum(2 * left.numel() * right.shape[-1] for left, right in pairs)
    best = float("inf")
    for _ in range(2 * rounds):
        started = time.perf_counter()
        for left, right in pairs:
            left @ right
        best = min(best, time.perf_counter() - started)
    return flops / best


def _print(
    rows: list[dict[str, Any]],
    sizes: Sizes,
    reference: str,
    rate: float,
    share: float,
    arguments: argparse.Namespace,
) -> None:
    print(
        f"{sizes.depth} blocks, D {sizes.width}, n {sizes.streams}, B {sizes.batch}, T {sizes.tokens}, "
        f"float32, {arguments.threads} threads, {arguments.rounds} rounds, torch {torch.__version__}"
    )
    print(f"ratios to: {reference}\n")
    print(
        f"{'':<42} {'ms':>7} {'time':>5} {'quartiles':>12} {'memory':>6} {'param.':>6} {'prod.':>5} "
        f"{'first':>6}"
    )
    for row in rows:
        low, high = row["quartiles"]
        memory = f"{row['bytes_ratio']:6.2f}" if "bytes_ratio" in row else f"{'-':>6}"
        first = f"{row['first_seconds']:5.1f}s" if "first_seconds" in row else f"{'-':>6}"
        print(
            f"{row['arm']:<42} {row['milliseconds']:7.1f} {row['time']:5.2f} {low:4.2f} - {high:4.2f} "
            f"{memory} {row['parameters_ratio']:6.3f} {row['flops_ratio']:5.2f} {first}"
        )
    print(
        f"\nmatrix products at these shapes: {rate / 1e9:.0f} billion operations a second (best of "
        f"{2 * arguments.rounds});\nthe reference's best step reaches {share:.2f} of that"
    )


if __name__ == "__main__":
    main()

"""Activation memory of Hyper-Connections by the number of streams, with checkpointing, beside Pre-Norm.

    python benchmarks/memory.py
    python benchmarks/memory.py --depth 48 --batch 64 --compiled

Each row is measured in a process of its own that gives freed memory back at once: the peak of a step less
what the process holds between steps (weights, moments, libraries). Exit code 1 if dynamic
Hyper-Connections of 4 streams with checkpointing need more than half of plain Pre-Norm without, or more
than 3.6 times Pre-Norm with checkpointing.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import torch
from arms import Sizes, arms_of, step_of

STREAMS = (1, 2, 4, 8)
MOST_OF_PLAIN, MOST_OF_CHECKPOINTED = 0.5, 3.6


def main() -> int:
    """Measure and print; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    Sizes.add_arguments(parser)
    parser.set_defaults(depth=48)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--compiled", action="store_true", help="measure the fast pass, not the plain one")
    parser.add_argument(
        "--one", nargs=2, metavar=("SCHEME", "CHECKPOINTING"), help="one row, in this process"
    )
    arguments = parser.parse_args()
    sizes = Sizes.of(arguments)
    if arguments.one is not None:
        torch.set_num_threads(arguments.threads)
        print(json.dumps(_peak(arguments.one[0], sizes, arguments.one[1] == "yes", arguments.compiled)))
        return 0

    def apart(scheme: str, checkpointing: str, streams: int = 1) -> int:
        options = [
            f"--{name}={value}" for name, value in dataclasses.asdict(sizes).items() if name != "streams"
        ]
        options += [f"--streams={streams}", f"--threads={arguments.threads}", "--one", scheme, checkpointing]
        command = [sys.executable, __file__, *(["--compiled"] if arguments.compiled else []), *options]
        environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0"}
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        return int(json.loads(done.stdout.splitlines()[-1]))

    plain, checkpointed = (apart("pre_norm", each) for each in ("no", "yes"))
    print(
        f"{sizes.depth} blocks, D {sizes.width}, B {sizes.batch}, T {sizes.tokens}, float32, "
        f"{'compiled' if arguments.compiled else 'plain'}\n"
    )
    print(f"{'activations':<46} {'MiB':>7} {'of Pre-Norm':>12} {'checkpointed':>13}")
    rows = {"pre_norm": plain, "pre_norm, checkpointed": checkpointed}
    for streams in STREAMS:
        name = f"dynamic_hyper_connections x{streams}, checkpointed"
        rows[name] = apart("dynamic_hyper_connections", "yes", streams)
    for name, peak in rows.items():
        print(f"{name:<46} {peak / 2**20:7.1f} {peak / plain:12.2f} {peak / checkpointed:13.2f}")
    four = rows["dynamic_hyper_connections x4, checkpointed"]
    return int(four > MOST_OF_PLAIN * plain or four > MOST_OF_CHECKPOINTED * checkpointed)


def _peak(scheme: str, sizes: Sizes, checkpointing: bool, compiled: bool) -> int:
    (arm,) = [arm for arm in arms_of([scheme], packages=False)[:2] if arm.compiled == compiled]
    # A step of a small network first: what libraries allocate once is not a step's.
    small = dataclasses.replace(sizes, depth=1, batch=2)
    step_of(arm, small, checkpointing=checkpointing)[1]()
    _, step = step_of(arm, dataclasses.replace(sizes, batch=1), checkpointing=checkpointing)
    step()
    step()
    _, step = step_of(arm, sizes, checkpointing=checkpointing)
    before = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    # The moments of AdamW are made in this step: two numbers a parameter, which are no activation.
    step()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return peak - before


if __name__ == "__main__":
    sys.exit(main())

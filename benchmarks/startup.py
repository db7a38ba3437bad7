"""How long the command line takes to answer, beside an empty Python process.

    python benchmarks/startup.py

Each command runs in turn, `ROUNDS` times after a warm-up; the median and its ratio to `python -c pass`
are printed. Exit code 1 if `fints --help` takes half a second or more.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

ROUNDS = 11
MOST_SECONDS = 0.5
COMMANDS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "import fints": [sys.executable, "-c", "import fints"],
    "fints --help": [sys.executable, "-m", "fints", "--help"],
    "fints data list": [sys.executable, "-m", "fints", "data", "list"],
    "fints schemes": [sys.executable, "-m", "fints", "schemes"],
}


def main() -> int:
    """Print one line a command."""
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(ROUNDS + 1):
        for name, command in COMMANDS.items():
            started = time.perf_counter()
            subprocess.run(command, check=True, capture_output=True)
            times[name].append(time.perf_counter() - started)
    medians = {name: statistics.median(values[1:]) for name, values in times.items()}
    empty = medians["python -c pass"]
    print(f"{'command':<18} {'median s':>9} {'ratio':>7}")
    for name, median in medians.items():
        print(f"{name:<18} {median:>9.3f} {median / empty:>7.1f}")
    return int(medians["fints --help"] >= MOST_SECONDS)


if __name__ == "__main__":
    raise SystemExit(main())

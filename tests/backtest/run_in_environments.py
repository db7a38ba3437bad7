"""Run the tests of engines that cannot stand in the environment of the lock.

qlib goes into a folder beside it, without its hundred other packages; zipline-reloaded, which needs pandas 2,
into a virtual environment of its own. Both from pinned files beside this one.

    python tests/backtest/run_in_environments.py [--folder FOLDER] [zipline] [qlib]
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
# The files name everything, so there is nothing to resolve.
PIP = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]


def beside(name: str, folder: Path) -> tuple[str, str]:
    """Install into a folder that this interpreter's packages are seen beside."""
    options = ["--target", str(folder), "--upgrade", "-r", str(HERE / f"{name}.txt")]
    subprocess.run([sys.executable, *PIP, *options], check=True)
    return sys.executable, f"{folder}{os.pathsep}{ROOT}"


def alone(name: str, folder: Path) -> tuple[str, str]:
    """Install into a virtual environment that sees nothing else."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = str(folder / "bin" / "python")
    subprocess.run([python, *PIP, "-r", str(HERE / f"{name}.txt")], check=True)
    return python, str(ROOT)


ENGINES: dict[str, Callable[[str, Path], tuple[str, str]]] = {"qlib": beside, "zipline": alone}


def run(name: str, folder: Path) -> str:
    """Make the environment, run the engine's tests in it, return the closing line.

    Raises
    ------
    SystemExit
        If a test fails, or none ran.
    """
    start = time.monotonic()
    python, path = ENGINES[name](name, folder)
    command = [python, "-m", "pytest", "--no-skips", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, str(HERE / f"test_{name}.py")],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path, "PYTEST_ADDOPTS": ""},
        stdout=subprocess.PIPE,
        text=True,
    )
    passed = re.search(r"(\d+) passed", done.stdout)
    if done.returncode != 0 or passed is None or re.search(r"\d+ (skipped|deselected)", done.stdout):
        print(done.stdout)
        sys.exit(f"{name}: its tests did not all pass (exit code {done.returncode})")
    return f"{name}: {passed[1]} passed, {time.monotonic() - start:.0f} s with its environment"


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("engines", nargs="*", metavar="engine", help=f"of {', '.join(ENGINES)}; default: all")
    parser.add_argument("--folder", type=Path, help="where environments are made and kept; default: nowhere")
    chosen = parser.parse_args()
    unknown = [name for name in chosen.engines if name not in ENGINES]
    if unknown:
        parser.error(f"unknown engine {unknown[0]}; known: {', '.join(ENGINES)}")
    with tempfile.TemporaryDirectory() as scratch:
        folder = chosen.folder or Path(scratch)
        for name in chosen.engines or ENGINES:
            print(run(name, folder / name), flush=True)


if __name__ == "__main__":
    main()

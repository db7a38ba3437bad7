"""Other people's packages, installed into a folder of the benchmark's own and never into the environment."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

__all__ = ["install"]


def install(folder: Path, wanted: Sequence[str], *, proof: str) -> str | None:
    """Install `wanted` into `folder`, without what they depend on, unless `proof` is there already.

    Dependencies are left out so that the torch and numpy that are measured stay the environment's.

    Returns
    -------
    str or None
        Why it failed; None once the packages can be imported.
    """
    if not (folder / proof).is_dir():
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder)]
        done = subprocess.run([*pip, *wanted], capture_output=True, text=True, check=False)
        if done.returncode:
            return (done.stderr.strip().splitlines() or ["pip gave no reason"])[-1]
    sys.path.append(str(folder))
    return None

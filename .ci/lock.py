"""Write requirements.lock: every package of a development environment, pinned.

pip resolves on the running interpreter without installing anything; the pins it chooses are
written without build tags, addresses or CUDA companions, so the same file serves CPU and GPU
machines on Linux and macOS. Run it on the oldest supported Python: what resolves there also
installs on the newer ones.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements.lock"

# Companions of a CUDA build of torch: torch itself asks for the right ones where they are needed.
CUDA_COMPANION = re.compile(r"^(nvidia|cuda|triton|pytorch-triton)(-|$)")

HEADER = """\
# Every package of a development environment for Python 3.11 to 3.13 on Linux and macOS.
# Written by `make lock` from the ranges in pyproject.toml; do not edit by hand.
# An installed build of torch of this version (CPU or CUDA) is kept as it is.
"""


def resolve(torch: str) -> dict[str, str]:
    """Return name -> version of all that `.[dev]` needs, with torch held at `torch`."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"]
        subprocess.run([*command, "--report", str(report), f"torch=={torch}", f"{ROOT}[dev]"], check=True)
        packages = [item["metadata"] for item in json.loads(report.read_text())["install"]]
    names = {re.sub(r"[-_.]+", "-", package["name"]).lower(): package["version"] for package in packages}
    return {
        name: version.split("+")[0]
        for name, version in sorted(names.items())
        if name != "fints" and not CUDA_COMPANION.match(name)
    }


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python .ci/lock.py TORCH_VERSION")
    pins = resolve(sys.argv[1])
    LOCK.write_text(HEADER + "".join(f"{name}=={version}\n" for name, version in pins.items()))
    print(f"{LOCK.name}: {len(pins)} packages pinned")

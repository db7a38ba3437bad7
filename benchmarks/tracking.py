"""How much of a study's wall time went into tracking.

    python benchmarks/tracking.py FOLDER
    python benchmarks/tracking.py FOLDER --most 0.05      # of a run with --tracking-uri http://...

FOLDER is a study's folder, as `plan` prints it. The times were taken by the run itself: those of
MLflow calls, which happen beside the fits, and apart from them imports and the creation of the
database's tables. Below stand the times in which the arms' forecasters were logged and registered, after
the fits and the report of a run. Exit code 1 if a run that fitted spent 2 % (or what --most
says) or more of its wall time in calls.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

MOST = 0.02


def main() -> int:
    """Print one line a run and one a time that models were logged."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--most", type=float, default=MOST, help="share of the wall time (%(default)s)")
    arguments = parser.parse_args()
    folder, most = arguments.folder, arguments.most
    if not (folder / "runs.jsonl").is_file():
        missing = folder / "runs.jsonl"
        print(f"error: {missing} is not there; give the folder of a study that has run.", file=sys.stderr)
        return 2
    heads = ("fits", "wall s", "calls s", "share", "waited s", "imports s", "tables s")
    print("run " + " ".join(f"{head:>9}" for head in heads))
    worst = fitted = 0.0
    for number, run in enumerate(_rows(folder / "runs.jsonl")):
        seconds = run["tracking_seconds"]
        share = seconds.get("calls", 0.0) / run["wall_seconds"]
        if run["fits"]:
            worst = max(worst, share)
            fitted += run["wall_seconds"]
        cells = [
            f"{run['fits']}",
            f"{run['wall_seconds']:.1f}",
            f"{seconds.get('calls', 0.0):.2f}",
            f"{share:.2%}",
            f"{run['waited_for_tracking_seconds']:.2f}",
            f"{seconds.get('imports', 0.0):.2f}",
            f"{seconds.get('schema', 0.0):.2f}",
        ]
        print(f"{number:3} " + " ".join(f"{cell:>9}" for cell in cells))
    print(f"largest share of a run with fits: {worst:.2%} (under {most:.0%} wanted)")
    for logged in _rows(folder / "models.jsonl"):
        beside = f", {logged['seconds'] / fitted:.2%} of the runs with fits" if fitted else ""
        print(f"models logged and registered: {logged['models']} in {logged['seconds']:.2f} s{beside}")
    return 0 if worst < most else 1


def _rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a file of JSON lines, none where there is no file."""
    if not path.is_file():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


if __name__ == "__main__":
    sys.exit(main())

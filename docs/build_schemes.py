"""Builds the table of residual schemes in docs/schemes.md from the code and a stored measurement.

    python docs/build_schemes.py            # writes the table into docs/schemes.md
    python docs/build_schemes.py --check    # exit code 1 if the table is not what the code says

Times are read from benchmarks/results/schemes.json, or another file of `benchmarks/schemes.py --json` given
by --measured; a scheme that was not measured has a dash. Nothing is measured here.
"""

from __future__ import annotations

import argparse
import inspect
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fints.residual import RESIDUALS

__all__ = ["page", "table"]

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "schemes.md"
MEASURED = ROOT / "benchmarks" / "results" / "schemes.json"
BEGIN, END = "<!-- table: python docs/build_schemes.py -->", "<!-- end of table -->"
# Where parameters are counted.
WIDTH, SUBLAYERS = 64, 24


def table(measured: Mapping[str, Any] | None) -> str:
    """Return the table in Markdown; `measured` is what `benchmarks/schemes.py --json` printed."""
    lines = [
        "| name | one sublayer | parameters beyond Pre-Norm's | count | at the start | plain | compiled "
        "| defined in | file |",
        "|---|---|---|---:|---|---:|---:|---|---|",
    ]
    for name, scheme in RESIDUALS.items():
        source = inspect.getsourcefile(scheme)
        assert source is not None
        file = Path(source).resolve().relative_to(ROOT).as_posix()
        start = "equals Pre-Norm" if scheme.equals_pre_norm_at_start else "another function"
        cells = (
            f"`{name}`",
            f"`{scheme.equation}`",
            scheme.parameter_formula,
            f"{scheme.extra_parameters(WIDTH, SUBLAYERS, norm='layer_norm'):,}",
            "Pre-Norm itself" if name == "pre_norm" else start,
            *(_ratio(f"{name}, {mode}", measured) for mode in ("plain", "compiled")),
            scheme.paper,
            f"[{Path(file).name}](../{file})",
        )
        # A bar ends a cell, in code too.
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    lines += ["", "Step times have not been measured yet." if measured is None else _how(measured)]
    return "\n".join(lines)


def page(text: str, measured: Mapping[str, Any] | None) -> str:
    """Return the page with its table replaced."""
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n{table(measured)}\n{END}{after}"


def stored(path: Path = MEASURED) -> dict[str, Any] | None:
    """Return the stored measurement, if there is one."""
    if not path.is_file():
        return None
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def _ratio(arm: str, measured: Mapping[str, Any] | None) -> str:
    """Return the ratio of one arm of the benchmark, or a dash."""
    found = [row["time"] for row in (measured or {"rows": []})["rows"] if row["arm"] == arm]
    return f"{found[0]:.2f}" if found else "–"


def _how(measured: Mapping[str, Any]) -> str:
    """Say at which sizes, where and by what the ratios were measured."""
    letters = {"depth": "blocks", "width": "D", "streams": "n", "batch": "B", "tokens": "T"}
    sizes = ", ".join(f"{letter} {measured['sizes'][name]}" for name, letter in letters.items())
    return (
        f"Plain, compiled: median time of a training step over that of {measured['reference']}, at {sizes}, "
        f"on {measured['machine']}, by `{measured['command']}`."
    )


def main() -> int:
    """Write the page, or compare it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--measured", type=Path, default=MEASURED, help="what benchmarks/schemes.py --json wrote"
    )
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 if the page differs")
    options = parser.parse_args()
    if options.measured != MEASURED and not options.measured.is_file():
        parser.error(f"{options.measured} is no file")
    text = PAGE.read_text(encoding="utf-8")
    built = page(text, stored(options.measured))
    if options.check:
        if built != text:
            print("docs/schemes.md is not what the code says. Run: python docs/build_schemes.py")
        return int(built != text)
    PAGE.write_text(built, encoding="utf-8", newline="\n")
    print(f"docs/schemes.md: {len(RESIDUALS)} schemes")
    return 0


if __name__ == "__main__":
    sys.exit(main())

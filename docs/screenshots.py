"""Photograph what a study leaves: its report, and its pages in MLflow (runs, comparison, an arm, its models).

    python docs/screenshots.py ROOT STUDY [--only report]

ROOT is a results folder and STUDY the name of an MLflow experiment in it, as `fints ui --root ROOT` prints.
Needs Chromium (`--chromium PATH`). Writes docs/report.png and docs/mlflow-*.png.
"""

from __future__ import annotations

import argparse
import runpy
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fints.ui import address, pages, store

HERE = Path(__file__).parent
BROWSER = runpy.run_path(str(HERE / "browser.py"))
PARTS = ("report", "experiment", "compare", "run", "models")


def main() -> None:
    """Start the pages, photograph them, stop them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("root", type=Path)
    parser.add_argument("study")
    parser.add_argument("--chromium")
    parser.add_argument("--out", type=Path, default=HERE)
    parser.add_argument("--only", choices=PARTS, action="append", help="one part; may be given again")
    given = parser.parse_args()
    parts = given.only or PARTS
    with BROWSER["Browser"](given.chromium, size=(1200, 1000)) as browser:
        if "report" in parts:
            browser.open((given.root.resolve() / given.study / "report.html").as_uri())
            browser.wait("all('img').every((one) => one.complete)")
            _keep(browser, given.out / "report.png")
        if set(parts) - {"report"}:
            with _served(given.root) as port:
                _mlflow(browser, given, port, parts)


def _mlflow(browser: Any, given: argparse.Namespace, port: int, parts: tuple[str, ...]) -> None:
    page = next(page for page in pages(store(given.root), port) if page.study == given.study)
    browser.resize(1500, 1100)
    # What a user presses once: out of the GenAI mode in which MLflow opens, the assistant away.
    browser.open(page.runs)
    browser.press("Model training")
    browser.wait_for_text("Model registry")
    browser.press("Close")
    if "experiment" in parts:
        browser.open(page.runs)
        browser.wait("all('.js-plotly-plot .trace').length > 3", "charts")
        # Without a mouse the charts' buttons lie on them.
        browser.value("all('.modebar').forEach((one) => one.remove())")
        _keep(browser, given.out / "mlflow-experiment.png")
    if "compare" in parts and page.compare is not None:
        browser.resize(1500, 1450)
        browser.open(page.compare)
        browser.wait_for_text("Run details")
        _keep(browser, given.out / "mlflow-compare.png")
    if "run" in parts:
        browser.resize(1500, 1000)
        browser.open(page.runs)
        first = browser.wait("all(\"a[href*='/runs/']\").map((one) => one.href)[0]", "a run")
        browser.open(first)
        browser.wait_for_text("Description")
        browser.press("Show more")
        # The note, with its tables, below the facts of the run.
        browser.value(
            "all('h1, h2, h3, h4').find((one) => one.innerText === 'Description')?.scrollIntoView()"
        )
        _keep(browser, given.out / "mlflow-run.png")
    if "models" in parts:
        browser.resize(1500, 700)
        browser.open(f"{address(port)}/#/models/{given.study.replace('/', '-')}")
        browser.wait_for_text("champion")
        _keep(browser, given.out / "mlflow-models.png")


@contextmanager
def _served(root: Path) -> Iterator[int]:
    """Serve the pages of a folder by the command that a run prints."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    command = [sys.executable, "-u", "-m", "fints", "ui", "--root", str(root), "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            for line in server.stdout:
                if "Ctrl-C" in line:
                    break
            yield port
        finally:
            server.terminate()


def _keep(browser: Any, path: Path) -> None:
    path.write_bytes(browser.picture())
    print(f"{path}: {path.stat().st_size / 1000:.0f} kB", flush=True)


if __name__ == "__main__":
    main()

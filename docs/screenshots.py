"""Photograph the MLflow pages of a study: its runs, the comparison of its arms, one arm, its models.

    pip install playwright
    python docs/screenshots.py ROOT STUDY [--only models]

ROOT is a results folder and STUDY the name of an MLflow experiment in it, as `fints ui --root ROOT` prints
them. Needs Chromium (`--chromium PATH`). Writes docs/mlflow-*.png.
"""

from __future__ import annotations

import argparse
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from fints.ui import address, pages, store

HERE = Path(__file__).parent
# A machine that does other work takes its time.
PATIENCE_MS = 180_000
QUIET = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]


def main() -> None:
    """Start the pages, photograph them, stop them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("root", type=Path)
    parser.add_argument("study")
    parser.add_argument("--chromium", default=shutil.which("chromium") or shutil.which("google-chrome"))
    parser.add_argument("--out", type=Path, default=HERE)
    parser.add_argument("--only", choices=("runs", "models"), help="one part of the pages")
    given = parser.parse_args()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = subprocess.Popen(
        [sys.executable, "-m", "fints", "ui", "--root", str(given.root), "--port", str(port)]
    )
    try:
        page = next(page for page in pages(store(given.root), port) if page.study == given.study)
        _wait(port)
        if given.only != "models":
            _photograph(page.runs, page.compare, given.out, given.chromium)
        if given.only != "runs":
            _photograph_models(address(port), given.study.replace("/", "-"), given.out, given.chromium)
    finally:
        server.terminate()
        server.wait()


def _wait(port: int) -> None:
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.5)


def _photograph(runs: str, compare: str | None, out: Path, chromium: str) -> None:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium, args=QUIET)
        page = browser.new_page(viewport={"width": 1500, "height": 1100})
        _open(page, runs)
        for name in ("Model training", "Close"):
            _press(page, name)
        _open(page, runs)
        page.screenshot(path=out / "mlflow-experiment.png")
        if compare is not None:
            _open(page, compare)
            _press(page, "Close")
            page.set_viewport_size({"width": 1500, "height": 1650})
            page.wait_for_timeout(3000)
            page.screenshot(path=out / "mlflow-compare.png")
        page.set_viewport_size({"width": 1500, "height": 1000})
        _open(page, runs)
        page.locator("a[href*='/runs/']").first.click()
        page.wait_for_timeout(5000)
        _press(page, "Show more")
        page.screenshot(path=out / "mlflow-run.png")
        browser.close()


def _photograph_models(base: str, name: str, out: Path, chromium: str) -> None:
    """Photograph the registered models of a study, one version an arm."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium, args=QUIET)
        page = browser.new_page(viewport={"width": 1500, "height": 800})
        page.set_default_timeout(PATIENCE_MS)
        _open(page, f"{base}/#/models/{name}")
        for word in ("Model training", "Close"):
            _press(page, word)
        _open(page, f"{base}/#/models/{name}")
        page.get_by_text("champion").first.wait_for()
        page.screenshot(path=out / "mlflow-models.png")
        browser.close()


def _open(page: Any, address: str) -> None:
    page.goto(address)
    page.reload()
    page.wait_for_timeout(7000)


def _press(page: Any, name: str) -> None:
    """Press what a user presses once: out of the GenAI mode in which MLflow opens, the assistant away."""
    wanted = page.get_by_text(name, exact=True).or_(page.get_by_label(name, exact=True))
    if wanted.count():
        wanted.first.click()
        page.wait_for_timeout(1500)


if __name__ == "__main__":
    main()

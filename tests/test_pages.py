"""What a user sees, in a browser without a network: the report of a study, and its pages in MLflow."""

from __future__ import annotations

import http.server
import json
import re
import runpy
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
BROWSER = runpy.run_path(str(ROOT / "docs" / "browser.py"))
FOLLOW = runpy.run_path(str(ROOT / "docs" / "follow.py"))
NAME = "norm_at_depth_2"
LABEL = f"{NAME}/quick-sp500-20"
ARMS = ("pre_norm", "post_norm")
# Each chart is drawn by scripts of its page: bars or lines, not an empty frame.
CHARTS = """all('.js-plotly-plot').map((one) => ({
  marks: one.querySelectorAll('.trace path, .trace .point, .parcoords-lines').length,
  width: one.getBoundingClientRect().width, height: one.getBoundingClientRect().height}))"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER["chromium"]() is None, reason="no Chromium here"),
    # For a hang: the study, the server and the browser share a machine with other tests.
    pytest.mark.timeout(1800),
]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory, mlflow_tables: Path) -> Path:
    """A results folder with the study of the tutorial, cut short and run by its own command."""
    place = tmp_path_factory.mktemp("pages")
    page = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    (study,) = [block.text for block in FOLLOW["blocks"](page) if block.file == f"{NAME}.py"]
    (place / f"{NAME}.py").write_text(study, encoding="utf-8")
    (place / "results").mkdir()
    shutil.copy(mlflow_tables, place / "results" / "mlflow.db")
    command = [sys.executable, f"{NAME}.py", "run", "--root", str(place / "results"), "--workers", "1"]
    run = subprocess.run(
        [*command, "--set", "training.steps=2", "--set", "training.warmup_steps=1"],
        cwd=place,
        capture_output=True,
        text=True,
        timeout=1500,
    )
    assert run.returncode == 0, run.stderr
    return place / "results"


@pytest.fixture(scope="module")
def folder(root: Path) -> Path:
    (found,) = (root / NAME).iterdir()
    return found


@pytest.fixture(scope="module")
def links(root: Path) -> Iterator[dict[str, str]]:
    """What `fints ui`, the command that a run prints, says: the links to charts and comparison."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "fints", "ui", "--root", str(root), "--port", str(port)],
        stdout=subprocess.PIPE,
        text=True,
        # What is started in the background is told to ignore Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        said = ""
        for line in process.stdout:
            said += line
            if "Ctrl-C" in line:
                break
        assert "Ctrl-C" in said, said
        found = dict(re.findall(r"^ *(charts|compare) +(\S+)$", said, flags=re.MULTILINE))
        yield {**found, "base": f"http://127.0.0.1:{port}"}
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(timeout=300)
        process.stdout.close()


@pytest.fixture
def browser() -> Iterator[Any]:
    with BROWSER["Browser"](size=(1500, 1200)) as opened:
        yield opened


@pytest.fixture(scope="module")
def asked() -> Iterator[Any]:
    """One browser for all pages of MLflow; which hosts they asked is looked at last."""
    opened = BROWSER["Browser"](size=(1500, 1200))
    try:
        yield opened
    finally:
        opened.close()
    assert opened.hosts == {"127.0.0.1"}, f"a page wants to leave this machine: {opened.hosts}"


@pytest.fixture(scope="module")
def page(asked: Any, links: dict[str, str]) -> Callable[[str], Any]:
    """Open a page of MLflow as a user does who chose "Model training" once."""
    asked.open(links["charts"])
    asked.press("Model training")
    asked.wait_for_text("Model registry")

    def opened(address: str) -> Any:
        asked.open(address)
        return asked

    return opened


@pytest.fixture(scope="module")
def runs(root: Path) -> dict[str, list[str]]:
    """The ids of the study's runs in MLflow, by their role."""
    with closing(sqlite3.connect(root / "mlflow.db")) as store:
        found = store.execute(
            "select value, runs.run_uuid, experiment_id from runs join tags using (run_uuid)"
            " where key = 'fints.role' order by start_time"
        ).fetchall()
    (experiment,) = {row[2] for row in found}
    roles = {role: [run for each, run, _ in found if each == role] for role in ("arm", "tuning", "final")}
    return {"experiment": [str(experiment)], **roles}


def test_the_browser_reaches_nothing_but_this_machine_by_its_number() -> None:
    asked = []

    class Answers(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.headers["Host"].partition(":")[0])
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<p>somebody answers</p>")

        def log_message(self, *words: object) -> None:
            pass

    # Another address and another name of the same listening server, as good as any host elsewhere.
    server = http.server.ThreadingHTTPServer(("0.0.0.0", 0), Answers)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    port = server.server_address[1]
    try:
        with BROWSER["Browser"]() as browser:
            browser.open(f"http://127.0.0.1:{port}/")
            browser.wait_for_text("somebody answers")
            for host in ("127.0.0.2", "localhost"):
                with socket.create_connection((host, port), timeout=60):
                    pass
                with pytest.raises(BROWSER["BrowserError"], match=r"ERR_(PROXY_CONNECTION|NAME_NOT)"):
                    browser.open(f"http://{host}:{port}/")
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    assert set(asked) == {"127.0.0.1"}
    assert browser.hosts == {"127.0.0.1", "127.0.0.2", "localhost"}


def test_the_report_shows_its_verdict_its_arms_and_every_figure(folder: Path, browser: Any) -> None:
    browser.open((folder / "report.html").as_uri())
    browser.wait("document.readyState === 'complete'")
    spec = json.loads((folder / "study.json").read_text(encoding="utf-8"))
    text = browser.text()
    assert spec["title"] in text
    assert any(verdict in text for verdict in ("undecided", "no difference that matters", "differs"))
    tables = browser.value("all('table').map((one) => one.innerText)")
    assert any(all(arm in table for arm in ARMS) for table in tables), tables
    assert any("post_norm" in table and "95" in table for table in tables), tables
    figures = browser.wait(
        "all('img').every((one) => one.complete) && all('img').map((one) => one.naturalWidth)"
    )
    assert len(figures) == len(list((folder / "figures").glob("*.svg"))) > 0
    assert min(figures) > 100
    wide = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
    assert browser.value(wide), "the page is wider than its window"
    browser.close()
    assert browser.hosts == set()
    assert browser.failed == {}


def test_the_page_of_the_experiment_has_the_question_the_arms_and_charts(
    page: Callable[[str], Any], links: dict[str, str]
) -> None:
    browser = page(links["charts"])
    browser.wait_for_text("Does the place of the norm matter at depth 2?", *ARMS)
    charts = browser.wait(f"(({CHARTS}).filter((one) => one.marks).length > 1) && {CHARTS}", "charts")
    assert all(one["width"] > 100 and one["height"] > 50 for one in charts)


def test_the_page_of_comparison_has_the_arms_side_by_side(
    page: Callable[[str], Any], links: dict[str, str]
) -> None:
    browser = page(links["compare"])
    browser.wait_for_text("Comparing 2 Runs from 1 Experiment", *ARMS, "best/r2_zero_percent")
    browser.wait(f"({CHARTS}).some((one) => one.width > 100)", "the plot of parallel coordinates")
    # The lines of that plot are painted on a canvas: it must hold more than one colour.
    painted = """all('canvas').some((one) => {
      const copy = document.createElement('canvas');
      [copy.width, copy.height] = [one.width, one.height];
      const context = copy.getContext('2d');
      context.drawImage(one, 0, 0);
      return new Set(context.getImageData(0, 0, copy.width, copy.height).data).size > 2;
    })"""
    drawn = f"({painted}) || ({CHARTS}).some((one) => one.marks > 0)"
    browser.wait(drawn, "lines in the plot of parallel coordinates")


def test_the_page_of_an_arm_has_its_trials_its_fits_and_its_model(
    page: Callable[[str], Any], links: dict[str, str], runs: dict[str, list[str]]
) -> None:
    assert {role: len(found) for role, found in runs.items()} == {
        "experiment": 1,
        "arm": 2,
        "tuning": 4,
        "final": 12,
    }
    for run in runs["arm"]:
        browser = page(f"{links['base']}/#/experiments/{runs['experiment'][0]}/runs/{run}")
        browser.wait_for_text("Tuning (validation loss decides)", "Final fits (test)", "best/r2_zero_percent")
        browser.wait_for_text("Registered models", "v")
        rows = browser.wait("all('table').map((one) => one.rows.length)")
        # Six fits and a head; two trials and a head.
        assert {7, 3} <= set(rows), rows


def test_every_run_of_an_arm_holds_the_figures_and_the_report(
    folder: Path, root: Path, runs: dict[str, list[str]]
) -> None:
    figures = {path.name: path.read_bytes() for path in (folder / "figures").glob("*.png")}
    assert figures
    for run in runs["arm"]:
        held = root / "mlartifacts" / NAME / folder.name / run / "artifacts"
        assert {path.name: path.read_bytes() for path in (held / "figures").iterdir()} == figures
        assert (held / "report" / "report.html").read_bytes() == (folder / "report.html").read_bytes()


def test_the_page_of_a_fit_has_its_numbers_its_data_and_its_curves(
    page: Callable[[str], Any], links: dict[str, str], runs: dict[str, list[str]]
) -> None:
    where = f"{links['base']}/#/experiments/{runs['experiment'][0]}/runs/{runs['final'][0]}"
    browser = page(where)
    browser.wait_for_text("test/r2_zero", "validation/best_loss", "sp500-20", "fints.key", "Parent run")
    browser = page(f"{where}/model-metrics")
    browser.wait(f"({CHARTS}).filter((one) => one.marks && one.width > 100).length > 1", "curves")


def test_the_page_of_the_models_names_the_champion(
    page: Callable[[str], Any], links: dict[str, str], folder: Path
) -> None:
    browser = page(f"{links['base']}/#/models/{NAME}-{folder.name}")
    browser.wait_for_text("Version 1", "Version 2", "@ champion", *ARMS)
    browser = page(f"{links['base']}/#/models/{NAME}-{folder.name}/versions/1")
    browser.wait_for_text("Arm pre_norm of the study", "Verdict of the study", "Schema")

"""What holds for every test: a home of its own, skips that count, the same examples every time."""

from __future__ import annotations

import gc
import os
import warnings
from pathlib import Path

import pytest
from hypothesis import settings

# A busy machine makes no test wrong, and a failure in CI is the same failure on a desk.
settings.register_profile("fints", deadline=None, derandomize=True)
settings.load_profile("fints")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--no-skips",
        action="store_true",
        help="fail if any test is skipped, but for those marked cuda on a machine without CUDA",
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    needs_cuda = [item for item in items if item.get_closest_marker("cuda")]
    if needs_cuda:
        import torch

        if not torch.cuda.is_available():
            for item in needs_cuda:
                item.add_marker(pytest.mark.skip(reason="no CUDA device"))


def pytest_collection_finish(session: pytest.Session) -> None:
    """What was imported and collected stays: no garbage collection need look through it again."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item):
    """Under --no-skips a skip is a failure, so a missing program cannot hide behind a green run."""
    report = yield
    if report.skipped and item.config.getoption("--no-skips") and not hasattr(report, "wasxfail"):
        reason = report.longrepr[-1] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if not (item.get_closest_marker("cuda") and reason.endswith("no CUDA device")):
            report.outcome = "failed"
            report.longrepr = f"{reason}, and --no-skips is given: every test must run."
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector):
    """The same for a whole file that skips itself while it is imported."""
    report = yield
    if report.skipped and collector.config.getoption("--no-skips"):
        report.outcome = "failed"
        report.longrepr = f"{report.longrepr[-1]}, and --no-skips is given: every test must run."
    return report


@pytest.fixture(autouse=True)
def home_of_its_own(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test reads or writes the user's own datasets and results."""
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("FINTS_HOME", str(home))
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    return home


@pytest.fixture(scope="session")
def mlflow_tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of MLflow's empty tables, to be copied: to make them takes seconds, so it is done once.

    By all workers of pytest-xdist together, whose folders stand side by side.
    """
    from filelock import FileLock

    from fints.study.embedded import embedded

    folder = tmp_path_factory.getbasetemp()
    path = (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "tables" / "mlflow.db"
    path.parent.mkdir(exist_ok=True)
    with FileLock(path.with_suffix(".made")), warnings.catch_warnings():
        # MLflow 3.17 configures its tables in a way that SQLAlchemy 2.1 deprecates.
        warnings.simplefilter("ignore")
        embedded(path, lambda url: _make_mlflow_tables(url, path.parent / "artifacts"))
    return path


def _make_mlflow_tables(url: str, artifacts: Path) -> None:
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    SqlAlchemyStore(url, artifacts.as_uri()).engine.dispose()

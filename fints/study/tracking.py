"""Our tracker: what a person sees in MLflow, written in few, batched calls.

Experiment = study at one size; parent run = arm; child run = trial or final fit. A child is linked
to its Optuna trial and to its folder by the tag ``fints.key``.
"""

from __future__ import annotations

import json
import logging
import math
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fints.study.cells import FINISHED
from fints.study.embedded import check_database, embedded
from fints.study.fits import Cell, read_result
from fints.study.notes import arm_note, experiment_note

__all__ = ["Tracker", "check_tracker", "compare_link"]

# One call carries at most so much (a limit of MLflow's).
BATCH = 1000
_HISTORY = {
    "train_loss": "train/loss",
    "validation_loss": "validation/loss",
    "learning_rate": "train/learning_rate",
    "gradient_norm": "gradient/norm",
}
_PROFILE = {
    "adjacent_cosine": "similarity/adjacent_cosine_by_sublayer",
    "adjacent_cosine_centred": "similarity/adjacent_cosine_centred_by_sublayer",
    "adjacent_cosine_null": "similarity/adjacent_cosine_null_by_sublayer",
    "effective_rank": "similarity/effective_rank_by_sublayer",
    "relative_update": "similarity/relative_update_by_sublayer",
    "gradient_norm": "gradient/norm_by_sublayer",
    "update_to_weight": "gradient/update_to_weight_by_sublayer",
}


# MLflow's own: 7 retries, each after twice the wait of the one before, and 120 s.
PATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "20"}
DATABASES = ("sqlite", "postgresql", "mysql", "mssql")
NO_PATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0", "MLFLOW_HTTP_REQUEST_TIMEOUT": "5"}


class Tracker:
    """Writes one study's runs; every method is called from one thread.

    Parameters
    ----------
    spec : dict
        The study, as in study.json.
    root, label : Path, str
        Results folder, and the study's own folder name in it.
    uri : str, optional
        An MLflow server or store; SQLite under `root` if not given.
    commit : str, optional
        Of the study's file.
    """

    def __init__(
        self,
        spec: dict[str, Any],
        *,
        root: Path,
        label: str,
        uri: str | None = None,
        commit: str | None = None,
    ) -> None:
        self._spec = spec
        self._root = root
        self._label = label
        self._uri = uri
        self._commit = commit
        self._plan = spec["sources"] + "-" + _digest(spec)
        self._parents: dict[str, str] = {}
        self._children: dict[str, str] = {}
        self._finished: set[str] = set()
        self.seconds: dict[str, float] = {}
        self.experiment_id = ""

    def open(self, fits: Path) -> None:
        """Create or find stores, experiment and arms, and settle what a dead driver left RUNNING.

        A dead run whose fit is there is completed, any other is closed as KILLED.
        """
        _quiet()
        # A server that has gone is given up within a minute: the next run catches up.
        for name, value in PATIENCE.items():
            os.environ.setdefault(name, value)
        with self._timed("imports"):
            from mlflow import MlflowClient
        with self._timed("schema"):
            uri = self._uri or embedded(self._root / "mlflow.db", self._create_tables)
            self._client = MlflowClient(tracking_uri=uri, registry_uri=uri)
            self.experiment_id = self._experiment()
        with self._timed("calls"):
            self._find_runs(fits)

    def start(self, cell: Cell) -> None:
        """Open the child run of a cell that starts."""
        if cell.key in self._finished or cell.key in self._children:
            return
        with self._timed("calls"):
            self._children[cell.key] = self._create_child(cell)

    def finish(self, cell: Cell, folder: Path) -> None:
        """Write a finished fit's numbers into its run and close it; a run that is closed stays as it is."""
        if cell.key in self._finished:
            return
        self.start(cell)
        with self._timed("calls"):
            self._complete(self._children.pop(cell.key), cell.key, folder)

    def kill(self, cell: Cell, status: str = "KILLED", reason: str = "") -> None:
        """Close the run of a cell that was interrupted (KILLED) or failed (FAILED)."""
        run_id = self._children.pop(cell.key, None)
        if run_id is None:
            return
        with self._timed("calls"):
            if reason:
                self._client.set_tag(run_id, "fints.reason", reason[:500])
            self._client.set_terminated(run_id, status)

    def close_arm(
        self, arm: str, rows: list[dict[str, Any]], profile: Mapping[str, list[tuple[int, float]]]
    ) -> None:
        """Write an arm's table, chosen design point, best numbers and mean profile into the parent run."""
        from mlflow.entities import Metric, Param, RunTag

        with self._timed("calls"):
            note, best = arm_note(self._spec, arm, rows)
            now = _now()
            metrics = [
                Metric(name, value, now, 0) for name, value in sorted(best.items()) if math.isfinite(value)
            ]
            for column, points in profile.items():
                if column in _PROFILE:
                    metrics += [Metric(_PROFILE[column], value, now, layer) for layer, value in points]
            chosen: dict[str, Any] = next((row["point"] for row in rows if row["role"] == "final"), {})
            self._client.log_batch(
                self._parents[arm],
                metrics=metrics[:BATCH],
                params=[Param(_short(name), _text(value)) for name, value in chosen.items()],
                tags=[RunTag("mlflow.note.content", note)],
            )

    def close(self, status: str = "FINISHED") -> None:
        """Close whatever is open: children as KILLED, arms with `status`."""
        with self._timed("calls"):
            for run_id in self._children.values():
                self._client.set_terminated(run_id, "KILLED")
            self._children.clear()
            for run_id in self._parents.values():
                self._client.set_terminated(run_id, status)

    @property
    def link(self) -> str:
        """Address of the page that compares the arms, after the address of the UI."""
        return compare_link(self.experiment_id, list(self._parents.values()))

    def _create_tables(self, url: str) -> None:
        from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

        store = SqlAlchemyStore(url, (self._root / "mlartifacts").as_uri())
        store.engine.dispose()

    def _experiment(self) -> str:
        name = f"{self._spec['name']}/{self._label}"
        tags = {"fints.study": self._spec["name"], "fints.preset": self._spec["preset"]}
        found = self._client.get_experiment_by_name(name)
        if found is None:
            # A server keeps its own artifacts; an embedded store keeps them beside it.
            place = (
                None
                if self._uri
                else (self._root / "mlartifacts" / self._spec["name"] / self._label).as_uri()
            )
            experiment_id: str = self._client.create_experiment(name, artifact_location=place, tags=tags)
        else:
            experiment_id = found.experiment_id
            if found.lifecycle_stage == "deleted":
                self._client.restore_experiment(experiment_id)
        self._client.set_experiment_tag(experiment_id, "mlflow.note.content", experiment_note(self._spec))
        return experiment_id

    def _find_runs(self, fits: Path) -> None:
        runs, token = [], None
        while True:
            page = self._client.search_runs([self.experiment_id], max_results=1000, page_token=token)
            runs += list(page)
            token = page.token
            if not token:
                break
        for run in runs:
            tags, status = run.data.tags, run.info.status
            key, running = tags.get("fints.key"), status in ("RUNNING", "SCHEDULED")
            if tags.get("fints.role") == "arm":
                if tags.get("fints.plan") == self._plan:
                    self._parents[tags["fints.arm"]] = run.info.run_id
                elif running:
                    self._client.set_terminated(run.info.run_id, "KILLED")
            elif running and key and (fits / key).is_dir() and tags.get("fints.plan") == self._plan:
                self._complete(run.info.run_id, key, fits / key)
            elif running:
                self._client.set_terminated(run.info.run_id, "KILLED")
            elif status == "FINISHED" and key and tags.get("fints.plan") == self._plan:
                self._finished.add(key)
        for arm in self._spec["arms"]:
            if arm["name"] in self._parents:
                self._client.update_run(self._parents[arm["name"]], status="RUNNING")
            else:
                self._parents[arm["name"]] = self._create_parent(arm)

    def _create_parent(self, arm: Mapping[str, Any]) -> str:
        from mlflow.entities import Param

        tags = {
            **self._tags(arm["name"], "arm"),
            "mlflow.note.content": arm_note(self._spec, arm["name"], [])[0],
        }
        run = self._client.create_run(self.experiment_id, run_name=_arm_title(arm["levels"]), tags=tags)
        params = {**arm["levels"], "data": self._data}
        self._client.log_batch(run.info.run_id, params=[Param(name, value) for name, value in params.items()])
        self._client.log_dict(run.info.run_id, arm["experiment"], "experiment.json")
        return str(run.info.run_id)

    def _create_child(self, cell: Cell) -> str:
        from mlflow.entities import Dataset, DatasetInput, InputTag, Param

        tags = {
            **self._tags(cell.arm, cell.role),
            "mlflow.parentRunId": self._parents[cell.arm],
            "fints.key": cell.key,
            "fints.fold": str(cell.fold),
            "fints.seed": str(cell.seed),
        }
        run = self._client.create_run(self.experiment_id, run_name=_run_name(cell), tags=tags)
        run_id = str(run.info.run_id)
        levels = next(arm["levels"] for arm in self._spec["arms"] if arm["name"] == cell.arm)
        short = {_short(name): _text(value) for name, value in cell.point.items()}
        params = {
            **levels,
            **short,
            "role": cell.role,
            "fold": str(cell.fold),
            "seed": str(cell.seed),
            "data": self._data,
        }
        self._client.log_batch(run_id, params=[Param(name, value) for name, value in params.items()])
        dataset = Dataset(
            name=self._spec["dataset"]["name"],
            digest=self._spec["checksum"],
            source_type="fints",
            source=json.dumps({"dataset": self._spec["dataset"]["reference"]}),
            profile=json.dumps({"span": self._spec["span"], "assets": self._spec["num_assets"]}),
        )
        context = [InputTag("mlflow.data.context", f"{cell.role} fold {cell.fold}")]
        self._client.log_inputs(run_id, datasets=[DatasetInput(dataset, context)])
        self._client.log_dict(run_id, cell.experiment, "experiment.json")
        return run_id

    def _complete(self, run_id: str, key: str, folder: Path) -> None:
        from mlflow.entities import Metric, RunTag

        result = read_result(folder)
        now = _now()
        metrics = [Metric(name, value, now, step) for name, value, step in _fit_metrics(folder, result)]
        tags = [RunTag("status", result["outcome"])]
        if result["outcome"] not in FINISHED:
            tags.append(RunTag("fints.reason", str(result["reason"])[:500]))
        for first in range(0, max(len(metrics), 1), BATCH):
            self._client.log_batch(run_id, metrics=metrics[first : first + BATCH], tags=tags)
        self._client.set_terminated(run_id, "FINISHED")
        self._finished.add(key)

    def _tags(self, arm: str, role: str) -> dict[str, str]:
        return {
            "fints.study": self._spec["name"],
            "fints.arm": arm,
            "fints.role": role,
            "fints.plan": self._plan,
            "fints.commit": self._commit or "none",
            "fints.data_checksum": self._spec["checksum"],
            "mlflow.source.name": f"studies/{self._spec['name']}.py",
            "mlflow.source.type": "LOCAL",
        }

    @property
    def _data(self) -> str:
        return f"{self._spec['dataset']['name']}@{self._spec['checksum'][:8]}"

    @contextmanager
    def _timed(self, kind: str) -> Iterator[None]:
        clock = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[kind] = self.seconds.get(kind, 0.0) + time.perf_counter() - clock


def check_tracker(root: Path, uri: str | None) -> None:
    """Refuse a tracker that does not answer, before anything is fitted.

    Parameters
    ----------
    root : Path
        Results folder, whose own store is looked at if it is there.
    uri : str or None
        An MLflow server or store in its place.

    Raises
    ------
    ValueError
        If it cannot be used.
    """
    path = root / "mlflow.db"
    if not uri:
        if path.exists():
            check_database(path)
        return
    _quiet()
    before = {name: os.environ.get(name) for name in NO_PATIENCE}
    os.environ.update(NO_PATIENCE)
    try:
        from mlflow import MlflowClient

        if "://" in uri and uri.partition(":")[0].partition("+")[0] in DATABASES:
            # MLflow itself would try for half an hour.
            _check_address(uri)
        MlflowClient(tracking_uri=uri, registry_uri=uri).search_experiments(max_results=1)
    except Exception as error:  # of MLflow, its drivers and the network, which share no base
        line = " ".join((str(error).strip() or type(error).__name__).splitlines()[0].split())
        raise ValueError(
            f"--tracking-uri {uri} must be an MLflow server or store that answers, and does not ({line}): "
            "start it, or leave the option out to track under the root."
        ) from error
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            os.environ |= {} if value is None else {name: value}


def _check_address(uri: str) -> None:
    import sqlalchemy

    engine = sqlalchemy.create_engine(uri)
    try:
        sqlalchemy.inspect(engine).get_table_names()
    finally:
        engine.dispose()


def _quiet() -> None:
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")
    logging.getLogger("alembic").setLevel(logging.WARNING)


def compare_link(experiment_id: str, runs: list[str]) -> str:
    """Return the fragment of MLflow's compare page, to put behind the address of the UI."""
    return f"#/compare-runs?runs={quote(json.dumps(runs))}&experiments={quote(json.dumps([experiment_id]))}"


def _fit_metrics(folder: Path, result: Mapping[str, Any]) -> Iterator[tuple[str, float, int]]:
    """Yield (name, value, step) of one fit, finite values only; the step of a profile is its sublayer."""
    import polars as pl

    history = folder / "history.parquet"
    if history.is_file():
        for row in pl.read_parquet(history).iter_rows(named=True):
            for column, name in _HISTORY.items():
                if row.get(column) is not None:
                    yield name, float(row[column]), int(row["step"])
    summary = {
        "validation/best_loss": result["validation_loss"],
        "train/best_step": result["best_step"],
        "train/steps": result["steps"],
        "train/parameters": result["parameters"],
    }
    timing = json.loads((folder / "timing.json").read_text(encoding="utf-8"))
    summary["train/seconds"] = timing["seconds"]
    scores = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
    summary |= {f"test/{name}": value for name, value in scores.items()}
    for name, value in summary.items():
        if value is not None and math.isfinite(value):
            yield name, float(value), 0
    profile = folder / "profile.parquet"
    if profile.is_file():
        frame = pl.read_parquet(profile)
        if "step" in frame.columns:
            frame = frame.filter(pl.col("step") == pl.col("step").max())
        for row in frame.iter_rows(named=True):
            for column, name in _PROFILE.items():
                if row.get(column) is not None:
                    yield name, float(row[column]), int(row["layer"])


def _arm_title(levels: Mapping[str, str]) -> str:
    """Return an arm's levels, numbers first: MLflow's table shows the first letters only."""
    numbers_first = sorted(levels.items(), key=lambda item: not item[1].isdigit())
    return ", ".join(f"{name} {level}" if level.isdigit() else level for name, level in numbers_first)


def _run_name(cell: Cell) -> str:
    if cell.role == "final":
        return f"final fold {cell.fold} seed {cell.seed}"
    point = " ".join(f"{_short(name)} {_text(value)}" for name, value in cell.point.items())
    return f"tuning {point} fold {cell.fold}"


def _short(field: str) -> str:
    return field.rsplit(".", 1)[-1]


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _digest(spec: Mapping[str, Any]) -> str:
    from fints.config import fingerprint

    # Words may change without making another plan.
    return fingerprint({name: value for name, value in spec.items() if name not in ("title", "docstring")})[
        :8
    ]


def _now() -> int:
    return int(time.time() * 1000)

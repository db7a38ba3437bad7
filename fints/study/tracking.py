"""Our tracker: what a person sees in MLflow, written in few, batched calls.

Experiment = study at one size; parent run = arm; child run = trial or final fit. A child is linked
to its Optuna trial and to its folder by the tag ``fints.key``.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fints.study.addresses import without_secrets
from fints.study.cells import FINISHED
from fints.study.commands import rerun_command
from fints.study.company import Alone, Company
from fints.study.embedded import embedded
from fints.study.fingerprint import WORDS
from fints.study.fits import read_result
from fints.study.origin import origin_of
from fints.study.run_contents import Contents, FitsInTime, Fitted, arm_title, short, text
from fints.study.stores import NO_PATIENCE, TrackerAway, check_tracker, quiet

__all__ = ["NO_PATIENCE", "Tracker", "TrackerAway", "check_tracker", "compare_link", "create_tables"]

# One call carries at most so much (a limit of MLflow's).
BATCH = 1000
# MLflow's own: 7 retries, each after twice the wait of the one before, and 120 s.
PATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "20"}


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
    commit, command : str, optional
        Of the study's file, and what ran it, from which follows what makes one fit again.
    company : Company, optional
        Who else may write; nobody if not given.
    contents : Contents, optional
        What the runs hold; those of a study in time if not given.
    """

    def __init__(
        self,
        spec: dict[str, Any],
        *,
        root: Path,
        label: str,
        uri: str | None = None,
        commit: str | None = None,
        command: str = "",
        company: Company | None = None,
        contents: Contents | None = None,
    ) -> None:
        self._company = company or Alone()
        self._contents: Contents = contents or FitsInTime(spec)
        self._spec = spec
        self._root = root
        self._label = label
        self._uri = uri
        self._commit = commit
        self._command = command
        self._plan = spec["sources"] + "-" + _digest(spec)
        self._parents: dict[str, str] = {}
        self._children: dict[str, str] = {}
        self._finished: set[str] = set()
        # Arms that had been closed: they run again when one of their fits does, not by being looked at.
        self._ended: set[str] = set()
        self.seconds: dict[str, float] = {}
        self.experiment_id = ""
        self.uri = ""

    def open(self, fits: Path) -> None:
        """Create or find stores, experiment and arms, and settle what dead processes left RUNNING.

        A dead run whose fit is there is completed, any other is closed as KILLED. May be called again, after
        a store was away: runs of this process that are open go on.
        """
        quiet()
        # A server that has gone is given up within a minute: the next run catches up.
        for name, value in PATIENCE.items():
            os.environ.setdefault(name, value)
        with self._timed("imports"):
            from mlflow import MlflowClient
        with self._timed("schema"):
            uri = self._uri or embedded(self._root / "mlflow.db", self._create_tables)
            self.uri = uri.partition("?")[0] if not self._uri else without_secrets(uri)
            self._client = MlflowClient(tracking_uri=uri, registry_uri=uri)
            with self._company.exclusive():
                self.experiment_id = self._experiment()
        with self._timed("calls"), self._company.exclusive():
            self._find_runs(fits)

    def start(self, cell: Fitted) -> None:
        """Open the child run of a cell that starts."""
        if cell.key in self._finished or cell.key in self._children:
            return
        with self._timed("calls"):
            if cell.arm in self._ended:
                self._client.update_run(self._parents[cell.arm], status="RUNNING")
                self._ended.discard(cell.arm)
            self._create_child(cell)

    def finish(self, cell: Fitted, folder: Path) -> None:
        """Write a finished fit's numbers into its run and close it; a run that is closed stays as it is."""
        if cell.key in self._finished:
            return
        folder = self._company.find(cell.key, folder.parent) or folder
        self.start(cell)
        with self._timed("calls"):
            self._complete(self._children[cell.key], cell.key, folder)
            del self._children[cell.key]

    def kill(self, cell: Fitted, status: str = "KILLED", reason: str = "") -> None:
        """Close the run of a cell that was interrupted (KILLED) or failed (FAILED)."""
        run_id = self._children.get(cell.key)
        if run_id is None:
            return
        with self._timed("calls"):
            if reason:
                self._client.set_tag(run_id, "fints.reason", reason[:500])
            self._client.set_terminated(run_id, status)
        del self._children[cell.key]

    def close_arm(
        self,
        arm: str,
        rows: Sequence[Mapping[str, Any]],
        profile: Mapping[str, Sequence[tuple[int, float]]],
    ) -> None:
        """Write an arm's table, chosen design point, best numbers and mean profile into the parent run."""
        from mlflow.entities import Metric, Param, RunTag

        with self._timed("calls"):
            note, best = self._contents.arm_note(arm, rows)
            now = _now()
            metrics = [
                Metric(name, value, now, 0) for name, value in sorted(best.items()) if math.isfinite(value)
            ]
            metrics += [
                Metric(name, value, now, layer) for name, value, layer in self._contents.profile(profile)
            ]
            chosen: dict[str, Any] = next((row["point"] for row in rows if row["role"] == "final"), {})
            self._client.log_batch(
                self._parents[arm],
                metrics=metrics[:BATCH],
                params=[Param(short(name), text(value)) for name, value in chosen.items()],
                tags=[RunTag("mlflow.note.content", note)],
            )

    def leave(self) -> None:
        """Close this process's open children as KILLED; the arms are for others to go on with."""
        with self._timed("calls"):
            for run_id in self._children.values():
                self._client.set_terminated(run_id, "KILLED")
            self._children.clear()

    def close(self, status: str = "FINISHED") -> None:
        """Close whatever is open: children as KILLED, arms with `status`."""
        self.leave()
        with self._timed("calls"):
            for run_id in self._parents.values():
                self._client.set_terminated(run_id, status)

    def exclusive(self) -> AbstractContextManager[None]:
        """Keep others who write this record from making what must be there once."""
        return self._company.exclusive()

    @property
    def client(self) -> Any:
        """MLflow's client of this store, once it is open."""
        return self._client

    @property
    def served(self) -> bool:
        """Whether a server keeps the record, and not a file."""
        return (self._uri or "").startswith("http")

    def answer_run(self, note: str) -> str:
        """Return the run of the study's answer, made if there is none, with `note` beside it."""
        from mlflow.entities import RunTag

        role = "answer"
        found = self._client.search_runs(
            [self.experiment_id],
            filter_string=f"tags.`fints.role` = '{role}' and tags.`fints.plan` = '{self._plan}'",
            max_results=1,
        )
        if found:
            run_id = str(found[0].info.run_id)
        else:
            tags = {name: value for name, value in self.tags("", role).items() if value}
            run_id = str(self._client.create_run(self.experiment_id, run_name=role, tags=tags).info.run_id)
        self._client.log_batch(run_id, tags=[RunTag("mlflow.note.content", note)])
        self._client.set_terminated(run_id, "FINISHED")
        return run_id

    @property
    def arm_runs(self) -> dict[str, str]:
        """The run of each arm."""
        return dict(self._parents)

    def tags(self, arm: str, role: str) -> dict[str, str]:
        """Return what links anything of an arm to study, plan, commit and data."""
        return {
            "fints.study": self._spec["name"],
            "fints.arm": arm,
            "fints.role": role,
            "fints.plan": self._plan,
            "fints.commit": self._commit or "none",
            "fints.data_checksum": self._contents.data().digest,
            "mlflow.source.name": f"studies/{self._spec['name']}.py",
            "mlflow.source.type": "LOCAL",
        }

    @property
    def link(self) -> str:
        """Address of the page that compares the arms, after the address of the UI."""
        return compare_link(self.experiment_id, list(self._parents.values()))

    def _create_tables(self, url: str) -> None:
        create_tables(url, self._root / "mlartifacts")

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
        self._client.set_experiment_tag(experiment_id, "mlflow.note.content", self._contents.note())
        return experiment_id

    def _find_runs(self, fits: Path) -> None:
        runs, token = [], None
        while True:
            page = self._client.search_runs([self.experiment_id], max_results=1000, page_token=token)
            runs += list(page)
            token = page.token
            if not token:
                break
        self._parents.clear()
        self._children.clear()
        self._ended.clear()
        finished = {
            run.data.tags.get("fints.key", "")
            for run in runs
            if run.info.status == "FINISHED" and run.data.tags.get("fints.plan") == self._plan
        } - {""}
        for run in runs:
            tags, run_id = run.data.tags, run.info.run_id
            key, writer = tags.get("fints.key", ""), tags.get("fints.worker", "")
            ours = tags.get("fints.plan") == self._plan
            running = run.info.status in ("RUNNING", "SCHEDULED")
            if tags.get("fints.role") == "arm":
                if ours:
                    self._parents.setdefault(tags["fints.arm"], run_id)
                    if not running:
                        self._ended.add(tags["fints.arm"])
                elif running:
                    self._client.set_terminated(run_id, "KILLED")
            elif not running or (writer != self._company.me and self._company.living(writer)):
                continue
            elif ours and key and key not in finished and (folder := self._company.find(key, fits)):
                self._complete(run_id, key, folder)
                finished.add(key)
            elif ours and key not in finished and writer == self._company.me and key not in self._children:
                self._children[key] = run_id
            else:
                self._client.set_terminated(run_id, "KILLED")
        self._finished = finished
        for arm in self._spec["arms"]:
            if arm["name"] not in self._parents:
                self._parents[arm["name"]] = self._create_parent(arm)

    def _create_parent(self, arm: Mapping[str, Any]) -> str:
        from mlflow.entities import Param

        tags = {
            **self.tags(arm["name"], "arm"),
            "mlflow.note.content": self._contents.arm_note(arm["name"], [])[0],
        }
        title = arm_title(arm["levels"], [other["levels"] for other in self._spec["arms"]])
        run = self._client.create_run(self.experiment_id, run_name=title, tags=tags)
        params = {**arm["levels"], "data": str(self._contents.data())}
        self._client.log_batch(run.info.run_id, params=[Param(name, value) for name, value in params.items()])
        self._client.log_dict(run.info.run_id, arm["experiment"], "experiment.json")
        return str(run.info.run_id)

    def _create_child(self, cell: Fitted) -> None:
        from mlflow.entities import Dataset, DatasetInput, InputTag, Param

        data, place = self._contents.data_of(cell), self._contents.place(cell)
        tags = {
            **self.tags(cell.arm, cell.role),
            "mlflow.parentRunId": self._parents[cell.arm],
            "fints.key": cell.key,
            "fints.worker": self._company.me,
            **{f"fints.{name}": value for name, value in place.items()},
        }
        if self._command:
            tags["fints.command"] = rerun_command(self._command, cell.key)
        run = self._client.create_run(self.experiment_id, run_name=self._contents.name(cell), tags=tags)
        run_id = str(run.info.run_id)
        # Known from its first moment on, so that a store that goes away now leaves no run behind.
        self._children[cell.key] = run_id
        levels = next(arm["levels"] for arm in self._spec["arms"] if arm["name"] == cell.arm)
        point = {short(name): text(value) for name, value in cell.point.items()}
        params = {**levels, **point, "role": cell.role, **place, "data": str(data)}
        self._client.log_batch(run_id, params=[Param(name, value) for name, value in params.items()])
        dataset = Dataset(
            name=data.name,
            digest=data.digest,
            source_type="fints",
            source=json.dumps(data.source),
            profile=json.dumps(data.profile),
        )
        where, number = next(iter(place.items()))
        context = [InputTag("mlflow.data.context", f"{cell.role} {where} {number}")]
        self._client.log_inputs(run_id, datasets=[DatasetInput(dataset, context)])
        self._client.log_dict(run_id, dict(cell.experiment), "experiment.json")

    def _complete(self, run_id: str, key: str, folder: Path) -> None:
        from mlflow.entities import Metric, RunTag

        result = read_result(folder)
        now = _now()
        metrics = [
            Metric(name, value, now, step) for name, value, step in self._contents.metrics(folder, result)
        ]
        tags = [RunTag("status", result["outcome"])]
        if result["outcome"] not in FINISHED:
            tags.append(RunTag("fints.reason", str(result["reason"])[:500]))
        if (made := origin_of(folder)) is not None:
            # The run's commit is the one that has it, which need not be the one that made it.
            tags += [RunTag("fints.made_as", made.key), RunTag("fints.made_by_sources", made.sources)]
        for first in range(0, max(len(metrics), 1), BATCH):
            self._client.log_batch(run_id, metrics=metrics[first : first + BATCH], tags=tags)
        self._client.set_terminated(run_id, "FINISHED")
        self._finished.add(key)

    @contextmanager
    def _timed(self, kind: str) -> Iterator[None]:
        clock = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[kind] = self.seconds.get(kind, 0.0) + time.perf_counter() - clock


def compare_link(experiment_id: str, runs: list[str]) -> str:
    """Return the fragment of MLflow's compare page, to put behind the address of the UI."""
    return f"#/compare-runs?runs={quote(json.dumps(runs))}&experiments={quote(json.dumps([experiment_id]))}"


def create_tables(url: str, artifacts: Path) -> None:
    """Make the tables of an MLflow store."""
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    quiet()
    store = SqlAlchemyStore(url, artifacts.as_uri())
    store.engine.dispose()


def _digest(spec: Mapping[str, Any]) -> str:
    from fints.config import fingerprint

    return fingerprint({name: value for name, value in spec.items() if name not in WORDS})[:8]


def _now() -> int:
    return int(time.time() * 1000)

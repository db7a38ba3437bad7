"""A study's runs and models taken out of the MLflow store that lies in its results folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from fints.study.addresses import one_line
from fints.study.embedded import check_database
from fints.study.stores import quiet

__all__ = ["forget_experiment"]


def forget_experiment(root: Path, name: str) -> bool:
    """Delete an experiment for good, with its runs, their files and its registered model.

    May be repeated after a kill. A store on a server is not touched.

    Parameters
    ----------
    root : Path
        Results folder.
    name : str
        STUDY/LABEL, as the experiment is called.

    Returns
    -------
    bool
        Whether there was one.

    Raises
    ------
    ValueError
        If the store is damaged.
    RuntimeError
        If MLflow cannot delete it.
    """
    store = root / "mlflow.db"
    if not store.exists():
        return False
    check_database(store)
    quiet()
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    uri = f"sqlite:///{store}"
    client = MlflowClient(tracking_uri=uri, registry_uri=uri)
    try:
        found = client.get_experiment_by_name(name)
        if found is None:
            return False
        model = name.replace("/", "-")
        if any(one.name == model for one in client.search_registered_models(f"name = '{model}'")):
            client.delete_registered_model(model)
        if found.lifecycle_stage != "deleted":
            client.delete_experiment(found.experiment_id)
    except MlflowException as error:
        raise RuntimeError(
            f"MLflow cannot delete experiment {name} in {store}: {one_line(error)}."
        ) from error
    # Deleted experiments come back when the study is run again; only MLflow's own collector removes them.
    command = [sys.executable, "-m", "mlflow", "gc", "--backend-store-uri", uri, "--tracking-uri", uri]
    ended = subprocess.run(
        [*command, "--experiment-ids", found.experiment_id],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"MLFLOW_DISABLE_TELEMETRY": "true"},
    )
    if ended.returncode != 0:
        last = (ended.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise RuntimeError(f"MLflow cannot delete experiment {name} in {store} for good: {last}")
    return True

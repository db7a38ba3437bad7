"""Forecasters in MLflow: loaded by name and alias, logged as models that hold no pickle.

``fints.load("models:/NAME@champion")`` downloads one folder of JSON and safetensors and reads it; no code of
the store is run and nothing is unpickled. What is logged is also a model of MLflow's own
(`mlflow.pyfunc.load_model`), which runs a copy of `fints/mlflow_model.py`.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fints.data.catalog import home
from fints.data.features import columns_read
from fints.forecaster import Forecaster
from fints.walk_forward import WalkForwardForecaster
from fints.walk_forward import load as load_folder

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["CONTENT", "Logged", "content", "default_tracking_uri", "forecast_pandas", "load", "log"]

AnyForecaster = Forecaster | WalkForwardForecaster
SCHEMES = ("models:/", "runs:/")
# Where the forecaster's own folder is in a logged model.
PLACE = "artifacts/forecaster"
MODEL_CODE = Path(__file__).with_name("mlflow_model.py")
REQUIREMENTS = ("mlflow", "fints", "torch", "polars", "pandas")
# The tag that tells whether a forecaster has been logged already.
CONTENT = "fints.content"
# MLflow answers a missing server for minutes otherwise.
PATIENCE = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    # Nothing of the folder that happens to be current belongs into a model.
    "MLFLOW_UV_AUTO_DETECT": "false",
}


@dataclass(frozen=True, kw_only=True)
class Logged:
    """A model that stands in MLflow: its id, its registered name and its version there."""

    model_id: str
    name: str
    version: str


def load(where: str | Path, *, tracking_uri: str | None = None) -> AnyForecaster:
    """Load a forecaster from its folder, or from MLflow.

    Parameters
    ----------
    where : str or Path
        A folder that `save` wrote, ``models:/NAME@ALIAS``, ``models:/NAME/VERSION``, ``models:/MODEL_ID``
        or ``runs:/RUN_ID/NAME``.
    tracking_uri : str, optional
        MLflow server or store; else MLFLOW_TRACKING_URI, else the store of the studies (``mlflow.db`` in
        FINTS_HOME, or in your data folder).

    Returns
    -------
    Forecaster or WalkForwardForecaster
        What was saved. An arm of a study is a walk-forward forecaster.

    Raises
    ------
    ValueError
        If there is none, or the folder is foreign, damaged or of another format; the message says which.
    """
    if not isinstance(where, str) or not where.startswith(SCHEMES):
        if isinstance(where, str) and re.match(r"[a-z][a-z0-9+-]*:/", where):
            raise ValueError(
                f"a forecaster is loaded from a folder, models:/NAME@ALIAS, models:/NAME/VERSION or "
                f"runs:/RUN_ID/NAME; got {where!r}."
            )
        return load_folder(where)
    with tempfile.TemporaryDirectory() as scratch:
        return load_folder(_fetch(where, tracking_uri or default_tracking_uri(), Path(scratch)))


def default_tracking_uri() -> str:
    """Return MLFLOW_TRACKING_URI, else the address of the store in which studies track."""
    if chosen := os.environ.get("MLFLOW_TRACKING_URI"):
        return chosen
    return f"sqlite:///{(home() / 'mlflow.db').resolve()}"


def log(
    forecaster: AnyForecaster,
    name: str,
    *,
    client: Any,
    experiment_id: str,
    run_id: str,
    title: str,
    tags: Mapping[str, str],
    description: str = "",
    metrics: Mapping[str, float] | None = None,
) -> Logged:
    """Log a forecaster as an MLflow model of a run and register it as a new version of `name`.

    A forecaster that is registered there already, bit for bit, is not logged again.

    Parameters
    ----------
    forecaster : Forecaster or WalkForwardForecaster
        A fitted one.
    name : str
        Of the registered model, which is made if it is not there.
    client : mlflow.MlflowClient
        Of the server or store.
    experiment_id, run_id : str
        Where the model belongs.
    title : str
        What the model is called on the pages of its experiment.
    tags, description : mapping, str
        Of the model and of its version.
    metrics : mapping, optional
        Shown beside the model.

    Returns
    -------
    Logged
        Where it stands.
    """
    from mlflow.entities import LoggedModelOutput, Metric
    from mlflow.models import Model

    _patient()
    with tempfile.TemporaryDirectory() as scratch:
        folder = forecaster.save(Path(scratch) / "forecaster")
        tags = {**tags, CONTENT: content(folder)}
        if (found := _registered(client, name, experiment_id, tags)) is not None:
            return found
        model = client.create_logged_model(
            experiment_id, name=title, source_run_id=run_id, tags=tags, model_type="forecaster"
        )
        mlflow_model = Model(
            artifact_path=model.artifact_location,
            model_uuid=model.model_id,
            model_id=model.model_id,
            run_id=run_id,
        )
        _save_model(Path(scratch) / "model", folder, forecaster, mlflow_model)
        client.log_model_artifacts(model.model_id, str(Path(scratch) / "model"))
    now = int(time.time() * 1000)
    client.log_batch(
        run_id,
        metrics=[
            Metric(key, value, now, 0, model_id=model.model_id) for key, value in (metrics or {}).items()
        ],
    )
    client.log_outputs(run_id, [LoggedModelOutput(model.model_id, 0)])
    client.finalize_logged_model(model.model_id, "READY")
    return _register(client, name, model, tags, description)


def content(folder: Path) -> str:
    """Return 16 hex digits of a saved forecaster: names and bytes of its files."""
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        digest.update(f"{path.relative_to(folder).as_posix()}\0".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


def forecast_pandas(
    forecaster: AnyForecaster, frame: pd.DataFrame, *, start: str | None = None, end: str | None = None
) -> pd.DataFrame:
    """Forecast a long pandas table; dates come back as datetimes.

    Raises
    ------
    ValueError
        As `fints.data.Panel` and `Forecaster.predict`.
    """
    import polars as pl

    from fints.data import Panel

    return forecaster.predict(Panel(pl.from_pandas(frame)), start=start, end=end).to_pandas()


def _fetch(where: str, uri: str, scratch: Path) -> Path:
    """Return a copy of the folder of a forecaster in MLflow, made under `scratch`."""
    try:
        from mlflow import MlflowClient
        from mlflow.artifacts import download_artifacts
        from mlflow.exceptions import MlflowException
    except ImportError as error:
        raise ValueError(
            f"{where} needs mlflow, which cannot be imported ({error}): install it "
            "(pip install 'mlflow>=3.17,<3.18'), or load the forecaster from a folder."
        ) from error
    _patient()
    if (store := re.fullmatch(r"sqlite:///([^?]+).*", uri)) and not Path(store[1]).is_file():
        raise ValueError(
            f"{where} was looked for in {uri}, which is not there: run a study first, or say where to look "
            "with tracking_uri= or MLFLOW_TRACKING_URI."
        )
    client = MlflowClient(tracking_uri=uri, registry_uri=uri)
    try:
        location = _location(client, where)
        address = f"{location.rstrip('/')}/{PLACE}"
        return Path(download_artifacts(artifact_uri=address, tracking_uri=uri, dst_path=str(scratch)))
    except (MlflowException, OSError) as error:
        line = (" ".join(str(error).split()) or type(error).__name__).rstrip(".")
        raise ValueError(f"{where} cannot be loaded from {uri}: {line}.{_known(client, where)}") from error


def _location(client: Any, where: str) -> str:
    """Return the address of a model's files."""
    scheme, _, rest = where.partition(":/")
    rest = rest.strip("/")
    if scheme == "runs":
        run_id, _, name = rest.partition("/")
        if not name:
            raise ValueError(f"a model of a run is named runs:/RUN_ID/NAME; got {where!r}.")
        experiment = client.get_run(run_id).info.experiment_id
        models = client.search_logged_models([experiment], filter_string=f"source_run_id = '{run_id}'")
        found = [model for model in models if name in (model.name, model.model_id)]
        if not found:
            known = ", ".join(sorted(model.name for model in models)) or "none"
            raise ValueError(f"run {run_id} has no model {name!r}; it has {known}.")
        return str(found[0].artifact_location)
    if "@" in rest:
        name, _, alias = rest.partition("@")
        held = client.get_model_version_by_alias(name, alias)
        return str(client.get_model_version_download_uri(held.name, str(held.version)))
    name, slash, number = rest.partition("/")
    if not slash:
        return str(client.get_logged_model(name).artifact_location)
    if not number.isdigit():
        raise ValueError(f"a version is a number, or an alias after @; got {where!r}.")
    return str(client.get_model_version_download_uri(name, number))


def _known(client: Any, where: str) -> str:
    """Return a sentence on what there is instead, empty where nothing can be told."""
    from mlflow.exceptions import MlflowException

    if not where.startswith("models:/"):
        return ""
    name = re.split(r"[@/]", where.removeprefix("models:/").strip("/"))[0]
    try:
        registered = {model.name: model for model in client.search_registered_models(max_results=100)}
        if name not in registered:
            return f" Registered there: {', '.join(sorted(registered)) or 'nothing'}."
        versions = sorted(int(held.version) for held in client.search_model_versions(f"name = '{name}'"))
        aliases = registered[name].aliases
    except MlflowException:
        return ""
    named = (
        ", ".join(f"@{alias} (version {number})" for alias, number in sorted(aliases.items())) or "no alias"
    )
    return f" {name} has versions {', '.join(map(str, versions)) or 'none'} and {named}."


def _registered(client: Any, name: str, experiment_id: str, tags: Mapping[str, str]) -> Logged | None:
    """Return the version that holds the same forecaster; a whole model without one gets it now."""
    for held in client.search_model_versions(f"name = '{name}'"):
        if held.tags.get(CONTENT) == tags[CONTENT] and held.tags.get("fints.arm") == tags.get("fints.arm"):
            return Logged(model_id=held.tags["fints.model"], name=name, version=str(held.version))
    # A run that was killed between the two leaves a model without a version, or half a model.
    models = client.search_logged_models(
        [experiment_id], filter_string=f"tags.`{CONTENT}` = '{tags[CONTENT]}'"
    )
    for model in models:
        if model.tags.get("fints.arm") != tags.get("fints.arm"):
            continue
        if str(model.status) == "READY":
            return _register(client, name, model, tags, "")
        client.delete_logged_model(model.model_id)
    return None


def _register(client: Any, name: str, model: Any, tags: Mapping[str, str], description: str) -> Logged:
    from mlflow.exceptions import MlflowException

    try:
        client.get_registered_model(name)
    except MlflowException:
        client.create_registered_model(name)
    held = client.create_model_version(
        name,
        # A database store would look for models:/ID in MLflow's global store, which is another one.
        source=model.artifact_location,
        run_id=model.source_run_id,
        model_id=model.model_id,
        tags={**tags, "fints.model": model.model_id},
        description=description or None,
    )
    return Logged(model_id=model.model_id, name=name, version=str(held.version))


def _save_model(path: Path, folder: Path, forecaster: AnyForecaster, mlflow_model: Any) -> None:
    one = forecaster
    if isinstance(one, WalkForwardForecaster):
        one = next(iter(one.members_.values()))[0]
    columns = list(dict.fromkeys(["close", *columns_read(one.experiment_.data.features)]))
    with warnings.catch_warnings():
        # What MLflow and the pandas under it do to each other is nobody's here to mend.
        warnings.simplefilter("ignore")
        import mlflow.pyfunc

        mlflow.pyfunc.save_model(
            path=str(path),
            python_model=str(MODEL_CODE),
            artifacts={"forecaster": str(folder)},
            signature=_signature(columns, distributional=one.experiment_.model.head != "point"),
            input_example=_example(columns),
            # Given, not inferred: MLflow would import the model in another process to see what it uses.
            pip_requirements=[f"{name}=={version(name).partition('+')[0]}" for name in REQUIREMENTS],
            mlflow_model=mlflow_model,
        )


def _signature(columns: list[str], *, distributional: bool) -> Any:
    """Return the tables that go in (`columns` beside date and asset) and come out."""
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, ParamSchema, ParamSpec, Schema, TensorSpec

    table: list[ColSpec | TensorSpec] = [ColSpec("datetime", "date"), ColSpec("string", "asset")]
    table += [ColSpec("double", name) for name in columns]
    numbers = ["forecast", *(["scale", "q05", "q50", "q95"] if distributional else [])]
    forecasts: list[ColSpec | TensorSpec] = [
        ColSpec("datetime", "decision_time"),
        ColSpec("string", "asset"),
        ColSpec("long", "horizon"),
    ]
    forecasts += [ColSpec("double", name) for name in numbers]
    forecasts += [ColSpec("datetime", "model_as_of"), ColSpec("datetime", "available_at")]
    asked = [ParamSpec("start", "string", None), ParamSpec("end", "string", None)]
    return ModelSignature(inputs=Schema(table), outputs=Schema(forecasts), params=ParamSchema(asked))


def _example(columns: list[str]) -> pd.DataFrame:
    """Return the first rows that a table for this model might have; a forecast needs longer history."""
    import pandas as pd

    days = pd.to_datetime(["2024-01-02", "2024-01-02", "2024-01-03", "2024-01-03"])
    keys = pd.DataFrame({"date": days, "asset": ["A", "B", "A", "B"]})
    return keys.assign(**{name: [10.0, 20.0, 10.5, 19.5] for name in columns})


def _patient() -> None:
    for name, value in PATIENCE.items():
        os.environ.setdefault(name, value)

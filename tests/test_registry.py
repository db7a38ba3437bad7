"""A forecaster in MLflow comes back with the same bits, and nothing of a store is unpickled or run."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from polars.testing import assert_frame_equal

import fints
from fints import Forecaster, WalkForwardForecaster
from fints.config import Experiment, override
from fints.data import Panel, load
from fints.registry import CONTENT, Logged, default_tracking_uri, log

FIXTURE = Path(__file__).parent / "fixtures" / "forecaster_v1" / "model"
# MLflow 3.17 configures its tables in a way that SQLAlchemy 2.1 deprecates, and warns of its own type hints.
pytestmark = [
    pytest.mark.filterwarnings("default:The ``noload`` loader strategy is deprecated"),
    pytest.mark.filterwarnings("default:.*type hint.*:UserWarning"),
]
NAME = "tiny-quick-sp500-20"


@pytest.fixture(scope="module")
def panel() -> Panel:
    return load("sp500-20")["2009-06-01":"2010-05-14"]


@pytest.fixture(scope="module")
def walk(panel: Panel) -> WalkForwardForecaster:
    changes = {
        "model.width": 8,
        "model.num_heads": 2,
        "model.depth": 1,
        "data.context": 4,
        "data.features": ["return_1", "log_volatility_21", "rank_return_1"],
        "training.steps": 4,
        "training.warmup_steps": 1,
        "training.evaluate_every": 2,
        "training.batch_size": 16,
    }
    one = Forecaster(override(Experiment(), changes), seed=5)
    return WalkForwardForecaster(one, refit_every="quarter", num_seeds=2).fit(panel, start="2010-02-15")


class Store:
    """An MLflow store of its own, with an experiment and a run."""

    def __init__(self, root: Path, tables: Path) -> None:
        from mlflow import MlflowClient

        self.root = root
        shutil.copy(tables, root / "mlflow.db")
        self.uri = f"sqlite:///{root / 'mlflow.db'}"
        self.client: Any = MlflowClient(tracking_uri=self.uri, registry_uri=self.uri)
        self.experiment = self.client.create_experiment(
            "tiny", artifact_location=(root / "artifacts").as_uri()
        )
        self.run = self.client.create_run(self.experiment).info.run_id

    def log(self, forecaster: Forecaster | WalkForwardForecaster, *, arm: str = "a") -> Logged:
        return log(
            forecaster,
            NAME,
            client=self.client,
            experiment_id=self.experiment,
            run_id=self.run,
            title=f"arm {arm}",
            tags={"fints.arm": arm},
            metrics={"model/ic": 0.25},
        )

    def folder(self, logged: Logged) -> Path:
        return self.root / "artifacts" / "models" / logged.model_id / "artifacts"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, mlflow_tables: Path) -> Store:
    return Store(tmp_path_factory.mktemp("store"), mlflow_tables)


@pytest.fixture(scope="module")
def logged(store: Store, walk: WalkForwardForecaster) -> Logged:
    made = store.log(walk)
    store.client.set_registered_model_alias(NAME, "champion", made.version)
    return made


@pytest.mark.slow
def test_a_logged_forecaster_comes_back_whole_by_alias_version_model_and_run(
    store: Store, logged: Logged, walk: WalkForwardForecaster, panel: Panel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    wanted = walk.predict(panel)
    for where in (
        f"models:/{NAME}@champion",
        f"models:/{NAME}/{logged.version}",
        f"models:/{logged.model_id}",
        f"runs:/{store.run}/arm a",
    ):
        again = fints.load(where, tracking_uri=store.uri)
        assert isinstance(again, WalkForwardForecaster)
        assert again.refits_ == walk.refits_
        assert_frame_equal(again.predict(panel), wanted, check_exact=True)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store.uri)
    assert_frame_equal(fints.load(f"models:/{NAME}@champion").predict(panel), wanted, check_exact=True)
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    monkeypatch.setenv("FINTS_HOME", str(store.root))
    assert default_tracking_uri() == store.uri
    assert_frame_equal(fints.load(f"models:/{NAME}@champion").predict(panel), wanted, check_exact=True)


@pytest.mark.slow
def test_the_same_forecaster_is_logged_once_and_half_a_model_is_replaced(
    store: Store, logged: Logged, walk: WalkForwardForecaster
) -> None:
    assert store.log(walk) == logged
    other = next(iter(walk.members_.values()))[0]
    tags = {"fints.arm": "b"}
    half = store.client.create_logged_model(store.experiment, name="arm b", tags=tags)
    first = store.log(other, arm="b")
    assert int(first.version) == int(logged.version) + 1
    # Killed before it was registered: the model is whole and gets its version now.
    store.client.delete_model_version(NAME, first.version)
    again = store.log(other, arm="b")
    assert again.model_id == first.model_id
    # Killed while its files were written: a model that is not whole is never registered.
    content = store.client.get_logged_model(first.model_id).tags[CONTENT]
    store.client.set_logged_model_tags(half.model_id, {CONTENT: content})
    store.client.delete_model_version(NAME, again.version)
    store.client.delete_logged_model(first.model_id)
    fresh = store.log(other, arm="b")
    assert fresh.model_id not in (half.model_id, first.model_id)
    found = store.client.search_logged_models(
        [store.experiment], filter_string=f"tags.`{CONTENT}` = '{content}'"
    )
    assert [model.model_id for model in found] == [fresh.model_id]
    assert str(found[0].status) == "READY"
    assert {metric.key: metric.value for metric in found[0].metrics} == {"model/ic": 0.25}


@pytest.mark.slow
def test_a_logged_model_holds_json_text_and_safetensors_only(store: Store, logged: Logged) -> None:
    files = [path for path in store.folder(logged).rglob("*") if path.is_file()]
    assert {path.suffix for path in files} == {".json", ".safetensors", ".yaml", ".txt", ".py", ""}
    assert [path.name for path in files if path.suffix == ""] == ["MLmodel"]
    # The first byte of a pickle, and of a zip that torch would write.
    assert [path.name for path in files if path.read_bytes()[:1] in (b"\x80", b"P")] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "evil.pkl").write_bytes(b"\x80\x04."), r"got also evil\.pkl"),
        (lambda folder: next(folder.rglob("weights.safetensors")).write_bytes(b"cut"), "checksum"),
        (lambda folder: (folder / "walk_forward.json").write_text("{"), "is damaged"),
        (lambda folder: shutil.rmtree(folder), "cannot be loaded from"),
    ],
)
def test_a_model_that_was_changed_in_the_store_is_refused_in_one_line(
    store: Store, logged: Logged, tmp_path: Path, damage: Any, message: str
) -> None:
    folder = store.folder(logged) / "artifacts" / "forecaster"
    shutil.copytree(folder, tmp_path / "whole")
    try:
        damage(folder)
        with pytest.raises(ValueError, match=message) as told:
            fints.load(f"models:/{NAME}@champion", tracking_uri=store.uri)
        assert "\n" not in str(told.value)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(tmp_path / "whole", folder)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("where", "message"),
    [
        (
            f"models:/{NAME}@best",
            rf"alias best not found\. {NAME} has versions .* and @champion \(version 1\)\.",
        ),
        (f"models:/{NAME}/99", rf"version=99\) not found\. {NAME} has versions 1"),
        ("models:/tiny@champion", rf"name=tiny not found\. Registered there: {NAME}\."),
        ("models:/m-123", "'m-123' not found"),
        (f"models:/{NAME}/newest", "a version is a number"),
        ("runs:/abc/arm", "id=abc not found"),
        ("runs:/abc", "is named runs:/RUN_ID/NAME"),
    ],
)
def test_a_model_that_is_not_there_is_refused_with_those_that_are(
    store: Store, logged: Logged, where: str, message: str
) -> None:
    with pytest.raises(ValueError, match=message) as told:
        fints.load(where, tracking_uri=store.uri)
    assert "\n" not in str(told.value)


@pytest.mark.slow
def test_mlflow_s_own_interface_forecasts_the_same_from_a_pandas_table(
    store: Store, logged: Logged, walk: WalkForwardForecaster, panel: Panel, tmp_path: Path
) -> None:
    import mlflow
    import polars as pl

    here = Path.cwd()
    os.chdir(tmp_path)
    try:
        mlflow.set_tracking_uri(store.uri)
        model = mlflow.pyfunc.load_model(f"models:/{NAME}@champion")
        day = panel.dates[-1]
        table = model.predict(panel.frame.to_pandas(), params={"start": day.isoformat()})
        # What is logged or loaded leaves nothing where the caller happens to be.
        assert list(tmp_path.iterdir()) == []
    finally:
        os.chdir(here)
        mlflow.set_tracking_uri(None)
    wanted = walk.predict(panel, start=day)
    assert table["asset"].tolist() == wanted["asset"].to_list()
    assert table["forecast"].tolist() == wanted["forecast"].to_list()
    assert pl.from_pandas(table)["available_at"].cast(pl.Date).to_list() == wanted["available_at"].to_list()


def test_without_mlflow_a_folder_loads_and_a_name_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    assert isinstance(fints.load(FIXTURE), Forecaster)
    assert isinstance(fints.load(str(FIXTURE)), Forecaster)
    with pytest.raises(ValueError, match=r"models:/x@champion needs mlflow, which cannot be imported"):
        fints.load("models:/x@champion")


def test_a_store_that_is_not_there_is_not_made_by_looking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("FINTS_HOME", str(tmp_path))
    with pytest.raises(ValueError, match=r"mlflow\.db, which is not there: run a study first"):
        fints.load("models:/x@champion")
    assert list(tmp_path.iterdir()) == []


def test_an_address_of_another_kind_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"models:/NAME@ALIAS.*got 's3://bucket/model'"):
        fints.load("s3://bucket/model")


@pytest.mark.parametrize("version", [0, 2])
def test_a_forecaster_of_another_format_says_which_and_what_to_do(tmp_path: Path, version: int) -> None:
    shutil.copytree(FIXTURE, tmp_path / "model")
    spec = tmp_path / "model" / "forecaster.json"
    spec.write_text(json.dumps(json.loads(spec.read_text()) | {"format_version": version}))
    with pytest.raises(
        ValueError, match=rf"has format version {version}; this fints reads version 1\. Install"
    ):
        fints.load(tmp_path / "model")

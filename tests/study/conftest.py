"""A small study folder of made-up forecasts, as the engine leaves one, for what reads such a folder."""

from __future__ import annotations

import datetime as dt
import itertools
import runpy
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from fints.config import DataConfig, Experiment, ModelConfig
from fints.data import Panel
from fints.evaluation import WalkForward
from fints.study import Contrast, Preset, Study, Tuning
from fints.study.dataset import Dataset
from fints.study.plan import Plan

DAY = dt.date(2010, 1, 4)
RATES = (0.0005, 0.001, 0.002)
TRAIN_DAYS = 100


@pytest.fixture(scope="session")
def make_study() -> Callable[..., tuple[dict[str, Any], Path]]:
    return build_study


@pytest.fixture(scope="session")
def run_study() -> Callable[..., Any]:
    """`Run` of inline.py: a run of the tiny study in this process."""
    return runpy.run_path(str(Path(__file__).parent / "inline.py"))["Run"]


def build_study(
    folder: Path,
    *,
    schemes: tuple[str, ...] = ("pre_norm", "post_norm", "dynamic_hyper_connections"),
    depths: tuple[str, ...] = ("2", "8"),
    folds: int = 4,
    seeds: tuple[int, ...] = (0, 1),
    days: int = 60,
    assets: int = 6,
    skill: dict[str, float] | None = None,
    failed: dict[tuple[str, int, int], str] | None = None,
    missing: tuple[tuple[str, int, int], ...] = (),
    simulated: bool = False,
    baselines: bool = True,
    **changes: Any,
) -> tuple[dict[str, Any], Path]:
    """Write the parquet files of a study whose forecasts are `skill` x signal + noise.

    `skill` is by arm or scheme. Draws depend on arm, fold and seed alone, so one arm more or less
    changes no other arm.
    """
    folder.mkdir(parents=True, exist_ok=True)
    skill, failed = skill or {}, failed or {}
    plan = _plan(schemes, depths, folds=folds, seeds=seeds, days=days, assets=assets, simulated=simulated)
    spec = plan.spec() | {
        "commit": "0123456789abcdef",
        "command": "python studies/residual_by_depth.py run --preset quick",
    }
    arms = spec["arms"]
    forecasts, fits, profiles, mixing, history, references = [], [], [], [], [], []
    for fold in range(folds):
        rng = np.random.default_rng([7, fold])
        first, last = (dt.date.fromisoformat(day) for day in spec["folds"][fold]["test"])
        dates = plan.dataset.panel.dates.filter(plan.dataset.panel.dates.is_between(first, last)).to_list()
        assert len(dates) == days
        keys = pl.DataFrame(
            {
                "date": np.repeat(np.array(dates, dtype="datetime64[D]"), assets),
                "asset": [f"asset_{number}" for number in range(assets)] * days,
            }
        ).with_columns(pl.col("date").cast(pl.Date))
        signal = 0.3 * rng.standard_normal(len(keys))
        realised = signal + np.sqrt(1 - 0.09) * rng.standard_normal(len(keys))
        for name, forecast in (
            ("zero", np.zeros(len(keys))),
            ("prevailing_mean", np.full(len(keys), 0.01)),
            ("ar1", 0.02 * rng.standard_normal(len(keys))),
            ("ridge", 0.4 * signal + 0.1 * rng.standard_normal(len(keys))),
            *([("oracle", signal)] if simulated else []),
        ):
            references.append(
                keys.with_columns(
                    baseline=pl.lit(name),
                    fold=pl.lit(fold, pl.Int64),
                    forecast=pl.Series(forecast),
                    realised=pl.Series(realised),
                    unit_scale=pl.lit(0.01),
                )
            )
        for number, arm in enumerate(arms):
            for seed in seeds:
                key = (arm["name"], fold, seed)
                if key in missing:
                    continue
                own = np.random.default_rng([11, number, fold, seed])
                strength = skill.get(arm["name"], skill.get(arm["levels"]["residual"], 0.5))
                forecast = strength * signal + 0.12 * own.standard_normal(len(keys))
                forecasts.append(
                    keys.with_columns(
                        arm=pl.lit(arm["name"]),
                        fold=pl.lit(fold, pl.Int64),
                        seed=pl.lit(seed, pl.Int64),
                        forecast=pl.Series(forecast),
                        realised=pl.Series(realised),
                        unit_scale=pl.lit(0.01),
                    ).select("arm", "fold", "seed", "date", "asset", "forecast", "realised", "unit_scale")
                )
                outcome = failed.get(key, "finished")
                fits.append(_fit(arm, "final", fold, seed, 0.001, outcome, 0.91 - 0.02 * strength))
                profiles += _profile(arm, fold, seed, own)
                mixing += _mixing(arm, fold, seed, np.random.default_rng([13, number, fold, seed]))
                history += _history(arm, fold, seed, strength)
    for arm, rate in itertools.product(arms, RATES):
        fits.append(_fit(arm, "tuning", 0, 1000, rate, "finished", 0.9 + abs(np.log(rate / 0.001)) * 0.01))
    pl.concat(forecasts).write_parquet(folder / "forecasts.parquet")
    pl.DataFrame(fits).write_parquet(folder / "fits.parquet")
    pl.DataFrame(profiles, infer_schema_length=None).write_parquet(folder / "profiles.parquet")
    pl.DataFrame(mixing).write_parquet(folder / "mixing.parquet")
    pl.DataFrame(history).write_parquet(folder / "history.parquet")
    if baselines:
        pl.concat(references).write_parquet(folder / "baselines.parquet")
    return spec | changes, folder


def _plan(
    schemes: tuple[str, ...],
    depths: tuple[str, ...],
    *,
    folds: int,
    seeds: tuple[int, ...],
    days: int,
    assets: int,
    simulated: bool,
) -> Plan:
    """Return the plan whose spec the engine would write, on a panel of flat prices."""
    study = Study(
        title="Does the residual scheme matter as depth grows?",
        base=Experiment(data=DataConfig(features=("return_1",), context=4), model=ModelConfig(width=8)),
        factors={
            "residual": {scheme: {"model.residual": scheme} for scheme in schemes},
            "depth": {depth: {"model.depth": int(depth)} for depth in depths},
        },
        folds=WalkForward(num_folds=folds, test_days=days, validation_days=days, purge=1),
        tuning=Tuning(space={"training.learning_rate": RATES}, seeds=(1000,)),
        seeds=seeds,
        primary=_contrast(schemes[1], depths[-1]),
        contrasts=(
            *(_contrast(schemes[1], depth) for depth in depths[:-1]),
            *(_contrast(scheme, depths[-1]) for scheme in schemes[2:]),
        ),
        smallest_effect=0.01,
        presets={"quick": Preset()},
    ).sized("quick")
    count = TRAIN_DAYS + (folds + 1) * days + 2
    frame = pl.DataFrame(
        {
            "date": [DAY + dt.timedelta(days=day) for day in range(count) for _ in range(assets)],
            "asset": [f"asset_{number}" for number in range(assets)] * count,
            "close": 1.0,
        }
    )
    panel = Panel(frame, name="made-up")
    dataset = Dataset(
        reference="made-up",
        name="made-up",
        panel=panel,
        checksum="fedcba9876543210",
        until=dt.date(2018, 1, 1),
        signal=frame.select("date", "asset", signal=pl.lit(0.0)) if simulated else None,
    )
    return Plan(
        study=study,
        name="residual_by_depth",
        docstring=DOCSTRING,
        preset="quick",
        dataset=dataset,
        arms=study.arms(),
        folds=[fold.to_dict() for fold in study.folds.split(panel.dates.to_list())],
        sources="0011223344556677",
    )


DOCSTRING = """Does the residual scheme matter as depth grows?

Question
--------
Does `post_norm` forecast daily returns better or worse than `pre_norm` when the network is deep?

Hypotheses
----------
- At depth 2 the schemes are equivalent.
- At depth 8 `post_norm` is worse, because it is harder to train.

Primary outcome: out-of-sample R2 against zero at depth 8. The hypothesis is refuted
if the interval of the difference lies above zero.
"""


def _contrast(scheme: str, depth: str) -> Contrast:
    return Contrast(compare=("residual", scheme), against="pre_norm", within={"depth": depth})


def _fit(
    arm: dict[str, Any], role: str, fold: int, seed: int, rate: float, outcome: str, loss: float
) -> dict[str, Any]:
    return {
        "arm": arm["name"],
        "role": role,
        "fold": fold,
        "seed": seed,
        "learning_rate": rate,
        "outcome": outcome,
        "reason": "" if outcome == "finished" else "the loss is not finite",
        "validation_loss": loss,
        "best_step": 250,
        "steps": 300,
        "parameters": 12_000 * arm["experiment"]["model"]["depth"],
        "key": f"{arm['name']}-{role}-{fold}-{seed}-{rate}",
    }


def _profile(arm: dict[str, Any], fold: int, seed: int, rng: np.random.Generator) -> list[dict[str, Any]]:
    layers = 2 * arm["experiment"]["model"]["depth"]
    gain = {"pre_norm": 1.0, "post_norm": 0.6}.get(arm["levels"]["residual"], 0.8)
    rows = []
    for step, layer in itertools.product((0, 300), range(layers)):
        normed = arm["levels"]["residual"] == "post_norm"
        null = float(np.sqrt(1 / 2 if normed else layer / (layer + 1)))
        wobble = float(np.exp(0.1 * rng.standard_normal()))
        rows.append(
            {
                "arm": arm["name"],
                "fold": fold,
                "seed": seed,
                "step": step,
                "layer": layer,
                "block": layer // 2,
                "kind": "attention" if layer % 2 == 0 else "feed_forward",
                "adjacent_cosine": None if layer == 0 else min(0.999, null * gain * wobble),
                "adjacent_cosine_centred": None if layer == 0 else min(0.999, null * gain * 0.9),
                "adjacent_cosine_null": null,
                "adjacent_cosine_initial": None if layer == 0 else min(0.999, 0.5 + 0.5 * null * gain),
                "relative_update": gain * wobble / np.sqrt(layer + 1),
                "gradient_norm": 0.01 * wobble * np.exp(-0.1 * gain * layer),
                "update_to_weight": None if step == 0 else 0.001 * wobble,
            }
        )
    return rows


def _mixing(arm: dict[str, Any], fold: int, seed: int, rng: np.random.Generator) -> list[dict[str, Any]]:
    return [
        {
            "arm": arm["name"],
            "fold": fold,
            "seed": seed,
            "reader": reader,
            "source": source,
            "mean": 1.0 if arm["levels"]["residual"] == "pre_norm" else 1 + 0.4 * rng.standard_normal(),
            "spread": 0.1,
            "composed": arm["levels"]["residual"] != "post_norm",
        }
        for reader in range(2 * arm["experiment"]["model"]["depth"] + 1)
        for source in range(reader + 1)
    ]


def _history(arm: dict[str, Any], fold: int, seed: int, strength: float) -> list[dict[str, Any]]:
    return [
        {
            "arm": arm["name"],
            "fold": fold,
            "seed": seed,
            "step": step,
            "train_loss": 0.9 + 0.2 * float(np.exp(-step / 80)) - 0.02 * strength,
            "validation_loss": 0.93 + 0.15 * float(np.exp(-step / 80)) - 0.01 * strength + 0.005 * fold,
        }
        for step in range(50, 301, 50)
    ]


@pytest.fixture(scope="session")
def postgres() -> Iterator[Any]:
    """One PostgreSQL server for all tests of a process (`Postgres` of servers.py)."""
    servers = runpy.run_path(str(Path(__file__).parent / "servers.py"))
    if servers["postgres_programs"]() is None:
        pytest.skip("PostgreSQL is not installed")
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    # Not under pytest's own folder, which every other pytest that begins closes to the user postgres.
    with tempfile.TemporaryDirectory(prefix="fints-postgres-") as folder:
        server = servers["Postgres"](Path(folder) / "server")
        yield server
        server.stop()


@pytest.fixture(params=["sqlite", "postgresql"])
def storage_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty database, of each kind that a study can be shared by."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'shared.db'}"
    return str(request.getfixturevalue("postgres").url(f"test_{uuid.uuid4().hex[:12]}"))

"""What of a study a backtest loads: every arm with the study's own forecasts, and an honest champion."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal

from fints.data import simulate
from fints.study.model_log import log_models
from fints.study.models import arm_forecaster, champion, model_name
from fints.study.tracking import Tracker

pytestmark = [
    pytest.mark.filterwarnings("default:The ``noload`` loader strategy is deprecated"),
    pytest.mark.filterwarnings("default:.*type hint.*:UserWarning"),
]
ARMS = ("pre_norm", "post_norm", "no_skip")


def spec(**changes: Any) -> dict[str, Any]:
    experiment = {
        "data": {"target": "log_return", "horizon": 1},
        "model": {"head": "point"},
        "training": {"loss": "mse"},
    }
    return {
        "claim": "exploratory",
        "folds": [{"index": 0}, {"index": 1}],
        "seeds": [10, 11],
        "primary": {"compare": ["residual", "post_norm"], "against": "pre_norm", "within": {}},
        "arms": [{"name": name, "levels": {"residual": name}, "experiment": experiment} for name in ARMS],
        **changes,
    }


def rows(losses: dict[str, float], failed: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """Final fits whose losses spread around each arm's mean, and tuning fits that must not count."""
    draw = np.random.default_rng(0)
    made = []
    for arm, loss in losses.items():
        noise = draw.standard_normal(4)
        noise -= noise.mean()
        made += [
            {
                "arm": arm,
                "role": "final",
                "validation_loss": loss + noise[number],
                "outcome": "diverged" if arm in failed and number == 2 else "finished",
            }
            for number in range(4)
        ]
        made.append({"arm": arm, "role": "tuning", "validation_loss": -9.0 * loss, "outcome": "finished"})
    return made


LOSSES = {"pre_norm": 1.02, "post_norm": 1.0, "no_skip": 1.01}


@pytest.mark.parametrize(
    ("decision", "claim", "failed", "arm"),
    [
        ("undecided", "answer", (), "post_norm"),
        ("equivalent", "answer", (), "post_norm"),
        ("worse", "answer", (), "no_skip"),  # post_norm is declared beaten
        ("worse", "none", (), "post_norm"),  # a smoke run declares nothing
        ("better", "exploratory", ("post_norm",), "no_skip"),
        ("undecided", "answer", ("post_norm", "no_skip"), "pre_norm"),
        ("undecided", "answer", ARMS, None),
    ],
)
def test_the_champion_has_the_lowest_validation_loss_of_whole_arms_that_are_not_beaten(
    decision: str, claim: str, failed: tuple[str, ...], arm: str | None
) -> None:
    assert champion(spec(claim=claim), rows(LOSSES, failed), decision).arm == arm


def test_a_missing_fit_and_losses_in_other_units_make_no_champion() -> None:
    short = [row for row in rows(LOSSES) if row["arm"] != "post_norm"][:-2]
    assert champion(spec(), [*short, *rows({"post_norm": 0.5})[:3]], "undecided").arm == "pre_norm"
    other = spec()
    other["arms"][1] = json.loads(json.dumps(other["arms"][1]))
    other["arms"][1]["experiment"]["data"]["horizon"] = 5
    choice = champion(other, rows(LOSSES), "undecided")
    assert choice.arm is None
    assert "not in the same units" in choice.reason


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, mlflow_tables: Path, run_study: Callable[..., Any]) -> Any:
    """The tiny study with two folds and two seeds, run in this process."""
    root = tmp_path_factory.mktemp("models")
    simulate(num_assets=4, num_days=160, seed=3).panel.frame.write_parquet(root / "prices.parquet")
    (root / "root").mkdir()
    shutil.copy(mlflow_tables, root / "root" / "mlflow.db")
    with pytest.MonkeyPatch.context() as patch:
        return run_study(
            patch, root / "root", root / "prices.parquet", preset="longer", changes={"training.steps": 8}
        )


@pytest.mark.slow
def test_the_model_of_an_arm_gives_the_study_s_own_forecasts(run: Any, tmp_path: Path) -> None:
    stored = pl.read_parquet(run.folder.path / "forecasts.parquet")
    fits = run.fits().filter(role="final").to_dicts()
    for arm in run.plan.arms:
        walk = arm_forecaster(run.plan, run.folder, arm, [row for row in fits if row["arm"] == arm.name])
        assert len(walk.refits_) == len(run.plan.folds) * 2
        own = stored.filter(arm=arm.name)
        mean = own.group_by("date", "asset").agg(pl.col("forecast").mean(), pl.col("realised").first())
        for fold in run.plan.folds:
            found = walk.evaluate_frame(run.plan.dataset.panel, *fold["test"])
            wanted = found.select("date", "asset").join(mean, on=["date", "asset"], how="left")
            assert len(found) > 0
            assert_frame_equal(
                found.select("date", "asset", "forecast", "realised"), wanted, rel_tol=1e-12, abs_tol=1e-15
            )
        for refit in walk.refits_:
            assert refit.as_of < refit.first
        for first, members in walk.members_.items():
            assert all(member.model_as_of_ < first for member in members)


@pytest.mark.slow
def test_every_arm_is_registered_once_and_the_champion_is_named_however_often_it_is_asked(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fints

    tracker = Tracker(run.plan.spec(), root=run.folder.root, label=run.folder.label, commit="abc")
    tracker.open(run.folder.fits)
    tracker.close()
    first = log_models(run.plan, run.folder, run.analysis(), tracker)
    assert {*first.versions} == {arm.name for arm in run.plan.arms}
    assert first.without == {}
    again = log_models(run.plan, run.folder, run.analysis(), tracker)
    assert again == first
    versions = tracker.client.search_model_versions(f"name = '{model_name(run.plan)}'")
    assert len(versions) == len(run.plan.arms)
    for held in versions:
        assert held.run_id == tracker.arm_runs[held.tags["fints.arm"]]
        assert held.tags["fints.data_checksum"] == run.plan.dataset.checksum
        assert held.tags["fints.commit"] == "abc"
        assert "validation loss" in held.description
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("FINTS_HOME", str(run.folder.root))
    best = fints.load(f"models:/{first.name}@champion")
    last = run.plan.folds[-1]["test"]
    arm = next(arm for arm in run.plan.arms if arm.name == first.choice.arm)
    fits = run.fits().filter(role="final", arm=arm.name).to_dicts()
    wanted = arm_forecaster(run.plan, run.folder, arm, fits).predict(run.plan.dataset.panel, start=last[0])
    assert_frame_equal(best.predict(run.plan.dataset.panel, start=last[0]), wanted, check_exact=True)
    # A verdict that leaves no champion takes the name from the one before.
    monkeypatch.setattr(
        "fints.study.model_log.champion", lambda *given: type(first.choice)(arm=None, reason="none is whole")
    )
    assert log_models(run.plan, run.folder, run.analysis(), tracker).versions == first.versions
    assert tracker.client.get_registered_model(first.name).aliases == {}


@pytest.mark.slow
def test_a_fit_without_weights_makes_no_model_and_says_why(run: Any) -> None:
    fits = run.fits().filter(role="final", arm=run.plan.arms[0].name).to_dicts()
    place = run.folder.fit(fits[0]["key"]) / "forecaster"
    shutil.move(place, place.with_name("aside"))
    try:
        with pytest.raises(ValueError, match="kept no weights: they were made with --no-models"):
            arm_forecaster(run.plan, run.folder, run.plan.arms[0], fits)
    finally:
        shutil.move(place.with_name("aside"), place)
    failed = [row | {"outcome": "diverged", "reason": "the loss is not finite"} for row in fits[:2]]
    with pytest.raises(ValueError, match="no fit that ended well forecasts from"):
        arm_forecaster(run.plan, run.folder, run.plan.arms[0], [*failed, *fits[2:]])

"""From a foreign file through tuning, final fits and tables to the report: no later date decides anything.

As in test_forecasts.py each property is a function of the pipeline, and a planted leak must break it.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Callable
from typing import Any

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal

from fints import Forecaster
from fints.config import DataConfig, Experiment, ModelConfig, TrainingConfig
from fints.data import load, store
from fints.evaluation import WalkForward, metrics
from fints.study import Contrast, Preset, Study, Tuning
from fints.study import dataset as study_dataset
from fints.study.plan import Plan

pytestmark = pytest.mark.slow

# Days on which the test period of each fold begins; the second ends with the file.
TEST_DAYS, SEALED_DAYS = 30, 20
STUDY = Study(
    title="Does the past know the future?",
    base=Experiment(
        data=DataConfig(features=("a", "b", "return_1"), context=5, target="log_return"),
        model=ModelConfig(width=8, num_heads=2, depth=1),
        training=TrainingConfig(batch_size=16, steps=30, warmup_steps=2, evaluate_every=10, device="cpu"),
    ),
    factors={"residual": {name: {"model.residual": name} for name in ("pre_norm", "post_norm")}},
    folds=WalkForward(num_folds=2, test_days=TEST_DAYS, validation_days=25, purge=1),
    tuning=Tuning(space={"training.learning_rate": (1e-4, 1e-2)}),
    seeds=(1,),
    primary=Contrast(compare=("residual", "post_norm"), against="pre_norm"),
    smallest_effect=0.01,
    baselines=("prevailing_mean", "ar1", "ridge", "dlinear"),
    presets={"quick": Preset()},
)
Trial = Callable[[Any, str], Any]


@pytest.fixture
def trial(imported, run_study, monkeypatch: pytest.MonkeyPatch, tmp_path) -> Trial:
    """Import bars, seal the last days, run the whole study on what is left."""

    def run(bars, name: str) -> Any:
        store(imported(bars, "mine"), "mine", sealed_from=bars.dates[-SEALED_DAYS])
        return run_study(monkeypatch, tmp_path / name, "mine", study=STUDY, preset="quick")

    return run


def given_that(condition: bool) -> None:
    """What must hold for an example to show anything; no claim, so no AssertionError."""
    if not condition:
        raise RuntimeError("this example shows nothing")


def first_test_day(bars) -> int:
    return len(bars.dates) - SEALED_DAYS - 2 * TEST_DAYS


def of_the_first_fold(run: Any, last: dt.date) -> dict[str, pl.DataFrame]:
    """Everything that a study says before a date: points tried and chosen, losses, forecasts, baselines."""
    given_that(run.outcome.failures == [])
    folder = run.folder.path
    names = ("arm", "role", "fold", "seed", "learning_rate", "outcome", "validation_loss", "best_step")
    keys = ["arm", "seed", "date", "asset", "forecast"]
    forecasts = pl.read_parquet(folder / "forecasts.parquet").filter(pl.col("date") <= last, fold=0)
    baselines = pl.read_parquet(folder / "baselines.parquet").filter(pl.col("date") <= last, fold=0)
    given_that(forecasts.height > 40)
    return {
        "fits": run.fits().filter(fold=0).select(names),
        "forecasts": forecasts.select(keys),
        "baselines": baselines.select("baseline", "date", "asset", "forecast"),
        "history": pl.read_parquet(folder / "history.parquet").filter(fold=0),
    }


def turned(prices: np.ndarray, start: int) -> np.ndarray:
    """Every move from day number `start` on is turned round and three times as large."""
    return prices[start - 1] * (prices[start - 1] / prices) ** 3


def leapt(prices: np.ndarray, start: int) -> np.ndarray:
    return 1000 * prices


def the_future_decides_nothing(trial: Trial, bars, *changes: Callable[..., np.ndarray]) -> None:
    """From the middle of the first test period on the file is another."""
    start = first_test_day(bars) + TEST_DAYS // 2
    later, last = np.arange(len(bars.dates))[:, None] >= start, bars.dates[start - 1]
    one = of_the_first_fold(trial(bars, "one"), last)
    for change in changes:
        prices = np.where(later, change(bars.prices, start), bars.prices)
        given_that(np.isfinite(prices).sum() == np.isfinite(bars.prices).sum())
        other = type(bars)(bars.dates, prices, bars.columns)
        two = of_the_first_fold(trial(other, change.__name__), last)
        for name, table in one.items():
            assert_frame_equal(table, two[name], check_exact=True)


@pytest.fixture
def drawn(bars):
    """Column a tells half of the next move, so that the larger learning rate is the better one."""
    return bars(4, signal=0.7)


def test_1_2_and_3_no_price_after_a_day_moves_what_a_study_tuned_fitted_or_forecast_before_it(
    trial, drawn
) -> None:
    the_future_decides_nothing(trial, drawn, turned, leapt)


def test_it_is_broken_by_tuning_on_the_test_period(trial, drawn, monkeypatch: pytest.MonkeyPatch) -> None:
    def choose(self: Plan, arm: Any, losses: Any) -> dict[str, Any]:
        fold, panel = self.folds[0], self.dataset.panel
        parts = ("train", "validation", "test")
        train, validation, test = (tuple(map(dt.date.fromisoformat, fold[part])) for part in parts)
        scores = []
        for cell in self.tuning_cells(arm):
            one = Forecaster(Experiment.from_dict(cell.experiment), seed=cell.seed)
            one.fit(panel[: validation[1]], train=train, validation=validation)
            scores.append((metrics(one.evaluate_frame(panel, *test))["r2_zero"], cell.point))
        return max(scores, key=lambda scored: scored[0])[1]

    monkeypatch.setattr(Plan, "choose", choose)
    with pytest.raises(AssertionError):
        the_future_decides_nothing(trial, drawn, turned)


def the_seal_is_kept(trial: Trial, bars) -> None:
    """Sealed prices may be anything: the report is the same but for the checksum of the file."""
    sealed = np.arange(len(bars.dates))[:, None] >= len(bars.dates) - SEALED_DAYS
    noise = np.exp(np.random.default_rng(0).standard_normal(bars.prices.shape))
    other = type(bars)(bars.dates, np.where(sealed, noise * bars.prices, bars.prices), bars.columns)
    reports = []
    for place, given in (("one", bars), ("two", other)):
        run = trial(given, place)
        given_that(run.outcome.failures == [])
        reports.append(run.report().replace(run.plan.dataset.checksum, "-"))
    assert reports[0] == reports[1]


def test_no_sealed_price_moves_a_word_of_the_report(trial, drawn) -> None:
    the_seal_is_kept(trial, drawn)


def test_it_is_broken_by_a_study_that_reads_sealed_dates(
    trial, drawn, run_study, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = study_dataset.open_dataset

    def unsealed(reference: str, *, opens_seal: bool) -> Any:
        return dataclasses.replace(whole(reference, opens_seal=False), panel=load(reference))

    monkeypatch.setattr("fints.study.plan.open_dataset", unsealed)
    # What stands in for the workers has opened its name already.
    monkeypatch.setitem(run_study.__init__.__globals__, "open_dataset", unsealed)
    with pytest.raises(AssertionError):
        the_seal_is_kept(trial, drawn)


def test_7_the_report_on_a_random_walk_says_nothing_found_and_on_a_leak_names_every_arm(trial, bars) -> None:
    null, leak = trial(bars(21), "null"), trial(bars(21, signal=0.9), "leak")
    assert null.analysis().found.kind == "nothing"
    assert "**Nothing found:**" in null.report()
    assert (null.analysis().arms["r2_zero_low"] <= 0).all()
    # The same study of the same walk with a column that knows the next move: the sentence can be another.
    assert leak.analysis().found.kind == "suspected_leak"
    assert "**Suspected leak:** 2 of 2 arms" in leak.report()

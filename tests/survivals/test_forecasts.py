"""From a foreign file to forecasts: what came later cannot be seen in what was said before.

Each property is a function of a pipeline, from bars to forecasts. The house's own must have it, and a
pipeline with one planted leak must not: a property that cannot fail shows nothing.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from fints import Forecaster
from fints.config import Experiment, override
from fints.data import Panel, StandardScaler, features, targets
from fints.evaluation import judge, metrics, r2_interval, r2_zero
from fints.training import predict

pytestmark = pytest.mark.slow


def given_that(condition: bool) -> None:
    """What must hold for an example to show anything; no claim, so no AssertionError."""
    if not condition:
        raise RuntimeError("this example shows nothing")


# The last day that anything is learnt from; the days after it are forecast.
LEARNT = 130
# A day inside the halt of S0.
HALT = 155
FEATURES = ["return_1", "log_volatility_5", "rank_return_1", "a", "b"]
SMALL = override(
    Experiment(),
    {
        "data.features": FEATURES,
        "data.context": 5,
        "data.target": "log_return",
        "model.width": 8,
        "model.num_heads": 2,
        "model.depth": 1,
        "training.steps": 12,
        "training.warmup_steps": 1,
        "training.evaluate_every": 6,
        "training.batch_size": 16,
        "training.device": "cpu",
    },
)
Pipeline = Callable[[object], pl.DataFrame]
few = settings(
    max_examples=4, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


def fitted(panel: Panel, last: dt.date, names: list[str] = FEATURES, **changes: object) -> Forecaster:
    experiment = override(SMALL, {"data.features": names, **changes})
    return Forecaster(experiment, seed=3).fit(panel[:last])


@pytest.fixture
def honest(imported) -> Pipeline:
    """Import, learn from the days until `LEARNT`, forecast every day of the file."""

    def run(bars) -> pl.DataFrame:
        panel = imported(bars)
        return fitted(panel, bars.dates[LEARNT]).predict(panel)

    return run


# One planted leak each, in the order of the house: the file, a feature, the scaler.
def backward_fill(bars, imported, with_column) -> pl.DataFrame:
    prices = pl.DataFrame(bars.prices).fill_nan(None).fill_null(strategy="backward").to_numpy()
    filled = type(bars)(bars.dates, np.where(np.isnan(bars.prices), prices, bars.prices), bars.columns)
    panel = imported(filled)
    return fitted(panel, bars.dates[LEARNT]).predict(panel)


def look_ahead(bars, imported, with_column) -> pl.DataFrame:
    close = pl.col("close")
    panel = with_column(imported(bars), "ahead", (close.shift(-1) / close).log().over("asset"))
    return fitted(panel, bars.dates[LEARNT], [*FEATURES, "ahead"]).predict(panel)


def centred_window(bars, imported, with_column) -> pl.DataFrame:
    smooth = pl.col("close").rolling_mean(5, center=True, min_samples=1).over("asset").log()
    panel = with_column(imported(bars), "smooth", smooth)
    return fitted(panel, bars.dates[LEARNT], [*FEATURES, "smooth"]).predict(panel)


def scaler_of_all_dates(bars, imported, with_column) -> pl.DataFrame:
    panel = imported(bars)
    forecaster = fitted(panel, bars.dates[LEARNT])
    forecaster.scaler_ = StandardScaler(clip=10.0).fit(features(panel, FEATURES), FEATURES)
    return forecaster.predict(panel)


LEAKS = [backward_fill, look_ahead, centred_window, scaler_of_all_dates]


def until(table: pl.DataFrame, last: dt.date) -> pl.DataFrame:
    return table.filter(pl.col("decision_time") <= last)


def a_shorter_file_gives_the_same_forecasts(run: Pipeline, bars, cut: int) -> None:
    whole, part = until(run(bars), bars.dates[cut]), run(bars.until(cut + 1))
    given_that(part["forecast"].is_not_null().sum() > 100)
    assert_frame_equal(part, whole, check_exact=True)


def a_shock_of_the_future_moves_nothing_before_it(run: Pipeline, bars, cut: int) -> None:
    last = bars.dates[cut]
    shocked = run(bars.shocked(cut + 1))
    plain = run(bars)
    given_that(not shocked.equals(plain))
    assert_frame_equal(until(shocked, last), until(plain, last), check_exact=True)


PROPERTIES = [a_shorter_file_gives_the_same_forecasts, a_shock_of_the_future_moves_nothing_before_it]
each_property = pytest.mark.parametrize("holds", PROPERTIES, ids=lambda one: one.__name__)


@each_property
@few
# The first day after the last one learnt, inside the halt of S0, and before and after the delisting of S2.
@example(cut=LEARNT + 1)
@example(cut=HALT)
@example(cut=206)
@example(cut=207)
@given(cut=st.integers(LEARNT + 1, 220))
def test_1_and_2_forecasts_until_a_day_are_those_of_a_file_that_ends_there_or_goes_mad_there(
    holds, honest, bars, cut
) -> None:
    holds(honest, bars(), cut)


@each_property
@pytest.mark.parametrize("leak", LEAKS, ids=lambda leak: leak.__name__)
def test_1_and_2_are_broken_by_each_planted_leak(holds, leak, bars, imported, with_column) -> None:
    with pytest.raises(AssertionError):
        holds(lambda given: leak(given, imported, with_column), bars(), HALT)


HORIZON = 3


def learnt_until(bars, panel: Panel, cut: int) -> Forecaster:
    """Learn from decisions whose outcomes are known on day number `cut`, on a panel that goes on after it."""
    train = (None, bars.dates[cut - 40])
    validation = (bars.dates[cut - HORIZON - 20], bars.dates[cut - HORIZON])
    experiment = override(SMALL, {"data.horizon": HORIZON})
    return Forecaster(experiment, seed=3).fit(panel, train=train, validation=validation)


def outcomes_after_a_cut_move_nothing_at_it(learn, bars, imported, cut: int) -> None:
    """Outcomes known after the cut are absent, 0 or a million: prices that end, stand still or leap."""
    later = np.arange(len(bars.dates))[:, None] > cut
    still = np.where(later, bars.prices[cut], bars.prices)
    tables = []
    for prices in (
        bars.prices,
        np.where(later, np.nan, bars.prices),
        still,
        np.where(later, still * 1e6, still),
    ):
        # Only the outcomes differ: the forecast is made from rows until the cut.
        panel = imported(type(bars)(bars.dates, prices, bars.columns))
        forecaster = learn(bars, panel, cut)
        tables.append(forecaster.predict(panel[: bars.dates[cut]]).drop("model_as_of", "available_at"))
    for table in tables[1:]:
        assert_frame_equal(table, tables[0], check_exact=True)


@few
@example(cut=HALT)
@given(cut=st.integers(LEARNT, 220))
def test_3_outcomes_after_a_cut_move_no_forecast_at_it(bars, imported, cut) -> None:
    outcomes_after_a_cut_move_nothing_at_it(learnt_until, bars(), imported, cut)


def test_3_is_broken_by_learning_on_past_the_cut(bars, imported) -> None:
    def learnt_from_all(bars, panel: Panel, cut: int) -> Forecaster:
        return Forecaster(override(SMALL, {"data.horizon": HORIZON}), seed=3).fit(panel)

    with pytest.raises(AssertionError):
        outcomes_after_a_cut_move_nothing_at_it(learnt_from_all, bars(), imported, 180)


def the_last_rows_of_each_asset_have_no_target(label, panel: Panel, horizon: int) -> None:
    labels = label(panel, horizon).sort("asset", "date")
    own = panel.frame.sort("asset", "date").select("asset", "date", "close").drop_nulls()
    for asset in panel.assets:
        days, close = own.filter(asset=asset)["date"], own.filter(asset=asset)["close"].log().to_numpy()
        told = labels.filter(pl.col("asset") == asset, pl.col("date").is_in(days.implode()))["target"]
        given_that(len(told) == len(days) > horizon)
        assert told[-horizon:].to_list() == [None] * horizon
        np.testing.assert_allclose(told[:-horizon], close[horizon:] - close[:-horizon], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("horizon", [1, 2, 7])
def test_4_the_last_rows_of_each_asset_have_no_target_and_are_judged_by_none(bars, imported, horizon) -> None:
    drawn = bars()
    panel = imported(drawn)
    the_last_rows_of_each_asset_have_no_target(lambda p, h: targets(p, "log_return", h), panel, horizon)
    forecaster = fitted(panel, drawn.dates[LEARNT], **{"data.horizon": horizon})
    judged = forecaster.evaluate_frame(panel)
    ends = judged.group_by("asset").agg(pl.col("date").max()).sort("asset")
    own = panel.frame.sort("asset", "date").group_by("asset", maintain_order=True).agg("date")
    assert ends["date"].to_list() == [days[-1 - horizon] for days in own.sort("asset")["date"]]
    # The fit knows no outcome that was not there on its last day.
    assert forecaster.model_as_of_ <= drawn.dates[LEARNT]


@pytest.mark.parametrize("leak", ["zero", "the next asset's"])
def test_4_is_broken_by_a_target_that_is_filled(bars, imported, leak) -> None:
    def label(panel: Panel, horizon: int) -> pl.DataFrame:
        if leak == "zero":
            return targets(panel, "log_return", horizon).with_columns(pl.col("target").fill_null(0.0))
        close = pl.col("close").log()
        return panel.frame.sort("asset", "date").with_columns(target=close.shift(-horizon) - close)

    with pytest.raises(AssertionError):
        the_last_rows_of_each_asset_have_no_target(label, imported(bars()), 2)


def scores_do_not_depend_on_the_batch(score, forecaster: Forecaster, panel: Panel) -> None:
    windows, frame = forecaster.windows(panel), forecaster.evaluate_frame(panel)

    def of_batches(size: int) -> pl.DataFrame:
        mean = predict(forecaster.model_, windows, batch_size=size)["mean"][:, 0].double().numpy()
        told = windows.keys().with_columns(forecast=pl.Series(mean) * forecaster.target_std_)
        return frame.drop("forecast").join(told, on=["date", "asset"], maintain_order="left")

    found = []
    for size in (9, 64, 100, 4096):
        given_that(len(windows) % size > 0)
        found.append(score(of_batches(size), size))
    for name in ("r2_zero", "ic", "rank_ic", "mse"):
        assert [one[name] for one in found] == pytest.approx([found[0][name]] * 4, abs=1e-6), name


def test_5_metrics_do_not_depend_on_the_batch_size(bars, imported) -> None:
    drawn = bars()
    panel = imported(drawn)
    forecaster = fitted(panel, drawn.dates[LEARNT])
    scores_do_not_depend_on_the_batch(lambda rows, size: metrics(rows), forecaster, panel)


@pytest.mark.parametrize("leak", ["the last batch is dropped", "batches are averaged"])
def test_5_is_broken_by_batches_that_count_alike(bars, imported, leak) -> None:
    def score(rows: pl.DataFrame, size: int) -> dict[str, float]:
        if leak == "the last batch is dropped":
            return metrics(rows[: max(size, len(rows) // size * size)] if size < len(rows) else rows)
        parts = [metrics(rows[first : first + size]) for first in range(0, len(rows), size)]
        return {
            name: float(np.mean([one[name] or 0.0 for one in parts]))
            for name in ("r2_zero", "ic", "rank_ic", "mse")
        }

    drawn = bars()
    panel = imported(drawn)
    with pytest.raises(AssertionError):
        scores_do_not_depend_on_the_batch(score, fitted(panel, drawn.dates[LEARNT]), panel)


def a_planted_leak_is_found(bars, imported, **changes: object) -> pl.DataFrame:
    """Column a is the next move but for noise: 0.9 of it, so that R2 0.81 could be had."""
    drawn = bars(1, signal=0.9)
    panel = imported(drawn)
    training = {"training.steps": 150, "training.learning_rate": 1e-2} | changes
    forecaster = fitted(panel, drawn.dates[LEARNT], ["a", "b", "return_1"], **training)
    rows = forecaster.evaluate_frame(panel, drawn.dates[LEARNT + 1])
    assert r2_zero(rows) > 0.5
    return rows


def test_6_a_planted_leak_is_found_by_training_and_called_a_leak(bars, imported) -> None:
    rows = a_planted_leak_is_found(bars, imported)
    assert judge(rows).decision == "suspected_leak"


@pytest.mark.parametrize("broken", [{"training.learning_rate": 1e-12}, {"training.clip_norm": 1e-12}])
def test_6_is_broken_by_a_trainer_that_does_not_learn(bars, imported, broken) -> None:
    # Adam removes the scale of a gradient that is clipped to nothing, but not below its epsilon.
    with pytest.raises(AssertionError):
        a_planted_leak_is_found(bars, imported, **broken)


def nothing_is_found_in_a_random_walk(bars, imported, seed: int, signal: float = 0.0) -> None:
    drawn = bars(seed, signal=signal)
    panel = imported(drawn)
    forecaster = fitted(panel, drawn.dates[LEARNT], **{"training.steps": 60, "training.learning_rate": 3e-3})
    rows = forecaster.evaluate_frame(panel, drawn.dates[LEARNT + 1])
    interval = r2_interval(rows)
    given_that(interval is not None)
    assert interval[0] <= 0
    assert judge(rows).verdict.startswith("Nothing found")


@pytest.mark.parametrize("seed", [11, 12, 13])
def test_7_on_a_random_walk_r2_is_not_above_zero_beyond_its_error_and_the_verdict_says_nothing_found(
    bars, imported, seed
) -> None:
    nothing_is_found_in_a_random_walk(bars, imported, seed)


def test_7_is_broken_by_a_column_that_knows_the_next_move(bars, imported) -> None:
    with pytest.raises(AssertionError):
        nothing_is_found_in_a_random_walk(bars, imported, 11, signal=0.7)

"""What a backtest relies on: no look-ahead, exact files, honest failures."""

from __future__ import annotations

import datetime
import importlib
import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from polars.testing import assert_frame_equal
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

import fints
from fints import Forecaster
from fints.config import Experiment, override
from fints.data import Panel, load, simulate
from fints.diagnostics import Profiler
from fints.evaluation import metrics
from fints.training import predict

FIXTURE = Path(__file__).parent / "fixtures" / "forecaster_v1"
SMALL = {
    "model.width": 16,
    "model.num_heads": 2,
    "data.context": 8,
    "data.features": ["return_1", "return_5", "log_volatility_21", "rank_return_1"],
    "training.steps": 20,
    "training.warmup_steps": 2,
    "training.evaluate_every": 10,
    "training.batch_size": 32,
}
SCHEMES = ["pre_norm", "post_norm", "static_hyper_connections", "dynamic_hyper_connections"]


def small(**changes: object) -> Experiment:
    return override(Experiment(), SMALL | {path.replace("__", "."): value for path, value in changes.items()})


@pytest.fixture(scope="module")
def panel() -> Panel:
    """Seven assets: enough for ranks and for batches that end in the middle of a date."""
    whole = load("sp500-20")["2008-01-01":"2011-12-31"]
    return Panel(whole.frame.filter(pl.col("asset").is_in(whole.assets[:7])))


@pytest.fixture(scope="module")
def fitted(panel: Panel) -> Forecaster:
    return Forecaster(small(), depth=2, seed=1).fit(panel[:"2010-12-31"])


def with_rows_changed(panel: Panel, after: datetime.date, factor: float) -> Panel:
    """Multiply each price after a date by a factor."""
    late = pl.col("date") > after
    return Panel(
        panel.frame.with_columns(pl.when(late).then(pl.col("close") * factor).otherwise(pl.col("close")))
    )


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("head", ["point", "student_t"])
def test_the_future_never_reaches_the_past(panel: Panel, scheme: str, head: str) -> None:
    loss = "mse" if head == "point" else "nll"
    experiment = small(model__head=head, training__loss=loss, model__residual=scheme)
    forecaster = Forecaster(experiment, depth=2).fit(panel[:"2010-06-30"])
    whole = forecaster.predict(panel)
    assert whole["forecast"].null_count() < len(whole) // 4
    for cut in (datetime.date(2010, 7, 1), datetime.date(2011, 3, 17), datetime.date(2011, 3, 18)):
        before = whole.filter(pl.col("decision_time") <= cut)
        assert_frame_equal(forecaster.predict(panel[:cut]), before, check_exact=True)
        assert_frame_equal(
            forecaster.predict(with_rows_changed(panel, cut, 1000.0)).filter(pl.col("decision_time") <= cut),
            before,
            check_exact=True,
        )


def test_a_part_of_the_dates_gets_the_forecasts_of_the_whole(fitted: Forecaster, panel: Panel) -> None:
    whole = fitted.predict(panel)
    start, end = datetime.date(2011, 2, 1), datetime.date(2011, 2, 28)
    part = fitted.predict(panel, start=start, end=end)
    assert_frame_equal(part, whole.filter(pl.col("decision_time").is_between(start, end)), check_exact=True)


@pytest.mark.parametrize("factor", [1000.0, 0.001])
def test_prices_after_the_last_outcome_change_nothing_that_was_learnt(panel: Panel, factor: float) -> None:
    train = (None, datetime.date(2010, 6, 1))
    validation = (datetime.date(2010, 6, 10), datetime.date(2010, 8, 2))
    cut = datetime.date(2010, 8, 3)
    same = Forecaster(small(), seed=3).fit(panel, train=train, validation=validation)
    shocked = Forecaster(small(), seed=3).fit(
        with_rows_changed(panel, cut, factor), train=train, validation=validation
    )
    assert same.result_.history == shocked.result_.history
    assert_frame_equal(same.predict(panel[:cut]), shocked.predict(panel[:cut]), check_exact=True)


def test_the_table_has_one_row_a_date_and_asset_and_nulls_only_for_want_of_history(
    fitted: Forecaster, panel: Panel
) -> None:
    table = fitted.predict(panel)
    assert table.columns == ["decision_time", "asset", "horizon", "forecast", "model_as_of", "available_at"]
    assert len(table) == len(panel.frame)
    first = table.filter(pl.col("forecast").is_not_null())["decision_time"].min()
    assert table.filter(pl.col("decision_time") >= first)["forecast"].null_count() == 0
    assert (
        table.filter(pl.col("decision_time") < first)["forecast"].null_count()
        == table.filter(pl.col("decision_time") < first).height
    )
    assert table["forecast"].is_finite().all()


def test_metrics_do_not_depend_on_the_batch_size(fitted: Forecaster, panel: Panel) -> None:
    windows, frame = fitted.windows(panel), fitted.evaluate_frame(panel)
    found = []
    # The windows are no multiple of any of these, so each has a last partial batch.
    for size in (48, 100, 256, 5000):
        assert len(windows) % (-(-size // 48) * 48)
        mean = predict(fitted.model_, windows, batch_size=size)["mean"][:, 0].double().numpy()
        forecasts = windows.keys().with_columns(forecast=pl.Series(mean) * fitted.target_std_)
        rows = frame.drop("forecast").join(forecasts, on=["date", "asset"])
        assert len(rows) == len(frame)
        found.append(metrics(rows.select("date", "asset", "forecast", "realised")))
    for name in ("r2_zero", "ic", "rank_ic", "mse"):
        assert [m[name] for m in found] == pytest.approx([found[0][name]] * 4, abs=1e-6), name


def test_no_forecast_is_available_before_its_model(fitted: Forecaster, panel: Panel) -> None:
    table = fitted.predict(panel)
    assert (table["available_at"] >= table["model_as_of"]).all()
    assert (table["available_at"] >= table["decision_time"]).all()
    assert fitted.model_as_of_ <= datetime.date(2010, 12, 31)


@pytest.mark.parametrize("head", ["gaussian", "student_t"])
def test_quantiles_bracket_the_forecast_and_keep_its_units(panel: Panel, head: str) -> None:
    experiment = small(model__head=head, training__loss="nll")
    forecaster = Forecaster(experiment).fit(panel[:"2010-12-31"])
    table = forecaster.predict(panel).drop_nulls()
    assert (table["q05"] < table["forecast"]).all()
    assert (table["forecast"] < table["q95"]).all()
    np.testing.assert_allclose(table["q50"], table["forecast"], rtol=1e-9)
    # A daily stock return spreads over a few percent, not over target units.
    assert 0.005 < table["scale"].median() < 0.05
    frame = forecaster.evaluate_frame(panel).rename({"date": "decision_time"})
    both = frame.join(table, on=["decision_time", "asset"])
    assert len(both) > 0.9 * len(panel.frame)
    np.testing.assert_allclose(both["log_scale"].exp() * both["unit_scale"], both["scale"], rtol=1e-9)
    assert ("degrees" in frame.columns) == (head == "student_t")


def test_volatility_scaled_forecasts_come_back_as_log_returns(panel: Panel) -> None:
    forecaster = Forecaster(small(), target="volatility_scaled").fit(panel[:"2010-12-31"])
    frame = forecaster.evaluate_frame(panel)
    table = forecaster.predict(panel).rename({"decision_time": "date", "forecast": "log_return"})
    both = frame.join(table, on=["date", "asset"])
    assert len(both) == len(frame)
    np.testing.assert_allclose(both["forecast"] * both["unit_scale"], both["log_return"], rtol=1e-12)
    truth = panel.frame.sort("asset", "date").with_columns(
        next=pl.col("close").log().diff().shift(-1).over("asset")
    )
    both = both.join(truth, on=["date", "asset"])
    np.testing.assert_allclose(both["realised"] * both["unit_scale"], both["next"], rtol=1e-9, atol=1e-15)


def test_same_seed_gives_the_same_bits_and_another_seed_does_not(panel: Panel) -> None:
    experiment = small(model__dropout=0.1)
    first, second, other = (Forecaster(experiment, seed=seed).fit(panel).predict(panel) for seed in (5, 5, 6))
    assert_frame_equal(first, second, check_exact=True)
    assert not first["forecast"].equals(other["forecast"])


# The last two measure constants on the training set, which no parameter of another fit could stand for.
@pytest.mark.parametrize("scheme", [*SCHEMES, "admin", "frozen_scale_post_norm"])
def test_a_saved_forecaster_predicts_the_same_bits(panel: Panel, tmp_path: Path, scheme: str) -> None:
    forecaster = Forecaster(small(), residual=scheme).fit(panel[:"2010-12-31"])
    forecaster.save(tmp_path / "model")
    loaded = fints.load(tmp_path / "model")
    assert_frame_equal(loaded.predict(panel), forecaster.predict(panel), check_exact=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model"]
    forecaster.save(tmp_path / "model")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model"]


def test_the_file_of_format_1_loads_for_ever() -> None:
    forecaster = fints.load(FIXTURE / "model")
    panel = load("sp500-20")["2007-07-01":"2008-03-31"]
    expected = pl.read_parquet(FIXTURE / "forecasts.parquet")
    assert len(expected.drop_nulls()) > 100
    # Not bit for bit: another processor rounds in another order.
    assert_frame_equal(forecaster.predict(panel), expected, rel_tol=1e-4, abs_tol=1e-8)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "evil.pkl").write_bytes(b"\x80\x04."), "evil.pkl"),
        (lambda folder: (folder / "weights.safetensors").write_bytes(b"short"), "checksum"),
        (lambda folder: (folder / "forecaster.json").write_text("{"), "damaged"),
        (lambda folder: (folder / "forecaster.json").unlink(), "must hold"),
        (
            lambda folder: (folder / "forecaster.json").write_text(
                json.dumps(json.loads((folder / "forecaster.json").read_text()) | {"format_version": 99})
            ),
            "format version 99",
        ),
    ],
)
def test_a_foreign_or_damaged_folder_is_refused_by_name(tmp_path: Path, damage, message: str) -> None:
    shutil.copytree(FIXTURE / "model", tmp_path / "model")
    damage(tmp_path / "model")
    with pytest.raises(ValueError, match=message):
        fints.load(tmp_path / "model")


def test_save_never_overwrites_something_else(fitted: Forecaster, tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("precious")
    with pytest.raises(ValueError, match="not a saved forecaster"):
        fitted.save(tmp_path / "thesis")
    assert (tmp_path / "thesis" / "chapter.tex").read_text() == "precious"


def test_an_unfitted_forecaster_says_so(panel: Panel, tmp_path: Path) -> None:
    for call in (
        lambda f: f.predict(panel),
        lambda f: f.evaluate_frame(panel),
        lambda f: f.save(tmp_path / "model"),
    ):
        with pytest.raises(NotFittedError):
            call(Forecaster())


def test_clone_and_parameters_follow_scikit_learn() -> None:
    forecaster = Forecaster(small(), residual="post_norm", seed=3)
    twin = clone(forecaster)
    assert twin.get_params() == forecaster.get_params()
    assert twin.set_params(depth=6).resolve().model.depth == 6
    assert twin.resolve().model.residual == "post_norm"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"residual": "pre_nrom"}, "pre_norm"),
        ({"features": ["retrun_1"]}, "return_1"),
        ({"features": "return_1"}, "data.features must be a list; got 'return_1'"),
        ({"target": "log_retrun"}, "log_return"),
        ({"depth": 0}, "model.depth"),
        ({"depth": "four"}, "whole number"),
        ({"residual_options": {"num_stream": 2}, "residual": "static_hyper_connections"}, "num_streams"),
        ({"device": "gpu"}, "cuda"),
    ],
)
def test_a_wrong_argument_ends_in_one_clear_message(panel: Panel, arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        Forecaster(small(), **arguments).fit(panel)
    assert "\n" not in str(caught.value)


def test_a_panel_shorter_than_the_context_is_refused(panel: Panel) -> None:
    with pytest.raises(ValueError, match="longer panel"):
        Forecaster(small(), features=["return_1"]).fit(panel["2008-01-01":"2008-01-08"])


def test_no_window_fits_a_context_longer_than_the_panel(panel: Panel) -> None:
    with pytest.raises(ValueError, match=r"context|longer panel"):
        Forecaster(small(), features=["return_1"], context=500).fit(panel["2008-01-01":"2008-06-30"])


def test_a_panel_of_one_asset_can_be_forecast(panel: Panel) -> None:
    one = Panel(panel.frame.filter(pl.col("asset") == panel.assets[0]))
    table = Forecaster(small()).fit(one[:"2010-12-31"]).predict(one)
    assert table["forecast"].is_not_null().sum() > 900


def test_an_asset_that_never_moves_gets_no_forecast_and_spoils_no_other(panel: Panel) -> None:
    still = panel.frame.filter(pl.col("asset") == panel.assets[0]).with_columns(
        asset=pl.lit("STILL"), close=pl.lit(10.0)
    )
    table = (
        Forecaster(small())
        .fit(Panel(pl.concat([panel.frame, still]))[:"2010-12-31"])
        .predict(Panel(pl.concat([panel.frame, still])))
    )
    assert table.filter(pl.col("asset") == "STILL")["forecast"].null_count() == panel.dates.len()
    assert table.filter(pl.col("asset") != "STILL")["forecast"].is_not_null().mean() > 0.9


def test_an_asset_without_a_price_gets_no_forecast_and_spoils_no_other(
    fitted: Forecaster, panel: Panel
) -> None:
    empty = panel.frame.filter(pl.col("asset") == panel.assets[0]).with_columns(
        asset=pl.lit("VOID"), close=pl.lit(None, dtype=pl.Float64)
    )
    # Ranks count only assets that have a value, so no other forecast moves.
    table = fitted.predict(Panel(pl.concat([panel.frame, empty])))
    assert table.filter(pl.col("asset") == "VOID")["forecast"].null_count() == panel.dates.len()
    assert_frame_equal(table.filter(pl.col("asset") != "VOID"), fitted.predict(panel), check_exact=True)


def test_a_panel_whose_prices_never_move_is_refused(panel: Panel) -> None:
    flat = Panel(panel.frame.with_columns(close=pl.lit(10.0)))
    with pytest.raises(ValueError, match=r"never move|no outcome"):
        Forecaster(small()).fit(flat)


def test_training_dates_that_overlap_validation_are_refused(panel: Panel) -> None:
    with pytest.raises(ValueError, match="must end before validation starts"):
        Forecaster(small()).fit(
            panel,
            train=(None, datetime.date(2010, 6, 3)),
            validation=(datetime.date(2010, 6, 3), datetime.date(2010, 8, 2)),
        )


@pytest.mark.parametrize("by", ["dates", "share"])
def test_outcomes_that_reach_into_validation_are_not_learnt(panel: Panel, by: str) -> None:
    """Moving the prices from the first validation day on leaves the scale of the target as it was."""
    horizon = 10
    cut = datetime.date(2010, 6, 3)
    dates = panel.dates.filter(panel.dates >= cut)
    share = (dates.len() - horizon) / (panel.dates.len() - horizon)
    validation = (cut, dates[-1]) if by == "dates" else share
    experiment = small(training__keep="last", data__horizon=horizon, data__target="log_return")
    before = panel.dates.filter(panel.dates < cut)[-1]
    moved = with_rows_changed(panel, before, 2.0)
    first, second = (Forecaster(experiment).fit(p, validation=validation) for p in (panel, moved))
    assert first.target_std_ == second.target_std_
    assert first.scaler_ == second.scaler_
    losses = [[row["train_loss"] for row in f.result_.history] for f in (first, second)]
    assert losses[0] == losses[1]
    assert first.result_.best_validation_loss != second.result_.best_validation_loss


def test_dates_before_any_window_get_null_forecasts(fitted: Forecaster, panel: Panel) -> None:
    table = fitted.predict(panel, end=panel.dates[5])
    assert len(table) == 6 * len(panel.assets)
    assert table["forecast"].null_count() == len(table)
    assert table.schema == fitted.predict(panel).schema


def test_a_frame_instead_of_a_panel_is_refused_with_the_remedy(fitted: Forecaster, panel: Panel) -> None:
    for call in (Forecaster().fit, fitted.predict, fitted.evaluate_frame):
        with pytest.raises(ValueError, match=r"needs a fints.data.Panel; got DataFrame. Make one"):
            call(panel.frame)


def test_dates_may_be_iso_text_and_anything_else_is_refused(fitted: Forecaster, panel: Panel) -> None:
    start = datetime.date(2011, 3, 1)
    expected = fitted.predict(panel, start=start)
    assert_frame_equal(fitted.predict(panel, start="2011-03-01"), expected, check_exact=True)
    for wrong in ("March 2011", 20110301):
        with pytest.raises(ValueError, match="a date must be"):
            fitted.predict(panel, start=wrong)
    with pytest.raises(ValueError, match="first and a last date"):
        Forecaster(small()).fit(panel, validation=("2011-01-03", None))


def test_a_panel_shorter_than_the_context_gets_the_nulls_of_a_longer_one(
    fitted: Forecaster, panel: Panel
) -> None:
    cut = panel.dates[4]
    whole = fitted.predict(panel).filter(pl.col("decision_time") <= cut)
    assert_frame_equal(fitted.predict(panel[:cut]), whole, check_exact=True)


def test_numbers_of_numpy_are_numbers() -> None:
    experiment = Forecaster(depth=np.int64(3), learning_rate=np.float32(0.5), steps=np.int64(200)).resolve()
    assert experiment == Forecaster(depth=3, learning_rate=0.5, steps=200).resolve()
    assert type(experiment.model.depth) is int


def test_a_network_too_large_for_this_machine_is_an_outcome(panel: Panel, tmp_path: Path) -> None:
    forecaster = Forecaster(small(), width=400_000).fit(panel)
    assert forecaster.result_.outcome == "out_of_memory"
    assert "batch_size" in forecaster.result_.reason
    for use in (lambda: forecaster.predict(panel), lambda: forecaster.save(tmp_path / "model")):
        with pytest.raises(ValueError, match="ended without a network"):
            use()
    assert list(tmp_path.iterdir()) == []


def test_a_diverging_fit_is_an_outcome(panel: Panel) -> None:
    forecaster = Forecaster(small(training__clip_norm=1e9), learning_rate=1e9).fit(panel)
    assert forecaster.result_.outcome == "diverged"
    assert forecaster.result_.reason
    assert all(math.isfinite(v) for row in forecaster.result_.history for v in row.values() if v is not None)
    assert forecaster.predict(panel)["forecast"].drop_nulls().is_finite().all()


def test_a_planted_leak_is_found_within_seconds() -> None:
    simulation = simulate(num_assets=10, num_days=600, r2=0.02, seed=0)
    ordered = simulation.panel.frame.sort("asset", "date").with_columns(
        leak=pl.col("close").log().diff().shift(-1).over("asset").fill_null(0.0)
    )
    panel = Panel(ordered)
    experiment = small(training__steps=150, training__learning_rate=3e-3)
    honest = Forecaster(experiment, features=["return_1"], target="log_return").fit(panel)
    leaking = Forecaster(experiment, features=["return_1", "leak"], target="log_return").fit(panel)
    assert share_explained(honest, panel) < 0.1
    assert share_explained(leaking, panel) > 0.5


def share_explained(forecaster: Forecaster, panel: Panel) -> float:
    frame = forecaster.evaluate_frame(panel, start=panel.dates[-60])
    error = ((frame["realised"] - frame["forecast"]) ** 2).sum()
    return 1 - error / (frame["realised"] ** 2).sum()


@pytest.mark.parametrize(("batch_size", "windows"), [(16, 16), (100, 64)])
def test_a_profile_asks_for_no_more_memory_than_a_step(
    panel: Panel, monkeypatch: pytest.MonkeyPatch, batch_size: int, windows: int
) -> None:
    asked = []

    class Spy(Profiler):
        def __call__(self, model: Any, step: int, update: Any) -> list[dict[str, Any]]:
            asked.append((step, len(self._inputs)))
            return super().__call__(model, step, update)

    monkeypatch.setattr("fints.fitting.Profiler", Spy)
    Forecaster(small(training__batch_size=batch_size), depth=1, steps=20).fit(panel[:"2009-12-31"])
    assert asked == [(0, windows), (20, windows)]


def test_memory_that_runs_out_in_the_first_profile_fails_no_fit(
    panel: Panel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def short(*arguments: object, **more: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    # The package has a function of the module's name.
    monkeypatch.setattr(importlib.import_module("fints.diagnostics.profile"), "branch_gradient_norms", short)
    result = Forecaster(small(), depth=1, steps=20).fit(panel[:"2009-12-31"]).result_
    assert (result.outcome, result.profiles) == ("finished", [])
    assert result.reason == "all 20 steps taken; memory ran out in the profile of step 0, 20"

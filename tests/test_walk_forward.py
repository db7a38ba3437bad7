"""A walk-forward forecaster knows at each date what a backtest could have known."""

from __future__ import annotations

import datetime as dt
import itertools
import shutil
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal
from sklearn.exceptions import NotFittedError

import fints
from fints import Forecaster
from fints.config import Experiment, override
from fints.data import Panel, load
from fints.walk_forward import WalkForwardForecaster, load_walk_forward

START = "2010-02-15"
SMALL = override(
    Experiment(),
    {
        "model.width": 8,
        "model.num_heads": 2,
        "model.depth": 1,
        "data.context": 4,
        "data.features": ["return_1", "log_volatility_21", "rank_return_1"],
        "training.steps": 6,
        "training.warmup_steps": 1,
        "training.evaluate_every": 3,
        "training.batch_size": 16,
    },
)


def small(**settings: object) -> WalkForwardForecaster:
    return WalkForwardForecaster(Forecaster(SMALL, seed=5), **{"refit_every": "month", **settings})


@pytest.fixture(scope="module")
def panel() -> Panel:
    return load("sp500-20")["2009-01-01":"2010-05-14"]


@pytest.fixture(scope="module")
def walk(panel: Panel) -> WalkForwardForecaster:
    return small(num_seeds=2).fit(panel, start=START)


def test_a_refit_begins_each_period_and_sees_only_what_came_before(panel: Panel) -> None:
    assert small().schedule(panel, START) == [
        (dt.date(2010, 2, 16), dt.date(2010, 2, 12)),
        (dt.date(2010, 3, 1), dt.date(2010, 2, 26)),
        (dt.date(2010, 4, 1), dt.date(2010, 3, 31)),
        (dt.date(2010, 5, 3), dt.date(2010, 4, 30)),
    ]
    assert [first for first, _ in small(refit_every="quarter").schedule(panel, START)] == [
        dt.date(2010, 2, 16),
        dt.date(2010, 4, 1),
    ]
    every = small(refit_every=20).schedule(panel, START, "2010-04-30")
    places = [panel.dates.search_sorted(first) for first, _ in every]
    assert [b - a for a, b in itertools.pairwise(places)] == [20, 20]


def test_each_forecast_is_the_mean_of_seeds_fitted_on_the_rows_before_the_refit(
    panel: Panel, walk: WalkForwardForecaster
) -> None:
    table = walk.predict(panel)
    assert table["decision_time"].min() == dt.date(2010, 2, 16)
    first, last, as_of = dt.date(2010, 4, 1), dt.date(2010, 4, 30), "2010-03-31"
    members = [Forecaster(SMALL, seed=seed).fit(panel[:as_of]) for seed in (5, 6)]
    one, two = (member.predict(panel, start=first, end=last)["forecast"] for member in members)
    april = table.filter(pl.col("decision_time").is_between(first, last))
    assert (april["forecast"] - (one + two) / 2).abs().max() < 1e-15
    assert (april["seed_spread"] - (one - two).abs() / 2**0.5).abs().max() < 1e-15
    assert (table["model_as_of"] < table["decision_time"]).all()
    assert (table["available_at"] == table["decision_time"]).all()


def test_prices_from_a_date_on_change_no_forecast_before_it(
    panel: Panel, walk: WalkForwardForecaster
) -> None:
    cut = dt.date(2010, 3, 17)
    late = pl.col("date") > cut
    shocked = Panel(
        panel.frame.with_columns(pl.when(late).then(pl.col("close") * 1000).otherwise(pl.col("close")))
    )
    before = walk.predict(panel, end=cut)
    assert_frame_equal(
        small(num_seeds=2).fit(shocked, start=START).predict(shocked, end=cut), before, check_exact=True
    )
    assert_frame_equal(
        small(num_seeds=2).fit(panel[:cut], start=START).predict(panel[:cut]), before, check_exact=True
    )


def test_a_rolling_window_forgets_what_is_older(panel: Panel) -> None:
    old = pl.col("date") < dt.date(2009, 6, 1)
    changed = Panel(
        panel.frame.with_columns(pl.when(old).then(pl.col("close") * 2).otherwise(pl.col("close")))
    )
    rolling, growing = ({"train_days": 100}, {})
    tables = [
        [small(**kind).fit(one, start="2010-05-03").predict(one)["forecast"] for one in (panel, changed)]
        for kind in (rolling, growing)
    ]
    assert tables[0][0].equals(tables[0][1])
    assert not tables[1][0].equals(tables[1][1])


def test_a_folder_keeps_finished_fits_and_a_longer_panel_adds_only_the_new(
    panel: Panel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small().fit(panel[:"2010-04-15"], start=START, folder=tmp_path)
    fitted, original = [], Forecaster.fit
    monkeypatch.setattr(
        Forecaster,
        "fit",
        lambda self, seen, **given: fitted.append(seen.dates[-1]) or original(self, seen, **given),
    )
    seen = []
    walk = small().fit(panel, start=START, folder=tmp_path, on_refit=seen.append)
    assert fitted == [dt.date(2010, 4, 30)]
    assert [refit.first for refit in seen] == [first for first, _ in walk.schedule(panel, START)]
    assert_frame_equal(walk.predict(panel), small().fit(panel, start=START).predict(panel), check_exact=True)


def test_a_saved_one_forecasts_the_same_bits(
    panel: Panel, walk: WalkForwardForecaster, tmp_path: Path
) -> None:
    walk.save(tmp_path / "saved")
    again = load_walk_forward(walk.save(tmp_path / "saved"))
    assert again.refits_ == walk.refits_
    assert_frame_equal(again.predict(panel), walk.predict(panel), check_exact=True)
    (tmp_path / "other").mkdir()
    with pytest.raises(ValueError, match="is not a saved walk-forward forecaster"):
        walk.save(tmp_path / "other")
    with pytest.raises(ValueError, match=r"holds no walk_forward\.json"):
        load_walk_forward(tmp_path / "other")


def test_outcomes_are_those_of_the_panel(panel: Panel, walk: WalkForwardForecaster) -> None:
    frame = walk.evaluate_frame(panel)
    reference = Forecaster(SMALL).fit(panel).evaluate_frame(panel, "2010-02-16")
    assert_frame_equal(frame.drop("forecast"), reference.drop("forecast"), check_exact=True)
    table = walk.predict(panel).rename({"decision_time": "date"})
    joined = frame.join(table.select("date", "asset", inner="forecast"), on=["date", "asset"])
    assert len(joined) == len(frame) > 0
    assert (joined["forecast"] * joined["unit_scale"] - joined["inner"]).abs().max() < 1e-15


def test_diverged_seeds_are_no_members_and_none_left_is_an_error(panel: Panel) -> None:
    wild = WalkForwardForecaster(
        Forecaster(SMALL, learning_rate=1e30, seed=5), refit_every="year", num_seeds=2
    )
    with pytest.raises(ValueError, match=r"no fit of the refit at 2010-05-03 succeeded \(seed 5: "):
        wild.fit(panel, start="2010-05-01")


@pytest.mark.parametrize(
    ("settings", "start", "message"),
    [
        ({"refit_every": "week"}, START, "one of month, quarter, year or a number of dates; got 'week'"),
        ({"refit_every": 0}, START, "got 0"),
        ({"num_seeds": 0}, START, "num_seeds must be a whole number of at least 1; got 0"),
        ({"train_days": 1.5}, START, "train_days must be a whole number of at least 1; got 1.5"),
        ({}, "2009-01-01", "needs dates of the panel before start"),
        ({}, "2011-01-01", "needs dates of the panel before start and from it on"),
    ],
)
def test_what_cannot_be_done_is_said(panel: Panel, settings: dict, start: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        small(**settings).fit(panel, start=start)


def test_an_unfitted_one_says_so_and_early_dates_have_no_model(
    panel: Panel, walk: WalkForwardForecaster
) -> None:
    with pytest.raises(NotFittedError):
        small().predict(panel)
    with pytest.raises(ValueError, match="lies at or after the first refit, 2010-02-16"):
        walk.predict(panel, end="2010-01-31")


def test_a_refit_with_a_single_surviving_seed_forecasts_beside_whole_ones(
    panel: Panel, walk: WalkForwardForecaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = min(walk.members_)
    left = {day: members[: 1 if day == first else 2] for day, members in walk.members_.items()}
    monkeypatch.setattr(walk, "members_", left)
    table = walk.predict(panel)
    second = pl.col("decision_time") >= sorted(left)[1]
    assert table.filter(~second)["seed_spread"].null_count() == table.filter(~second).height > 0
    assert table.filter(second & pl.col("forecast").is_not_null())["seed_spread"].null_count() == 0
    alone = left[first][0].predict(panel, start=first, end=table.filter(~second)["decision_time"].max())
    assert_frame_equal(table.filter(~second).drop("seed_spread"), alone, check_exact=True)


@pytest.mark.parametrize("damage", ["no weights", "cut weights", "cut note"])
def test_a_damaged_fit_is_fitted_again_and_never_taken_for_one_that_failed(
    panel: Panel, tmp_path: Path, damage: str
) -> None:
    short = panel[:"2010-03-31"]
    want = small(num_seeds=2).fit(short, start=START, folder=tmp_path).predict(short)
    fit = next(path for path in sorted(tmp_path.iterdir()) if path.is_dir())
    if damage == "no weights":
        shutil.rmtree(fit)
    elif damage == "cut weights":
        (fit / "weights.safetensors").write_bytes(b"cut")
    else:
        fit.with_suffix(".json").write_text("{")
    again = small(num_seeds=2).fit(short, start=START, folder=tmp_path)
    assert [len(members) for members in again.members_.values()] == [2, 2]
    assert_frame_equal(again.predict(short), want, check_exact=True)


def test_fints_load_reads_both_kinds_of_forecaster(
    panel: Panel, walk: WalkForwardForecaster, tmp_path: Path
) -> None:
    both = fints.load(walk.save(tmp_path / "walk"))
    assert isinstance(both, WalkForwardForecaster)
    assert_frame_equal(both.predict(panel), walk.predict(panel), check_exact=True)
    one = next(iter(walk.members_.values()))[0]
    assert isinstance(fints.load(one.save(tmp_path / "one")), Forecaster)
    with pytest.raises(ValueError, match="is not a saved forecaster"):
        fints.load(tmp_path)

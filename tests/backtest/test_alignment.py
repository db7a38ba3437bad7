"""Forecasts stand on an engine's dates and assets, or are refused with the reason and the remedy."""

from __future__ import annotations

import datetime as dt

import numpy as np
import pandas as pd
import polars as pl
import pytest

from fints.backtest import align, align_prices, wide
from fints.backtest.execution import CONVENTIONS, delayed, traded
from fints.backtest.prices import REQUIREMENTS, require


def close(market) -> pd.DataFrame:
    return wide(market.long(), "close")


@pytest.mark.parametrize("seed", range(5))
def test_every_forecast_stands_in_its_own_cell(new_market, seed: int) -> None:
    market = new_market(30, 5, seed)
    rng = np.random.default_rng(seed)
    values = np.where(rng.random(market.close.shape) < 0.1, np.nan, market.signal())
    shuffled = market.with_forecasts(values).sample(fraction=1.0, shuffle=True, seed=seed)
    order = rng.permutation(5)
    prices = close(market).iloc[:, order]
    aligned = align_prices(shuffled, prices)
    np.testing.assert_array_equal(aligned.values, values[:, order])
    assert aligned.assets == [market.assets[k] for k in order]
    assert aligned.left_out == {}
    assert aligned.horizon == 1


def test_wide_prices_are_the_long_ones_with_nan_where_no_row_is(market) -> None:
    panel = market.long().filter(~((pl.col("asset") == "A1") & (pl.col("date") < market.dates[7])))
    found = wide(panel.sample(fraction=1.0, shuffle=True, seed=0), "close")
    truth = market.close.copy()
    truth[:7, 1] = np.nan
    np.testing.assert_array_equal(found.to_numpy(), truth)
    assert list(found.columns) == market.assets
    assert found.index.date.tolist() == market.dates
    with pytest.raises(ValueError, match="twice"):
        wide(panel.vstack(panel.head(1)), "close")
    with pytest.raises(ValueError, match="lacks volume"):
        wide(panel, "volume")


@pytest.mark.parametrize(
    "dates",
    [
        pl.col("date").cast(pl.String),
        pl.col("date").cast(pl.Datetime("ns")),
        pl.col("date").dt.strftime("%Y-%m-%dT00:00:00"),
    ],
    ids=["ISO text", "midnight", "ISO text with midnight"],
)
def test_dates_may_be_text_or_midnights(market, dates: pl.Expr) -> None:
    table = market.forecasts.with_columns(dates.alias("date"))
    np.testing.assert_array_equal(align_prices(table, close(market)).values, market.signal())


def test_names_of_other_libraries_are_understood(market) -> None:
    table = market.forecasts.rename({"date": "datetime", "asset": "instrument", "forecast": "score"})
    np.testing.assert_array_equal(align_prices(table, close(market)).values, market.signal())


def test_numbers_as_names_of_assets_match(market) -> None:
    numbers = {name: 10_000 + k for k, name in enumerate(market.assets)}
    table = market.forecasts.with_columns(pl.col("asset").replace_strict(numbers))
    aligned = align_prices(table, close(market).rename(columns=numbers))
    np.testing.assert_array_equal(aligned.values, market.signal())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: p.tz_localize("UTC"), r"in zone UTC .*tz_convert"),
        (lambda p: p.tz_localize("America/New_York"), "in zone America/New_York"),
        (lambda p: p.set_axis([str(day.date()) for day in p.index]), "str such as '2021-03-01'.*to_datetime"),
        (lambda p: p.set_axis(range(len(p))), "must be a DatetimeIndex; got int"),
        (lambda p: p.set_axis(p.index + pd.Timedelta(hours=16)), "got the time 2021-03-01 16:00:00"),
        (lambda p: p.iloc[[0, 0, *range(1, len(p))]], "date 2021-03-01 twice"),
        (lambda p: p.iloc[::-1], "must ascend"),
        (lambda p: p.set_axis(["A0", "A0", "A2", "A3"], axis=1), "column A0 twice"),
        (lambda p: pd.concat({"Close": p}, axis=1), "got 2 levels"),
        (lambda p: p * 0, "above 0"),
        (lambda p: p.iloc[:0], "no date or no asset"),
        (lambda p: pl.from_numpy(p.to_numpy()), "must be a pandas DataFrame.*wide makes one"),
        (lambda p: p.rename(columns=str.lower), "no asset A0; did you mean a0"),
        (lambda p: p.set_axis([f"XYZ{k}" for k in range(4)], axis=1), "its assets are XYZ0, XYZ1"),
        (lambda p: p.set_axis(p.index - pd.Timedelta(days=365)), "engine's dates run from 2020"),
    ],
)
def test_prices_that_cannot_be_meant_are_refused(market, change, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        align_prices(market.forecasts, change(close(market)))


@pytest.mark.parametrize("days", [-1, 1])
def test_dates_of_another_zone_fall_on_weekends_and_are_refused(market, days: int) -> None:
    moved = market.forecasts.with_columns(pl.col("date").dt.offset_by(f"{days}d"))
    with pytest.raises(ValueError, match="Saturday or Sunday: are the dates those of another time zone"):
        align_prices(moved, close(market))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.head(0), "no row"),
        (lambda t: t.with_columns(forecast=pl.lit(float("nan"))), "no row can be judged"),
        (lambda t: t.with_columns(forecast=pl.lit(float("inf"))), "infinite"),
        (lambda t: t.vstack(t.head(1)), "repeat"),
        (lambda t: t.with_columns(pl.col("date").cast(pl.Datetime).dt.replace_time_zone("UTC")), "time zone"),
        (lambda t: t.with_columns(date=pl.format("{}T16:00:00-05:00", "date")), "time zone"),
        (lambda t: t.drop("forecast"), "forecast"),
        (lambda t: t.to_pandas(), "must be a polars DataFrame; got pandas DataFrame"),
        (lambda t: t.with_columns(horizon=pl.int_range(pl.len()) % 2 + 1), "horizons"),
        (lambda t: t.with_columns(available_at=pl.col("date").dt.offset_by("1d")), "available_at"),
    ],
)
def test_forecasts_that_cannot_be_meant_are_refused(market, change, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        align_prices(change(market.forecasts), close(market))


@pytest.mark.parametrize("column", ["available_at", "model_as_of"])
def test_a_single_forecast_that_was_not_there_in_time_is_refused(market, column: str) -> None:
    seen = pl.col("date").dt.offset_by("-1d")
    honest = market.forecasts.with_columns(seen.alias(column))
    np.testing.assert_array_equal(align_prices(honest, close(market)).values, market.signal())
    late = pl.when(pl.int_range(pl.len()) == 17).then(pl.col("date").dt.offset_by("1d")).otherwise(seen)
    with pytest.raises(ValueError, match=r"^1 forecasts could not have been made on their date"):
        align_prices(market.forecasts.with_columns(late.alias(column)), close(market))


def test_ninety_five_in_a_hundred_must_match_and_the_rest_are_counted(market) -> None:
    table = market.forecasts
    odd = pl.DataFrame({"date": [dt.date(2021, 3, 6)] * 8, "asset": [f"B{k}" for k in range(8)]})
    odd = odd.with_columns(forecast=pl.lit(0.0))
    aligned = align_prices(table.vstack(odd), close(market))
    np.testing.assert_array_equal(aligned.values, market.signal())
    assert aligned.left_out == {"not among the engine's dates and assets": 8}
    with pytest.raises(ValueError, match=r"only 94\.\d % of the 169 .* First without: 2021-03-06 B0"):
        align_prices(table.vstack(odd).vstack(odd.with_columns(asset=pl.lit("C")).head(1)), close(market))


def test_a_gap_is_refused_unless_the_horizon_spans_it(market) -> None:
    values = market.signal()
    values[np.arange(len(values)) % 5 > 0] = np.nan
    weekly = market.with_forecasts(values)
    with pytest.raises(ValueError, match=r"22 % of .* The first without is 2021-03-02.*give horizon"):
        align_prices(weekly, close(market))
    np.testing.assert_array_equal(align_prices(weekly, close(market), horizon=5).values, values)


def test_prices_with_weekends_are_refused(market) -> None:
    prices = close(market)
    with pytest.raises(ValueError, match="rows for weekends or holidays, drop those"):
        align_prices(market.forecasts, prices.asfreq("D").ffill())


def test_the_three_executions_trade_where_they_say(market) -> None:
    opens, closes = wide(market.long(), "open"), close(market)
    assert {name: traded(closes, opens, name)[1] for name in CONVENTIONS} == {
        "next_open": 1,
        "next_close": 1,
        "same_close": 0,
    }
    assert traded(closes, opens, "next_open")[0] is opens
    assert traded(closes, None, "next_close")[0] is closes
    with pytest.raises(ValueError, match=r"trades at the open and open = None.*next_close"):
        traded(closes, None, "next_open")
    with pytest.raises(ValueError, match="unknown execution 'close'"):
        traded(closes, opens, "close")
    with pytest.raises(ValueError, match="same assets in the same order"):
        traded(closes, opens.iloc[:, ::-1], "next_open")
    with pytest.raises(ValueError, match="same dates"):
        traded(closes, opens.iloc[1:], "next_open")


@pytest.mark.parametrize("delay", [0, 1, 2])
def test_a_delay_moves_rows_later_and_never_earlier(delay: int) -> None:
    values = np.random.default_rng(0).normal(size=(7, 3))
    later = delayed(values, delay)
    assert np.isnan(later[:delay]).all()
    np.testing.assert_array_equal(later[delay:], values[: 7 - delay])


def test_an_absent_library_is_one_sentence_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, requirement in REQUIREMENTS.items():
        monkeypatch.setitem(__import__("sys").modules, name, None)
        with pytest.raises(ModuleNotFoundError) as caught:
            require(name)
        assert str(caught.value) == f"this adapter needs {name}: pip install '{requirement}'."


def test_forecasts_after_the_last_trade_change_nothing(market) -> None:
    prices = close(market)
    values = market.signal()
    values[-1] = 1e9
    early = [
        align(t, market.dates, market.assets).values
        for t in (market.forecasts, market.with_forecasts(values))
    ]
    np.testing.assert_array_equal(delayed(early[0], 1), delayed(early[1], 1))
    assert len(prices) == len(early[0])

"""Anyone's table enters by one door: unsorted, renamed, in CSV types; what is unusable is refused."""

from __future__ import annotations

import datetime as dt

import numpy as np
import polars as pl
import pytest

from fints.evaluation import forecast_table, join_outcomes

DATES = [dt.date(2020, 1, 1) + dt.timedelta(days=day) for day in range(50)]


def plain() -> pl.DataFrame:
    rng = np.random.default_rng(0)
    return pl.DataFrame(
        {
            "date": [day for day in DATES for _ in range(4)],
            "asset": ["A", "B", "C", "D"] * 50,
            "forecast": rng.standard_normal(200),
            "realised": rng.standard_normal(200),
        }
    )


@pytest.mark.parametrize(
    "damage",
    [
        lambda t: t.sample(fraction=1, shuffle=True, seed=1),
        lambda t: t.select("realised", "forecast", "asset", "date"),
        lambda t: t.with_columns(pl.col("date").cast(pl.String)),
        lambda t: t.with_columns(pl.col("date").cast(pl.String) + " 00:00:00"),
        lambda t: t.with_columns(pl.col("date").cast(pl.Datetime)),
        lambda t: t.rename({"date": "decision_time", "asset": "Ticker", "forecast": "PRED", "realised": "y"}),
        lambda t: t.with_columns(pl.col("asset").cast(pl.Categorical), horizon=1, extra=pl.lit("x")),
        lambda t: pl.concat([t, t.with_columns(forecast=pl.lit(None, pl.Float64), asset=pl.lit("E"))]),
        lambda t: pl.concat([t, t.with_columns(forecast=float("nan"), asset=pl.lit("E"))]),
    ],
)
def test_a_table_in_any_dress_is_the_same_table(damage):
    assert forecast_table(damage(plain())).frame.equals(plain())


def test_columns_of_other_names_are_named_by_option_and_told():
    table = plain().rename({"forecast": "alpha", "asset": "who", "realised": "ret"}).with_columns(pred=0.0)
    names = {"forecast": "alpha", "asset": "who", "realised": "ret"}
    found = forecast_table(table, names=names)
    assert found.frame.equals(plain())
    assert found.read_as == {"date": "date", **{k: names[k] for k in ("asset", "forecast", "realised")}}
    with pytest.raises(ValueError, match=r"recognised as asset; .*--asset COLUMN"):
        forecast_table(table)
    with pytest.raises(ValueError, match="no column 'beta'"):
        forecast_table(table, names={**names, "forecast": "beta"})


def test_rows_that_were_made_after_their_date_are_left_out_and_counted():
    late = plain().with_columns(
        available_at=pl.when(pl.col("date") < DATES[10]).then(pl.lit(DATES[10])).otherwise("date")
    )
    found = forecast_table(late)
    assert found.frame["date"].min() == DATES[10]
    assert found.left_out == {"made after their date (available_at)": 40}


def test_one_horizon_is_judged_at_a_time():
    both = pl.concat([plain().with_columns(horizon=1), plain().with_columns(horizon=5, forecast=0.5)])
    with pytest.raises(ValueError, match=r"horizons \[1, 5\]; choose one: --horizon 1"):
        forecast_table(both)
    found = forecast_table(both, horizon=5)
    assert (found.horizon, found.frame["forecast"].unique().to_list()) == (5, [0.5])
    with pytest.raises(ValueError, match="no forecast of horizon 2"):
        forecast_table(both, horizon=2)
    assert forecast_table(plain()).horizon is None


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda t: pl.concat([t, t[:3]]), "6 rows repeat a .date, asset., first 2020-01-01 A"),
        (lambda t: t.with_columns(forecast=pl.lit(float("inf"))), "infinite forecasts"),
        (lambda t: t.with_columns(forecast=pl.lit("up")), "must hold numbers; got String"),
        (lambda t: t.with_columns(forecast=pl.lit(None, pl.Float64)), "200 without a forecast"),
        (lambda t: t.with_columns(date=pl.lit("1/2/2020")), "ISO dates such as 2012-01-31; got '1/2/2020'"),
        (lambda t: t.with_columns(date=pl.lit("2020-01-02T00:00:00+01:00")), "carries a time zone"),
        (
            lambda t: t.with_columns(pl.col("date").cast(pl.Datetime).dt.replace_time_zone("UTC")),
            "carries a time zone",
        ),
        (
            lambda t: t.with_columns(pl.col("date").cast(pl.Datetime) + pl.duration(hours=16)),
            "got the time 2020-01-01 16:00",
        ),
        (lambda t: t.with_columns(date=20200101), "must hold dates; got Int"),
        (lambda t: t.with_columns(asset=pl.lit(None, pl.String)), "200 rows without a value"),
        (lambda t: t.with_columns(horizon=0.5), "whole numbers of at least 1"),
        (lambda t: t.clear(), "has no row"),
    ],
)
def test_what_cannot_be_judged_is_refused_with_the_reason(damage, message: str):
    with pytest.raises(ValueError, match=message):
        forecast_table(damage(plain()))


def test_outcomes_of_the_panel_take_the_place_of_the_table_s():
    outcomes = plain().select("date", "asset", realised=2 * pl.col("realised"))
    late = pl.col("date") == DATES[-1]
    outcomes = outcomes.with_columns(pl.when(~late).then("realised").alias("realised"), known=pl.lit(1))
    found = join_outcomes(
        forecast_table(plain().reverse()), outcomes.sample(fraction=1, shuffle=True, seed=2)
    )
    assert found.frame.columns == ["date", "asset", "forecast", "realised", "known"]
    assert found.frame["realised"].drop_nulls().to_list() == (2 * plain()["realised"][:-4]).to_list()
    assert found.left_out == {"without an outcome yet": 4}


def test_keys_that_overlap_less_than_95_percent_are_refused_with_the_first_that_do_not():
    outcomes = plain().select("date", "asset", "realised")
    table = forecast_table(plain())
    assert join_outcomes(table, outcomes[10:]).left_out == {"not in the panel": 10}
    with pytest.raises(
        ValueError, match=r"only 94\.5 % of the 200 .*First without: 2020-01-01 A, 2020-01-01 B"
    ):
        join_outcomes(table, outcomes[11:])
    with pytest.raises(ValueError, match=r"no date 2020-01-01; its dates run from 2020-01-04"):
        join_outcomes(table, outcomes.filter(pl.col("date") > DATES[2]))
    with pytest.raises(ValueError, match=r"The panel has no asset A, B, C; its assets are a, b, c"):
        join_outcomes(table, outcomes.with_columns(pl.col("asset").str.to_lowercase()))
    with pytest.raises(ValueError, match=r"only 0\.0 %"):
        join_outcomes(table, outcomes.with_columns(pl.col("date") + pl.duration(days=500)))

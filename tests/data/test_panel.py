"""The door: what is a panel, what is not, and that its checksum is its content."""

from __future__ import annotations

import datetime as dt
from zoneinfo import ZoneInfo

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fints.data import Panel

DAY = dt.date(2001, 2, 3)


def frame(**changes: object) -> pl.DataFrame:
    columns: dict[str, object] = {
        "date": [DAY, DAY, DAY + dt.timedelta(days=1)],
        "asset": ["B", "A", "A"],
        "close": [1.0, 2.0, 3.0],
        "volume": [5, 6, None],
    }
    return pl.DataFrame(columns | changes)


def test_a_panel_is_sorted_by_date_and_asset_and_holds_float64():
    panel = Panel(frame())
    assert panel.frame.rows() == [
        (DAY, "A", 2.0, 6.0),
        (DAY, "B", 1.0, 5.0),
        (DAY + dt.timedelta(days=1), "A", 3.0, None),
    ]
    assert panel.frame.schema == {
        "date": pl.Date,
        "asset": pl.String,
        "close": pl.Float64,
        "volume": pl.Float64,
    }
    assert panel.assets == ["A", "B"]
    assert panel.dates.to_list() == [DAY, DAY + dt.timedelta(days=1)]
    assert panel.feature_columns == ["volume"]


def test_a_panel_of_one_counts_in_the_singular():
    assert "1 date from 2001-02-03 to 2001-02-03, 1 asset, 1 row, price" in repr(Panel(frame()[:1]))
    assert "2 dates from 2001-02-03 to 2001-02-04, 2 assets, 3 rows, price" in repr(Panel(frame()))


def test_midnights_categories_integers_and_nan_become_days_text_numbers_and_null():
    panel = Panel(
        frame().with_columns(
            pl.col("date").cast(pl.Datetime("us")),
            pl.col("asset").cast(pl.Categorical),
            volume=pl.Series([1.0, float("nan"), 3.0]),
        )
    )
    assert panel.frame["date"].dtype == pl.Date
    assert panel.frame["asset"].dtype == pl.String
    assert panel.frame["volume"].to_list() == [None, 1.0, 3.0]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"close": [1.0, 0.0, 3.0]}, ["close is not above 0", "(2001-02-03, A) = 0", "null"]),
        ({"close": [1.0, 2.0, -3.5]}, ["(2001-02-04, A) = -3.5", "CRSP", "absolute value"]),
        ({"close": [1.0, float("inf"), 3.0]}, ["close is infinite", "(2001-02-03, A)"]),
        ({"volume": [1.0, 2.0, float("-inf")]}, ["volume is infinite", "(2001-02-04, A)"]),
        ({"close": [None, None, None]}, ["close is null in every row", "price="]),
        ({"date": [DAY, None, DAY]}, ["date or asset is missing"]),
        ({"asset": ["A", None, "A"]}, ["date or asset is missing"]),
        ({"asset": ["B", " ", "A"]}, ["name is empty"]),
        ({"date": ["2001-02-03"] * 3}, ["'date' must be of type Date", "str.to_date", "fints.data.read"]),
        ({"asset": [1, 2, 3]}, ["'asset' must be text", "cast(pl.String)"]),
        ({"volume": ["a", "b", "c"]}, ["'volume' must hold numbers", "'a'", "drop it"]),
    ],
)
def test_a_broken_rule_is_named_with_its_first_row_and_a_remedy(changes, said):
    with pytest.raises(ValueError, match=r"^panel: ") as caught:
        Panel(frame(**changes))
    for words in said:
        assert words in str(caught.value)


def test_the_first_repeated_keys_are_named():
    twice = pl.concat([frame(), frame()[:2]])
    with pytest.raises(
        ValueError, match=r"more than once in 4 rows, first \(2001-02-03, B\), \(2001-02-03, A\)"
    ):
        Panel(twice)


def test_dates_with_a_zone_are_refused_with_the_conversion_to_write():
    zoned = frame(date=[dt.datetime(2001, 2, day, 21, tzinfo=ZoneInfo("UTC")) for day in (3, 4, 5)])
    with pytest.raises(ValueError, match=r"no time zone; got UTC.*convert_time_zone"):
        Panel(zoned)


def test_times_of_day_are_refused():
    with pytest.raises(ValueError, match=r"whole days; got 2001-02-03 09:30:00"):
        Panel(frame(date=[dt.datetime(2001, 2, 3, 9, 30), dt.datetime(2001, 2, 4), dt.datetime(2001, 2, 5)]))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("close", "Close", "needs a column 'close'.*Is it 'Close'\\? Rename it, or say price='Close'"),
        ("close", "clsoe", "Is it 'clsoe'"),
        ("asset", "assett", "needs a column 'asset'.*Is it 'assett'\\? Rename it\\."),
        ("date", "day", "needs a column 'date'"),
    ],
)
def test_a_missing_column_is_answered_with_the_nearest(old, new, said):
    with pytest.raises(ValueError, match=said):
        Panel(frame().rename({old: new}))


def test_the_price_column_may_have_any_name():
    panel = Panel(frame().rename({"close": "px"}), price="px")
    assert panel.price == "px"
    assert panel.feature_columns == ["volume"]


def test_an_empty_frame_is_refused():
    with pytest.raises(ValueError, match="at least one row"):
        Panel(frame()[:0])


def test_pandas_and_lazy_frames_are_refused_with_the_conversion():
    pandas = pytest.importorskip("pandas")
    with pytest.raises(ValueError, match=r"pl\.from_pandas"):
        Panel(pandas.DataFrame({"date": []}))
    with pytest.raises(ValueError, match=r"\.collect\(\)"):
        Panel(frame().lazy())


def test_one_asset_and_one_day_make_a_panel():
    panel = Panel(frame()[:1])
    assert (len(panel), panel.assets) == (1, ["B"])


def test_an_asset_without_any_price_stays_in_the_panel():
    panel = Panel(frame(close=[None, 2.0, 3.0]))
    assert panel.assets == ["A", "B"]


def test_a_slice_has_both_ends_and_years_mean_whole_years():
    days = [dt.date(2000, 12, 31), dt.date(2001, 1, 1), dt.date(2001, 12, 31), dt.date(2002, 1, 1)]
    panel = Panel(pl.DataFrame({"date": days, "asset": ["A"] * 4, "close": [1.0] * 4}))
    assert panel["2001-01-01":"2001-12-31"].dates.to_list() == days[1:3]
    assert panel["2001":"2001"].dates.to_list() == days[1:3]
    assert panel["2000-12":"2001-01"].dates.to_list() == days[:2]
    assert panel[: days[2]].dates.to_list() == days[:3]
    assert panel[days[3] :].dates.to_list() == days[3:]
    assert panel[:].checksum == panel.checksum


def test_a_slice_without_rows_says_where_the_panel_lies():
    with pytest.raises(ValueError, match="runs from 2001-02-03 to 2001-02-04"):
        Panel(frame())["2005":]
    with pytest.raises(ValueError, match=r"must be a datetime\.date or text"):
        Panel(frame())["yesterday":]


@given(order=st.permutations(range(3)), columns=st.permutations(["date", "asset", "close", "volume"]))
def test_the_checksum_does_not_depend_on_the_order_of_rows_or_columns(order, columns):
    assert Panel(frame()[list(order)].select(columns)).checksum == Panel(frame()).checksum


@pytest.mark.parametrize(
    "other",
    [
        frame(close=[1.0, 2.0, 3.0000000000000004]),
        frame(asset=["B", "A", "AA"])[[0, 1, 2]],
        frame(volume=[5, 6, 0]),
        frame().rename({"volume": "turnover"}),
        frame(date=[DAY, DAY, DAY + dt.timedelta(days=2)]),
        frame()[:2],
    ],
)
def test_the_checksum_depends_on_every_value_name_and_null(other):
    assert Panel(other).checksum != Panel(frame()).checksum


def test_a_negative_zero_is_a_zero_to_the_checksum():
    assert Panel(frame(volume=[-0.0, 6, 7])).checksum == Panel(frame(volume=[0.0, 6, 7])).checksum


def test_a_wide_frame_gives_the_long_panel_with_each_assets_own_history():
    wide = pl.DataFrame(
        {
            "date": [DAY, DAY + dt.timedelta(days=1), DAY + dt.timedelta(days=2)],
            "EARLY": [1.0, 2.0, None],
            "LATE": [None, float("nan"), 3],
            "NEVER": pl.Series([None, None, None], dtype=pl.Float64),
            "WHOLE": [1, 2, 3],
        }
    )
    panel = Panel.from_wide(wide)
    counts = dict(panel.frame.drop_nulls().group_by("asset").len().rows())
    assert counts == {"EARLY": 2, "LATE": 1, "WHOLE": 3}
    assert panel.assets == ["EARLY", "LATE", "NEVER", "WHOLE"]


def test_a_wide_frame_with_text_names_the_column():
    with pytest.raises(ValueError, match="column 'note' of a wide frame must hold an asset's prices"):
        Panel.from_wide(pl.DataFrame({"date": [DAY], "A": [1.0], "note": ["x"]}))
    with pytest.raises(ValueError, match="column of prices for each asset"):
        Panel.from_wide(pl.DataFrame({"date": [DAY]}))


@pytest.mark.parametrize("kind", ["simple", "log"])
def test_returns_come_back_from_the_prices_made_of_them(kind):
    returns = [0.01, -0.02, None, 0.03, -0.5]
    days = [DAY + dt.timedelta(days=day) for day in range(5)]
    panel = Panel.from_returns(pl.DataFrame({"date": days, "asset": ["A"] * 5, "return": returns}), kind=kind)
    prices = panel.frame["close"]
    assert prices.is_null().to_list() == [False, False, True, False, False]
    known = prices.drop_nulls()
    made = (known / known.shift(1) - 1) if kind == "simple" else (known.log() - known.log().shift(1))
    assert made.to_list()[1:] == pytest.approx([-0.02, 0.03, -0.5], rel=1e-12)
    assert panel.feature_columns == ["return"]


@pytest.mark.parametrize(
    ("returns", "said"),
    [
        ([1.2, -0.8, 2.0], "look like percent. Divide them by 100"),
        ([0.01, -1.0, 0.02], r"above -1; got -1 at \(2001-02-04, A\)"),
        ([0.01, float("inf"), 0.02], r"infinite at \(2001-02-04, A\)"),
        (["0.1", "B", "0.2"], "must be numeric"),
    ],
)
def test_impossible_returns_are_refused(returns, said):
    days = [DAY + dt.timedelta(days=day) for day in range(3)]
    with pytest.raises(ValueError, match=said):
        Panel.from_returns(pl.DataFrame({"date": days, "asset": ["A"] * 3, "return": returns}))

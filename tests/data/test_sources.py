"""Files people bring: read as what they are."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fints.data import Panel, read
from fints.data.sources import open_file

LONG = "date,asset,close,volume\n2001-02-03,A,1.5,10\n2001-02-03,B,2.5,\n2001-02-04,A,1.75,12\n"


@pytest.fixture
def write(tmp_path: Path):
    def to(text: str | bytes, name: str = "prices.csv") -> Path:
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return to


def test_a_long_file_is_read_with_its_features(write):
    panel = read(write(LONG))
    assert panel.name == "prices"
    assert panel.frame.rows() == [
        (panel.dates[0], "A", 1.5, 10.0),
        (panel.dates[0], "B", 2.5, None),
        (panel.dates[1], "A", 1.75, 12.0),
    ]


def test_every_spelling_of_one_panel_has_one_checksum(write):
    expected = read(write(LONG)).checksum
    spellings = {
        "mark.csv": "\ufeff" + LONG,
        "mac.csv": LONG.replace("\n", "\r"),
        "windows.csv": LONG.replace("\n", "\r\n"),
        "semicolon.csv": LONG.replace(",", ";").replace(".", ","),
        "tab.csv": LONG.replace(",", "\t"),
        "bar.csv": LONG.replace(",", "|"),
        "spaces.csv": LONG.replace(",", " , "),
        "capitals.csv": LONG.replace("date,asset,close", "Date,Ticker,Close"),
        "quoted.csv": LONG.replace("A", '"A"').replace("1.5", '"1.5"'),
        "index.csv": "\n".join(
            f"{'' if i == 0 else i - 1},{line}" for i, line in enumerate(LONG.splitlines())
        ),
        "na.csv": LONG.replace("2.5,\n", "2.5,NaN\n"),
        "blank.csv": "\n\n" + LONG.replace("\n2001-02-04", "\n\n2001-02-04") + "\n,,,\n",
        "trailing.csv": LONG.replace("\n", ",\n"),
        "reordered.csv": "\n".join([LONG.splitlines()[i] for i in (0, 3, 1, 2)]),
        "compact.csv": LONG.replace("2001-02-0", "2001020"),
        "slashes.csv": LONG.replace("2001-02-0", "2001/2/"),
        "dots.csv": LONG.replace("2001-02-03", "03.02.2001").replace("2001-02-04", "4.2.2001"),
        "words.csv": LONG.replace("2001-02-03", "03-Feb-2001").replace("2001-02-04", "4 feb 2001"),
        "midnight.csv": LONG.replace("2001-02-03", "2001-02-03 00:00:00").replace("-04", "-04T00:00"),
    }
    for name, text in spellings.items():
        assert read(write(text, name)).checksum == expected, name
    assert read(write(gzip.compress(LONG.encode()), "zipped.csv.gz")).checksum == expected
    assert read(write(LONG.encode("utf-16"), "sixteen.csv")).checksum == expected


def test_a_wide_file_and_its_long_form_are_one_panel(write):
    wide = "Date,A,B\n2001-02-03,1.5,2.5\n2001-02-04,1.75,\n"
    long = "date,asset,close\n2001-02-03,A,1.5\n2001-02-03,B,2.5\n2001-02-04,A,1.75\n"
    assert read(write(wide, "wide.csv")).checksum == read(write(long, "long.csv")).checksum
    unnamed = read(write(wide.replace("Date", ""), "unnamed.csv"))
    assert unnamed.checksum == read(write(long, "long.csv")).checksum


@settings(max_examples=20, deadline=None)
@given(
    prices=st.lists(
        st.none() | st.floats(min_value=5e-324, max_value=1e308, allow_subnormal=True), min_size=6, max_size=6
    ).filter(lambda prices: prices[0] is not None)
)
def test_a_panel_written_and_read_has_the_same_bits(tmp_path_factory, prices):
    folder = tmp_path_factory.mktemp("files")
    days = pl.date_range(pl.date(2001, 2, 3), pl.date(2001, 2, 5), eager=True)
    long = pl.DataFrame(
        {"date": [*days, *days], "asset": [*"AAABBB"], "close": prices},
        schema_overrides={"close": pl.Float64},
    )
    panel = Panel(long)
    long.write_csv(folder / "long.csv")
    long.write_parquet(folder / "long.parquet")
    assert read(folder / "long.csv").checksum == panel.checksum
    assert read(folder / "long.parquet").checksum == panel.checksum
    wide = long.pivot(on="asset", index="date", values="close")
    wide.write_csv(folder / "wide.csv")
    wide.write_parquet(folder / "wide.parquet")
    from_wide = Panel.from_wide(wide)
    assert read(folder / "wide.csv").checksum == from_wide.checksum
    assert read(folder / "wide.parquet").checksum == from_wide.checksum
    observed = Panel(long.filter(pl.col("close").is_not_null()))
    if observed.assets == panel.assets:
        assert from_wide.checksum == observed.checksum


def test_the_bars_of_one_asset_are_an_asset_named_by_the_file_not_a_wide_file(write):
    bars = "Date,Open,High,Low,Close,Volume\n2001-02-03,1,2,0.5,1.5,100\n2001-02-04,1,2,0.5,1.75,90\n"
    panel = read(write(bars, "AAPL.csv"))
    assert panel.assets == ["AAPL"]
    assert panel.feature_columns == ["Open", "High", "Low", "Volume"]
    with pytest.raises(ValueError, match=r"bars of one asset .* without a price column 'close'"):
        read(write(bars.replace("Close", "Adj Close"), "AAPL.csv"))
    assert len(read(write(bars.replace("Close", "Adj Close"), "AAPL.csv"), price="Adj Close")) == 2


def test_a_wide_file_may_hold_assets_named_like_fields(write):
    wide = "date,OPEN,NAME,close\n2001-02-03,1,2,3\n2001-02-04,2,3,4\n"
    assert read(write(wide), layout="wide").assets == ["NAME", "OPEN", "close"]


def test_an_asset_may_be_called_na_or_nan(write):
    panel = read(write(LONG.replace(",A,", ",NA,").replace(",B,", ",NaN,")))
    assert panel.assets == ["NA", "NaN"]


def test_day_and_month_are_told_apart_by_the_file_itself(write):
    rows = "date,asset,close\n{},A,1\n{},A,2\n"
    american = read(write(rows.format("02/03/2001", "02/13/2001")))
    european = read(write(rows.format("03/02/2001", "13/02/2001")))
    assert american.dates.to_list() == european.dates.to_list()
    assert str(american.dates[0]) == "2001-02-03"


def test_a_file_says_what_it_was_taken_for(write):
    assert open_file(write(LONG)).recognised == (
        "CSV separated by commas: long, assets in 'asset', price in 'close', dates in 'date' (YYYY-MM-DD)"
    )
    wide = open_file(write("Date;A;B\n03.02.2001;1,5;2,5\n"))
    assert wide.recognised == (
        "CSV separated by semicolons: wide, 2 columns of prices, dates in 'Date' (DD.MM.YYYY)"
    )
    assert wide.frame["close"].to_list() == [1.5, 2.5]


def test_parquet_written_by_pandas_is_read(tmp_path):
    pandas = pytest.importorskip("pandas")
    days = pandas.date_range("2001-02-03", periods=3, name="Date")
    wide = pandas.DataFrame({"A": [1.0, 2.0, np.nan], "B": [1, 2, 3]}, index=days)
    wide.to_parquet(tmp_path / "wide.parquet")
    assert (
        read(tmp_path / "wide.parquet").checksum
        == Panel.from_wide(
            pl.DataFrame({"date": days.date.tolist(), "A": [1.0, 2.0, None], "B": [1.0, 2.0, 3.0]})
        ).checksum
    )


def test_typed_parquet_columns_need_no_parsing(tmp_path):
    frame = pl.DataFrame(
        {"date": [20010203, 20010204], "asset": [10107, 10107], "close": [1, 2], "flag": [True, False]}
    )
    frame.write_parquet(tmp_path / "x.parquet")
    panel = read(tmp_path / "x.parquet")
    assert panel.assets == ["10107"]
    assert str(panel.dates[1]) == "2001-02-04"
    assert panel.frame["flag"].to_list() == [1.0, 0.0]

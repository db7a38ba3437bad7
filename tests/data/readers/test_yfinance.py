"""What yfinance writes, in every header it has had: read, or refused by line."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path
from zoneinfo import ZoneInfo

import polars as pl
import pytest

from fints.data import Repairs, read
from fints.data.sources import open_file

Write = Callable[..., Path]
Rows = Callable[..., list[tuple[object, ...]]]

MODERN = (
    "Price,Close,Close,High,High,Volume,Volume\n"
    "Ticker,AAPL,OPEN,AAPL,OPEN,AAPL,OPEN\n"
    "Date,,,,,,\n"
    "2024-03-08,170.5,2.5,173.7,2.6,76114600,100\n"
    "2024-03-11,172.75,,174.38,,60139500,\n"
)
BY_TICKER = (
    "Ticker,AAPL,AAPL,OPEN,OPEN\nPrice,Close,Volume,Close,Volume\nDate,,,,\n"
    "2024-03-08,170.5,76114600,2.5,100\n2024-03-11,172.75,60139500,,\n"
)
UNNAMED = (
    ",Adj Close,Adj Close,Close,Close\n,AAPL,OPEN,AAPL,OPEN\nDate,,,,\n"
    "2024-03-08,170.5,2.5,171,2.5\n2024-03-11,172.75,,173,\n"
)
TWO_ROWS = ",Close,Close\n,AAPL,OPEN\n2024-03-08,170.5,2.5\n2024-03-11,172.75,\n"
WANTED = [("2024-03-08", "AAPL", 170.5), ("2024-03-08", "OPEN", 2.5), ("2024-03-11", "AAPL", 172.75)]


@pytest.mark.parametrize(
    "text", [MODERN, BY_TICKER, UNNAMED, TWO_ROWS], ids=["price first", "ticker", "old", "two"]
)
def test_every_order_of_header_rows_is_one_panel(write: Write, rows: Rows, text: str) -> None:
    path = write(text)
    assert rows(path, "asset", "close") == WANTED
    assert "yfinance" in open_file(path).recognised


def test_an_adjusted_close_is_the_price_unless_the_other_is_named(write: Write, rows: Rows) -> None:
    path = write(UNNAMED)
    assert read(path).feature_columns == ["raw_close"]
    assert rows(path, "close", price="Close")[0] == ("2024-03-08", 171.0)
    single = write("Date,Open,High,Low,Close,Adj Close,Volume\n2024-03-08,1,2,1,1.5,1.25,9\n", "MSFT.csv")
    assert rows(single) == [("2024-03-08", "MSFT", 1.25)]


def test_a_ticker_named_like_a_field_is_told_by_the_names_of_the_levels_or_refused(
    write: Write, rows: Rows
) -> None:
    named = "Price,Close,Volume\nTicker,Open,Open\nDate,,\n2024-03-08,2.5,100\n"
    assert rows(write(named)) == [("2024-03-08", "Open", 2.5)]
    with pytest.raises(
        ValueError, match=r"both header rows hold names of fields .*'Close', 'Open'.*Name the levels"
    ):
        read(write(named.replace("Price", "").replace("Ticker", "")))


def test_stamps_with_an_offset_that_follows_summer_time_are_days_of_the_exchange(
    write: Write, rows: Rows
) -> None:
    text = MODERN.replace("Date", "Datetime").replace("2024-03-08,", "2024-03-08 00:00:00-05:00,")
    path = write(text.replace("2024-03-11,", "2024-03-11 00:00:00-04:00,"))
    assert rows(path) == WANTED
    assert "zone of the exchange" in open_file(path).recognised
    mixed = write(text.replace("2024-03-11,", "2024-03-11 00:00:00+09:00,"))
    with pytest.raises(
        ValueError, match=r"line 5: .*2024-03-11 00:00:00\+09:00.* more than summer time.*time_zone"
    ):
        read(mixed)
    instants = write(
        text.replace("08 00:00:00-05:00", "08 05:00:00+00:00").replace("-11,", "-11 04:00:00+00:00,")
    )
    with pytest.raises(ValueError, match=r"line 4: .*05:00:00.* time of day"):
        read(instants)
    assert rows(instants, repairs=Repairs(time_zone="America/New_York")) == WANTED


def test_a_live_last_bar_is_refused_until_it_is_left_out(write: Write, rows: Rows) -> None:
    repeated = write(MODERN + "2024-03-11,172.75,,174.38,,60139600,\n")
    with pytest.raises(
        ValueError, match=r"more than once.*line 5 \(2024-03-11, AAPL\), line 6.*drop_live_bar"
    ):
        read(repeated)
    stamped = write(MODERN + "2024-03-12 15:59:58-04:00,173,,174.38,,1,\n")
    with pytest.raises(
        ValueError, match=r"line 6: .*2024-03-12 15:59:58-04:00.* unfinished day.*drop_live_bar"
    ):
        read(stamped)
    for path in (repeated, stamped):
        reading = open_file(path, repairs=Repairs(drop_live_bar=True))
        assert rows(path, repairs=Repairs(drop_live_bar=True)) == WANTED
        assert len(reading.repairs) >= 1
        assert "line 6" in " ".join(reading.repairs)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (MODERN.replace("High,High", "Hihg,High"), "line 1: 'Hihg' is no field of yfinance"),
        (
            MODERN.replace("Close,Close", "Close,Close", 1).replace("AAPL,OPEN", "AAPL,AAPL", 1),
            "for the second time",
        ),
        (MODERN.replace("AAPL,OPEN", "AAPL,", 1), "line 2, column 3 has no ticker"),
        (MODERN.replace("170.5", "n/d"), "line 4, column 'Close of AAPL': 'n/d' is not a number"),
        (MODERN.replace("2.5,", "-2.5,", 1), r"line 4 \(2024-03-08, OPEN\) = -2.5"),
        ("Price,Volume\nTicker,A\nDate,\n2024-03-08,1\n", "needs a price among the fields.*got Volume"),
        (MODERN + "2024-03-12,1,2,3\n", "line 6 has 4 cells, the header has 7"),
    ],
)
def test_a_damaged_yfinance_file_is_refused_by_line(write: Write, text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read(write(text))


def test_what_ticker_history_writes_is_yfinance_and_its_stamps_are_days_of_the_exchange(
    write: Write, rows: Rows
) -> None:
    path = write(
        "Date,Open,High,Low,Close,Volume,Dividends,Stock Splits\n"
        "2024-03-08 00:00:00-05:00,1,2,1,1.5,7,0.0,0.0\n"
        "2024-03-11 00:00:00-04:00,1,2,1,1.6,7,0.0,0.0\n",
        "AAPL.csv",
    )
    assert rows(path) == [("2024-03-08", "AAPL", 1.5), ("2024-03-11", "AAPL", 1.6)]
    assert "open" in read(path).feature_columns


def test_pairs_that_pandas_flattened_are_fields_of_tickers_not_assets(
    write: Write, rows: Rows, tmp_path: Path
) -> None:
    path = write(
        ""","('Close', 'AAPL')","('Close', 'OPEN')","('Open', 'AAPL')"\n"""
        "2024-03-08,170.5,2.5,171\n2024-03-11,172.75,,173\n"
    )
    assert rows(path, "asset", "close") == WANTED
    assert read(path).feature_columns == ["open"]
    by_ticker = pl.DataFrame({"Date": [dt.datetime(2024, 3, 8)], "('AAPL', 'Close')": [1.5]})
    by_ticker.write_parquet(tmp_path / "flat.parquet")
    assert rows(tmp_path / "flat.parquet", "asset", "close") == [("2024-03-08", "AAPL", 1.5)]


def test_stamps_of_a_typed_column_are_days_of_its_zone_unless_they_have_a_time(tmp_path: Path) -> None:
    def written(hour: int) -> Path:
        stamp = dt.datetime(2024, 3, 8, hour, tzinfo=ZoneInfo("America/New_York"))
        frame = pl.DataFrame({"Date": [stamp], "Open": [1.0], "Close": [1.5], "Stock Splits": [0.0]})
        frame.write_parquet(tmp_path / "AAPL.parquet")
        return tmp_path / "AAPL.parquet"

    assert read(written(0)).dates.to_list() == [dt.date(2024, 3, 8)]
    with pytest.raises(ValueError, match=r"row 1.*time of day in America/New_York.*time_zone"):
        read(written(5))

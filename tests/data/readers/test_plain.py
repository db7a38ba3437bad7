"""Long and wide tables as uploaded to Kaggle or saved by hand: read only as far as they are certain."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from fints.data import Factor, Repairs, read
from fints.data.sources import open_file

Write = Callable[..., Path]
Rows = Callable[..., list[tuple[object, ...]]]


def test_a_kaggle_file_with_a_saved_index_and_american_dates_is_read(write: Write, rows: Rows) -> None:
    text = "Unnamed: 0,date,close,volume,Name\n0,2/13/2013,14.46,8407500,AAL\n1,2/8/2013,14.75,9,AAL\n"
    assert rows(write(text)) == [("2013-02-08", "AAL", 14.75), ("2013-02-13", "AAL", 14.46)]
    unsure = text.replace("2/13/2013", "2/3/2013")
    with pytest.raises(
        ValueError, match=r"line 2: the date '2/3/2013' may have the day or the month first.*date_order"
    ):
        read(write(unsure))
    repairs = Repairs(date_order="month")
    assert rows(write(unsure), repairs=repairs)[0][0] == "2013-02-03"
    assert open_file(write(unsure), repairs=repairs).repairs == ("dates read with the month first",)
    with pytest.raises(ValueError, match="which is not the order you said"):
        read(write(text), repairs=Repairs(date_order="day"))


def test_a_column_of_text_is_refused_until_it_is_dropped(write: Write, rows: Rows) -> None:
    path = write("date,asset,close,sector\n2001-02-13,A,1,Energy\n")
    with pytest.raises(ValueError, match=r"line 2, column 'sector': 'Energy' is not a number.*drop a column"):
        read(path)
    assert rows(path, repairs=Repairs(drop=("sector",))) == [("2001-02-13", "A", 1.0)]
    with pytest.raises(ValueError, match="no column 'sektor' to drop"):
        read(path, repairs=Repairs(drop=("sektor",)))


def test_two_digit_years_excel_days_and_zones_are_read_only_as_told(write: Write, rows: Rows) -> None:
    years = write("date,asset,close\n13/02/70,A,1\n13/02/69,A,2\n")
    with pytest.raises(ValueError, match=r"line 2: the date '13/02/70'.*1970 or 2070.*century"):
        read(years)
    assert rows(years, "close", repairs=Repairs(century=1970)) == [("1970-02-13", 1.0), ("2069-02-13", 2.0)]
    excel = write("date,asset,close\n36935,A,1\n36936.0,A,2\n")
    with pytest.raises(ValueError, match=r"line 2: the date '36935'.*Excel.*excel_dates"):
        read(excel)
    assert rows(excel, "close", repairs=Repairs(excel_dates=True)) == [
        ("2001-02-13", 1.0),
        ("2001-02-14", 2.0),
    ]
    zoned = write("date,asset,close\n2001-02-13T22:00:00Z,A,1\n2001-02-14 22:00:00+00:00,A,2\n")
    with pytest.raises(ValueError, match=r"carries a time zone.*time_zone"):
        read(zoned)
    told = Repairs(time_zone="Asia/Tokyo")
    assert rows(zoned, "close", repairs=told) == [("2001-02-14", 1.0), ("2001-02-15", 2.0)]


def test_days_that_excel_and_pandas_wrote_as_times_and_fractions_are_days(
    write: Write, rows: Rows, tmp_path: Path
) -> None:
    wanted = [("2001-02-13", 1.0), ("2001-02-14", 2.0)]
    for first, second in (
        ("2/13/2001 0:00", "2/14/2001 0:00"),
        ("13.02.2001 00:00:00", "14.02.2001 00:00:00"),
        ("20010213.0", "20010214.0"),
    ):
        assert rows(write(f"date,asset,close\n{first},A,1\n{second},A,2\n"), "close") == wanted
    with pytest.raises(ValueError, match=r"line 2: the date '2/13/2001 9:30' has a time of day"):
        read(write("date,asset,close\n2/13/2001 9:30,A,1\n"))
    numbers = pl.DataFrame({"date": [20010213.0, 20010214.0], "asset": "A", "close": [1.0, 2.0]})
    numbers.write_parquet(tmp_path / "x.parquet")
    assert rows(tmp_path / "x.parquet", "close") == wanted
    months = write("yyyymm,Index\n202001.0,1\n202002.0,2\n")
    assert rows(months, "close") == [("2020-01-31", 1.0), ("2020-02-29", 2.0)]


def test_returns_become_a_price_of_the_kind_that_was_said(write: Write) -> None:
    path = write("date,asset,ret\n2001-02-13,A,0.1\n2001-02-14,A,\n2001-02-15,A,-0.2\n")
    simple = read(path, price="ret", returns="simple").frame["close"].to_list()
    assert simple == pytest.approx([1.1, None, 0.88])
    logs = read(path, price="ret", returns="log").frame["close"].drop_nulls().to_list()
    assert logs == pytest.approx([math.exp(0.1), math.exp(-0.1)])
    wide = write("date,A,B\n2001-02-13,0.1,0.05\n2001-02-14,-0.1,\n")
    assert read(wide, layout="wide", returns="simple").frame["close"].to_list() == pytest.approx(
        [1.1, 1.05, 0.99]
    )
    percent = write("date,asset,ret\n2001-02-13,A,1.5\n2001-02-14,A,-0.75\n")
    with pytest.raises(ValueError, match=r"line 2 \(2001-02-13, A\): ret is 1.5.*percent"):
        read(percent, price="ret", returns="simple")
    told = Repairs(percent=("ret",))
    assert read(percent, price="ret", returns="simple", repairs=told).frame["ret"].to_list() == [
        0.015,
        -0.0075,
    ]
    ruin = write("date,asset,ret\n2001-02-13,A,0.01\n2001-02-14,A,-1\n2001-02-15,A,0.01\n")
    with pytest.raises(ValueError, match=r"line 3 \(2001-02-14, A\): ret is -1, a total loss.*total_loss"):
        read(ruin, price="ret", returns="simple")
    left = read(ruin, price="ret", returns="simple", repairs=Repairs(total_loss=-0.99)).frame["close"]
    assert left.to_list() == pytest.approx([1.01, 0.0101, 0.010201])


def test_a_genuine_day_of_130_percent_passes_every_layout_untouched(write: Write) -> None:
    prices = [10.0, 10.1, 23.23, 23.5]
    days = ["2021-01-25", "2021-01-26", "2021-01-27", "2021-01-28"]
    long = write("date,asset,close\n" + "".join(f"{d},GME,{p}\n" for d, p in zip(days, prices, strict=True)))
    assert read(long).frame["close"].to_list() == prices
    several = "Price,Close\nTicker,GME\nDate,\n" + "".join(
        f"{d},{p}\n" for d, p in zip(days, prices, strict=True)
    )
    assert read(write(several)).frame["close"].to_list() == prices
    returns = [0.0, *(np.array(prices)[1:] / np.array(prices)[:-1] - 1)]
    crsp = "PERMNO,date,PRC,RET\n" + "".join(
        f"1,{d},1,{r!r}\n" for d, r in zip(days, map(float, returns), strict=True)
    )
    assert read(write(crsp)).frame["close"].to_list() == pytest.approx([p / 10 for p in prices])


def test_pence_among_pounds_are_multiplied_only_in_the_rows_named(write: Write) -> None:
    path = write(
        "date,asset,open,close\n2001-02-12,VOD,1.5,1.6\n2001-02-13,VOD,151,161\n2001-02-14,VOD,1.5,1.7\n"
    )
    factor = Factor.parse("VOD=0.01@2001-02-13..2001-02-13")
    reading = open_file(path, repairs=Repairs(factors=(factor,)))
    assert reading.frame["close"].to_list() == pytest.approx([1.6, 1.61, 1.7])
    assert reading.frame["open"].to_list() == pytest.approx([1.5, 1.51, 1.5])
    assert reading.repairs == ("VOD: open, close times 0.01 in 1 row, 2001-02-13 to 2001-02-13",)
    with pytest.raises(ValueError, match="no row of asset 'BP'"):
        read(path, repairs=Repairs(factors=(Factor("BP", 0.01),)))


def test_a_point_beside_decimal_commas_may_be_a_thousand_and_is_refused(write: Write, rows: Rows) -> None:
    path = write("Date;Name;Close;Volume\n13.02.2001;A;1,5;1.000\n14.02.2001;A;1,6;900\n")
    with pytest.raises(
        ValueError, match=r"line 2, column 'Volume': '1.000' is not a number.*one decimal sign"
    ):
        read(path)
    plain = write("Date;Name;Close;Volume\n13.02.2001;A;1,5;1000\n14.02.2001;A;1,6;900\n")
    assert rows(plain, "close", "Volume") == [("2001-02-13", 1.5, 1000.0), ("2001-02-14", 1.6, 900.0)]


def test_a_header_of_any_length_is_read_whole(write: Write) -> None:
    names = [f"{number:-^64}" for number in range(1_100)]
    text = ",".join(["date", *names]) + "\n2001-02-13" + ",1" * len(names) + "\n"
    assert len(read(write(text), layout="wide").assets) == 1_100


def test_the_identifiers_of_other_libraries_name_assets(write: Write, rows: Rows) -> None:
    for name in ("permno", "instrument", "unique_id"):
        path = write(f"date,{name},close\n2001-02-13,10001,1\n2001-02-13,10002,2\n")
        assert rows(path, "asset", "close") == [("2001-02-13", "10001", 1.0), ("2001-02-13", "10002", 2.0)]
    path = write("date,firm,close\n2001-02-13,10001,1\n2001-02-13,10002,2\n")
    with pytest.raises(ValueError, match="several assets, call the column that names them 'asset'"):
        read(path)


def test_an_adjusted_close_that_was_not_taken_is_said(write: Write) -> None:
    path = write("date,Close,Adj Close,name\n2001-02-13,10,1,A\n")
    assert "the price is 'Close', not 'Adj Close'" in " ".join(open_file(path).notes)
    assert not open_file(path, price="Close").notes


def test_a_wide_file_of_returns_is_refused_with_the_option_that_reads_it(write: Write, rows: Rows) -> None:
    path = write("date,A\n2001-02-13,0.01\n2001-02-14,-0.02\n")
    with pytest.raises(ValueError, match=r"if these are returns, say so \(returns\)"):
        read(path)
    assert len(rows(path, returns="simple")) == 2
    with pytest.raises(ValueError, match="is not above 0") as error:
        read(write("date,A\n2001-02-13,100\n2001-02-14,-101\n"))
    assert "if these are returns" not in str(error.value)

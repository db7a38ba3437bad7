"""Stooq's two layouts: read, or refused by line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fints.data import read
from fints.data.sources import open_file

Write = Callable[..., Path]
Rows = Callable[..., list[tuple[object, ...]]]

STOOQ = (
    "<TICKER>,<PER>,<DATE>,<TIME>,<OPEN>,<HIGH>,<LOW>,<CLOSE>,<VOL>,<OPENINT>\r\n"
    "AAPL.US,D,20100104,000000,7.62,7.66,7.58,7.64,493729600,0\r\n"
    "4IG.HU,D,20100105,000000,43.7,43.7,43.7,43.75,400,0\r\n"
)


def test_both_layouts_of_stooq_are_read(write: Write, rows: Rows) -> None:
    path = write(STOOQ, "aapl.us.txt")
    assert rows(path) == [("2010-01-04", "AAPL.US", 7.64), ("2010-01-05", "4IG.HU", 43.75)]
    assert read(path).feature_columns == ["open", "high", "low", "volume", "open_interest"]
    assert "Stooq's archive, daily, 2 symbols" in open_file(path).recognised
    single = write("Date,Open,High,Low,Close,Volume\n2010-01-04,1,2,1,1.5,10\n", "aapl_us_d.csv")
    assert rows(single, layout="stooq") == rows(single) == [("2010-01-04", "aapl_us_d", 1.5)]
    polish = write(
        "Data,Otwarcie,Najwyzszy,Najnizszy,Zamkniecie,Wolumen\n2010-01-04,1,2,1,1.5,10\n", "kgh.csv"
    )
    assert rows(polish) == [("2010-01-04", "kgh", 1.5)]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Exceeded the daily hits limit", "Exceeded the daily hits limit.*quota is used up"),
        (STOOQ.replace("4IG.HU,D", "4IG.HU,5"), "line 3: the period '5' is not one of whole days"),
        (STOOQ.replace("20100105,000000", "20100105,093500"), "line 3: the time '093500' lies within a day"),
        (STOOQ.replace("20100105", "20101305"), "line 3: the date '20101305' does not exist"),
        (STOOQ.replace("43.75", "0"), r"line 3 \(2010-01-05, 4IG.HU\) = 0"),
    ],
)
def test_a_damaged_stooq_file_is_refused_by_line(write: Write, text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read(write(text, "x.txt"))

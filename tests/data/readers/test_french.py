"""Kenneth French's stacked blocks: told apart, or refused by line."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path

import pytest

from fints.data import read
from fints.data.sources import open_file

Write = Callable[..., Path]
Rows = Callable[..., list[tuple[object, ...]]]

FRENCH = (
    "This file was created by CMPT_IND_RETS using the 202401 CRSP database.\n"
    "It contains value- and equal-weighted returns for 2 industry portfolios, and annual ones.\n\n"
    "Missing data are indicated by -99.99 or -999.\n\n\n"
    "  Average Value Weighted Returns -- Monthly\n"
    ",Cnsmr,Hlth \n192607,    5.43,  -99.99\n192608,    2.76,    4.25\n\n\n"
    "  Average Equal Weighted Returns -- Monthly\n,Cnsmr,Hlth \n192607,    2.00,-999\n192608,   -1.00,    "
    "1.00\n\n"
    "  Average Value Weighted Returns -- Annual \n,Cnsmr,Hlth \n  1927,   30.00,   20.00\n\n"
    "  Number of Firms in Portfolios\n,Cnsmr,Hlth \n192607,     166,      15\n192608,     167,      15\n\n"
    "  Average Firm Size\n,Cnsmr,Hlth \n192607,   20.93,    8.42\n\n"
    "Copyright 2024 Kenneth R. French, and others\n"
)
FACTORS = (
    "This file was created using the 202506 CRSP database.\nThe 1-month TBill rate data until 202405 are "
    "theirs.\n\n"
    "Date,Mkt-RF,SMB,HML,RF\n192607,   2.8900,  -2.5500,  -2.3900,   0.2200\n192608,   2.64,-1.14,3.81,0.25\n"
    "\n Annual Factors: January-December \n,Mkt-RF,SMB,HML,RF\n  1927,  29.47,  -2.04,  -4.54,   3.12\n"
    "\nCopyright 2025 Eugene F. Fama and Kenneth R. French\n"
)


def test_the_blocks_of_french_are_told_apart_and_said(write: Write, rows: Rows) -> None:
    path = write(FRENCH, "2_Industry.CSV")
    frame = read(path).frame
    assert frame.rows() == [
        (dt.date(1926, 7, 31), "Cnsmr", pytest.approx(0.0543), pytest.approx(1.0543)),
        (dt.date(1926, 8, 31), "Cnsmr", pytest.approx(0.0276), pytest.approx(1.0543 * 1.0276)),
        (dt.date(1926, 8, 31), "Hlth", pytest.approx(0.0425), pytest.approx(1.0425)),
    ]
    assert (
        "block 1 of 5: Average Value Weighted Returns -- Monthly (monthly, 2 columns)"
        in open_file(path).recognised
    )
    assert "percent divided by 100" in open_file(path).notes[0]
    equal = read(path, block="equal weighted").frame
    assert equal["return"].to_list() == pytest.approx([0.02, -0.01, 0.01])
    assert read(path, block=3).frame["date"].to_list() == [dt.date(1927, 12, 31)] * 2
    for block, said in (
        ("4", "holds no returns"),
        ("monthly", "2 blocks match 'monthly'"),
        ("9", "has no block 9"),
    ):
        with pytest.raises(ValueError, match=said):
            read(path, block=block)


def test_factors_in_the_layout_of_2025_and_daily_files_are_read(write: Write) -> None:
    path = write(FACTORS)
    assert read(path).assets == ["HML", "Mkt-RF", "RF", "SMB"]
    assert read(path).frame["return"][1] == pytest.approx(0.0289)
    assert read(path, block="annual factors").dates.to_list() == [dt.date(1927, 12, 31)]
    daily = write(",Mkt-RF\n19260701,    0.10\n19260703,   -0.20\n")
    panel = read(daily)
    assert panel.dates.to_list() == [dt.date(1926, 7, 1), dt.date(1926, 7, 3)]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("192608,    2.76", "19x608,    2.76", "line 10 looks like a row but starts with '19x608'"),
        ("    2.76", "  2.7.6", r"line 10, column 'Cnsmr': '2.7.6' is not a number"),
        ("192608,    2.76,    4.25", "192608,    2.76", "line 10 has 2 cells, its header has 3"),
        ("192608,    2.76", "192613,    2.76", "line 10: the date '192613' is no YYYYMM"),
        ("192608,    2.76", "192607,    2.76", "line 10: the date '192607' does not follow '192607'"),
        (",Cnsmr,Hlth \n192607,    5.43", "192607,    5.43", "without a header above it"),
        (",Cnsmr,Hlth ", ",Cnsmr,Cnsmr", "line 8: the header names 'Cnsmr' twice"),
        ("    2.76", "  -276.", r"line 10 \(1926-08-31, Cnsmr\): return is -2.76"),
        (
            "192608,    2.76,    4.25\n",
            "192608,    2.76,    4.25\n\n192609, 1, 1\n",
            "line 12 is a row .* without a header",
        ),
    ],
)
def test_a_damaged_french_file_is_refused_by_line(write: Write, old: str, new: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read(write(FRENCH.replace(old, new, 1)), layout="french")

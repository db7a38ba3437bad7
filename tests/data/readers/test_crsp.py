"""CRSP's two layouts: codes, midpoints and delistings read right, or refused by line."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from fints.data import Repairs, read
from fints.data.sources import open_file

Write = Callable[..., Path]
Rows = Callable[..., list[tuple[object, ...]]]

CRSP = (
    "PERMNO,date,TICKER,DLSTCD,DLRET,PRC,VOL,RET\n"
    "10001,19860131,GFGC,,,-6.125,1070,C\n"
    "10001,19860228,GFGC,,,6.25,1070,0.020408\n"
    "10001,19860331,GFGC,,,0,,-66.0\n"
    "10001,19860430,GFGC,,,6.5,1000,0.04\n"
    "10002,19860228,XYZ,,,10,5,B\n"
    "10002,19860331,XYZ,574,-0.4,8,5,-0.2\n"
)


def test_the_older_crsp_layout_reads_codes_midpoints_and_compounds_delistings(write: Write) -> None:
    path = write(CRSP)
    frame = read(path).frame
    gfgc = frame.filter(pl.col("asset") == "10001")
    assert gfgc["ret"].to_list() == [None, 0.020408, None, 0.04]
    assert gfgc["close"].to_list() == pytest.approx([None, 1.020408, None, 1.020408 * 1.04])
    assert gfgc["prc"].to_list() == [6.125, 6.25, None, 6.5]
    assert gfgc["midpoint"].to_list() == [1.0, 0.0, 0.0, 0.0]
    last = frame.filter(pl.col("asset") == "10002")["ret"][-1]
    assert last == pytest.approx((1 - 0.2) * (1 - 0.4) - 1)
    assert last != pytest.approx(-0.2 - 0.4)
    notes = " ".join(open_file(path).notes)
    for said in (
        "RET: missing by letter (1 B, 1 C)",
        "code -44 to -99 (1)",
        "1 delisting",
        "midpoint",
        "TICKER",
    ):
        assert said in notes


@pytest.mark.parametrize(
    "code", ["A", "B", "C", "D", "E", ".B", "-44", "-55.0", "-66", "-77", "-88.0", "-99"]
)
def test_every_code_of_crsp_is_a_missing_return(write: Write, code: str) -> None:
    frame = read(write(CRSP.replace("-66.0", code))).frame
    assert frame.filter(pl.col("asset") == "10001")["ret"].null_count() == 2


def test_a_delisting_without_a_last_return_counts_alone_and_one_without_any_is_told(write: Write) -> None:
    alone = read(write(CRSP.replace("5,-0.2", "5,-99"))).frame
    assert alone.filter(pl.col("asset") == "10002")["ret"][-1] == pytest.approx(-0.4)
    unknown = write(CRSP.replace("574,-0.4", "574,"))
    assert "1 delisting for performance without DLRET" in " ".join(open_file(unknown).notes)
    guessed = open_file(unknown, repairs=Repairs(missing_delisting=-0.3))
    assert guessed.frame.filter(pl.col("asset") == "10002")["ret"][-1] == pytest.approx(0.8 * 0.7 - 1)
    assert "given -0.3" in " ".join(guessed.repairs)


def test_the_newer_crsp_layout_is_read_and_holds_its_delistings(write: Write, rows: Rows) -> None:
    daily = (
        "PERMNO,Ticker,DlyCalDt,DlyPrc,DlyPrcFlg,DlyDelFlg,DlyRet,DlyVol\n"
        "14593,AAPL,2024-05-22,190.9,TR,N,-0.0075,34648500\n14593,AAPL,2024-05-23,186.88,BA,N,-0.021,1\n"
    )
    frame = read(write(daily)).frame
    assert frame["close"].to_list() == pytest.approx([0.9925, 0.9925 * 0.979])
    assert frame["midpoint"].to_list() == [0.0, 1.0]
    monthly = "permno,mthcaldt,mthprc,mthprcflg,mthret\n14593,2024-05-31,192.25,MP,0.13\n"
    assert rows(write(monthly)) == [("2024-05-31", "14593", pytest.approx(1.13))]
    assert "DLRET" not in " ".join(open_file(write(daily)).notes)
    older = write(CRSP.replace("DLSTCD,DLRET", "DLSTCD,SICCD"))
    assert "no DLRET: returns leave out what happened at a delisting" in " ".join(open_file(older).notes)
    with pytest.raises(ValueError, match="has 'DLRET' beside 'DlyRet', which holds it already"):
        read(write(daily.replace("DlyVol", "DLRET")))


def test_crsp_read_from_parquet_is_the_same_panel(write: Write, rows: Rows, tmp_path: Path) -> None:
    typed = pl.DataFrame(
        {
            "permno": [10001, 10001],
            "date": [dt.date(1986, 1, 31), dt.date(1986, 2, 28)],
            "prc": [-6.125, 6.25],
            "ret": [-99.0, 0.25],
        }
    )
    typed.write_parquet(tmp_path / "msf.parquet")
    assert rows(tmp_path / "msf.parquet", "asset", "close", "midpoint") == [
        ("1986-01-31", "10001", None, 1.0),
        ("1986-02-28", "10001", 1.25, 0.0),
    ]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("0.020408", "Q1", "line 3, column 'RET': 'Q1' is not a number"),
        ("0.020408", "-1.5", r"line 3 \(1986-02-28, 10001\): ret is -1.5, and no simple return is below -1"),
        ("0.020408", "-1", r"line 3 .*total loss"),
        ("19860228,GFGC,,", "19860228,GFGC,,-0.1", None),
        ("B\n", "B\n10002,19860228,XYZ,,,10,5,B\n", "more than once.*line 6 .*line 7.*duplicates"),
        (",RET", ",RETX", "needs RET, the return with dividends"),
        (
            "10002,19860228,XYZ,,,",
            "10002,19860228,XYZ,,-0.1,",
            r"line 7 \(asset 10002\): DLRET is -0.4 for the second",
        ),
    ],
)
def test_a_damaged_crsp_file_is_refused_by_line(write: Write, old: str, new: str, said: str | None) -> None:
    path = write(CRSP.replace(old, new, 1))
    if said is None:
        assert read(path).frame["ret"].drop_nulls()[0] == pytest.approx(1.020408 * 0.9 - 1)
        return
    with pytest.raises(ValueError, match=said):
        read(path)

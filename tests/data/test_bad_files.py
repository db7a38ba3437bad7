"""Files that cannot be read: one line with file, place, value and remedy, never a guess."""

from __future__ import annotations

import gzip
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import polars as pl
import pytest

from fints.data import check, read

HEAD = "date,asset,close\n"
GOOD = "2001-02-13,A,1.5\n"

BAD_TEXTS = {
    "empty": ("", "is empty"),
    "blank": ("  \n\n ", "is empty"),
    "header alone": (HEAD, "a header but no row"),
    "quota message": ("Exceeded the daily hits limit", "first line must be a header.*Exceeded the daily"),
    "json": ('{"date": ["2001-02-13"], "close": [1]}', "is JSON, which is not read"),
    "separator told to excel": ("sep=;\n" + HEAD.replace(",", ";"), "Excel what separates.*Delete that line"),
    "stooq knows no such symbol": ("No data", "Stooq's answer for a symbol that it does not have"),
    "year padded with zeros": (HEAD + "0021-02-13,A,1\n", "'0021-02-13' has the year 21, none from 1700"),
    "year of no date": (HEAD + GOOD + "9999-12-31,A,1\n", "line 3: the date '9999-12-31' has the year 9999"),
    "currency": (HEAD + GOOD + "2001-02-14,A,$1.5\n", "line 3.*'\\$1.5' is not a number.*without currency"),
    "brackets": (HEAD + "2001-02-14,A,(1.5)\n", "'\\(1.5\\)' is not a number.*brackets"),
    "long minus": (HEAD + "2001-02-14,A,\u22121.5\n", "is not a number.*or a long minus"),
    "narrow blank": (HEAD + "2001-02-14,A,1\u202f234\n", "is not a number.*blanks"),
    "web page": ("<!DOCTYPE html>\n<html>", "is a web page"),
    "misspelt price": ("date,asset,clsoe\n" + GOOD, "needs a price column 'close'.*Is it 'clsoe'"),
    "misspelt asset": ("date,assett,close\n" + GOOD, "no asset column; is it 'assett'"),
    "misspelt date": ("dte,asset,close\n" + GOOD, "needs a date column.*Is it 'dte'"),
    "two of a name": ("date,asset,close,close\n2001-02-03,A,1,2\n", "names 'close' more than once"),
    "two prices": ("date,asset,Close,CLOSE\n2001-02-03,A,1,2\n", None),
    "no name": ("date,asset,close,\n2001-02-03,A,1,2\n", "column 4 has values but no name"),
    "repeated keys": (
        HEAD + GOOD + "2001-02-14,A,2\n" + GOOD,
        r"more than once in 2 rows, first line 2 \(2001-02-13, A\), line 4",
    ),
    "text for a number": (
        HEAD + GOOD + "2001-02-14,A,abc\n",
        "line 3, column 'close': 'abc' is not a number",
    ),
    "crsp letter": ("date,asset,close,ret\n2001-02-13,A,1,0.1\n2001-02-14,A,1,C\n", "line 3.*'C'.*CRSP"),
    "thousands": (HEAD + '2001-02-13,A,"1,234.5"\n', "'1,234.5' is not a number. Write plain decimals"),
    "two decimal signs": (
        "date;A\n2001-02-13;1,5\n2001-02-14;1.5\n",
        "'1,5' is not a number.*one decimal sign",
    ),
    "percent": ("date,asset,close,r\n2001-02-13,A,1,1%\n", "0.01 for 1 %"),
    "infinite": (HEAD + GOOD + "2001-02-14,A,inf\n", r"close is infinite, first line 3 \(2001-02-14, A\)"),
    "zero price": (HEAD + GOOD + "2001-02-14,A,0\n", r"close is not above 0, first line 3 .* = 0\."),
    "negative price": (HEAD + "2001-02-14,A,-3.5\n" + GOOD, r"line 2 .* = -3.5\..*CRSP"),
    "no price at all": (HEAD + "2001-02-14,A,\n", "close is null in every row"),
    "no asset": (HEAD + "2001-02-14,,1\n", "date or asset is missing, first line 2"),
    "no date": (HEAD + GOOD + ",A,1\n", "line 3 has values but no date"),
    "not a date": (HEAD + GOOD + "Copyright,A,1\n", "line 3: the date 'Copyright' is not a date"),
    "impossible date": (HEAD + "2001-02-30,A,1\n", "line 2: the date '2001-02-30' does not exist"),
    "two-digit year": (HEAD + "13/02/70,A,1\n", r"two digits \(70 may be 1970 or 2070\)"),
    "two-digit year in words": (HEAD + "13-Feb-70,A,1\n", "two digits"),
    "excel serial": (HEAD + "36935,A,1\n", "Excel serial number"),
    "time zone": (HEAD + "2001-02-13 00:00:00-05:00,A,1\n", "line 2: .* carries a time zone"),
    "zulu": (HEAD + "2001-02-13T00:00:00Z,A,1\n", "carries a time zone"),
    "time of day": (HEAD + "2001-02-13 09:30:00,A,1\n", "has a time of day"),
    "two formats": (HEAD + GOOD + "14/02/2001,A,1\n", "line 3: .*'14/02/2001' is in the format .*first one"),
    "day or month": (HEAD + "03/02/2001,A,1\n04/02/2001,A,1\n", "no date of the file decides it"),
    "day and month": (HEAD + "13/02/2001,A,1\n02/14/2001,A,1\n", "month first, but '13/02/2001' has the day"),
    "long line": (HEAD + GOOD + "2001-02-14,A,1,2\n", "line 3 has 4 cells, the header has 3"),
    "cut short": (HEAD + GOOD + "2001-02-14,A", "line 3 has 2 cells.*cut short"),
    "cut short with quotes": (HEAD + '2001-02-13,"A",1\n2001-02-14,A', "line 3 has 2 cells.*cut short"),
    "open quote": (HEAD + GOOD + '2001-02-14,"A,1\n', "cells|well-formed"),
    "wide with a note": ("date,A,note\n2001-02-13,1,x\n", "column 'note': 'x' is not a number"),
    "one column": ("date\n2001-02-13\n", "at least one more"),
}


@pytest.mark.parametrize(("text", "said"), BAD_TEXTS.values(), ids=BAD_TEXTS)
def test_a_bad_text_file_ends_in_one_line_that_names_the_file(tmp_path, text, said):
    path = tmp_path / "bad.csv"
    path.write_text(text, encoding="utf-8")
    if said is None:
        assert read(path).feature_columns == ["CLOSE"]
        return
    with pytest.raises(ValueError, match=said) as caught:
        read(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)
    report = check(path)
    assert not report.ok
    assert str(caught.value) in [finding.message for finding in report.findings]


BAD_BYTES = {
    "latin1.csv": (HEAD.encode() + "2001-02-13,Ä,1\n".encode("latin-1"), "line 2 is not UTF-8"),
    "workbook.csv": (b"PK\x03\x04rest", "zip or Excel"),
    "cut.csv.gz": (gzip.compress((HEAD + GOOD * 99).encode())[:40], "damaged or cut short"),
    "text.parquet": (b"date,asset", "not a readable parquet"),
    "cut.parquet": (b"PAR1\x00\x00", "not a readable parquet"),
    "nul.csv": (b"\x00\x01\x02\x03", "line 1 holds a byte of zero"),
    "utf16 without mark.csv": ((HEAD + GOOD).encode("utf-16-le"), "UTF-16 without its mark"),
}


@pytest.mark.parametrize("name", BAD_BYTES)
def test_bad_bytes_end_in_one_line(tmp_path, name):
    content, said = BAD_BYTES[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=said) as caught:
        read(tmp_path / name)
    assert "\n" not in str(caught.value)


def test_absent_files_folders_and_layouts_are_told(tmp_path: Path):
    with pytest.raises(ValueError, match="there is no such file"):
        read(tmp_path / "absent.csv")
    with pytest.raises(ValueError, match="it is a folder"):
        read(tmp_path)
    with pytest.raises(ValueError, match="layout must be one of auto, long, wide"):
        read(tmp_path / "absent.csv", layout="tall")


def test_zoned_and_intraday_parquet_is_refused_with_the_remedy(tmp_path):
    path = tmp_path / "x.parquet"
    zoned = datetime(2001, 2, 13, tzinfo=ZoneInfo("America/New_York"))
    pl.DataFrame({"date": [zoned], "asset": ["A"], "close": [1.0]}).write_parquet(path)
    with pytest.raises(ValueError, match=r"no time zone; got America/New_York.*convert_time_zone"):
        read(path)
    pl.DataFrame({"date": [datetime(2001, 2, 13, 16)], "asset": ["A"], "close": [1.0]}).write_parquet(path)
    with pytest.raises(ValueError, match="whole days"):
        read(path)


def test_bad_rows_of_parquet_are_counted_from_one(tmp_path):
    path = tmp_path / "x.parquet"
    day = datetime(2001, 2, 13)
    pl.DataFrame({"date": [day, day], "asset": ["A", "B"], "close": [1.0, -1.0]}).write_parquet(path)
    with pytest.raises(ValueError, match=r"first row 2 \(2001-02-13, B\) = -1"):
        read(path)

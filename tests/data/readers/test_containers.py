"""Workbooks, folders of qlib, Arrow, and what is never opened."""

from __future__ import annotations

import gzip
import pickle
import zipfile
from pathlib import Path
from types import ModuleType

import numpy as np
import polars as pl
import pytest

from fints.data import Repairs, check, read
from fints.data.readers import files
from fints.data.sources import open_file

HEADER = ["yyyymm", "Index", "D12", "b/m", "CRSP_SPvw"]
MONTHS = [HEADER, ["192612", "13.49", "0.69", "0.44", "NaN"], ["192701", "13.21", "0.7", "NaN", "-0.0208"]]


def test_the_workbook_of_goyal_and_welch_is_read_by_sheet(layouts: ModuleType, tmp_path: Path) -> None:
    quarters = [["yyyyq", *HEADER[1:]], ["19264", "13.49", "0.69", "0.44", "0.05"]]
    years = [["yyyy", "Index"], ["1871", "4.74"], ["1872", "5.07"]]
    path = layouts.workbook(
        tmp_path / "PredictorData2023.xlsx", {"Monthly": MONTHS, "Quarterly": quarters, "Annual": years}
    )
    panel = read(path)
    assert panel.frame.select("asset", "b/m", "close").rows() == [
        ("SP500", 0.44, None),
        ("SP500", None, 0.9792),
    ]
    assert [str(day) for day in panel.dates] == ["1926-12-31", "1927-01-31"]
    assert [str(day) for day in read(path, sheet="quarterly").dates] == ["1926-12-31"]
    annual = open_file(path, sheet="Annual")
    assert annual.frame["close"].to_list() == [4.74, 5.07]
    assert "without dividends" in annual.notes[-1]
    assert "published later" in open_file(path).notes[0]
    with pytest.raises(ValueError, match="has no sheet 'Weekly'; it has 'Monthly', 'Quarterly', 'Annual'"):
        read(path, sheet="Weekly")


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (["192613", "1", "1", "1", "0.1"], "row 4: the date '192613' is no YYYYMM"),
        (["19273", "1", "1", "1", "0.1"], "row 4: the date '19273' is no YYYYMM"),
        (["192702", "x", "1", "1", "0.1"], "row 4, column 'Index': 'x' is not a number"),
        (["192702", "1", "1", "1", "-1.5"], r"row 4 \(1927-02-28, SP500\): CRSP_SPvw is -1.5"),
        (["192701", "1", "1", "1", "0.1"], "more than once.*row 3.*row 4"),
    ],
)
def test_a_damaged_workbook_is_refused_by_row(
    layouts: ModuleType, tmp_path: Path, row: list[str], said: str
) -> None:
    path = layouts.workbook(tmp_path / "x.xlsx", {"Monthly": [*MONTHS, row]})
    with pytest.raises(ValueError, match=said):
        read(path)


def test_a_worksheet_with_excel_days_is_a_plain_table(layouts: ModuleType, tmp_path: Path) -> None:
    sheet = [["date", "A"], ["36935", "1.5"], ["36936", "1.75"]]
    path = layouts.workbook(tmp_path / "x.xlsx", {"Sheet1": sheet}, dates=0)
    assert read(path, layout="wide").frame.select(pl.col("date").cast(pl.String), "close").rows() == [
        ("2001-02-13", 1.5),
        ("2001-02-14", 1.75),
    ]
    sheet[1][0], sheet[2][0] = "36935.5", "36936.5"
    with pytest.raises(ValueError, match="row 2: the date '2001-02-13 12:00:00' has a time of day"):
        read(layouts.workbook(tmp_path / "y.xlsx", {"Sheet1": sheet}, dates=0), layout="wide")


def test_a_workbook_that_declares_entities_or_is_cut_is_refused(layouts: ModuleType, tmp_path: Path) -> None:
    path = layouts.workbook(tmp_path / "x.xlsx", {"Monthly": MONTHS})
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    bomb = b'<?xml version="1.0"?><!DOCTYPE x [<!ENTITY a "aaaa">]>'
    parts["xl/sharedStrings.xml"] = bomb + parts["xl/sharedStrings.xml"]
    with zipfile.ZipFile(tmp_path / "bomb.xlsx", "w") as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    with pytest.raises(ValueError, match=r"damaged workbook.*declares entities"):
        read(tmp_path / "bomb.xlsx")
    (tmp_path / "cut.xlsx").write_bytes(path.read_bytes()[:-40])
    with pytest.raises(ValueError, match="damaged zip or Excel file"):
        read(tmp_path / "cut.xlsx")
    with zipfile.ZipFile(tmp_path / "plain.zip", "w") as archive:
        archive.writestr("a.csv", "date,A\n")
    with pytest.raises(ValueError, match=r"is a zip file. Unpack it"):
        read(tmp_path / "plain.zip")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    folder = tmp_path / "cn_data"
    for name in ("calendars", "instruments", "features/sh600000", "features/aapl"):
        (folder / name).mkdir(parents=True)
    (folder / "calendars" / "day.txt").write_text("2001-02-12\n2001-02-13\n2001-02-14\n")
    (folder / "instruments" / "all.txt").write_text(
        "SH600000\t2001-02-12\t2001-02-14\nAAPL\t2001-02-13\t2001-02-14\n"
    )
    np.array([0, 1.5, np.nan, 1.75], "<f4").tofile(folder / "features" / "sh600000" / "close.day.bin")
    np.array([0, 10, 0, 11], "<f4").tofile(folder / "features" / "sh600000" / "volume.day.bin")
    np.array([1, 2.5, 2.25], "<f4").tofile(folder / "features" / "aapl" / "close.day.bin")
    return folder


def test_a_folder_of_qlib_starts_each_file_at_its_place_in_the_calendar(store: Path) -> None:
    frame = read(store).frame.select(pl.col("date").cast(pl.String), "asset", "close", "volume")
    assert frame.rows() == [
        ("2001-02-12", "SH600000", 1.5, 10.0),
        ("2001-02-13", "AAPL", 2.5, None),
        ("2001-02-13", "SH600000", None, 0.0),
        ("2001-02-14", "AAPL", 2.25, None),
        ("2001-02-14", "SH600000", 1.75, 11.0),
    ]
    assert check(store).ok


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([1.5, 2.5, 2.25], r"aapl/close.day.bin: number 1 is 1.5, the place of the first value"),
        ([-1, 2.5], "number 1 is -1"),
        ([np.nan, 2.5], "number 1 is nan"),
        ([2, 2.5, 2.25], "number 1 is 2.*they do not fit"),
        ([0, 1, 2, 3, 4], "has 4 numbers, the calendar 3 dates"),
        ([1, -2.5, 2.25], r"calendar line 2 \(2001-02-13, AAPL\) = -2.5"),
        ([1, np.inf, 2.25], r"infinite, first calendar line 2 \(2001-02-13, AAPL\)"),
    ],
)
def test_a_damaged_file_of_qlib_is_refused_by_place(store: Path, values: list[float], said: str) -> None:
    np.array(values, "<f4").tofile(store / "features" / "aapl" / "close.day.bin")
    with pytest.raises(ValueError, match=said):
        read(store)


def test_a_damaged_folder_of_qlib_names_the_file(store: Path) -> None:
    (store / "calendars" / "day.txt").write_text("2001-02-13\n2001-02-12\n2001-02-14\n")
    with pytest.raises(ValueError, match=r"day.txt: line 2: '2001-02-12' does not follow '2001-02-13'"):
        read(store)
    (store / "calendars" / "day.txt").write_text("2001-02-12\n2001-02-13\n2001-02-14\n")
    (store / "features" / "aapl" / "close.day.bin").write_bytes(b"\0\0\x80\x3f\0")
    with pytest.raises(ValueError, match="has 5 bytes"):
        read(store)
    (store / "features" / "aapl" / "close.day.bin").unlink()
    with pytest.raises(ValueError, match=r"aapl: has no close.day.bin"):
        read(store)
    with pytest.raises(ValueError, match="it is a folder"):
        read(store / "features")


def test_arrow_files_and_streams_are_read(tmp_path: Path) -> None:
    frame = pl.DataFrame({"date": ["2001-02-13"], "asset": ["A"], "close": [1.5]})
    frame.write_ipc(tmp_path / "x.feather")
    frame.write_ipc_stream(tmp_path / "y.arrow")
    assert read(tmp_path / "x.feather").checksum == read(tmp_path / "y.arrow").checksum
    (tmp_path / "z.arrow").write_bytes((tmp_path / "x.feather").read_bytes()[:60])
    with pytest.raises(ValueError, match="not a readable Arrow file"):
        read(tmp_path / "z.arrow")


class Trap:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (Path.touch, (Path("opened"),))


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_pickle_is_refused_and_never_opened(
    tmp_path: Path, protocol: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prices.csv").write_bytes(pickle.dumps(Trap(), protocol=protocol))
    with pytest.raises(ValueError, match="a pickle, which runs code"):
        read(tmp_path / "prices.csv")
    assert not (tmp_path / "opened").exists()


def test_a_large_file_stays_on_disk_and_reads_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "date,asset,close\r\n" + "".join(
        f"2001-02-{day:02d},A{n},1.{n}\r\n" for day in range(1, 9) for n in range(99)
    )
    (tmp_path / "x.csv").write_text("\ufeff" + text, encoding="utf-8", newline="")
    (tmp_path / "x.csv.gz").write_bytes(gzip.compress(text.encode()))
    small = read(tmp_path / "x.csv").checksum
    monkeypatch.setattr(files, "SMALL", 100)
    assert isinstance(files.open_container(tmp_path / "x.csv").source, Path)
    assert isinstance(files.open_container(tmp_path / "x.csv.gz").source, Path)
    assert read(tmp_path / "x.csv").checksum == read(tmp_path / "x.csv.gz").checksum == small
    (tmp_path / "y.csv").write_bytes(text.encode() + b"2001-02-09,\xff,1\r\n")
    with pytest.raises(ValueError, match="line 794 is not UTF-8"):
        read(tmp_path / "y.csv")
    (tmp_path / "z.csv").write_bytes(text.encode() + b"2001-02-09,A1\r\n")
    with pytest.raises(ValueError, match="line 794 has 2 cells"):
        read(tmp_path / "z.csv")


def test_a_layout_that_does_not_fit_is_refused_with_what_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("date,asset,close\n2001-02-13,A,1\n")
    for layout, said in (
        ("crsp", "have a column PERMNO"),
        ("french", "line 2 .* no date YYYYMM"),
        ("goyal_welch", "needs a column yyyymm"),
        ("yfinance", "'asset' is no field of yfinance"),
        ("qlib", "store is a folder"),
    ):
        with pytest.raises(ValueError, match=said):
            read(path, layout=layout)
    with pytest.raises(ValueError, match="there is no block '2' to choose"):
        read(path, block=2)


def test_decisions_that_mean_nothing_are_refused() -> None:
    for wrong, said in (
        ({"duplicates": "both"}, "duplicates must be"),
        ({"drop_stale": 0}, "at least 1"),
        ({"total_loss": -1.0}, "between -1 and 0"),
        ({"century": 70}, "century must be a year"),
        ({"time_zone": "Mars/Olympus"}, "no time zone 'Mars/Olympus'"),
        ({"date_order": "year"}, "must be 'day' or 'month'"),
    ):
        with pytest.raises(ValueError, match=said):
            Repairs(**wrong)

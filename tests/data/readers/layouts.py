"""Writers that put a known panel into each foreign layout, and damage that must be told.

A writer takes prices (dates x assets, None where absent), a folder and a generator of choices, and returns
the path with the arguments that `read` needs. What is drawn is the layout's free choice (order of levels, a
saved index), never the content.
"""

from __future__ import annotations

import datetime as dt
import random
import struct
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import numpy as np
import polars as pl

Cells = list[list[float | None]]


@dataclass
class Known:
    """A panel known by construction: `prices[asset][date]`, None where the asset has no row."""

    dates: list[dt.date]
    assets: list[str]
    prices: dict[str, list[float | None]]
    volumes: dict[str, list[float | None]] = field(default_factory=dict)

    def frame(self) -> pl.DataFrame:
        """The long frame (date, asset, close) of observed prices, sorted."""
        rows = [
            (day, asset, price)
            for asset in self.assets
            for day, price in zip(self.dates, self.prices[asset], strict=True)
            if price is not None
        ]
        schema = {"date": pl.Date, "asset": pl.String, "close": pl.Float64}
        return pl.DataFrame(rows, schema=schema, orient="row").sort("date", "asset")

    def returns(self, asset: str) -> list[float | None]:
        """Simple returns on the asset's own days; the first is 0, so that the index starts at 1."""
        made: list[float | None] = []
        last: float | None = None
        for price in self.prices[asset]:
            made.append(None if price is None else 0.0 if last is None else price / last - 1)
            last = price if price is not None else last
        return made

    def relative(self) -> pl.DataFrame:
        """The long frame of prices relative to each asset's first."""
        return self.frame().with_columns(pl.col("close") / pl.col("close").first().over("asset"))


@dataclass
class Written:
    """A file in a foreign layout, and how it is read."""

    path: Path
    arguments: dict[str, Any] = field(default_factory=dict)
    # For damage to a text file: its first line of data, its separator, places of date, numbers, price.
    first: int = 2
    separator: str = ","
    date: int = 0
    numbers: list[int] = field(default_factory=list)
    price: list[int] = field(default_factory=list)
    # Prices are known up to a factor of each asset: the file holds returns.
    relative: bool = False
    # What the values must agree to: some layouts round.
    tolerance: float = 0.0


def cell(value: float | None) -> str:
    return "" if value is None else repr(float(value))


def text(path: Path, lines: list[str], ends: str = "\n") -> Path:
    path.write_text(ends.join([*lines, ""]), encoding="utf-8", newline="")
    return path


def yfinance(known: Known, folder: Path, choose: random.Random) -> Written:
    fields = ["Close", "High", "Low", "Open", "Volume"]
    if choose.random() < 0.3:
        fields.insert(0, "Adj Close")
    price = fields[0]
    by_ticker = choose.random() < 0.5
    pairs = [(name, asset) for name in fields for asset in known.assets]
    if by_ticker:
        pairs = [(name, asset) for asset in known.assets for name in fields]
    levels = [[name for name, _ in pairs], [asset for _, asset in pairs]]
    names = ["Price", "Ticker"] if choose.random() < 0.6 else ["", ""]
    if by_ticker:
        levels, names = levels[::-1], names[::-1]
    zoned = choose.random() < 0.3
    index = "Datetime" if zoned else "Date"
    lines = [",".join([name, *level]) for name, level in zip(names, levels, strict=True)]
    third = choose.random() < 0.8
    if third:
        unnamed = choose.random() < 0.2
        lines.append(
            ",".join(
                [index, *((f"Unnamed: {i}_level_2" if unnamed else "") for i in range(1, len(pairs) + 1))]
            )
        )
    for place, day in enumerate(known.dates):
        values = [
            None
            if known.prices[asset][place] is None
            else known.prices[asset][place]
            if name == price
            else 1000.0
            for name, asset in pairs
        ]
        # New York leaves winter time on a Sunday in March and summer time in November.
        offset = "-04:00" if 4 <= day.month <= 10 else "-05:00"
        stamp = f"{day.isoformat()} 00:00:00{offset}" if zoned else day.isoformat()
        lines.append(",".join([stamp, *map(cell, values)]))
    return Written(
        text(folder / "download.csv", lines),
        {"layout": choose.choice(["auto", "yfinance"])},
        3 + third,
        numbers=list(range(1, len(pairs) + 1)),
        price=[place for place, (name, _) in enumerate(pairs, 1) if name == price],
    )


def stooq(known: Known, folder: Path, choose: random.Random) -> Written:
    lines = ["<TICKER>,<PER>,<DATE>,<TIME>,<OPEN>,<HIGH>,<LOW>,<CLOSE>,<VOL>,<OPENINT>"]
    for asset in known.assets:
        for day, price in zip(known.dates, known.prices[asset], strict=True):
            if price is not None:
                lines.append(f"{asset},D,{day:%Y%m%d},000000,1,2,0.5,{cell(price)},1000,0")
    ends = choose.choice(["\n", "\r\n"])
    return Written(
        text(folder / "stooq.txt", lines, ends),
        {"layout": choose.choice(["auto", "stooq"])},
        date=2,
        numbers=[4, 5, 6, 7, 8, 9],
        price=[7],
    )


def kaggle(known: Known, folder: Path, choose: random.Random) -> Written:
    american = choose.random() < 0.5 and any(day.day > 12 for day in known.dates)
    saved = choose.random() < 0.5
    lines = [
        ("Unnamed: 0," if choose.random() < 0.5 else ",") * saved + "date,open,high,low,close,volume,Name"
    ]
    rows = [
        (day, asset, known.prices[asset][place])
        for place, day in enumerate(known.dates)
        for asset in known.assets
        if known.prices[asset][place] is not None
    ]
    observed = {day for day, _, _ in rows}
    american = american and any(day.day > 12 for day in observed)
    choose.shuffle(rows)
    for number, (day, asset, price) in enumerate(rows):
        shown = f"{day.month}/{day.day}/{day.year}" if american else day.isoformat()
        lines.append((f"{number}," if saved else "") + f"{shown},1,2,0.5,{cell(price)},1000,{asset}")
    return Written(
        text(folder / "all_stocks.csv", lines),
        {"layout": choose.choice(["auto", "kaggle", "long"])},
        date=int(saved),
        numbers=[saved + place for place in range(1, 6)],
        price=[saved + 4],
    )


def wide(known: Known, folder: Path, choose: random.Random) -> Written:
    european = choose.random() < 0.3
    separator = ";" if european else choose.choice([",", "\t", "|", ";"])
    lines = [separator.join(["Date", *known.assets])]
    for place, day in enumerate(known.dates):
        values = [cell(known.prices[asset][place]) for asset in known.assets]
        if european:
            values = [value.replace(".", ",") for value in values]
        lines.append(separator.join([f"{day:%d.%m.%Y}" if european else day.isoformat(), *values]))
    path = folder / "wide.csv"
    mark = "\ufeff" if choose.random() < 0.3 else ""
    path.write_text(mark + "\n".join([*lines, ""]), encoding="utf-8")
    places = list(range(1, len(known.assets) + 1))
    return Written(path, {"layout": "wide"}, separator=separator, numbers=places, price=places)


def crsp(known: Known, folder: Path, choose: random.Random) -> Written:
    newer = choose.random() < 0.5
    monthly = newer and choose.random() < 0.3
    kind = "Mth" if monthly else "Dly"
    head = f"PERMNO,Ticker,{kind}CalDt,{kind}Prc,{kind}PrcFlg,{kind}Ret,{kind}Vol"
    if not newer:
        head = "PERMNO,date,TICKER,DLSTCD,DLRET,PRC,VOL,RET"
    if choose.random() < 0.5:
        head = head.lower()
    lines = [head]
    for asset in known.assets:
        returns = known.returns(asset)
        seen = [place for place, value in enumerate(returns) if value is not None]
        for place in seen:
            value, quoted = returns[place], choose.uniform(1, 50)
            if newer:
                flag = choose.choice(["TR", "BA"])
                lines.append(f"{asset},T,{known.dates[place]},{quoted:.2f},{flag},{value!r},100")
                continue
            middle = choose.choice(["", "-"])
            shown, delisting, code = repr(value), "", ""
            if place == seen[-1] and place != seen[0] and choose.random() < 0.5:
                # The known return is split into what was earned before the delisting and at it.
                loss = choose.uniform(-0.6, 0.2)
                shown, delisting, code = repr((1 + value) / (1 + loss) - 1), repr(loss), "574"
            elif place == seen[0] and place != seen[-1]:
                shown = choose.choice(["B", "C", "-66.0", "-99", "0.0"])
            lines.append(
                f"{asset},{known.dates[place]:%Y%m%d},T,{code},{delisting},{middle}{quoted:.2f},100,{shown}"
            )
    return Written(
        text(folder / "crsp.csv", lines),
        {"layout": choose.choice(["auto", "crsp"])},
        date=2 if newer else 1,
        numbers=[3, 5, 6] if newer else [5, 6, 7],
        price=[5] if newer else [7],
        relative=True,
        tolerance=1e-9,
    )


def french(known: Known, folder: Path, choose: random.Random) -> Written:
    missing = choose.choice(["-99.99", "-999", "-99.9900"])
    lines = ["This file was created by CMPT_IND_RETS using the 202501 CRSP database.", ""]
    lines += ["Missing data are indicated by -99.99 or -999.", "", ""]
    number = choose.randint(1, 2)
    first = 0
    for block in range(1, 4):
        title = [
            "Average Value Weighted Returns",
            "Average Equal Weighted Returns",
            "Number of Firms in Portfolios",
        ]
        lines.append(f"  {title[block - 1]}{' -- Monthly' if block < 3 else ''}")
        lines.append(choose.choice(["", "Date"]) + "," + ",".join(f"{asset:<5}" for asset in known.assets))
        if choose.random() < 0.2:
            lines.append("")
        first = len(lines) + 1 if block == number else first
        returns = {asset: known.returns(asset) for asset in known.assets}
        for place, day in enumerate(known.dates):
            values = [returns[asset][place] for asset in known.assets]
            shown = [
                missing if value is None else f"{100 * value!r}" if block == number else "7.5"
                for value in values
            ]
            lines.append(",".join([f"{day:%Y%m%d}", *(f"{one:>9}" for one in shown)]))
        lines += ["", ""][: choose.randint(1, 2)]
    lines.append("Copyright 2025 Eugene F. Fama and Kenneth R. French")
    names = [["1", "value weighted monthly"], ["2", "equal weighted"]][number - 1]
    block = choose.choice([*names, None] if number == 1 else names)
    places = list(range(1, len(known.assets) + 1))
    path = text(folder / "Industry.CSV", lines)
    return Written(path, {"block": block}, first, numbers=places, price=places, relative=True, tolerance=1e-9)


def goyal_welch(known: Known, folder: Path, choose: random.Random) -> Written:
    asset = known.assets[0]
    header = ["yyyymm", "Index", "D12", "b/m", "CRSP_SPvw"]
    rows: list[list[str]] = []
    for day, value in zip(known.dates, known.returns(asset), strict=True):
        rows.append([f"{day:%Y%m}", "1.5", "NaN", "0.5", "NaN" if value is None else repr(value)])
    if choose.random() < 0.5:
        path = folder / "PredictorData.xlsx"
        workbook(path, {"Notes": [["x"], ["y"]], "Monthly": [header, *rows]})
        return Written(path, {}, relative=True, tolerance=1e-9)
    rows = [[row[0], '"1,234.5"', *row[2:]] for row in rows]
    path = text(folder / "Monthly.csv", [",".join(row) for row in [header, *rows]])
    return Written(path, {}, numbers=[1, 2, 3, 4], price=[4], relative=True, tolerance=1e-9)


def workbook(path: Path, sheets: dict[str, list[list[str]]], dates: int | None = None) -> Path:
    """Write an .xlsx file by hand; numbers are numbers, `dates` is a column of serial days."""
    main = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
    links = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
    shared: list[str] = []
    with zipfile.ZipFile(path, "w") as archive:
        entries, relations = [], []
        for number, (name, rows) in enumerate(sheets.items(), 1):
            made = []
            for place, row in enumerate(rows, 1):
                cells = []
                for column, value in enumerate(row):
                    at = f"{chr(65 + column)}{place}"
                    try:
                        float(value)
                        if value.casefold() == "nan":
                            raise ValueError
                        style = ' s="1"' if column == dates else ""
                        cells.append(f'<c r="{at}"{style}><v>{value}</v></c>')
                    except ValueError:
                        shared.append(value)
                        cells.append(f'<c r="{at}" t="s"><v>{len(shared) - 1}</v></c>')
                made.append(f'<row r="{place}">{"".join(cells)}</row>')
            archive.writestr(
                f"xl/worksheets/sheet{number}.xml",
                f'<worksheet xmlns="{main}"><sheetData>{"".join(made)}</sheetData></worksheet>',
            )
            entries.append(f'<sheet name="{name}" sheetId="{number}" r:id="rId{number}"/>')
            relations.append(
                f'<Relationship Id="rId{number}" Type="x" Target="worksheets/sheet{number}.xml"/>'
            )
        archive.writestr(
            "xl/workbook.xml",
            f'<workbook xmlns="{main}" xmlns:r="{links}"><sheets>{"".join(entries)}</sheets></workbook>',
        )
        package = "http://schemas.openxmlformats.org/package/2006/relationships"
        archive.writestr(
            "xl/_rels/workbook.xml.rels",
            f'<Relationships xmlns="{package}">{"".join(relations)}</Relationships>',
        )
        strings = "".join(f"<si><t>{escape(one)}</t></si>" for one in shared)
        archive.writestr("xl/sharedStrings.xml", f'<sst xmlns="{main}">{strings}</sst>')
        archive.writestr(
            "xl/styles.xml",
            f'<styleSheet xmlns="{main}"><cellXfs><xf numFmtId="0"/><xf numFmtId="14"/></cellXfs>'
            "</styleSheet>",
        )
    return path


def qlib(known: Known, folder: Path, choose: random.Random) -> Written:
    store = folder / "qlib_data"
    (store / "calendars").mkdir(parents=True)
    (store / "instruments").mkdir()
    compact = choose.random() < 0.3
    days = [f"{day:%Y%m%d}" if compact else day.isoformat() for day in known.dates]
    (store / "calendars" / "day.txt").write_text("\n".join(days) + "\n")
    listed = []
    for asset in known.assets:
        values = known.prices[asset]
        seen = [place for place, value in enumerate(values) if value is not None]
        start, stop = seen[0], seen[-1] + 1
        listed.append(f"{asset}\t{days[start]}\t{days[stop - 1]}")
        features = store / "features" / asset.lower()
        features.mkdir(parents=True)
        series = [float("nan") if value is None else value for value in values[start:stop]]
        np.array([start, *series], dtype="<f4").tofile(features / "close.day.bin")
        np.array([start, *[1.0 if value == value else value for value in series]], dtype="<f4").tofile(
            features / "volume.day.bin"
        )
    (store / "instruments" / "all.txt").write_text("\n".join(listed) + "\n")
    return Written(store, {"layout": choose.choice(["auto", "qlib"])}, tolerance=1e-6)


def parquet(known: Known, folder: Path, choose: random.Random) -> Written:
    frame = known.frame()
    if choose.random() < 0.3:
        frame = frame.rename({"asset": "Ticker", "date": "Date"})
    frame = frame.sample(fraction=1.0, shuffle=True, seed=choose.randint(0, 99))
    path = folder / "prices.parquet"
    frame.write_parquet(path)
    return Written(path)


def arrow(known: Known, folder: Path, choose: random.Random) -> Written:
    path = folder / choose.choice(["prices.feather", "prices.arrow"])
    if choose.random() < 0.3:
        known.frame().write_ipc_stream(path)
    else:
        known.frame().write_ipc(path)
    return Written(path)


WRITERS: dict[str, Callable[[Known, Path, random.Random], Written]] = {
    "yfinance": yfinance,
    "stooq": stooq,
    "kaggle": kaggle,
    "wide": wide,
    "crsp": crsp,
    "french": french,
    "goyal_welch": goyal_welch,
    "qlib": qlib,
    "parquet": parquet,
    "arrow": arrow,
}


def first_number(path: Path) -> float:
    """The first float32 of a file of qlib."""
    return float(struct.unpack("<f", path.read_bytes()[:4])[0])

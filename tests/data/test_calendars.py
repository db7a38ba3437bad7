"""Assets of different calendars in one file: nobody loses history to another, nobody is filled in."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fints.data import Panel, features, read

DAYS = [dt.date(2001, 2, 5) + dt.timedelta(days=day) for day in range(12)]
LISTINGS = st.lists(st.booleans(), min_size=12, max_size=12).filter(any)


@settings(max_examples=15)
@given(calendars=st.lists(LISTINGS, min_size=1, max_size=4))
def test_what_each_asset_traded_is_what_each_asset_has(
    calendars: list[list[bool]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("calendars")
    wide = pl.DataFrame(
        {"date": DAYS}
        | {
            f"S{asset}": [100.0 * (asset + 1) + day if there else None for day, there in enumerate(listed)]
            for asset, listed in enumerate(calendars)
        }
    )
    wide.write_csv(folder / "wide.csv")
    long = Panel.from_wide(wide).frame
    long.write_csv(folder / "long.csv")
    for path in (folder / "wide.csv", folder / "long.csv"):
        frame = read(path).frame
        for asset, listed in enumerate(calendars):
            own = frame.filter(pl.col("asset") == f"S{asset}")
            assert own["date"].to_list() == [day for day, there in zip(DAYS, listed, strict=True) if there]
            assert own["close"].to_list() == [
                100.0 * (asset + 1) + day for day, there in enumerate(listed) if there
            ]


@pytest.mark.parametrize("layout", ["yfinance", "stooq", "kaggle", "wide"])
def test_an_asset_reads_the_same_alone_and_beside_others(tmp_path: Path, layout: str) -> None:
    """Listed late, delisted early or on other holidays: the neighbour changes nothing."""
    prices = {
        "OLD": [1.5, 1.6, 1.7, 1.8],
        "LATE": [None, None, 2.5, 2.6],
        "GONE": [3.5, 3.6, None, None],
        "ABROAD": [4.5, None, 4.7, 4.8],
    }

    def write(assets: list[str]) -> Path:
        path = tmp_path / f"{layout}-{len(assets)}-{assets[0]}.csv"
        cells = {a: ["" if price is None else str(price) for price in prices[a]] for a in assets}
        head, body = ["date,close,Name"], []
        if layout in ("yfinance", "wide"):
            head = ["Date," + ",".join(assets)]
            body = [",".join([str(DAYS[day]), *(cells[a][day] for a in assets)]) for day in range(4)]
        if layout == "yfinance":
            head = [
                "Price" + ",Close" * len(assets),
                "Ticker," + ",".join(assets),
                "Date" + "," * len(assets),
            ]
        for a in assets if not body else []:
            for day in range(4):
                line = f"{DAYS[day]},{cells[a][day]},{a}"
                if layout == "stooq":
                    line = f"{a},D,{DAYS[day]:%Y%m%d},{cells[a][day]}"
                body += [line] if cells[a][day] else []
        if layout == "stooq":
            head = ["<TICKER>,<PER>,<DATE>,<CLOSE>"]
        path.write_text("\n".join([*head, *body, ""]))
        return path

    together = read(write(list(prices)))
    for asset in prices:
        alone = read(write([asset]), layout=layout)
        kept = together.frame.filter(pl.col("asset") == asset)
        assert kept.select("date", "close").equals(alone.frame.select("date", "close"))
    assert together.dates.to_list() == DAYS[:4]
    # A return counts the asset's own days: across a holiday it spans two dates, and no later price enters it.
    returns = features(together, ["return_1"]).filter(pl.col("asset") == "ABROAD")
    found = dict(returns.select("date", "return_1").iter_rows())
    assert found[DAYS[2]] == pytest.approx(pl.Series([4.7 / 4.5]).log()[0])
    assert found[DAYS[0]] is None

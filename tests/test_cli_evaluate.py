"""``fints evaluate`` on tables of others: what it reads, refuses, prints and concludes."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from fints.cli import main

DAYS, NAMES = 800, ["AA", "BB", "CC", "DD", "EE"]
DATES = [dt.date(2015, 1, 1) + dt.timedelta(days=day) for day in range(DAYS)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A panel with opens, the same without, and forecasts of its next return: true, of nothing, leaking."""
    folder = tmp_path_factory.mktemp("evaluate")
    rng = np.random.default_rng(0)
    signal = 0.0008 * rng.standard_normal((DAYS, len(NAMES)))
    steps = 0.01 * rng.standard_normal((DAYS, len(NAMES)))
    steps[1:] += signal[:-1]
    close = 50 * np.exp(np.cumsum(steps, axis=0))
    keys = pl.DataFrame({"date": [day for day in DATES for _ in NAMES], "asset": NAMES * DAYS})
    panel = keys.with_columns(close=pl.Series(close.ravel()))
    panel.write_parquet(folder / "panel.parquet")
    opened = np.vstack([close[:1], close[:-1]]) * np.exp(0.002 * rng.standard_normal(close.shape))
    panel.with_columns(open=pl.Series(opened.ravel())).write_csv(folder / "open.csv")
    judged = pl.col("date") >= DATES[100]
    for name, values in {
        "true": signal,
        "noise": 0.0012 * np.random.default_rng(9).standard_normal(signal.shape),
        "leak": 0.05 * np.vstack([steps[1:], steps[:1]]) + 0.001 * rng.standard_normal(signal.shape),
    }.items():
        keys.with_columns(forecast=pl.Series(values.ravel())).filter(judged).write_parquet(
            folder / f"{name}.parquet"
        )
    return folder


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = main(["evaluate", *map(str, arguments)])
    out, err = capsys.readouterr()
    return code, out, err


def told(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict:
    code, out, err = run(capsys, *arguments, "--json")
    assert (code, err) == (0, "")
    return json.loads(out)


def test_a_table_is_judged_in_80_columns_with_a_verdict(folder, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    code, out, err = run(capsys, folder / "true.parquet", "--panel", folder / "panel.parquet")
    assert (code, err) == (0, "")
    lines = [line.rstrip() for line in out.splitlines()]
    assert max(map(len, lines)) <= 80
    for title in (
        "R² against zero (%)",
        "R² against prevailing mean (%)",
        "rank IC  ",
        "Clark-West against zero",
        "Clark-West against prevailing mean",
        "Sharpe ratio, net",
        "break-even cost (bp)",
    ):
        assert sum(line.startswith(title) for line in lines) == 1, title
    assert "Portfolios: next close, 5 bp a trade" in lines
    assert "Found: the forecasts beat zero and the prevailing mean (Clark-West" in " ".join(out.split())


def test_nothing_is_said_to_be_found_where_nothing_is(folder, capsys):
    found = told(capsys, folder / "noise.parquet", "--panel", folder / "panel.parquet")
    assert found["decision"] == "nothing"
    assert found["verdict"].startswith(
        "Nothing found: the forecasts do not beat both zero and the prevailing"
    )
    assert found["left_out"] == {"without an outcome yet": 5}


def test_a_leak_is_suspected(folder, capsys):
    found = told(capsys, folder / "leak.parquet", "--panel", folder / "panel.parquet")
    assert found["decision"] == "suspected_leak"
    assert "Suspected leak: the mean rank IC is 0." in found["warnings"][0]


def test_the_same_table_in_another_dress_is_judged_alike(folder, capsys, tmp_path):
    table = pl.read_parquet(folder / "true.parquet")
    names = {"date": "when", "asset": "who", "forecast": "alpha"}
    table.sample(fraction=1, shuffle=True, seed=1).rename(names).write_csv(tmp_path / "odd.csv")
    options = [part for name, column in names.items() for part in (f"--{name}", column)]
    one = told(capsys, folder / "true.parquet", "--panel", folder / "panel.parquet")
    other = told(capsys, tmp_path / "odd.csv", "--panel", folder / "panel.parquet", *options)
    same = set(one) - {"forecasts", "read_as"}
    assert {name: one[name] for name in same} == {name: other[name] for name in same}
    assert other["read_as"] == names


def test_outcomes_are_the_returns_after_the_forecast_over_the_horizon_asked_for(folder, capsys, tmp_path):
    panel = pl.read_parquet(folder / "panel.parquet").sort("asset", "date")
    ahead = (pl.col("close").shift(-3) / pl.col("close")).over("asset")
    for units, outcome in {"log": ahead.log(), "simple": ahead - 1}.items():
        panel.select("date", "asset", forecast=outcome).write_parquet(tmp_path / "oracle.parquet")
        arguments = (tmp_path / "oracle.parquet", "--panel", folder / "panel.parquet", "--horizon", 3)
        found = told(capsys, *arguments, "--returns", units)
        assert found["estimates"]["r2_zero"]["value"] == pytest.approx(1.0, abs=1e-12)
        assert found["horizon"] == 3
        assert found["left_out"] == {"without a forecast": 15}


def test_without_a_panel_the_outcomes_are_the_table_s(folder, capsys, tmp_path):
    panel = pl.read_parquet(folder / "panel.parquet").sort("asset", "date")
    ahead = (pl.col("close").shift(-1) / pl.col("close")).log().over("asset")
    own = pl.read_parquet(folder / "true.parquet").join(
        panel.select("date", "asset", outcome=ahead), on=["date", "asset"]
    )
    own.write_parquet(tmp_path / "own.parquet")
    code, _, err = run(capsys, tmp_path / "own.parquet")
    assert code == 2
    assert "give --panel" in err
    alone = told(capsys, tmp_path / "own.parquet", "--realised", "outcome")
    joined = told(capsys, tmp_path / "own.parquet", "--panel", folder / "panel.parquet")
    assert alone["estimates"]["r2_zero"] == pytest.approx(joined["estimates"]["r2_zero"])
    assert alone["portfolios"] == []
    wrong = own.with_columns(realised=pl.col("outcome").shift(1).over("asset")).drop("outcome")
    wrong.write_parquet(tmp_path / "wrong.parquet")
    noted = told(capsys, tmp_path / "wrong.parquet", "--panel", folder / "panel.parquet")
    assert any("outcomes of the table differ from the panel's" in note for note in noted["notes"])
    assert noted["estimates"]["r2_zero"] == joined["estimates"]["r2_zero"]


def test_positions_are_taken_at_the_next_open_where_there_are_opens(folder, capsys):
    opened = told(capsys, folder / "true.parquet", "--panel", folder / "open.csv")
    assert opened["execution"] == opened["portfolios"][0]["execution"] == "next_open"
    assert opened["notes"] == []
    closed = told(capsys, folder / "true.parquet", "--panel", folder / "panel.parquet")
    assert closed["execution"] == "next_close"
    assert closed["notes"] == [
        "The panel has no opens: positions are taken at the next close, not at the next open."
    ]
    ratios = {
        execution: told(
            capsys, folder / "true.parquet", "--panel", folder / "open.csv", "--execution", execution
        )["portfolios"][0]["sharpe_gross"]
        for execution in ("next_open", "next_close", "same_close")
    }
    # The signal is of the day after the forecast: one who waits for the next close has missed it.
    assert ratios["same_close"] > 1.5 > ratios["next_close"] + 0.5
    assert ratios["next_open"] == opened["portfolios"][0]["sharpe_gross"]
    code, _, err = run(
        capsys, folder / "true.parquet", "--panel", folder / "panel.parquet", "--execution", "next_open"
    )
    assert code == 2
    assert 'Choose "next_close"' in err


def test_a_sharpe_ratio_is_deflated_for_all_trials(folder, capsys):
    arguments = (folder / "true.parquet", "--panel", folder / "panel.parquet", "--execution", "same_close")
    one, many = (told(capsys, *arguments, "--trials", count)["portfolios"][0] for count in (1, 500))
    assert one["deflated_sharpe"] == one["probabilistic_sharpe"]
    assert many["deflated_sharpe"] < one["deflated_sharpe"]


def test_keys_that_do_not_overlap_are_refused_with_the_first(folder, capsys, tmp_path):
    table = pl.read_parquet(folder / "true.parquet")
    table.with_columns(pl.col("asset") + ".US").write_parquet(tmp_path / "us.parquet")
    code, out, err = run(capsys, tmp_path / "us.parquet", "--panel", folder / "panel.parquet")
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert "only 0.0 % of the 3,500 forecasts have their (date, asset) in the panel" in err
    assert "First without: 2015-04-11 AA.US, 2015-04-11 BB.US" in err
    assert "its assets are AA, BB, CC" in err


def test_what_cannot_be_read_is_one_line(folder, capsys, tmp_path):
    (tmp_path / "x.xlsx").write_bytes(b"")
    for arguments, message in {
        (tmp_path / "none.parquet",): "there is no file",
        (tmp_path / "x.xlsx",): "a table is .parquet, .csv or .arrow",
        (folder / "true.parquet", "--panel", "nowhere"): "nowhere",
        (folder / "true.parquet", "--panel", folder / "panel.parquet", "--returns", "net"): "log or simple",
        (folder / "true.parquet", "--execution", "now"): "--execution must be one of next_open",
        (folder / "true.parquet", "--panel", folder / "panel.parquet", "--figure", "a.pdf"): ".png or .svg",
    }.items():
        code, out, err = run(capsys, *arguments)
        assert (code, out) == (2, "")
        assert len(err.splitlines()) == 1
        assert message in err


def test_a_distribution_is_scored_where_its_law_is_known(folder, capsys, tmp_path):
    table = pl.read_parquet(folder / "true.parquet").with_columns(scale=0.01)
    z = 1.6448536269514722 * pl.col("scale")
    gauss = table.with_columns(q05=pl.col("forecast") - z, q95=pl.col("forecast") + z)
    gauss.write_parquet(tmp_path / "gauss.parquet")
    found = told(capsys, tmp_path / "gauss.parquet", "--panel", folder / "panel.parquet")["estimates"]
    assert found["coverage_90"]["value"] == pytest.approx(0.9, abs=0.03)
    assert found["log_score"]["value"] == pytest.approx(-0.5 * np.log(2 * np.pi * np.e * 1e-4), abs=0.05)
    gauss.with_columns(q95=pl.col("forecast") + 1.5 * z).write_parquet(tmp_path / "other.parquet")
    other = told(capsys, tmp_path / "other.parquet", "--panel", folder / "panel.parquet")
    assert "log_score" not in other["estimates"]
    assert any("lie between q05 and q95 (90 % should)" in note for note in other["notes"])


def test_one_asset_is_judged_without_a_portfolio(folder, capsys, tmp_path):
    pl.read_parquet(folder / "true.parquet").filter(pl.col("asset") == "AA").write_parquet(tmp_path / "a.pq")
    found = told(capsys, tmp_path / "a.pq", "--panel", folder / "open.csv")
    assert found["portfolios"] == []
    assert found["tests"]["clark_west_zero"]["p"] is not None
    assert any("No date has two forecasts" in warning for warning in found["warnings"])


def test_a_file_that_is_no_table_is_refused_in_one_line(folder, capsys, tmp_path):
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "cut.parquet").write_bytes((folder / "true.parquet").read_bytes()[:500])
    for name in ("empty.csv", "cut.parquet"):
        code, out, err = run(capsys, tmp_path / name, "--panel", folder / "panel.parquet")
        assert (code, out) == (2, "")
        assert err.count("\n") == 1
        assert f"{name} is empty or damaged" in err


def test_opens_are_found_in_any_case_and_left_alone_where_they_are_on_another_scale(folder, capsys, tmp_path):
    panel = pl.read_csv(folder / "open.csv", try_parse_dates=True)
    want = told(capsys, folder / "true.parquet", "--panel", folder / "open.csv")
    panel.rename({"open": "Open"}).write_csv(tmp_path / "upper.csv")
    assert told(capsys, folder / "true.parquet", "--panel", tmp_path / "upper.csv") == want | {
        "outcomes": want["outcomes"].replace(str(folder / "open.csv"), str(tmp_path / "upper.csv"))
    }
    half = pl.when(pl.col("date") < DATES[400]).then(4.0).otherwise(1.0)
    panel.with_columns(pl.col("open") * half).write_csv(tmp_path / "split.csv")
    other = told(capsys, folder / "true.parquet", "--panel", tmp_path / "split.csv")
    assert other["execution"] == "next_close"
    assert any("not on the scale of its price" in note for note in other["notes"])

"""What `check` finds: each planted fault by its kind, and nothing on clean data."""

from __future__ import annotations

import datetime as dt
import json

import numpy as np
import polars as pl
import pytest

from fints.data import Panel, check, load, simulate


def walk(num_days: int = 300, seed: int = 0) -> np.ndarray:
    return 100 * np.exp(np.cumsum(0.01 * np.random.default_rng(seed).standard_normal(num_days)))


def panel(*paths: np.ndarray, **columns: np.ndarray) -> Panel:
    days = np.busday_offset("2001-01-01", np.arange(len(paths[0])), roll="forward").astype("datetime64[D]")
    wide = pl.DataFrame(
        {"date": pl.Series(days).cast(pl.Date)} | {f"S{i}": path for i, path in enumerate(paths)}
    )
    made = Panel.from_wide(wide.with_columns(pl.exclude("date").fill_nan(None)))
    return Panel(made.frame.with_columns(**{name: pl.Series(values) for name, values in columns.items()}))


def kinds(made: Panel, level: str = "warning") -> set[str]:
    return {finding.kind for finding in check(made).findings if finding.level == level}


def test_clean_data_has_no_finding():
    assert check(panel(walk(), walk(seed=1))).findings == ()
    assert check(simulate(num_days=400, noise="garch", seed=3).panel).findings == ()


def changed(start: int, stop: int, factor: float = 1.0, value: float | None = None) -> Panel:
    path = walk()
    path[start:stop] = path[start:stop] * factor if value is None else value
    return panel(path, walk(seed=1))


@pytest.mark.parametrize(
    ("made", "kind", "said"),
    [
        (lambda: changed(100, 300, 0.125), "jump", "S0 on 2001-05-21 (x0.12"),
        (
            lambda: changed(100, 101, 100.0),
            "hundredfold",
            "2 moves of about a factor of 100, first S0 on 2001-05-21",
        ),
        (lambda: changed(100, 110, value=float(walk()[99])), "stale", "longest 10 for S0 from 2001-05-21"),
        (lambda: changed(0, 300, value=5.0), "constant", "1 asset (S0) with a price that never changes"),
        (lambda: panel(np.round(walk() / 5000, 3) + 0.0001, walk(seed=1)), "rounding", "S0"),
        (lambda: panel(np.full(300, np.nan), walk()), "no_price", "1 asset (S0) without a single price"),
        (lambda: panel(walk() ** 40, walk(seed=1) ** 40), "not_prices", "may be returns"),
        (
            lambda: panel(walk(), ret=np.random.default_rng(9).standard_normal(300)),
            "percent",
            "'ret' has median absolute value",
        ),
    ],
)
def test_a_planted_fault_is_found_by_name(made, kind, said):
    found = {
        finding.kind: finding.message for finding in check(made()).findings if finding.level == "warning"
    }
    assert kind in found
    assert said in found[kind]


def test_a_genuine_day_of_130_percent_is_left_alone():
    assert kinds(changed(100, 300, 2.3)) == set()


def test_a_missing_year_is_found_in_the_calendar():
    made = panel(walk(600))
    cut = Panel(made.frame.filter(~pl.col("date").is_between(dt.date(2002, 1, 1), dt.date(2002, 12, 31))))
    found = [finding for finding in check(cut).findings if finding.kind == "calendar_gap"]
    assert "2001-12-31 to 2003-01-01" in found[0].message


def test_listings_delistings_halts_weekends_and_single_assets_are_notes():
    late, early, halted = walk(seed=1), walk(seed=2), walk(seed=3)
    late[:50], early[250:], halted[100:120] = np.nan, np.nan, np.nan
    made = panel(walk(), late, early, halted)
    assert kinds(made, "note") == {"late_listing", "delisted", "missing_days"}
    assert kinds(made) == set()
    monthly = pl.date_range(pl.date(2000, 1, 31), pl.date(2010, 1, 31), "1mo", eager=True)
    single = Panel(pl.DataFrame({"date": monthly, "asset": "A", "close": walk(len(monthly))}))
    assert kinds(single, "note") == {"one_asset", "frequency", "weekend"}


def test_every_broken_rule_of_a_file_is_reported_at_once(tmp_path):
    path = tmp_path / "bad.csv"
    path.write_text("date,asset,close,v\n2001-01-01,A,1,1\n2001-01-01,A,-1,inf\n,,,\n2001-01-02,,0,2\n")
    report = check(path)
    assert [finding.kind for finding in report.findings] == ["null_key", "duplicate", "bad_price", "infinite"]
    assert not report.ok
    assert "cannot be used as it stands: 4 errors" in str(report)


def test_a_report_is_json_and_text(tmp_path):
    path = tmp_path / "good.csv"
    panel(walk(), walk(seed=1)).frame.write_csv(path)
    report = check(path)
    assert report.ok
    fields = json.loads(json.dumps(report.to_dict()))
    assert (fields["ok"], fields["summary"]["dates"], fields["summary"]["assets"]) == (True, 300, 2)
    text = str(report)
    assert "read as   CSV separated by commas: long" in text
    assert "can be used: 0 errors, 0 warnings" in text


def test_an_absent_file_is_an_error_of_the_caller(tmp_path):
    with pytest.raises(ValueError, match="no such file"):
        check(tmp_path / "absent.csv")


def test_the_bundled_panel_shows_the_rounding_its_card_admits():
    found = {finding.kind: finding.message for finding in check(load("sp500-20")).findings}
    assert set(found) == {"rounding", "survivorship", "zero_returns"}
    assert "AAPL" in found["rounding"]
    assert "up to 102 bp" in found["rounding"]

"""Findings that need several assets or many dates, and the picture of a report."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from fints.data import Panel, check, load, simulate
from fints.data.findings import traded_moves
from fints.data.health_dates import autocorrelation, future
from fints.data.health_figure import draw_health


def made(moves: np.ndarray, **columns: np.ndarray) -> Panel:
    """A panel of business days whose log moves are `moves` (dates x assets)."""
    days = np.busday_offset("2001-01-01", np.arange(len(moves)), roll="forward").astype("datetime64[D]")
    paths = 100 * np.exp(np.cumsum(moves, axis=0))
    wide = {"date": pl.Series(days).cast(pl.Date)} | {f"S{i}": path for i, path in enumerate(paths.T)}
    panel = Panel.from_wide(pl.DataFrame(wide))
    return Panel(panel.frame.with_columns(**{name: pl.Series(values) for name, values in columns.items()}))


def found(panel: Panel) -> dict[str, str]:
    return {finding.kind: finding.message for finding in check(panel).findings}


def noise(num_dates: int, num_assets: int = 2, seed: int = 0) -> np.ndarray:
    return 0.01 * np.random.default_rng(seed).standard_normal((num_dates, num_assets))


def test_a_move_by_the_ratio_of_a_split_is_suspected_and_one_of_130_percent_is_not() -> None:
    moves = noise(300)
    for ratio, suspected in ((0.5, True), (1 / 3, True), (2.0, True), (2.3, False), (0.62, False)):
        split = moves.copy()
        split[150, 0] = np.log(ratio)
        assert ("split" in found(made(split))) is suspected, ratio


def test_a_tick_that_is_taken_back_is_no_split() -> None:
    moves = noise(300)
    moves[150, 0], moves[151, 0] = np.log(0.5), np.log(2.0)
    assert "split" not in found(made(moves))


def test_a_negative_dependence_of_moves_is_found_with_its_r2_and_independence_is_not() -> None:
    steps = noise(1500, 5, seed=1)
    bounce = steps.copy()
    bounce[1:] -= 0.2 * steps[:-1]
    said = found(made(bounce))
    # MA(1) with -0.2: rho = -0.2 / 1.04.
    assert "correlation -0.1" in said["autocorrelation"]
    assert "R2 of about 3." in said["autocorrelation"]
    assert "5 assets" in said["own_autocorrelation"]
    assert not {"autocorrelation", "own_autocorrelation"} & found(made(steps)).keys()


def test_the_pooled_autocorrelation_is_the_textbook_one_for_one_asset() -> None:
    moves = noise(400, 1, seed=2)
    rho, error = autocorrelation(traded_moves(made(moves)), 3)
    path = moves[1:, 0]
    products, square = path[3:] * path[:-3], np.mean(path[3:] ** 2)
    assert rho == pytest.approx(products.mean() / square, rel=1e-6)
    assert error == pytest.approx(products.std(ddof=1) / np.sqrt(len(products)) / square, rel=1e-6)


def test_the_error_by_dates_covers_the_truth_where_assets_move_together() -> None:
    outside = 0
    for seed in range(60):
        common = noise(250, 1, seed=seed)
        rho, error = autocorrelation(traded_moves(made(common + 0.3 * noise(250, 6, seed=1000 + seed))), 1)
        outside += abs(rho) > 1.96 * error
    # 5 % of 60 is 3; more than 9 has probability 0.001. By rows instead of dates it would be 30.
    assert outside <= 9


def test_dates_on_which_all_stand_still_are_suspected_holidays() -> None:
    moves = noise(300, 4)
    moves[[100, 200]] = 0.0
    said = found(made(moves))
    assert said["filled_holidays"].startswith(
        "2 dates on which every asset repeats its last price, first 2001-05-21"
    )


def test_a_last_date_that_repeats_every_number_is_a_live_bar() -> None:
    moves = noise(100, 3)
    moves[-1] = 0.0
    volume = np.repeat(np.arange(100.0), 3)
    volume[-3:] = volume[-6:-3]
    assert "live_bar" in found(made(moves, volume=volume))
    volume[-1] += 1
    assert "live_bar" not in found(made(moves, volume=volume))


def test_a_panel_of_survivors_is_told_and_one_delisting_ends_the_suspicion() -> None:
    panel = made(noise(1600, 6))
    assert "none of 6 assets ends before the panel does, in 6 years" in found(panel)["survivorship"]
    gone = (pl.col("asset") == "S3") & (pl.col("date") > dt.date(2005, 1, 1))
    assert "survivorship" not in found(Panel(panel.frame.filter(~gone)))


def test_clean_simulations_raise_no_warning() -> None:
    for seed in range(5):
        panel = simulate(num_days=1000, noise="garch", seed=seed).panel
        assert [finding for finding in check(panel).findings if finding.level == "warning"] == []


def test_the_text_of_a_report_keeps_to_eighty_columns() -> None:
    text = str(check(load("sp500-20")))
    assert [line for line in text.splitlines() if len(line) > 80] == []
    assert "survivors" in text


@pytest.mark.slow
def test_a_report_is_drawn_the_same_each_time_and_only_for_a_panel(tmp_path: Path) -> None:
    report = check(made(noise(60, 2)))
    first = draw_health(report, tmp_path / "a.png").read_bytes()
    assert first == draw_health(report, tmp_path / "b.png").read_bytes()
    assert json.dumps(report.to_dict())
    with pytest.raises(ValueError, match=r"must end in \.png"):
        draw_health(report, tmp_path / "a.txt")
    with pytest.raises(ValueError, match="no such folder"):
        draw_health(report, tmp_path / "absent" / "a.png")
    (tmp_path / "bad.csv").write_text("date,asset,close\n2001-02-13,A,-1\n")
    with pytest.raises(ValueError, match="is no panel"):
        draw_health(check(tmp_path / "bad.csv"), tmp_path / "c.png")


@pytest.mark.parametrize("shape", [(1, 1), pytest.param((40, 60), marks=pytest.mark.slow)])
def test_panels_at_the_edge_are_drawn(tmp_path: Path, shape: tuple[int, int]) -> None:
    panel = made(noise(*shape))
    empty = pl.DataFrame({"date": [panel.dates[0]], "asset": ["EMPTY"], "close": [None]})
    with_empty = Panel(pl.concat([panel.frame, empty.cast({"close": pl.Float64})]))
    assert draw_health(check(with_empty), tmp_path / "a.png").stat().st_size > 10_000


def named(*names: str) -> Panel:
    return Panel(
        pl.DataFrame(
            {
                "date": [dt.date(2001, 1, 2) + dt.timedelta(days=day) for day in range(4) for _ in names],
                "asset": list(names) * 4,
                "close": np.exp(0.01 * np.arange(4.0 * len(names))),
            }
        )
    )


def test_names_that_differ_only_by_case_or_blanks_are_warned_of_by_name() -> None:
    said = found(named("ABC", "abc", "ABCD", "X Y", "X  Y"))["alike_names"]
    assert "'ABC', 'abc'" in said
    assert "'X  Y', 'X Y'" in said or "'X Y', 'X  Y'" in said
    assert "ABCD" not in said
    assert "alike_names" not in found(named("ABC", "ABCD", "X-Y"))


def test_a_column_that_pandas_renamed_is_warned_of_as_one_asset_twice() -> None:
    assert "'AAPL.1' beside 'AAPL'" in found(named("AAPL", "AAPL.1", "X.2"))["repeated_names"]
    assert "repeated_names" not in found(named("A.B", "A", "X.2"))


def test_dates_still_to_come_are_warned_of_but_not_the_day_after_today() -> None:
    panel = named("A", "B")
    last = panel.dates[-1]
    assert future(panel, last - dt.timedelta(days=1)) == []
    (warned,) = future(panel, last - dt.timedelta(days=2))
    assert f"1 date still to come, first {last}" in warned.message
    late = panel.frame.with_columns(date=pl.col("date").dt.offset_by("100y"))
    assert "8 dates" not in found(panel).get("future", "")
    assert "4 dates still to come, first 2101-01-02" in found(Panel(late))["future"]
    assert "(70 as 2070)" in found(Panel(late))["future"]


@pytest.mark.parametrize("daily", [0.0005, 0.01, 0.05])
def test_returns_in_percent_are_told_by_the_moves_beside_them_whatever_their_size(daily: float) -> None:
    """A bond that moves 0.05 % a day has percent returns below a tenth: their size alone tells nothing."""
    moves = daily * np.random.default_rng(3).standard_normal((300, 2))
    simple = np.expm1(moves).ravel()
    assert "100 times the returns of 'close'" in found(made(moves, change=100 * simple))["percent"]
    assert "percent" not in found(made(moves, change=simple, ret=simple))
    # Returns of something else are judged by their size, as before.
    other = daily * np.random.default_rng(4).standard_normal(600)
    assert ("percent" in found(made(moves, ret=100 * other))) is (daily > 0.0005)
    assert "percent" not in found(made(moves, volume=100 * np.abs(other)))

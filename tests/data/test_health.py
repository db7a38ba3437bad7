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
from fints.data.health_dates import autocorrelation
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

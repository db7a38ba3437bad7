"""Windows: the same as a naive loop, without copies, and blind to other periods' targets."""

from __future__ import annotations

import datetime as dt
import math

import numpy as np
import polars as pl
import pytest
import torch

from fints.data import Panel, Windows, features, targets

NAMES = ["return_1", "volatility_5"]


def build(
    panel: Panel, *, context: int = 8, min_valid: float = 0.5, target: str = "log_return", horizon: int = 1
):
    return Windows.build(
        features(panel, NAMES), targets(panel, target, horizon), NAMES, context=context, min_valid=min_valid
    )


def naive(panel: Panel, *, context: int, min_valid: float, labelled: bool) -> dict[tuple, tuple]:
    """Windows by dictionary look-up, one cell at a time."""
    dates = panel.dates.to_list()
    inputs = {row[:2]: row[2:] for row in features(panel, NAMES).iter_rows()}
    outcomes = {row[:2]: row[2] for row in targets(panel, "log_return", 1).iter_rows()}
    found = {}
    for place in range(context - 1, len(dates)):
        for asset in panel.assets:
            days = dates[place - context + 1 : place + 1]
            rows = [inputs.get((day, asset), (None, None)) for day in days]
            present = [any(value is not None for value in row) for row in rows]
            if not present[-1] or sum(present) < math.ceil(min_valid * context):
                continue
            labels = [outcomes.get((day, asset)) for day in days]
            if labelled and labels[-1] is None:
                continue
            found[days[-1], asset] = (rows, labels)
    return found


def as_tensor(rows: list) -> torch.Tensor:
    return torch.tensor(
        [[math.nan if v is None else v for v in row] for row in rows], dtype=torch.float64
    ).float()


@pytest.mark.parametrize("labelled", [False, True])
@pytest.mark.parametrize("min_valid", [0.5, 1.0])
def test_gathered_batches_equal_a_naive_loop(ragged, labelled, min_valid):
    panel = ragged()
    expected = naive(panel, context=8, min_valid=min_valid, labelled=labelled)
    chosen = build(panel, min_valid=min_valid).select(None, None, labelled=labelled, every_token=True)
    assert chosen.keys().rows() == sorted(expected)
    inputs, outcomes = chosen.gather(torch.arange(len(chosen)))
    assert inputs.shape == (len(expected), 8, 2)
    for place, key in enumerate(chosen.keys().rows()):
        rows, labels = expected[key]
        torch.testing.assert_close(inputs[place], as_tensor(rows), rtol=0, atol=0, equal_nan=True)
        torch.testing.assert_close(outcomes[place], as_tensor([labels])[0], rtol=0, atol=0, equal_nan=True)


def test_positions_may_come_in_any_order_and_repeat(ragged):
    chosen = build(ragged()).select(None, None, labelled=True, every_token=True)
    all_inputs, all_outcomes = chosen.gather(torch.arange(len(chosen)))
    places = torch.tensor([5, 0, 5, len(chosen) - 1])
    inputs, outcomes = chosen.gather(places)
    torch.testing.assert_close(inputs, all_inputs[places], rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(outcomes, all_outcomes[places], rtol=0, atol=0, equal_nan=True)


def test_windows_share_the_storage_of_the_values(ragged):
    windows = build(ragged(), context=24)
    view = windows.view()
    assert view.shape == (4, 120 - 23, 24, 2)
    assert view.untyped_storage().data_ptr() == windows.values.untyped_storage().data_ptr()
    assert windows.values.untyped_storage().nbytes() == 4 * 120 * 2 * 4


def test_only_the_last_token_keeps_its_target_unless_every_token_is_asked_for(ragged):
    windows = build(ragged())
    last, every = (windows.select(None, None, labelled=True, every_token=flag) for flag in (False, True))
    places = torch.arange(len(last))
    kept, whole = last.gather(places)[1], every.gather(places)[1]
    assert kept[:, :-1].isnan().all()
    assert torch.equal(kept[:, -1], whole[:, -1])
    assert whole[:, :-1].isfinite().any()


def test_late_and_delisted_assets_take_no_history_from_the_others(ragged):
    panel = ragged()
    alone = Panel(panel.frame.filter(pl.col("asset") == "A"))
    together = build(panel).select(None, None, labelled=True)
    keys = together.keys()
    mine = torch.from_numpy((keys["asset"] == "A").arg_true().to_numpy().astype(np.int64))
    single = build(alone).select(None, None, labelled=True)
    assert len(single) == len(mine) == 120 - 8
    torch.testing.assert_close(
        together.gather(mine)[0], single.gather(torch.arange(len(single)))[0], rtol=0, atol=0, equal_nan=True
    )


def test_a_window_with_too_few_days_gives_no_forecast(ragged):
    panel = ragged()
    keys = build(panel, context=20, min_valid=0.75).select(None, None, labelled=False).keys()
    first = keys.filter(pl.col("asset") == "B")["date"].min()
    # B's first feature stands on its second day; 15 of 20 days must be there.
    assert first == panel.dates[40 + 1 + 15 - 1]
    assert keys.filter(pl.col("asset") == "C")["date"].max() == panel.dates[59]
    halted = keys.filter(
        (pl.col("asset") == "D") & pl.col("date").is_between(panel.dates[30], panel.dates[59])
    )
    assert halted.is_empty()


@pytest.mark.parametrize(
    ("min_valid", "needed"), [(0.76, 16), (0.75, 15), (0.74, 15), (0.701, 15), (0.7, 14)]
)
def test_a_share_of_days_that_is_no_whole_number_is_rounded_up(ragged, min_valid, needed):
    panel = ragged()
    keys = build(panel, context=20, min_valid=min_valid).select(None, None, labelled=False).keys()
    first = keys.filter(pl.col("asset") == "B")["date"].min()
    assert first == panel.dates[40 + 1 + needed - 1]


def test_dates_choose_windows_with_both_ends(ragged):
    panel = ragged()
    start, end = panel.dates[50], panel.dates[60]
    keys = build(panel).select(start, end, labelled=True).keys()
    assert (keys["date"].min(), keys["date"].max()) == (start, end)
    # A and B on all 11 days; C, last traded on day 59, has its last label on day 58; D is halted.
    assert keys.height == 11 * 2 + 9


def test_no_target_outside_the_chosen_dates_is_ever_seen(ragged):
    panel = ragged()
    place = 50
    chosen = build(panel).select(panel.dates[place], panel.dates[70], labelled=True, every_token=True)
    first = (chosen.keys()["date"] == panel.dates[place]).arg_true().to_numpy()
    outcomes = chosen.gather(torch.tensor(first.astype(np.int64)))[1]
    assert outcomes[:, :-1].isnan().all()
    assert outcomes[:, -1].isfinite().all()


def test_a_label_that_runs_over_a_halt_does_not_reach_into_the_next_period(ragged):
    panel = ragged()
    before_halt, resumed = panel.dates[29], panel.dates[60]
    windows = build(panel)
    assert targets(panel, "log_return", 1).filter(pl.col("asset") == "D", pl.col("date") == before_halt)[
        "label_end"
    ].to_list() == [resumed]
    key = (before_halt, "D")
    assert key not in windows.select(None, panel.dates[40], labelled=True).keys().rows()
    assert key not in windows.select(None, before_halt, labelled=True).keys().rows()
    assert key in windows.select(None, panel.dates[60], labelled=True).keys().rows()
    # The others' last labels end one day after the period, as its purge allows for.
    assert (before_halt, "A") in windows.select(None, before_halt, labelled=True).keys().rows()


def test_forecasts_need_no_targets(ragged):
    panel = ragged()
    windows = Windows.build(features(panel, NAMES), None, NAMES, context=8, min_valid=0.5)
    chosen = windows.select(None, None, labelled=False)
    assert panel.dates[-1] in chosen.keys()["date"]
    with pytest.raises(ValueError, match="labelled windows need targets"):
        windows.select(None, None, labelled=True)


def test_targets_of_other_dates_than_the_features_are_left_out(ragged):
    panel = ragged()
    cut = panel.dates[80]
    short = features(panel[:cut], NAMES)
    windows = Windows.build(short, targets(panel, "log_return", 1), NAMES, context=8, min_valid=0.5)
    expected = targets(panel, "log_return", 1).filter(pl.col("date") <= cut)["target"].count()
    assert windows.targets.isfinite().sum() == expected


def test_a_panel_shorter_than_the_context_says_how_many_days_are_needed_and_there(ragged):
    with pytest.raises(ValueError, match="context = 24 needs at least 24 days; the panel has 10"):
        build(ragged(num_days=120)[: dt.date(2001, 1, 10)], context=24)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"context": 0}, "context must be at least 1"),
        ({"min_valid": 0.0}, r"min_valid in \(0, 1\]"),
        ({"min_valid": 1.5}, r"min_valid in \(0, 1\]"),
    ],
)
def test_impossible_windows_are_refused(ragged, arguments, said):
    with pytest.raises(ValueError, match=said):
        build(ragged(), **arguments)


def test_missing_columns_and_reversed_dates_are_refused(ragged):
    panel = ragged()
    with pytest.raises(ValueError, match="missing: \\['x'\\]"):
        Windows.build(features(panel, NAMES), None, ["x"], context=8, min_valid=0.5)
    with pytest.raises(ValueError, match="start must not lie after end"):
        build(panel).select(panel.dates[9], panel.dates[3], labelled=False)

"""Folds are made on dates, purged by label end, and say what they need."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import random

import polars as pl
import pytest

from fints.evaluation import Fold, WalkForward

DATES = [dt.date(2000, 1, 3) + dt.timedelta(days=7 * week) for week in range(200)]


def walk(**changes) -> WalkForward:
    return WalkForward(**{"num_folds": 3, "test_days": 20, "validation_days": 15, "purge": 5} | changes)


def positions(fold: Fold) -> dict[str, tuple[int, int]]:
    return {
        part: tuple(DATES.index(day) for day in fold.period(part)) for part in ("train", "validation", "test")
    }


def test_test_periods_are_adjacent_and_end_at_the_last_date():
    folds = walk().split(DATES)
    tests = [positions(fold)["test"] for fold in folds]
    assert tests == [(140, 159), (160, 179), (180, 199)]
    assert [fold.index for fold in folds] == [0, 1, 2]


def test_an_expanding_train_begins_at_the_first_date_and_a_rolling_one_has_its_length():
    assert [positions(fold)["train"][0] for fold in walk().split(DATES)] == [0, 0, 0]
    for fold in walk(train_days=30).split(DATES):
        first, last = positions(fold)["train"]
        assert last - first + 1 == 30


@pytest.mark.parametrize("horizon", [1, 5, 21])
@pytest.mark.parametrize("embargo", [0, 3])
def test_no_label_reaches_into_the_next_period(horizon: int, embargo: int):
    for fold in walk(purge=horizon, embargo=embargo).split(DATES):
        at = positions(fold)
        assert at["train"][1] + horizon + embargo == at["validation"][0] - 1
        assert at["validation"][1] + horizon + embargo == at["test"][0] - 1
        assert at["validation"][1] - at["validation"][0] + 1 == 15


def test_rows_of_many_assets_and_their_order_do_not_move_a_fold():
    shuffled = DATES * 20
    random.Random(0).shuffle(shuffled)
    assert walk().split(shuffled) == walk().split(DATES)


def test_dates_after_the_end_are_invisible():
    assert walk(end=DATES[149]).split(DATES) == walk().split(DATES[:150])


def test_exactly_the_needed_dates_suffice_and_one_less_is_refused_with_both_numbers():
    splitter = walk(train_days=30)
    assert splitter.dates_needed == 30 + 5 + 15 + 5 + 60
    assert positions(splitter.split(DATES[:115])[0])["train"] == (0, 29)
    with pytest.raises(ValueError, match=r"needs 115 unique dates .* got 114"):
        splitter.split(DATES[:114])


def test_the_refusal_tells_what_the_end_hides():
    with pytest.raises(ValueError, match=r"got 10 up to .* \(of 200 in all\)"):
        walk(end=DATES[9]).split(DATES)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_folds", 0),
        ("test_days", 0),
        ("validation_days", 0),
        ("purge", -1),
        ("embargo", -1),
        ("train_days", 0),
        ("num_folds", 2.0),
        ("test_days", True),
    ],
)
def test_a_number_that_cannot_be_used_is_named(field: str, value: object):
    with pytest.raises(ValueError, match=field):
        walk(**{field: value})


def test_a_fold_selects_whole_days_of_all_assets():
    frame = pl.DataFrame({"date": DATES * 3, "asset": [a for a in "abc" for _ in DATES]})
    fold = walk().split(DATES)[0]
    test = fold.select(frame, "test")
    assert test.height == 3 * 20
    assert test["date"].min() == fold.test[0]
    assert test["date"].max() == fold.test[1]
    with pytest.raises(ValueError, match="train, validation, test"):
        fold.select(frame, "tests")


def test_a_fold_is_a_value_that_survives_json():
    fold = walk().split(DATES)[1]
    assert Fold.from_dict(json.loads(json.dumps(fold.to_dict()))) == fold
    with pytest.raises(dataclasses.FrozenInstanceError):
        fold.index = 5


def test_a_fold_whose_periods_overlap_cannot_exist():
    a, b, c = DATES[:3]
    with pytest.raises(ValueError, match="without overlap"):
        Fold(index=0, train=(a, b), validation=(b, c), test=(c, c))
    with pytest.raises(ValueError, match="begin before it ends"):
        Fold(index=0, train=(b, a), validation=(c, c), test=(c, c))

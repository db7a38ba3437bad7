"""The scaler learns from training rows alone and keeps what it learnt."""

from __future__ import annotations

import json

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fints.data import StandardScaler


def test_training_rows_get_mean_0_and_deviation_1_and_nulls_stay():
    frame = pl.DataFrame({"x": [1.0, 2.0, None, 6.0], "other": [1, 2, 3, 4]})
    scaled = StandardScaler().fit(frame, ["x"]).transform(frame)
    assert scaled["x"].mean() == pytest.approx(0, abs=1e-15)
    assert scaled["x"].std(ddof=0) == pytest.approx(1)
    assert scaled["x"].is_null().to_list() == [False, False, True, False]
    assert scaled["other"].to_list() == [1, 2, 3, 4]


@given(order=st.permutations([0.1, 1e9, -1e9, 3.7, 1e-7, None]))
def test_the_order_of_the_rows_changes_no_bit(order):
    schema = {"x": pl.Float64}
    first = pl.DataFrame({"x": [0.1, 1e9, -1e9, 3.7, 1e-7, None]}, schema=schema)
    assert StandardScaler().fit(pl.DataFrame({"x": order}, schema=schema), ["x"]) == StandardScaler().fit(
        first, ["x"]
    )


def test_a_constant_feature_becomes_zero():
    frame = pl.DataFrame({"x": [0.1] * 7})
    assert StandardScaler().fit(frame, ["x"]).transform(frame)["x"].to_list() == [0.0] * 7


def test_values_far_outside_the_training_rows_are_clipped():
    scaler = StandardScaler(clip=3).fit(pl.DataFrame({"x": [-1.0, 1.0]}), ["x"])
    assert scaler.transform(pl.DataFrame({"x": [1000.0, -5.0, 2.0]}))["x"].to_list() == [3.0, -3.0, 2.0]


def test_a_scaler_survives_json():
    scaler = StandardScaler(clip=4).fit(pl.DataFrame({"x": [0.1, 0.3], "y": [1.0, 5.0]}), ["y", "x"])
    assert StandardScaler.from_dict(json.loads(json.dumps(scaler.to_dict()))) == scaler


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: StandardScaler(clip=0), "clip must be above 0"),
        (lambda: StandardScaler(names=("x",)), "one mean and one std a name"),
        (lambda: StandardScaler().fit(pl.DataFrame({"x": [1.0]}), ["y"]), "needs a column 'y'; got x"),
        (
            lambda: StandardScaler().fit(pl.DataFrame({"x": [None, None]}), ["x"]),
            "no value on the 2 training rows: its history is longer",
        ),
        (lambda: StandardScaler().fit(pl.DataFrame({"x": [1.0, float("inf")]}), ["x"]), "finite or null"),
    ],
)
def test_what_cannot_be_scaled_is_refused(make, said):
    with pytest.raises(ValueError, match=said):
        make()

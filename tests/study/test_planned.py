"""A spec plans what its study plans."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

from fints.data import simulate
from fints.study.plan import Plan, make_plan
from fints.study.planned import Planned, choose

TINY = runpy.run_path(str(Path(__file__).parent / "tiny.py"))["STUDY"]


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    path = tmp_path_factory.mktemp("data") / "prices.parquet"
    simulate(num_assets=3, num_days=160, seed=5).panel.frame.write_parquet(path)
    changes: dict[str, Any] = {"training.steps": 7, "model.dropout": 0.1}
    return make_plan(TINY, name="tiny", docstring="Words.", preset="longer", data=str(path), changes=changes)


def test_a_spec_that_has_been_stored_gives_the_very_fits_of_its_plan(plan: Plan) -> None:
    planned = Planned(json.loads(json.dumps(plan.spec())))
    assert planned.arms == [arm.name for arm in plan.arms]
    assert planned.total == sum(plan.num_fits().values())
    for arm in plan.arms:
        assert planned.tuning_cells(arm.name) == plan.tuning_cells(arm)
        for point in plan.study.tuning.points():
            assert planned.final_cells(arm.name, point) == plan.final_cells(arm, point)


def test_both_choose_the_same_point_and_the_first_of_equals(plan: Plan) -> None:
    cells = plan.tuning_cells(plan.arms[0])
    second = {cell.key: float(-number) for number, cell in enumerate(cells)}
    equal = dict.fromkeys(second, float("inf"))
    assert choose(cells, second) == plan.choose(plan.arms[0], second) == plan.study.tuning.points()[-1]
    assert choose(cells, equal) == plan.study.tuning.points()[0]

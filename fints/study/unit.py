"""The unit that the forecasts of a fit are in, for one that kept no weights to tell it."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import date, timedelta
from typing import TYPE_CHECKING

from fints.config import DataConfig, Experiment

if TYPE_CHECKING:
    from fints.data import Panel
    from fints.study.fits import Cell

__all__ = ["units_on"]


def units_on(panel: Panel) -> Callable[[Cell], float]:
    """Return what gives the root mean square of a cell's training targets, as its fit on `panel` had it."""
    known: dict[str, float] = {}

    def unit(cell: Cell) -> float:
        from fints.data.learning import prepare

        data = Experiment.from_dict(cell.experiment).data
        name = json.dumps([data.target, data.horizon, cell.dates], sort_keys=True)
        if name not in known:
            train, validation, test = (
                (date.fromisoformat(first), date.fromisoformat(last))
                for first, last in (cell.dates[part] for part in ("train", "validation", "test"))
            )
            # Targets do not depend on what is seen of the past.
            plain = DataConfig(features=("return_1",), target=data.target, horizon=data.horizon, context=1)
            seen = panel[: test[0] - timedelta(days=1)]
            known[name] = prepare(seen, plain, train=train, validation=validation).target_std
        return known[name]

    return unit

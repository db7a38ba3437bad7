from __future__ import annotations

import datetime as dt
from collections.abc import Callable

import numpy as np
import polars as pl
import pytest


@pytest.fixture
def forecasts() -> Callable[[np.ndarray, np.ndarray], pl.DataFrame]:
    return _forecasts


def _forecasts(realised: np.ndarray, forecast: np.ndarray) -> pl.DataFrame:
    """(days, assets) each -> one row a date and asset."""
    days, assets = realised.shape
    dates = [dt.date(2000, 1, 1) + dt.timedelta(days=day) for day in range(days)]
    return pl.DataFrame(
        {
            "date": [day for day in dates for _ in range(assets)],
            "asset": [f"a{number}" for number in range(assets)] * days,
            "forecast": forecast.ravel(),
            "realised": realised.ravel(),
        }
    )

"""alphalens joins our forecasts with the returns that the convention says."""

from __future__ import annotations

import numpy as np
import pytest

from fints.backtest import wide
from fints.backtest.alphalens import inputs

# alphalens 0.5.1 calls what pandas 3 deprecates.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
utils = pytest.importorskip("alphalens.utils")

LAG = {"next_open": 1, "next_close": 1, "same_close": 0}


def joined(market, execution: str, period: int = 1):
    panel = market.long()
    made = inputs(market.forecasts, wide(panel, "close"), open=wide(panel, "open"), execution=execution)
    return utils.get_clean_factor_and_forward_returns(
        made.factor, made.prices, periods=(period,), quantiles=2, filter_zscore=None, max_loss=0.35
    )


@pytest.mark.parametrize("execution", LAG)
def test_every_factor_meets_exactly_the_return_that_the_execution_says(
    market, earned, execution: str
) -> None:
    table = joined(market, execution)
    unit = earned(market, execution)
    assert len(table) == unit.size
    rows = [market.dates.index(date.date()) for date in table.index.get_level_values("date")]
    columns = [market.assets.index(asset) for asset in table.index.get_level_values("asset")]
    np.testing.assert_allclose(table["1D"].to_numpy(), unit[rows, columns], rtol=0, atol=1e-12)
    np.testing.assert_array_equal(table["factor"].to_numpy(), market.signal()[rows, columns])


def test_a_period_of_several_dates_runs_from_the_trade_on(market) -> None:
    table = joined(market, "next_open", period=3)
    opens = market.open
    truth = (opens[4:] / opens[1:-3] - 1).ravel()
    np.testing.assert_allclose(table["3D"].to_numpy(), truth, rtol=0, atol=1e-12)


@pytest.mark.parametrize("days", [1, -1])
def test_a_shift_by_one_day_is_caught(market, earned, shift_by_a_day, days: int) -> None:
    shift_by_a_day(days)
    table = joined(market, "next_close")
    unit = earned(market, "next_close")
    rows = np.array([market.dates.index(date.date()) for date in table.index.get_level_values("date")])
    columns = np.array([market.assets.index(asset) for asset in table.index.get_level_values("asset")])
    known = rows < len(unit)
    found = table["1D"].to_numpy()[known]
    assert np.abs(found - unit[rows[known], columns[known]]).max() > 1e-3

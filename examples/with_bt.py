"""The forecasts of a small transformer, the best fifth held long in bt.

The bundled panel has closes only, so trades are at the next close. 5 bp a trade.
"""

from __future__ import annotations

import bt

from fints import Forecaster
from fints.backtest import wide
from fints.backtest.bt import inputs
from fints.data import load

panel = load("sp500-20")
forecaster = Forecaster(depth=1, context=20, steps=60)
forecaster.fit(panel["2008-01-01":"2015-12-31"])
# The model knows outcomes up to the end of 2015, so forecasts may be used from then on.
forecasts = forecaster.predict(panel["2015-01-01":"2017-12-29"], start="2016-01-04")
close = wide(panel["2016-01-04":"2017-12-29"].frame, "close")

made = inputs(forecasts, close, execution="next_close", kind="decile", quantile=0.2, side="long")


def cost(quantity: float, price: float) -> float:
    """Return 5 bp of the traded value."""
    return 5e-4 * abs(quantity) * price


test = bt.Backtest(
    made.strategy("forecasts"),
    made.prices,
    integer_positions=False,
    commissions=cost,
    initial_capital=1e6,
    progress_bar=False,
)
stats = bt.run(test).stats["forecasts"]
print(f"after costs of 5 bp: total return {stats['total_return']:+.2%}, drawdown {stats['max_drawdown']:.2%}")

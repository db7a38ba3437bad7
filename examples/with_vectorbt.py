"""The forecasts of a small transformer, traded long and short in vectorbt.

The bundled panel has closes only, so trades are at the next close. 5 bp a trade.
"""

from __future__ import annotations

import vectorbt as vbt

from fints import Forecaster
from fints.backtest import wide
from fints.backtest.vectorbt import orders
from fints.data import load

panel = load("sp500-20")
forecaster = Forecaster(depth=1, context=20, steps=60)
forecaster.fit(panel["2008-01-01":"2015-12-31"])
# The model knows outcomes up to the end of 2015, so forecasts may be used from then on.
forecasts = forecaster.predict(panel["2015-01-01":"2017-12-29"], start="2016-01-04")
close = wide(panel["2016-01-04":"2017-12-29"].frame, "close")

made = orders(forecasts, close, execution="next_close", kind="long_short")
for fees in (0.0, 5e-4):
    portfolio = vbt.Portfolio.from_orders(**made.arguments, fees=fees, init_cash=1e6, freq="1D")
    print(
        f"costs {1e4 * fees:.0f} bp: total return {portfolio.total_return():+.2%}, "
        f"drawdown {portfolio.max_drawdown():.2%}, {portfolio.orders.count()} orders"
    )

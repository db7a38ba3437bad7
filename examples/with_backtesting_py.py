"""The forecasts of a small transformer for one stock, in backtesting.py (AGPL).

The bundled panel has closes only, so all four prices of a bar are the close and trades are at the next one.
5 bp a trade. One stock over two years says nothing about a forecaster.
"""

from __future__ import annotations

import pandas as pd
from backtesting import Backtest, Strategy

from fints import Forecaster
from fints.backtest import wide
from fints.backtest.backtesting_py import signal
from fints.data import load

panel = load("sp500-20")
forecaster = Forecaster(depth=1, context=20, steps=60)
forecaster.fit(panel["2008-01-01":"2015-12-31"])
# The model knows outcomes up to the end of 2015, so forecasts may be used from then on.
forecasts = forecaster.predict(panel["2015-01-01":"2017-12-29"], start="2016-01-04")
close = wide(panel["2016-01-04":"2017-12-29"].frame, "close")["AAPL"]
bars = pd.DataFrame(dict.fromkeys(("Open", "High", "Low", "Close"), close))

made = signal(forecasts, bars, asset="AAPL", execution="next_close")


class LongWhereForecastUp(Strategy):
    """All the money in the stock while its forecast is above 0."""

    def init(self) -> None:
        """Show the engine the forecasts bar by bar."""
        self.forecast = self.I(lambda: made.values, name="forecast")

    def next(self) -> None:
        """Trade when the sign changes."""
        if self.forecast[-1] > 0 and not self.position:
            self.buy()
        elif self.forecast[-1] <= 0 and self.position:
            self.position.close()


test = Backtest(
    bars,
    LongWhereForecastUp,
    cash=1e6,
    commission=5e-4,
    trade_on_close=made.trade_on_close,
    finalize_trades=True,
)
stats = test.run()
print(stats[["Return [%]", "Buy & Hold Return [%]", "Max. Drawdown [%]", "# Trades"]].to_string())

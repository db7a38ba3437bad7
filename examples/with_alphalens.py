"""The forecasts of a small transformer as a factor in alphalens.

The bundled panel has closes only, so a factor is traded at the next close.
"""

from __future__ import annotations

from alphalens.performance import factor_information_coefficient, quantile_turnover
from alphalens.utils import get_clean_factor_and_forward_returns

from fints import Forecaster
from fints.backtest import wide
from fints.backtest.alphalens import inputs
from fints.data import load

panel = load("sp500-20")
forecaster = Forecaster(depth=1, context=20, steps=60)
forecaster.fit(panel["2008-01-01":"2015-12-31"])
# The model knows outcomes up to the end of 2015, so forecasts may be used from then on.
forecasts = forecaster.predict(panel["2015-01-01":"2017-12-29"], start="2016-01-04")
close = wide(panel["2016-01-04":"2017-12-29"].frame, "close")

made = inputs(forecasts, close, execution="next_close")
table = get_clean_factor_and_forward_returns(
    made.factor, made.prices, periods=(made.horizon,), quantiles=5, filter_zscore=None
)
ic = factor_information_coefficient(table)["1D"]
returns = table.groupby("factor_quantile", observed=True)["1D"].mean()
spread = 1e4 * (returns.loc[5] - returns.loc[1])
turnover = (
    quantile_turnover(table["factor_quantile"], 5).mean()
    + quantile_turnover(table["factor_quantile"], 1).mean()
)
print(f"rank IC {ic.mean():+.4f} (t {ic.mean() / ic.std() * len(ic) ** 0.5:+.1f} over {len(ic)} dates)")
# A name that leaves a fifth is sold and another bought: two trades.
net = spread - 2 * 5 * turnover
print(f"best fifth less worst: {spread:+.1f} bp a day, {net:+.1f} bp after costs of 5 bp")

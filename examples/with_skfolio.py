"""The forecasts of a small transformer as expected returns of a mean-variance portfolio in skfolio.

The bundled panel has closes only, so trades are at the next close. 5 bp a trade, inside the optimisation.
"""

from __future__ import annotations

from skfolio.model_selection import WalkForward, cross_val_predict
from skfolio.optimization import MeanRisk, ObjectiveFunction
from skfolio.prior import EmpiricalPrior

from fints import Forecaster
from fints.backtest import wide
from fints.backtest.skfolio import forecast_mu, inputs
from fints.data import load

panel = load("sp500-20")
forecaster = Forecaster(depth=1, context=20, steps=60)
forecaster.fit(panel["2008-01-01":"2015-12-31"])
# The model knows outcomes up to the end of 2015, so forecasts may be used from then on.
forecasts = forecaster.predict(panel["2015-01-01":"2017-12-29"], start="2016-01-04")
given = inputs(wide(panel["2015-01-01":"2017-12-29"].frame, "close"), execution="next_close")

model = MeanRisk(
    objective_function=ObjectiveFunction.MAXIMIZE_UTILITY,
    risk_aversion=5.0,
    transaction_costs=5e-4,
    prior_estimator=EmpiricalPrior(mu_estimator=forecast_mu(forecasts)),
)
# Weights fitted on rows up to t are held for five dates, from the close of t + 1 on.
folds = WalkForward(train_size=252, test_size=5, purged_size=given.purged_size)
result = cross_val_predict(model, given.returns["2014-12-31":], cv=folds)
print(f"{len(result)} rebalances: annual return {result.annualized_mean:+.2%}")
print(f"Sharpe ratio {result.annualized_sharpe_ratio:.2f}")

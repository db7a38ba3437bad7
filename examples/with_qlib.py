"""The forecasts of a small transformer as the scores of qlib's top-k strategy.

qlib reads prices from a folder of its own, so the bundled closes are first written as one. The panel has
closes only, so trades are at the next close. 5 bp a trade.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import qlib
from qlib.backtest import backtest
from qlib.contrib.strategy import TopkDropoutStrategy
from qlib.data import D

from fints import Forecaster
from fints.backtest import wide
from fints.backtest.qlib import signal
from fints.data import load

panel = load("sp500-20")
forecaster = Forecaster(depth=1, context=20, steps=60)
forecaster.fit(panel["2008-01-01":"2015-12-31"])
# The model knows outcomes up to the end of 2015, so forecasts may be used from then on.
forecasts = forecaster.predict(panel["2016-01-01":"2017-12-29"], start="2017-01-03")
close = wide(panel["2017-01-03":"2017-12-29"].frame, "close")


def store(folder: Path) -> None:
    """Write the closes as qlib keeps them: a calendar, instruments, and a float32 file a field."""
    days = [str(day.date()) for day in close.index]
    for part in ("calendars", "instruments"):
        (folder / part).mkdir()
    (folder / "calendars" / "day.txt").write_text("\n".join(days) + "\n")
    lines = [f"{name}\t{days[0]}\t{days[-1]}\n" for name in close.columns]
    (folder / "instruments" / "all.txt").write_text("".join(lines))
    for name in close.columns:
        place = folder / "features" / name.lower()
        place.mkdir(parents=True)
        fields = {"close": close[name], "change": close[name].pct_change().fillna(0.0)}
        fields |= {"volume": close[name] * 0 + 1e9, "factor": close[name] * 0 + 1}
        for field, values in fields.items():
            # The first number is the place of the first day in the calendar.
            np.concatenate([[0.0], values]).astype("<f4").tofile(place / f"{field}.day.bin")


with tempfile.TemporaryDirectory() as scratch:
    store(Path(scratch))
    qlib.init(provider_uri=scratch, region="us", expression_cache=None, dataset_cache=None, kernels=1)
    names = D.list_instruments(D.instruments("all"), as_list=True)
    made = signal(forecasts, D.calendar(freq="day"), names, execution="next_close")
    portfolios, _ = backtest(
        start_time=close.index[1],
        end_time=close.index[-2],
        strategy=TopkDropoutStrategy(signal=made.scores, topk=5, n_drop=1),
        executor={
            "class": "SimulatorExecutor",
            "module_path": "qlib.backtest.executor",
            "kwargs": {"time_per_step": "day", "generate_portfolio_metrics": True},
        },
        benchmark=pd.Series(0.0, index=close.index),
        account=1e6,
        exchange_kwargs={
            "deal_price": made.deal_price,
            "open_cost": 5e-4,
            "close_cost": 5e-4,
            "min_cost": 0.0,
            "limit_threshold": None,
        },
    )
report = portfolios["1day"][0]
print(f"five best of twenty: total return before costs {(1 + report['return']).prod() - 1:+.2%}")
print(f"after costs of 5 bp {(1 + report['return'] - report['cost']).prod() - 1:+.2%}")

"""Write forecasts and prices to two parquet files, for an engine in an environment of its own.

python examples/write_forecasts.py FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

from fints import Forecaster
from fints.data import load

folder = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
panel = load("sp500-20")
forecaster = Forecaster(depth=1, context=20, steps=60)
forecaster.fit(panel["2008-01-01":"2015-12-31"])
# The model knows outcomes up to the end of 2015, so forecasts may be used from then on.
forecasts = forecaster.predict(panel["2015-01-01":"2017-12-29"], start="2016-01-04")
forecasts.write_parquet(folder / "forecasts.parquet")
panel["2016-01-04":"2017-12-29"].frame.write_parquet(folder / "prices.parquet")
print(f"{forecasts.height} forecasts and their prices: {folder / 'forecasts.parquet'}, prices.parquet")

"""The forecasts of a small transformer in zipline-reloaded, the five best of twenty held long.

zipline-reloaded needs pandas 2, so it runs in an environment of its own, on files that fints wrote:

    python examples/write_forecasts.py FOLDER      # where fints is
    python examples/with_zipline.py FOLDER         # where zipline-reloaded and polars are

The panel has closes only and the simulation is daily, so trades are at the next close. 5 bp a trade.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import pandas as pd
import polars as pl
from exchange_calendars import get_calendar
from zipline import api, run_algorithm
from zipline.data import bundles
from zipline.finance import commission, slippage
from zipline.pipeline import Pipeline
from zipline.pipeline.data import Column, DataSet
from zipline.pipeline.domain import US_EQUITIES

from fints.backtest import wide
from fints.backtest.zipline import baseline

folder = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
forecasts = pl.read_parquet(folder / "forecasts.parquet")
close = wide(pl.read_parquet(folder / "prices.parquet"), "close")
sids = {name: sid for sid, name in enumerate(close.columns)}
sessions = get_calendar("XNYS").sessions_in_range(close.index[0], close.index[-1])


class Forecasts(DataSet):
    """The table as a column of the pipeline."""

    value = Column(dtype=float)


def ingest(environ, assets, minutes, daily, adjustments, calendar, start, end, cache, progress, output):
    """Store the closes as zipline keeps them."""
    listed = {"start_date": sessions[0], "end_date": sessions[-1], "exchange": "NYSE"}
    assets.write(
        equities=pd.DataFrame(
            [{"symbol": name, "asset_name": name, **listed} for name in sids], index=list(sids.values())
        ),
        exchanges=pd.DataFrame({"exchange": ["NYSE"], "canonical_name": ["NYSE"], "country_code": ["US"]}),
    )
    fields = ("open", "high", "low", "close")
    daily.write(
        (sid, pd.DataFrame(dict.fromkeys(fields, close[name])).assign(volume=1e7))
        for name, sid in sids.items()
    )
    adjustments.write()


def initialize(context) -> None:
    """Costs, and the pipeline."""
    api.set_slippage(slippage.NoSlippage())
    api.set_commission(commission.PerDollar(5e-4))
    api.attach_pipeline(Pipeline({"value": Forecasts.value.latest}), "forecasts")


def handle_data(context, data) -> None:
    """Hold the five highest forecasts, a fifth of the money each."""
    values = api.pipeline_output("forecasts")["value"].dropna()
    best = set(values.nlargest(5).index)
    for asset in {*best, *context.portfolio.positions}:
        api.order_target_percent(asset, 0.2 if asset in best else 0.0)


with tempfile.TemporaryDirectory() as scratch:
    os.environ["ZIPLINE_ROOT"] = scratch
    bundles.register(
        "fints", ingest, calendar_name="XNYS", start_session=sessions[0], end_session=sessions[-1]
    )
    bundles.ingest("fints", show_progress=False)
    made = baseline(forecasts, sessions, sids, execution="next_close")
    results = run_algorithm(
        start=sessions[2],
        end=sessions[-1],
        initialize=initialize,
        handle_data=handle_data,
        capital_base=1e6,
        bundle="fints",
        custom_loader={Forecasts.value.specialize(US_EQUITIES): made.loader(Forecasts.value)},
        default_extension=False,
    )
print(f"after costs of 5 bp: total return {results['algorithm_period_return'].iloc[-1]:+.2%}")

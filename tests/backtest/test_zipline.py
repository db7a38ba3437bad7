"""zipline-reloaded fills our forecasts' orders at the prices that the convention says."""

from __future__ import annotations

import datetime as dt

import numpy as np
import polars as pl
import pytest

# zipline 3.2.1 uses what pandas 2.3 deprecates.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::FutureWarning")]
zipline = pytest.importorskip("zipline")

SIDS = {"A0": 10, "A1": 11, "A2": 12, "A3": 13}


@pytest.fixture
def bundle(market, tmp_path, monkeypatch: pytest.MonkeyPatch):
    """Write the market as a bundle on the sessions of New York, which become the market's dates."""
    import pandas as pd
    from exchange_calendars import get_calendar
    from zipline.data import bundles

    monkeypatch.setenv("ZIPLINE_ROOT", str(tmp_path))
    calendar = get_calendar("XNYS")
    sessions = calendar.sessions_in_range("2021-03-01", "2021-12-31")[: len(market.dates)]
    renamed = dict(zip(market.dates, sessions.date, strict=True))
    table = market.forecasts.with_columns(pl.col("date").replace_strict(renamed))

    def bars():
        for column, sid in enumerate(SIDS.values()):
            opens, closes = market.open[:, column], market.close[:, column]
            frame = {"open": opens, "high": np.maximum(opens, closes), "low": np.minimum(opens, closes)}
            yield sid, pd.DataFrame({**frame, "close": closes, "volume": 1e6}, index=sessions)

    def ingest(environ, assets, minutes, daily, adjustments, calendar, start, end, cache, progress, output):
        listed = {"start_date": sessions[0], "end_date": sessions[-1], "exchange": "NYSE"}
        assets.write(
            equities=pd.DataFrame(
                [{"symbol": name, "asset_name": name, **listed} for name in SIDS], index=list(SIDS.values())
            ),
            exchanges=pd.DataFrame(
                {"exchange": ["NYSE"], "canonical_name": ["NYSE"], "country_code": ["US"]}
            ),
        )
        daily.write(bars())
        adjustments.write()

    bundles.register(
        "fints", ingest, calendar_name="XNYS", start_session=sessions[0], end_session=sessions[-1]
    )
    bundles.ingest("fints", show_progress=False)
    yield table, sessions
    bundles.unregister("fints")


def simulate(table, sessions, execution: str) -> list[tuple[dt.date, str, float]]:
    """Buy the best asset of the pipeline whenever it changes; return date, asset, price of each purchase."""
    from zipline import api, run_algorithm
    from zipline.finance import commission, slippage
    from zipline.pipeline import Pipeline
    from zipline.pipeline.data import Column, DataSet
    from zipline.pipeline.domain import US_EQUITIES

    from fints.backtest.zipline import baseline

    class Forecasts(DataSet):
        value = Column(dtype=float)

    made = baseline(table, sessions, SIDS, execution=execution)
    loader = made.loader(Forecasts.value)
    bought = []

    def initialize(context):
        api.set_slippage(slippage.NoSlippage())
        api.set_commission(commission.NoCommission())
        api.attach_pipeline(Pipeline({"value": Forecasts.value.latest}), "forecasts")

    def handle_data(context, data):
        values = api.pipeline_output("forecasts")["value"].dropna()
        if len(values):
            api.order(values.idxmax(), 1000)

    def analyze(context, results):
        for transactions in results["transactions"]:
            for trade in transactions:
                bought.append((trade["dt"].date(), trade["sid"].symbol, trade["price"]))

    run_algorithm(
        start=sessions[2],
        end=sessions[-1],
        initialize=initialize,
        handle_data=handle_data,
        analyze=analyze,
        capital_base=1e9,
        bundle="fints",
        data_frequency="daily",
        # zipline asks for the column of the domain that the calendar stands for.
        custom_loader={Forecasts.value.specialize(US_EQUITIES): loader},
        default_extension=False,
    )
    return bought


def fills(market, sessions, wait: int) -> list[tuple[dt.date, str, float]]:
    """What is bought at the close `wait` sessions after the decision, by hand."""
    best = market.signal().argmax(axis=1)
    dates = sessions.date.tolist()
    return [
        (dates[t + wait], market.assets[best[t]], market.close[t + wait, best[t]])
        for t in range(len(dates) - wait)
    ]


@pytest.mark.parametrize(("execution", "wait"), [("next_close", 1), ("next_open", 2)])
def test_a_daily_simulation_fills_at_the_close_that_the_adapter_says(
    market, bundle, execution: str, wait: int
) -> None:
    table, sessions = bundle
    found = simulate(table, sessions, execution)
    truth = fills(market, sessions, wait)[-len(found) :]
    assert len(found) >= len(sessions) - 5
    assert [row[:2] for row in found] == [row[:2] for row in truth]
    # zipline stores prices in thousandths.
    np.testing.assert_allclose([row[2] for row in found], [row[2] for row in truth], atol=6e-4)


@pytest.mark.parametrize("days", [1, -1])
def test_a_shift_by_one_day_is_caught(market, bundle, shift_by_a_day, days: int) -> None:
    table, sessions = bundle
    shift_by_a_day(days)
    if days < 0:
        # A day earlier would have to be filled on the bar of the forecast itself: refused.
        with pytest.raises(ValueError, match="same_close"):
            simulate(table, sessions, "next_close")
        return
    found = simulate(table, sessions, "next_close")
    truth = fills(market, sessions, 1)[-len(found) :]
    assert [row[:2] for row in found] != [row[:2] for row in truth]


def test_the_close_that_was_seen_and_doubled_sids_are_refused(market) -> None:
    import pandas as pd

    from fints.backtest.zipline import baseline

    sessions = pd.DatetimeIndex(market.dates)
    with pytest.raises(ValueError, match="same_close"):
        baseline(market.forecasts, sessions, SIDS, execution="same_close")
    with pytest.raises(ValueError, match="same sid"):
        baseline(market.forecasts, sessions, dict.fromkeys(SIDS, 1))
    with pytest.raises(ValueError, match="zone"):
        baseline(market.forecasts, sessions.tz_localize("UTC"), SIDS)

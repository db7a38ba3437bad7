"""qlib trades on our forecasts at the prices that the convention says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest

from fints.backtest.qlib import signal

# gym, which qlib 0.9.7 imports, warns about itself, and qlib uses what pandas 3 deprecates.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]
qlib = pytest.importorskip("qlib")


def write(folder: Path, market) -> None:
    """Write the market as qlib stores it: a calendar, instruments, and a float32 file a field."""
    names = [name.upper() for name in market.assets]
    first, last = market.dates[0], market.dates[-1]
    for part in ("calendars", "instruments"):
        (folder / part).mkdir()
    (folder / "calendars" / "day.txt").write_text("\n".join(map(str, market.dates)) + "\n")
    (folder / "instruments" / "all.txt").write_text("".join(f"{name}\t{first}\t{last}\n" for name in names))
    for column, name in enumerate(names):
        place = folder / "features" / name.lower()
        place.mkdir(parents=True)
        close, opens = market.close[:, column], market.open[:, column]
        change = np.concatenate([[0.0], close[1:] / close[:-1] - 1])
        fields = {"close": close, "open": opens, "change": change, "volume": np.full(len(close), 1e9)}
        fields["factor"] = np.ones(len(close))
        for field, values in fields.items():
            np.concatenate([[0.0], values]).astype("<f4").tofile(place / f"{field}.day.bin")


@pytest.fixture(scope="module")
def stored() -> list:
    return []


@pytest.fixture
def provider(market, stored: list, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Point qlib, which is configured once a process, at the market (the same one for every test)."""
    if not stored:
        stored.append(tmp_path_factory.mktemp("qlib"))
        write(stored[0], market)
        qlib.init(
            provider_uri=str(stored[0]), region="us", expression_cache=None, dataset_cache=None, kernels=1
        )


def simulate(market, execution: str) -> np.ndarray:
    """Return the account's daily return, close to close, in the one instrument with the highest score."""
    from qlib.backtest import backtest
    from qlib.contrib.strategy import TopkDropoutStrategy
    from qlib.data import D

    names = [name.upper() for name in market.assets]
    table = market.forecasts.with_columns(pl.col("asset").str.to_uppercase())
    made = signal(table, D.calendar(freq="day"), names, execution=execution)
    days = pd.DatetimeIndex(market.dates)
    portfolios, _ = backtest(
        start_time=days[1],
        end_time=days[-2],
        strategy=TopkDropoutStrategy(signal=made.scores, topk=1, n_drop=1, risk_degree=1.0),
        executor={
            "class": "SimulatorExecutor",
            "module_path": "qlib.backtest.executor",
            "kwargs": {"time_per_step": "day", "generate_portfolio_metrics": True},
        },
        benchmark=pd.Series(0.0, index=days),
        account=1e9,
        exchange_kwargs={
            "deal_price": made.deal_price,
            "open_cost": 0.0,
            "close_cost": 0.0,
            "min_cost": 0.0,
            "limit_threshold": None,
        },
    )
    return portfolios["1day"][0]["return"].to_numpy()


def stated(market, unit: np.ndarray, execution: str) -> np.ndarray:
    """Return what the account must show on each date from the second decision on, close to close."""
    best = market.signal().argmax(axis=1)
    rows = []
    for t in range(1, len(unit) - 1):
        if execution == "next_close":
            rows.append(unit[t - 1, best[t - 1]])
            continue
        # Held from the open of t: the old position until the open of t + 1, the new one to the close.
        overnight = market.open[t + 1] / market.close[t] - 1
        intraday = market.close[t + 1] / market.open[t + 1] - 1
        rows.append((1 + overnight[best[t - 1]]) * (1 + intraday[best[t]]) - 1)
    return np.array(rows)


@pytest.mark.parametrize("execution", ["next_close", "next_open"])
def test_the_forecasts_earn_what_the_execution_says(market, earned, provider, execution: str) -> None:
    found = simulate(market, execution)
    truth = stated(market, earned(market, execution), execution)
    # The first date is the first purchase; qlib stores float32.
    np.testing.assert_allclose(found[1 : 1 + len(truth)], truth[: len(found) - 1], rtol=0, atol=2e-6)
    moved = np.abs(found[2 : 1 + len(truth)] - truth[: min(len(found) - 2, len(truth) - 1)])
    assert moved.max() > 1e-3, "a day's shift must not pass"


def test_scores_stand_on_instrument_and_datetime_and_the_close_that_was_seen_is_refused(market) -> None:
    days = pd.DatetimeIndex(market.dates)
    made = signal(market.forecasts, days, market.assets)
    assert made.deal_price == "open"
    assert made.scores.index.names == ["instrument", "datetime"]
    assert made.scores.index.is_monotonic_increasing
    np.testing.assert_array_equal(made.scores.unstack("instrument").to_numpy(), market.signal())
    with pytest.raises(ValueError, match="same_close"):
        signal(market.forecasts, days, market.assets, execution="same_close")
    with pytest.raises(ValueError, match="did you mean a0"):
        signal(market.forecasts, days, [name.lower() for name in market.assets])

"""What positions earn and cost, on prices whose every overnight and intraday return is distinct."""

from __future__ import annotations

import datetime as dt
import math

import numpy as np
import polars as pl
import pytest
from scipy import stats

from fints.evaluation import EXECUTIONS, PORTFOLIOS, backtest, target_weights

DAYS, NAMES = 40, ["a", "b", "c", "d"]
DATES = [dt.date(2020, 1, 1) + dt.timedelta(days=day) for day in range(DAYS)]


def market(seed: int = 0) -> tuple[pl.DataFrame, np.ndarray, np.ndarray]:
    """Prices with distinct overnight and intraday returns; opens and closes (days, assets)."""
    steps = 0.02 * np.random.default_rng(seed).standard_normal((2 * DAYS, len(NAMES)))
    path = 100 * np.exp(np.cumsum(steps, axis=0))
    opens, closes = path[0::2], path[1::2]
    frame = pl.DataFrame(
        {
            "date": [day for day in DATES for _ in NAMES],
            "asset": NAMES * DAYS,
            "open": opens.ravel(),
            "close": closes.ravel(),
        }
    )
    return frame, opens, closes


def table(forecast: np.ndarray) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "date": [day for day in DATES[: len(forecast)] for _ in NAMES],
            "asset": NAMES * len(forecast),
            "forecast": pl.Series(forecast.ravel()).fill_nan(None),
        }
    )


def random_forecast(seed: int = 1, days: int = DAYS) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((days, len(NAMES)))


@pytest.mark.parametrize("execution", EXECUTIONS)
def test_a_forecast_stamped_t_earns_exactly_what_its_execution_says(execution: str):
    prices, opens, closes = market()
    forecast = random_forecast()
    found = backtest(table(forecast).reverse(), prices.reverse(), execution=execution, cost_bps=0.0)
    ranks = stats.rankdata(forecast, axis=1) - 2.5
    weights = ranks / np.abs(ranks).sum(axis=1, keepdims=True)
    earned = {
        "next_open": opens[2:] / opens[1:-1] - 1,
        "next_close": closes[2:] / closes[1:-1] - 1,
        "same_close": closes[1:] / closes[:-1] - 1,
    }[execution]
    expected = (weights[: len(earned)] * earned).sum(axis=1)
    assert found.dates["date"].to_list() == DATES[: len(earned)]
    assert found.dates["gross"].to_numpy() == pytest.approx(expected, abs=1e-14)
    assert found.dates["net"].equals(found.dates["gross"], check_names=False)
    # A forecast one day late earns another day's returns, but where two days rank the assets alike.
    late = backtest(table(np.roll(forecast, 1, axis=0)), prices, execution=execution, cost_bps=0.0)
    alike = (ranks[1 : len(expected)] == ranks[: len(expected) - 1]).all(axis=1)
    same = np.abs(late.dates["gross"].to_numpy() - expected)[1:] < 1e-9
    assert same.tolist() == alike.tolist()
    assert alike.mean() < 0.1


def test_costs_are_paid_on_what_is_traded_against_weights_that_have_drifted():
    prices, _, closes = market()
    forecast = random_forecast()
    found = backtest(table(forecast), prices, "decile", execution="next_close", cost_bps=7.0)
    returns = closes[2:] / closes[1:-1] - 1
    held, turnover = np.zeros(4), []
    for day in range(DAYS - 2):
        target = np.zeros(4)
        target[forecast[day].argmax()], target[forecast[day].argmin()] = 0.5, -0.5
        turnover.append(np.abs(target - held).sum())
        held = target * (1 + returns[day]) / (1 + target @ returns[day])
    assert found.dates["turnover"].to_numpy() == pytest.approx(turnover, abs=1e-14)
    assert turnover[0] == 1.0
    costs = (found.dates["gross"] - found.dates["net"]).to_numpy()
    assert costs == pytest.approx(7e-4 * np.array(turnover), abs=1e-15)
    free = backtest(
        table(forecast), prices, "decile", execution="next_close", cost_bps=max(found.break_even_bps, 0.0)
    )
    assert found.break_even_bps == pytest.approx(1e4 * found.dates["gross"].sum() / sum(turnover))
    if found.break_even_bps > 0:
        assert free.dates["net"].sum() == pytest.approx(0.0, abs=1e-14)


def test_a_forecast_over_three_days_is_held_for_three_and_then_sold():
    prices, _, closes = market()
    single = np.full((DAYS, 4), np.nan)
    single[5] = [1.0, 2.0, 3.0, 4.0]
    found = backtest(table(single), prices, execution="next_close", horizon=3, cost_bps=10.0)
    assert found.dates["date"].to_list() == DATES[5:8]
    shares = np.array([-1.5, -0.5, 0.5, 1.5]) / 4
    values = shares * closes[6:10] / closes[6]
    equity = 1 + (values - values[0]).sum(axis=1)
    assert np.cumprod(1 + found.dates["gross"].to_numpy()) == pytest.approx(equity[1:], abs=1e-13)
    # Bought once and left to drift: nothing is traded in between.
    assert found.dates["turnover"].to_list() == [pytest.approx(1.0), 0.0, 0.0]


def test_overlapping_forecasts_are_averaged():
    prices, _, closes = market()
    forecast = random_forecast()
    found = backtest(table(forecast), prices, execution="same_close", horizon=2, cost_bps=0.0)
    weights = np.array([target_weights(row, "long_short") for row in forecast])
    mean = np.vstack([weights[:1], (weights[1:] + weights[:-1]) / 2])
    returns = closes[1:] / closes[:-1] - 1
    assert found.dates["gross"].to_numpy() == pytest.approx((mean[:-1] * returns).sum(axis=1), abs=1e-14)


def test_an_asset_that_does_not_trade_keeps_its_weight_and_earns_its_halt_at_the_end():
    prices, _, closes = market()
    halted = (pl.col("asset") == "a") & pl.col("date").is_between(DATES[10], DATES[12])
    holed = prices.with_columns(pl.when(~halted).then("close").alias("close"))
    forecast = np.tile([4.0, 3.0, 2.0, 1.0], (DAYS, 1))
    forecast[10:13] = forecast[10:13, ::-1]
    found = backtest(table(forecast), holed, execution="same_close", cost_bps=0.0)
    plain = backtest(table(forecast), prices, execution="same_close", cost_bps=0.0)
    same = found.dates["gross"].to_numpy() == pytest.approx(plain.dates["gross"].to_numpy(), abs=1e-12)
    assert not same
    before = np.array([1.5, 0.5, -0.5, -1.5]) / 4
    # On day 10 the target turns round, but "a" cannot be sold: it stands at its drifted weight.
    drift = before * (closes[10] / closes[9])
    drift[0] = before[0]
    gross_9 = before[1:] @ (closes[10] / closes[9] - 1)[1:]
    assert found.dates["gross"][9] == pytest.approx(gross_9, abs=1e-14)
    held = before[0] / (1 + gross_9)
    expected = -before[1:] @ (closes[11] / closes[10] - 1)[1:]
    assert found.dates["gross"][10] == pytest.approx(expected, abs=1e-14)
    leverage = np.abs(before[1:]).sum() + abs(held)
    assert found.dates["leverage"][10] == pytest.approx(leverage, abs=1e-14)


@pytest.mark.parametrize("kind", PORTFOLIOS)
def test_weights_are_neutral_and_know_nothing_of_the_future(kind: str):
    prices, _, _ = market(3)
    forecast = random_forecast(4)
    options = {"execution": "next_close", "cost_bps": 3.0}
    whole = backtest(table(forecast), prices, kind, **options).dates
    cut = 30
    shocked = prices.with_columns(
        pl.when(pl.col("date") > DATES[cut]).then(1000 * pl.col("close")).otherwise("close").alias("close")
    )
    short = backtest(table(forecast), shocked, kind, **options).dates
    names = ["date", "gross", "turnover", "leverage"]
    # The position of day cut - 2 earns up to the close of day `cut`.
    assert whole[: cut - 1].select(names).equals(short[: cut - 1].select(names))
    assert not whole[cut - 1 :].select(names).equals(short[cut - 1 :].select(names))
    weights = target_weights(forecast[0], kind)
    assert weights.sum() == pytest.approx(0.0, abs=1e-15)
    assert np.abs(weights).sum() == pytest.approx(1.0)


def test_ties_at_the_edge_of_a_decile_share_its_place():
    weights = target_weights(np.array([1.0, 1.0, 1.0, 0.0, np.nan, -1.0, -1.0]), "decile", quantile=0.34)
    assert weights == pytest.approx([1 / 6, 1 / 6, 1 / 6, 0, 0, -0.25, -0.25])
    assert not target_weights(np.full(5, 0.3), "long_short").any()
    assert not target_weights(np.array([np.nan, 1.0]), "decile").any()


def test_the_volatility_target_is_met_on_average_and_capped():
    rng = np.random.default_rng(5)
    days, count = 1500, 8
    closes = 100 * np.exp(np.cumsum(0.01 * rng.standard_normal((days, count)), axis=0))
    dates = [dt.date(2000, 1, 1) + dt.timedelta(days=day) for day in range(days)]
    keys = {
        "date": [day for day in dates for _ in range(count)],
        "asset": [f"x{i}" for i in range(count)] * days,
    }
    prices = pl.DataFrame({**keys, "close": closes.ravel()})
    forecast = pl.DataFrame({**keys, "forecast": rng.standard_normal(days * count)})
    options = {"execution": "same_close", "cost_bps": 0.0}
    found = backtest(forecast, prices, "volatility_targeted", volatility=0.1, max_leverage=10.0, **options)
    live = found.dates[63:]["gross"].to_numpy()
    assert math.sqrt(252) * live.std() == pytest.approx(0.1, rel=0.06)
    assert not found.dates[:20]["leverage"].to_numpy().any()
    capped = backtest(forecast, prices, "volatility_targeted", volatility=0.1, max_leverage=1.5, **options)
    assert capped.dates["leverage"].max() == pytest.approx(1.5)


def test_a_summary_says_what_the_dates_say():
    prices, _, _ = market()
    found = backtest(table(random_forecast()), prices, cost_bps=2.0)
    told, net = found.summary(days_a_year=100.0), found.dates["net"].to_numpy()
    assert told["net_return"] == pytest.approx(100 * net.mean())
    assert told["volatility"] == pytest.approx(10 * net.std(ddof=1))
    equity = np.concatenate([[1.0], np.cumprod(1 + net)])
    worst = max(1 - equity[j] / equity[: j + 1].max() for j in range(len(equity)))
    assert told["drawdown"] == pytest.approx(worst)
    assert told["leverage"] == pytest.approx(1.0)


def test_what_cannot_be_traded_is_said():
    prices, _, _ = market()
    forecast = table(random_forecast())
    with pytest.raises(ValueError, match=r'needs a column open.*Choose "next_close"'):
        backtest(forecast, prices.drop("open"))
    with pytest.raises(ValueError, match="unknown portfolio 'best'"):
        backtest(forecast, prices, "best")
    with pytest.raises(ValueError, match="unknown execution 'now'"):
        backtest(forecast, prices, execution="now")
    with pytest.raises(ValueError, match="cover the same dates"):
        backtest(forecast.with_columns(asset=pl.lit("z") + pl.col("asset")), prices)
    with pytest.raises(ValueError, match="twice"):
        backtest(forecast, pl.concat([prices, prices[:1]]))
    with pytest.raises(ValueError, match="above 0"):
        backtest(forecast, prices.with_columns(open=pl.lit(0.0)))
    with pytest.raises(ValueError, match="a quantile in"):
        backtest(forecast, prices, "decile", quantile=0.6)

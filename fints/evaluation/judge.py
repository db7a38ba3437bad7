"""Everything said of one forecast table: metrics with intervals, tests, portfolios, power, a verdict."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import polars as pl

from fints.evaluation.conditional import pesaran_timmermann
from fints.evaluation.date_tests import SeriesTest, clark_west
from fints.evaluation.intervals import Interval, mean_interval, median_r2_interval, r2_interval
from fints.evaluation.metrics import CONSTANT, ic_series, metrics
from fints.evaluation.portfolio import PORTFOLIOS, Backtest, Execution, backtest
from fints.evaluation.power import detectable_r2, effective_assets
from fints.evaluation.rows import known_rows
from fints.evaluation.serial import mean_error
from fints.evaluation.sharpe import annual_sharpe, deflated_sharpe, probabilistic_sharpe, sharpe_interval
from fints.words import counted

__all__ = ["Estimate", "Judgement", "judge"]

ALPHA = 0.05
# Daily rank ICs of 0.02 to 0.05 are realistic; this much, kept up, is nearly always a leak.
LEAK_IC = 0.10
# A forecast this much wider than the outcome is a score in other units: its squared error says nothing.
WIDEST = 3.0
# A slope of outcomes on forecasts that could be this, and no tenth of the way to 1, asks for another unit. A
# calibrated forecast in percent is as wide as its outcomes in decimals from an R2 of 0.01 % on.
PERCENT, APART = 0.01, 10.0


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A number and its 95 % interval (None where it has none)."""

    value: float | None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """What `judge` found.

    `decision` is "found", "scaled_wrong" (information, but squared error above the benchmarks'), "nothing",
    "suspected_leak" or "undecided" (too few dates for a test). `backtests` are those of `portfolios`, in
    order.
    """

    decision: str
    verdict: str
    horizon: int
    rows: int
    dates: int
    assets: int
    effective_assets: float
    detectable_r2: float
    estimates: dict[str, Estimate]
    counts: dict[str, int]
    tests: dict[str, SeriesTest]
    portfolios: list[dict[str, Any]]
    warnings: list[str]
    backtests: list[Backtest] = field(repr=False)

    def to_dict(self) -> dict[str, Any]:
        """Return all but the daily series, ready for JSON."""
        tree = {name: value for name, value in vars(self).items() if name != "backtests"}
        tree["estimates"] = {name: asdict(value) for name, value in self.estimates.items()}
        tree["tests"] = {name: asdict(value) for name, value in self.tests.items()}
        return tree


def judge(
    frame: pl.DataFrame,
    *,
    horizon: int = 1,
    prices: pl.DataFrame | None = None,
    execution: Execution = "next_open",
    cost_bps: float = 5.0,
    trials: int = 1,
    quantile: float = 0.1,
    volatility: float = 0.1,
) -> Judgement:
    """Judge a forecast frame.

    Parameters
    ----------
    frame
        `date`, `asset`, `forecast`, `realised` (return over (t, t + h], in the units of the forecast);
        optional columns as in `metrics`: `prevailing_mean`, `variance`, `log_scale`, `degrees`, `oracle`.
    horizon
        h, in dates.
    prices
        `date`, `asset`, `close` and perhaps `open`: without it no portfolio is made.
    execution, cost_bps, quantile, volatility
        As in `backtest`.
    trials
        How many models, settings and seeds were tried on these dates, failed ones too: the Sharpe ratio
        is deflated for them.

    Notes
    -----
    The rule of the verdict, fixed here: something is found when Clark-West rejects at 5 % against zero *and*
    against the prevailing mean (the larger p counts, so the level holds without adjustment). Where the
    forecast is not in units of the outcome, the mean rank IC decides, two-sided. It stands under
    suspicion of a leak when the mean rank IC is above 0.10. A constant forecast has found nothing.
    """
    if trials < 1:
        raise ValueError(f"trials counts at least the one that is judged; got {trials}.")
    rows = known_rows(frame)
    found = metrics(rows, horizon=horizon)
    ratio = found["forecast_sd_ratio"]
    in_units = ratio is None or ratio <= WIDEST
    estimates = _estimates(rows, found, in_units, horizon)
    tests = _tests(rows, in_units, horizon)
    dates, assets = rows["date"].n_unique(), rows["asset"].n_unique()
    effective = effective_assets(rows)
    smallest = detectable_r2(dates=max(1, dates // horizon), assets=effective)
    forecast = rows["forecast"].to_numpy()
    constant = bool(np.ptp(forecast) <= CONSTANT * np.abs(forecast).max())
    pairs = bool(rows["date"].is_duplicated().any())
    warnings = _warnings(rows, found, in_units, dates, horizon)
    warnings += _other_unit(_slope(rows, horizon), ratio)
    if prices is not None and not pairs:
        warnings.append("No date has two forecasts: there is no portfolio of one against another.")
    if constant:
        warnings.append("All forecasts are the same number: there is nothing to judge but its level.")
    backtests = (
        []
        if prices is None or not pairs
        else [
            backtest(
                rows,
                prices,
                kind,
                execution=execution,
                horizon=horizon,
                cost_bps=cost_bps,
                quantile=quantile,
                volatility=volatility,
            )
            for kind in PORTFOLIOS
        ]
    )
    portfolios = [_portfolio(one, trials) for one in backtests]
    decision, verdict = _verdict(estimates, tests, in_units, smallest)
    if constant and decision != "undecided":
        decision = "nothing"
        verdict = (
            "Nothing found: all forecasts are the same number, which tells no date and no asset from "
            "another; that returns have a mean is no forecast of theirs."
        )
    return Judgement(
        decision=decision,
        verdict=" ".join([verdict, *_net(portfolios)]),
        horizon=horizon,
        rows=rows.height,
        dates=dates,
        assets=assets,
        effective_assets=effective,
        detectable_r2=smallest,
        estimates=estimates,
        counts={name: int(found[name] or 0) for name in ("days", "missing_days")},
        tests=tests,
        portfolios=portfolios,
        warnings=warnings,
        backtests=backtests,
    )


def _estimates(
    rows: pl.DataFrame, found: dict[str, Any], in_units: bool, horizon: int
) -> dict[str, Estimate]:
    intervals: dict[str, Interval | None] = {}
    if in_units:
        intervals["r2_zero"] = r2_interval(rows, horizon=horizon)
        if "prevailing_mean" in rows.columns:
            intervals["r2_mean"] = r2_interval(rows, benchmark="prevailing_mean", horizon=horizon)
        if "variance" in rows.columns:
            intervals["r2_precision"] = r2_interval(rows, variance="variance", horizon=horizon)
        intervals["r2_median_asset"] = median_r2_interval(rows, horizon=horizon)
    daily = ic_series(rows)
    for name in ("ic", "rank_ic"):
        intervals[name] = mean_interval(daily[name].drop_nulls().to_numpy(), horizon=horizon)
    estimates = {name: _estimate(found[name], interval) for name, interval in intervals.items()}
    for name in ("rank_ic_ir", "forecast_sd_ratio", "log_score", "crps", "coverage_50", "coverage_90"):
        if found.get(name) is not None:
            estimates[name] = Estimate(value=found[name])
    if in_units:
        estimates["slope"] = _slope(rows, horizon)
    if "share_of_oracle" in found:
        estimates["share_of_oracle"] = Estimate(value=found["share_of_oracle"])
    return estimates


def _estimate(value: float | None, interval: Interval | None) -> Estimate:
    return (
        Estimate(value=value)
        if interval is None
        else Estimate(value=value, low=interval[0], high=interval[1])
    )


def _slope(rows: pl.DataFrame, horizon: int) -> Estimate:
    r"""Return the slope b of outcome on forecast through 0: 1 where forecasts have the right size."""
    sums = (
        rows.group_by("date")
        .agg(
            (pl.col("forecast") * pl.col("realised")).sum().alias("cross"),
            (pl.col("forecast") ** 2).sum().alias("square"),
        )
        .sort("date")
    )
    cross, square = sums["cross"].to_numpy(), sums["square"].to_numpy()
    if not square.sum() > 0:
        return Estimate(value=None)
    slope = float(cross.sum() / square.sum())
    interval = mean_interval((cross - slope * square) / square.mean(), horizon=horizon)
    return _estimate(slope, interval and (slope + interval[0], slope + interval[1]))


def _tests(rows: pl.DataFrame, in_units: bool, horizon: int) -> dict[str, SeriesTest]:
    tests = {"clark_west_zero": clark_west(rows, horizon=horizon)} if in_units else {}
    has_mean = "prevailing_mean" in rows.columns and rows["prevailing_mean"].null_count() < rows.height
    if in_units and has_mean:
        tests["clark_west_mean"] = clark_west(rows, benchmark="prevailing_mean", horizon=horizon)
    tests["pesaran_timmermann"] = pesaran_timmermann(rows, horizon=horizon)
    series = ic_series(rows)["rank_ic"].drop_nulls().to_numpy()
    error = mean_error(series, horizon=horizon) if len(series) >= 8 * horizon else None
    mean = float(series.mean()) if len(series) else math.nan
    if error is None:
        tests["rank_ic"] = SeriesTest(estimate=mean, statistic=None, p=None, dates=len(series))
    else:
        statistic = mean / error.se
        tests["rank_ic"] = SeriesTest(
            estimate=mean, statistic=statistic, p=error.two_sided(statistic), dates=len(series)
        )
    return tests


def _portfolio(one: Backtest, trials: int) -> dict[str, Any]:
    net = one.dates["net"].to_numpy()
    ratio = annual_sharpe(net)
    interval = sharpe_interval(net)
    year = math.sqrt(252.0)
    return {
        "portfolio": one.kind,
        "execution": one.execution,
        "cost_bps": one.cost_bps,
        **one.summary(),
        "sharpe_gross": annual_sharpe(one.dates["gross"].to_numpy()),
        "sharpe_net": ratio,
        "sharpe_low": interval and year * interval[0],
        "sharpe_high": interval and year * interval[1],
        "probabilistic_sharpe": probabilistic_sharpe(net),
        "deflated_sharpe": deflated_sharpe(net, trials=trials),
        "trials": trials,
    }


def _warnings(
    rows: pl.DataFrame, found: dict[str, Any], in_units: bool, dates: int, horizon: int
) -> list[str]:
    warnings = []
    ic = found["rank_ic"]
    if ic is not None and abs(ic) > LEAK_IC:
        warnings.append(
            f"Suspected leak: the mean rank IC is {ic:.3f}; more than {LEAK_IC:.2f} kept up over "
            f"{counted(found['days'], 'date')} is hardly ever real. Check that each forecast was made "
            "before its "
            "outcome began."
        )
    if not in_units:
        warnings.append(
            f"The forecasts are {found['forecast_sd_ratio']:.3g} times as wide as the outcomes: a score, not "
            "a return. R², slope and Clark-West would say nothing and are left out."
        )
    if found["missing_days"]:
        warnings.append(
            f"{found['missing_days']:,} of {counted(dates, 'date')} have no IC: forecasts or outcomes are "
            "the same "
            "for all assets, or there are fewer than three. They count as missing, not as 0."
        )
    few = dates // horizon
    if few < 50:
        warnings.append(
            f"There are {counted(few, 'outcome')} that do not overlap in {counted(dates, 'date')}: intervals "
            "and p values are rough."
        )
    return warnings


def _other_unit(slope: Estimate, ratio: float | None) -> list[str]:
    """Warn of forecasts or outcomes in percent beside decimals of the other.

    The 95 % interval of the slope must hold 1/100 (or 100) and end ten times closer to it than 1 is; and
    forecasts said to be in percent must be at least as wide as the outcomes.
    """
    if slope.value is None or slope.low is None or slope.high is None or ratio is None:
        return []
    if ratio >= 1 and slope.low <= PERCENT <= slope.high < PERCENT * APART:
        return [
            f"Are the forecasts in percent? They are {ratio:.3g} times as wide as the outcomes, and the "
            "slope "
            f"of outcomes on them is {slope.value:.2g} ({slope.low:.2g} to {slope.high:.2g}), as it is where "
            "outcomes are decimals. Then divide the forecasts by 100; otherwise they are far too wide."
        ]
    if slope.low > 1 / (PERCENT * APART) and slope.low <= 1 / PERCENT <= slope.high:
        return [
            f"Are the outcomes in percent? Their slope on the forecasts is {slope.value:.3g} "
            f"({slope.low:.3g} to {slope.high:.3g}). Then divide the outcomes by 100; otherwise the "
            "forecasts "
            "are far too small."
        ]
    return []


def _verdict(
    estimates: dict[str, Estimate], tests: dict[str, SeriesTest], in_units: bool, smallest: float
) -> tuple[str, str]:
    ic = estimates["rank_ic"].value
    deciding = [tests[name] for name in ("clark_west_zero", "clark_west_mean") if name in tests]
    if not in_units:
        deciding = [tests["rank_ic"]]
    known = [test.p for test in deciding if test.p is not None]
    if len(known) < len(deciding):
        return "undecided", "No verdict: there are too few dates for a test."
    p = max(known)
    said = f"p {_p(p)}"
    if p >= ALPHA:
        return "nothing", (
            f"Nothing found: {_against(in_units, tests)}, {said}). With these dates and assets a true R² of "
            f"{100 * smallest:.2g} % is found four times in five; a smaller one may be there."
        )
    if ic is not None and ic > LEAK_IC:
        return "suspected_leak", (
            f"Suspected leak: the forecasts know more ({said}; mean rank IC {ic:.3f}) than is ever known. "
            "Believe no number here before the leak is found."
        )
    if not in_units:
        side = "Found" if ic is not None and ic > 0 else "Found, with the wrong sign"
        return (
            "found",
            f"{side}: the score ranks assets by their next return (mean rank IC {ic:.3f}, {said}).",
        )
    r2 = [estimates[name].value or 0.0 for name in ("r2_zero", "r2_mean") if name in estimates]
    if min(r2) > 0:
        benchmarks = "zero and the prevailing mean" if len(r2) > 1 else "zero"
        return (
            "found",
            f"Found: the forecasts beat {benchmarks} (Clark-West, {said}; R² {100 * min(r2):.2g} %).",
        )
    slope = estimates["slope"].value
    return "scaled_wrong", (
        f"Found, but not fit for use as it stands: the forecasts carry information (Clark-West, {said}) and "
        f"still lose in squared error (R² −{100 * abs(min(r2)):.2g} %). "
        f"Multiplied by {slope:.2g} they would have had the right size."
    )


def _against(in_units: bool, tests: dict[str, SeriesTest]) -> str:
    if not in_units:
        return "the score does not rank assets by their next return (mean rank IC"
    both = "clark_west_mean" in tests
    return f"the forecasts do not beat {'both zero and the prevailing mean' if both else 'zero'} (Clark-West"


def _net(portfolios: Sequence[dict[str, Any]]) -> list[str]:
    """Return a sentence on what is left of the first portfolio after costs."""
    if not portfolios:
        return []
    first = portfolios[0]
    ratio, even, deflated = first["sharpe_net"], first["break_even_bps"], first["deflated_sharpe"]
    if even is None:
        return ["The long-short portfolio never trades."]
    if ratio is None or deflated is None:
        return ["The long-short portfolio has too few dates for a Sharpe ratio."]
    cost = f"{first['cost_bps']:g} basis points"
    if even <= 0:
        return ["The long-short portfolio loses before costs."]
    if ratio <= 0:
        return [f"The long-short portfolio loses after {cost} a trade; it breaks even at {even:.2f}."]
    sure = "more than luck" if deflated > 1 - ALPHA else "not more than luck"
    tried = "" if first["trials"] == 1 else f" for {counted(first['trials'], 'trial')}"
    return [
        f"After {cost} a trade the long-short portfolio has a Sharpe ratio of {ratio:.2f}, {sure} (deflated"
        f"{tried}: {deflated:.2f}); it breaks even at {even:.2f}."
    ]


def _p(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"= {p:.3f}" if p < 0.1 else f"= {p:.2f}"

"""The simulated panels of `benchmarks/calibration.py`, and the tests that are tried on them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl
from scipy import stats
from scipy.signal import lfilter
from statsmodels.tsa.stattools import diebold_mariano_test

from fints.data import Panel, targets
from fints.data.semi_synthetic import flip_returns
from fints.evaluation import (
    backtest,
    bootstrap_interval,
    clark_west,
    deflated_sharpe,
    diebold_mariano,
    giacomini_white,
    ic_series,
    loss_table,
    mean_interval,
    model_confidence_set,
    newey_west_t,
    paired_contrast,
    pesaran_timmermann,
    prevailing_mean,
    probabilistic_sharpe,
    probability_of_overfitting,
    r2_interval,
    r2_zero,
    stepwise_superior,
    superior_ability,
)
from fints.evaluation.date_tests import loss_difference

LEVEL = 0.05
# Standard deviation of a drawn forecast over that of the outcome: a calibrated one of R2 0.5 % has it.
FORECAST_SPREAD = math.sqrt(0.005)
# How long drawn forecasts last from date to date (autocorrelation of order 1), by horizon.
PERSISTENCE = {1: 0.9, 5: 0.97, 21: 0.97}
# Dates of history before the judged stretch, for prevailing means.
HISTORY = 100
RIVALS = 5
FOLDS, SEEDS = 6, 3
REPS = 300
NORMAL = float(stats.norm.ppf(1 - LEVEL / 2))


@dataclass(frozen=True, kw_only=True)
class Draw:
    """One simulated stretch: outcomes by (date, asset), the prevailing mean, the planted signal, prices."""

    outcomes: pl.DataFrame
    prices: pl.DataFrame
    dates: int
    assets: int
    horizon: int
    correlation: float
    generator: np.random.Generator

    def noise(self, count: int = 1) -> list[pl.DataFrame]:
        """Draw forecasts that know nothing: lasting from date to date, independent over assets."""
        spread = FORECAST_SPREAD * float(self.outcomes["realised"].std())
        phi = PERSISTENCE[self.horizon]
        frames = []
        for _ in range(count):
            shocks = self.generator.standard_normal((self.dates + 200, self.assets))
            values = lfilter([math.sqrt(1 - phi**2)], [1, -phi], shocks, axis=0)[200:]
            frames.append(self.frame(spread * values.ravel()))
        return frames

    def frame(self, forecast: np.ndarray | pl.Expr) -> pl.DataFrame:
        """Return the outcomes with a forecast beside them."""
        if isinstance(forecast, pl.Expr):
            return self.outcomes.with_columns(forecast=forecast)
        return self.outcomes.with_columns(forecast=pl.Series(forecast))


Test = Callable[[Draw], bool | None]


def draw(panel: Panel, *, r2: float, dates: int, assets: int, horizon: int, seed: int) -> Draw:
    """Cut a random stretch out of the panel, sign its dates at random and plant a signal of `r2`."""
    generator = np.random.default_rng([seed, horizon, dates, assets])
    needed = HISTORY + dates + horizon
    start = int(generator.integers(0, len(panel.dates) - needed))
    chosen = sorted(generator.choice(panel.assets, assets, replace=False))
    stretch = panel.frame.filter(
        pl.col("date").is_between(panel.dates[start], panel.dates[start + needed - 1]),
        pl.col("asset").is_in(chosen),
    )
    signs = 2.0 * generator.integers(0, 2, needed) - 1.0
    made, signal = plant(
        flip_returns(Panel(stretch, price=panel.price, name="stretch"), signs), r2, generator
    )
    labels = targets(made, "log_return", horizon).rename({"target": "realised"})
    labels = labels.with_columns(prevailing_mean=prevailing_mean(labels).fill_null(0.0))
    judged = made.dates[HISTORY : HISTORY + dates]
    outcomes = (
        labels.join(signal, on=["date", "asset"], how="left")
        .filter(pl.col("date").is_between(judged[0], judged[-1]))
        .select("date", "asset", "realised", "prevailing_mean", "signal")
        .sort("date", "asset")
    )
    assert outcomes["realised"].null_count() == 0
    wide = outcomes.pivot(on="asset", index="date", values="realised").drop("date").to_numpy()
    matrix = np.corrcoef(wide, rowvar=False)
    return Draw(
        outcomes=outcomes,
        prices=made.frame.select("date", "asset", pl.col(made.price).alias("close")),
        dates=dates,
        assets=assets,
        horizon=horizon,
        correlation=float((matrix.sum() - assets) / (assets * (assets - 1))),
        generator=generator,
    )


def plant(panel: Panel, r2: float, generator: np.random.Generator) -> tuple[Panel, pl.DataFrame]:
    """Add a signal to the next returns: independent N(0, 1) times the constant that gives it this R2."""
    frame = panel.frame.select("date", "asset", close=pl.col(panel.price))
    price = pl.col("close")
    squares = frame.select((price.log().diff().over("asset") ** 2).mean())["close"][0]
    size = math.sqrt(r2 / (1 - r2) * squares)
    frame = frame.with_columns(signal=pl.Series(size * generator.standard_normal(frame.height)))
    moved = price * pl.col("signal").shift(1, fill_value=0.0).cum_sum().exp().over("asset", order_by="date")
    return Panel(frame.select("date", "asset", moved.alias("close"))), frame.drop("close")


def rejects(p: float | None) -> bool | None:
    """Whether a p value rejects; None where the test gives none."""
    return None if p is None else p < LEVEL


def ics(frame: pl.DataFrame, name: str) -> np.ndarray:
    """Return the known ICs by date."""
    return ic_series(frame)[name].drop_nulls().to_numpy()


def outside(interval: tuple[float, float] | None, value: float) -> bool | None:
    """Whether an interval misses the true value; None where there is none."""
    return None if interval is None else not interval[0] <= value <= interval[1]


def gross_returns(one: Draw, frame: pl.DataFrame) -> np.ndarray:
    """Return what the long-short portfolio earns before costs."""
    return backtest(frame, one.prices, execution="same_close", cost_bps=0.0).dates["gross"].to_numpy()


def true_r2(frame: pl.DataFrame) -> float:
    """Return the R2 that a forecast of nothing has on average over the signs, given the sizes of returns."""
    squares = frame.select((pl.col(name) ** 2).sum().alias(name) for name in ("forecast", "realised"))
    return -float(squares["forecast"][0] / squares["realised"][0])


def contrast(one: Draw) -> bool | None:
    """Compare two arms of three seeds in six folds; the seeds of an arm share half of their variance."""
    edges = one.outcomes["date"].unique().sort()
    length = one.dates // FOLDS
    cells = []
    for arm in ("a", "b"):
        shared = one.noise()[0]["forecast"].to_numpy()
        for seed, own in enumerate(one.noise(SEEDS)):
            frame = own.with_columns(forecast=math.sqrt(0.5) * (pl.Series(shared) + pl.col("forecast")))
            for fold in range(FOLDS):
                first, last = edges[fold * length], edges[(fold + 1) * length - 1]
                part = frame.filter(pl.col("date").is_between(first, last))
                cells.append({"fold": fold, "seed": seed, "arm": arm, "value": r2_zero(part)})
    paired = pl.DataFrame(cells).pivot(on="arm", index=["fold", "seed"], values="value")
    return rejects(paired_contrast(paired).p)


def losses(one: Draw, first: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
    """Return the losses of some forecasts and of `RIVALS` that know nothing."""
    rivals = {f"rival {number}": frame for number, frame in enumerate(one.noise(RIVALS))}
    return loss_table({**first, **rivals})


def size_tests(horizon: int) -> dict[str, Test]:
    """Return the tests whose size is simulated at a horizon: name to whether it rejects a true null."""
    h = horizon
    tests: dict[str, Test] = {
        "Clark-West, zero": lambda one: rejects(clark_west(one.noise()[0], horizon=h).p),
        "Clark-West, prevailing mean": lambda one: rejects(
            clark_west(
                one.noise()[0].with_columns(pl.col("forecast") + pl.col("prevailing_mean")),
                benchmark="prevailing_mean",
                horizon=h,
            ).p
        ),
        "Diebold-Mariano": lambda one: rejects(diebold_mariano(*one.noise(2), horizon=h).p),
        "Giacomini-White": lambda one: rejects(giacomini_white(*one.noise(2), horizon=h).p),
        "Pesaran-Timmermann": lambda one: rejects(pesaran_timmermann(one.noise()[0], horizon=h).p),
        "IC": lambda one: outside(mean_interval(ics(one.noise()[0], "ic"), horizon=h), 0.0),
        "rank IC": lambda one: outside(mean_interval(ics(one.noise()[0], "rank_ic"), horizon=h), 0.0),
        "interval of R2": lambda one: interval_of_r2(one, h),
    }
    if h == 1:
        tests |= {
            "superior ability (SPA)": lambda one: rejects(
                superior_ability(losses(one, {"base": one.noise()[0]}), "base", reps=REPS)
            ),
            "stepwise (StepM)": lambda one: bool(
                stepwise_superior(losses(one, {"base": one.noise()[0]}), "base", reps=REPS)
            ),
            "model confidence set": lambda one: (
                len(model_confidence_set(losses(one, {}), reps=REPS).included) < RIVALS
            ),
            "probabilistic Sharpe": lambda one: rejects(
                1 - (probabilistic_sharpe(gross_returns(one, one.noise()[0])) or 0.0)
            ),
            "contrast of two arms": contrast,
        }
    return tests


def interval_of_r2(one: Draw, horizon: int) -> bool | None:
    """Whether the interval misses the R2 that a forecast of nothing truly has."""
    frame = one.noise()[0]
    return outside(r2_interval(frame, horizon=horizon), true_r2(frame))


def dropped_tests(horizon: int) -> dict[str, Test]:
    """Return what fints does not use over overlapping horizons, and why."""
    h = horizon

    def library(one: Draw) -> bool:
        series = loss_difference(*one.noise(2))["difference"].to_numpy()
        zeros = np.zeros_like(series)
        found = diebold_mariano_test(
            zeros, series, zeros, criterion=lambda _, loss: loss, harvey_adj=True, horizon=h
        )
        return bool(found.pvalue < LEVEL)

    def hac(one: Draw) -> bool:
        return abs(newey_west_t(ics(one.noise()[0], "rank_ic"), horizon=h) or 0.0) > NORMAL

    def blocks(one: Draw) -> bool | None:
        return outside(bootstrap_interval(ics(one.noise()[0], "rank_ic"), np.mean, horizon=h, reps=REPS), 0.0)

    def ordinary(one: Draw) -> bool:
        series = ics(one.noise()[0], "rank_ic")
        return bool(stats.ttest_1samp(series, 0.0).pvalue < LEVEL)

    return {
        "rank IC, errors of independent dates": ordinary,
        f"rank IC, Newey-West with {h - 1} lags": hac,
        "rank IC, block bootstrap of dates": blocks,
        f"Diebold-Mariano, {h - 1} lags and Harvey's correction": library,
    }


def power_tests() -> dict[str, tuple[Test, str | None]]:
    """Return tests whose power is simulated, with the name of their formula."""
    oracle = pl.col("signal")

    def zero(one: Draw) -> pl.DataFrame:
        return one.frame(pl.lit(0.0))

    return {
        "Clark-West, zero": (lambda one: rejects(clark_west(one.frame(oracle)).p), "clark_west"),
        "Clark-West, prevailing mean": (
            lambda one: rejects(
                clark_west(one.frame(oracle + pl.col("prevailing_mean")), benchmark="prevailing_mean").p
            ),
            "clark_west",
        ),
        "Diebold-Mariano, zero": (
            lambda one: rejects(diebold_mariano(one.frame(oracle), zero(one)).p),
            "diebold_mariano",
        ),
        "Giacomini-White, zero": (
            lambda one: rejects(giacomini_white(one.frame(oracle), zero(one)).p),
            "giacomini_white",
        ),
        "Pesaran-Timmermann": (
            lambda one: rejects(pesaran_timmermann(one.frame(oracle)).p),
            "pesaran_timmermann",
        ),
        "rank IC": (
            lambda one: outside(mean_interval(ics(one.frame(oracle), "rank_ic")), 0.0),
            "rank_ic",
        ),
        "probabilistic Sharpe": (
            lambda one: rejects(1 - (probabilistic_sharpe(gross_returns(one, one.frame(oracle))) or 0.0)),
            "long_short",
        ),
        "superior ability (SPA)": (
            lambda one: rejects(
                superior_ability(
                    losses(one, {"zero": zero(one), "oracle": one.frame(oracle)}), "zero", reps=REPS
                )
            ),
            None,
        ),
        "stepwise (StepM)": (
            lambda one: (
                "oracle"
                in stepwise_superior(
                    losses(one, {"zero": zero(one), "oracle": one.frame(oracle)}), "zero", reps=REPS
                )
            ),
            None,
        ),
        "model confidence set": (
            lambda one: (
                model_confidence_set(losses(one, {"oracle": one.frame(oracle)}), reps=REPS).included
                == ("oracle",)
            ),
            None,
        ),
    }


def selection_measures(one: Draw) -> dict[str, float]:
    """Return what the best of 20 worthless strategies shows, and how it is seen through."""
    returns = np.column_stack([gross_returns(one, frame) for frame in one.noise(20)])
    ratios = returns.mean(axis=0) / returns.std(axis=0, ddof=1)
    best = returns[:, ratios.argmax()]
    return {
        "Sharpe ratio, annual": math.sqrt(252) * float(ratios.max()),
        "probabilistic Sharpe": probabilistic_sharpe(best) or 0.0,
        "deflated Sharpe": deflated_sharpe(best, trials=20, variance=float(ratios.var(ddof=1))) or 0.0,
        "deflated Sharpe, count only": deflated_sharpe(best, trials=20) or 0.0,
        "probability of overfitting": probability_of_overfitting(returns, blocks=8).probability,
    }

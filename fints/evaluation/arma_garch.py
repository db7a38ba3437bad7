r"""The time-series benchmark of one asset at a time: ARMA(1, 1) with GARCH(1, 1) Student t errors.

.. math::

    r_t - \mu = \phi (r_{t-1} - \mu) + e_t + \theta e_{t-1}, \quad e_t = \sigma_t z_t, \quad
    \sigma_t^2 = \omega + \alpha e_{t-1}^2 + \beta \sigma_{t-1}^2
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import polars as pl

from fints.evaluation.walk_forward import Fold, Part

__all__ = ["MEANS", "ArmaGarch", "arma_garch", "fit_arma_garch"]

# Below this many training returns an asset takes the median parameters of the others.
FEWEST_RETURNS = 200
# Returns are fitted in percent: the optimiser of the likelihood is scaled for numbers near 1.
PERCENT = 100.0
# Of rising complexity. With returns the two terms of an ARMA nearly cancel and are estimated badly, so
# validation rows say whether they are worth it.
MEANS = ("constant", "ar", "arma")


@dataclass(frozen=True, kw_only=True)
class ArmaGarch:
    """The parameters of one asset, in percent; `degrees` of a t standardised to unit variance."""

    mu: float
    phi: float
    theta: float
    omega: float
    alpha: float
    beta: float
    degrees: float

    def filter(self, returns: np.ndarray, horizon: int) -> tuple[np.ndarray, np.ndarray]:
        r"""Return mean and variance of the sum of the next `horizon` returns, after each return (T,).

        .. math:: h \mu + \frac{1 - \phi^h}{1 - \phi} (\phi (r_t - \mu) + \theta e_t), \quad
            \sum_{k=1}^{h} \mathrm E_t\, \sigma_{t+k}^2

        The variance leaves out that ARMA terms carry a shock into the later days of the sum: with the
        small coefficients of returns that is a matter of a percent.
        """
        from scipy.signal import lfilter

        centred = returns - self.mu
        shocks = lfilter([1.0, -self.phi], [1.0, self.theta], centred)
        step = self.phi * centred + self.theta * shocks
        mean = horizon * self.mu + sum(self.phi**k for k in range(horizon)) * step
        # The variance starts at its unconditional value, or that of the sample if there is none.
        last = self.alpha + self.beta
        start = self.omega / (1 - last) if last < 1 else float(np.mean(shocks**2))
        ahead = lfilter(
            [1.0], [1.0, -self.beta], self.omega + self.alpha * shocks**2, zi=[self.beta * start]
        )[0]
        total, one = np.zeros_like(ahead), ahead
        for _ in range(horizon):
            total, one = total + one, self.omega + last * one
        return mean, total


def fit_arma_garch(returns: np.ndarray, *, mean: str = "arma") -> ArmaGarch:
    """Fit the mean by Gaussian likelihood, then the variance of its errors by that of a Student t.

    `mean` is one of `MEANS`. Where the second likelihood finds no maximum, the variance is constant. Source:
    ``statsmodels.tsa.arima.estimators.innovations.innovations_mle``; Bollerslev (1987), ``arch.univariate``.
    """
    from arch.univariate import GARCH, StudentsT, ZeroMean
    from statsmodels.tsa.arima.estimators.innovations import innovations_mle

    if mean not in MEANS:
        raise ValueError(f"unknown mean {mean!r}. Known: {', '.join(MEANS)}.")
    values = PERCENT * returns
    mu = float(values.mean())
    centred = values - mu
    phi, theta = 0.0, 0.0
    if mean != "constant":
        phi = float(centred[1:] @ centred[:-1] / (centred @ centred))
    if mean == "arma":
        found, _ = innovations_mle(
            centred, order=(1, 0, 1), demean=False, start_params=[phi, 0.0, centred.var()]
        )
        phi, theta = float(found.ar_params[0]), float(found.ma_params[0])
    plain = ArmaGarch(mu=mu, phi=phi, theta=theta, omega=0.0, alpha=0.0, beta=0.0, degrees=np.inf)
    shocks = _shocks(plain, values)
    model = ZeroMean(shocks, volatility=GARCH(p=1, q=1), distribution=StudentsT(), rescale=False)
    fitted = model.fit(disp="off", show_warning=False)
    omega, alpha, beta, degrees = (float(value) for value in fitted.params)
    if fitted.convergence_flag != 0 or not all(map(math.isfinite, (omega, alpha, beta, degrees))):
        omega, alpha, beta, degrees = float(np.mean(shocks**2)), 0.0, 0.0, 8.0
    return ArmaGarch(mu=mu, phi=phi, theta=theta, omega=omega, alpha=alpha, beta=beta, degrees=degrees)


def arma_garch(
    table: pl.DataFrame, fold: Fold, *, returns: pl.DataFrame | None, horizon: int
) -> pl.DataFrame:
    """Forecast the test rows of a fold: `date`, `asset`, `forecast`, `log_scale`, `degrees`, in target units.

    `table` has `date`, `asset`, `target`, `label_end`, `scale`. Parameters come from the returns that ended
    in the training period, the kind of mean from the validation rows of all assets; the filter runs over
    all returns known on the date.
    """
    if table["scale"].null_count() == table.height:
        raise ValueError(
            "arma_garch forecasts returns: it needs a target with a scale (not cross_sectional)."
        )
    known = _returns_of(table) if returns is None and horizon == 1 else returns
    if known is None or horizon < 1:
        raise ValueError(f"arma_garch at horizon {horizon} needs one-day returns; pass returns=.")
    series = known.select("date", "asset", pl.col("return").cast(pl.Float64).fill_nan(None)).drop_nulls()
    by_asset = {
        str(asset): part.sort("date")
        for (asset,), part in series.partition_by("asset", as_dict=True, maintain_order=True).items()
    }
    learnt = {asset: fold.select(part, "train")["return"].to_numpy() for asset, part in by_asset.items()}
    learnt = {
        asset: values
        for asset, values in learnt.items()
        if len(values) >= FEWEST_RETURNS and np.ptp(values) > 0
    }
    if not learnt:
        raise ValueError(
            f"arma_garch needs {FEWEST_RETURNS} training returns of an asset that moves; fold {fold.index} "
            "has none."
        )
    best_loss, usual, best = math.inf, None, None
    for mean in MEANS:
        fitted = {asset: fit_arma_garch(values, mean=mean) for asset, values in learnt.items()}
        middle = _median(list(fitted.values()))
        filtered = _filtered(by_asset, fitted, middle, horizon)
        held_out = _asked(table, filtered, fold, "validation")
        loss = float(np.mean(((held_out["target"] - _mean_of(held_out)) ** 2).to_numpy()))
        # The simplest wins a tie.
        if loss < best_loss:
            best_loss, usual, best = loss, middle, filtered
    assert usual is not None
    assert best is not None
    joined = _asked(table, best, fold, "test")
    start = math.sqrt(horizon * usual.omega / max(1 - usual.alpha - usual.beta, 0.01)) / PERCENT
    return joined.select(
        "date",
        "asset",
        _mean_of(joined).alias("forecast"),
        (pl.col("spread").fill_null(start) / pl.col("scale")).log().alias("log_scale"),
        pl.col("degrees").fill_null(usual.degrees),
    )


def _median(models: list[ArmaGarch]) -> ArmaGarch:
    """Return the median of each parameter, for an asset with too little history of its own."""
    return ArmaGarch(
        **{name: float(np.median([vars(one)[name] for one in models])) for name in vars(models[0])}
    )


def _filtered(
    by_asset: dict[str, pl.DataFrame], fitted: dict[str, ArmaGarch], usual: ArmaGarch, horizon: int
) -> pl.DataFrame:
    """Return `mean`, `spread` and `degrees` of the next returns after every return of every asset."""
    pieces = []
    for asset, part in by_asset.items():
        model = fitted.get(asset, usual)
        mean, variance = model.filter(PERCENT * part["return"].to_numpy(), horizon)
        # The scale of a t of unit variance is sqrt((nu - 2) / nu).
        spread = np.sqrt(variance * (model.degrees - 2) / model.degrees)
        pieces.append(
            part.select(
                "date",
                "asset",
                mean=pl.Series(mean / PERCENT),
                spread=pl.Series(spread / PERCENT),
                degrees=pl.lit(model.degrees),
            )
        )
    return pl.concat(pieces).sort("date", "asset")


def _asked(table: pl.DataFrame, filtered: pl.DataFrame, fold: Fold, part: Part) -> pl.DataFrame:
    """Return a period's rows with what the latest return known on the date says."""
    asked = fold.select(table, part).drop_nulls(["target", "scale"]).sort("date", "asset")
    if asked.height == 0:
        raise ValueError(f"fold {fold.index}: no {part} row has an outcome; check the dates.")
    return asked.join_asof(filtered, on="date", by="asset", strategy="backward", check_sortedness=False)


def _mean_of(joined: pl.DataFrame) -> pl.Series:
    """Return the mean in target units, 0 before an asset's first return."""
    return joined["mean"].fill_null(0.0) / joined["scale"]


def _returns_of(table: pl.DataFrame) -> pl.DataFrame:
    """Return the outcomes over one day as returns by the date on which they ended."""
    return table.drop_nulls(["target", "label_end", "scale"]).select(
        "asset", (pl.col("target") * pl.col("scale")).alias("return"), pl.col("label_end").alias("date")
    )


def _shocks(model: ArmaGarch, values: np.ndarray) -> np.ndarray:
    from scipy.signal import lfilter

    shocks: np.ndarray = lfilter([1.0, -model.phi], [1.0, model.theta], values - model.mu)
    return shocks

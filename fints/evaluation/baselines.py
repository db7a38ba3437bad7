"""Forecasts that any network must beat, fitted on training rows only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from fints.evaluation.metrics import prevailing_mean
from fints.evaluation.walk_forward import Fold, Part

__all__ = ["BASELINES", "Design", "baseline_forecasts", "oracle_forecasts"]

BASELINES = {
    "zero": "0 for every row",
    "prevailing_mean": "each asset's mean of all outcomes known on the date",
    "ar1": "pooled regression on the asset's latest known outcome",
    "ar1_by_asset": "the same regression, one an asset",
    "arma_garch": "ARMA(1, 1) by asset with GARCH(1, 1) Student t errors, a distribution",
    "ridge": "ridge regression on all features of the window, penalty chosen on validation rows",
    "elastic_net": "elastic net on the same columns, both penalties chosen on validation rows",
    "gradient_boosting": "histogram gradient boosting on the same columns, size and number of trees chosen "
    "on validation rows",
}
# Ten half-decades: from no visible shrinkage to a forecast of nearly zero, per training row.
RIDGE_PENALTIES = tuple(float(10.0**power) for power in np.arange(-4, 1.01, 0.5))


def baseline_forecasts(
    name: str,
    *,
    targets: pl.DataFrame,
    fold: Fold,
    features: pl.DataFrame | None = None,
    feature_names: Sequence[str] | None = None,
    context: int = 1,
    returns: pl.DataFrame | None = None,
    horizon: int = 1,
) -> pl.DataFrame:
    """Return one baseline's forecasts of a fold's test rows.

    Parameters
    ----------
    name
        A name of `BASELINES`.
    targets
        `date`, `asset`, `target` (null where the outcome is not known), `label_end` (the date on
        which it is known) and, if there is one, `scale`; all dates, not the test period alone.
    fold
        Its training rows fit the baseline, its validation rows choose penalties and sizes, its test
        rows are forecast. Outcomes known by a test date may enter that date's prevailing mean and
        lagged outcome: they are inputs there, not fitted on.
    features, feature_names, context
        For the regressions: the feature frame on the same (date, asset), the columns (default: all but the
        keys) and how many of the asset's past rows a forecast sees.
    returns, horizon
        For ARMA-GARCH: `date`, `asset`, `return`, the log return that ended on the date, and how many
        of them an outcome sums. Without `returns` the outcomes themselves are used, at horizon 1.

    Returns
    -------
    DataFrame
        `date`, `asset`, `forecast`, `realised`, `unit_scale`, sorted by date and asset; the rows
        of the test period whose outcome is known. ARMA-GARCH adds `log_scale` and `degrees`.

    See Also
    --------
    fints.deep_baselines.deep_baseline_forecasts : small networks on the same fold and windows.

    Raises
    ------
    ValueError
        If the name is unknown, a column is missing, or a period has no row with an outcome.
    """
    if name not in BASELINES:
        raise ValueError(f"unknown baseline {name!r}. Known baselines: {', '.join(BASELINES)}.")
    table = _table(targets)
    test = fold.select(table, "test").drop_nulls("target")
    if test.height == 0:
        raise ValueError(_without_outcome(fold, "test"))
    if name == "zero":
        forecast = test.select("date", "asset", pl.lit(0.0).alias("forecast"))
    elif name == "prevailing_mean":
        # Before an asset's first known outcome its best guess is no move.
        forecast = (
            table.with_columns(prevailing_mean(table).fill_null(0.0).alias("forecast"))
            .pipe(fold.select, "test")
            .select("date", "asset", "forecast")
        )
    elif name in ("ar1", "ar1_by_asset"):
        forecast = _ar1(table, fold, by_asset=name == "ar1_by_asset")
    elif name == "arma_garch":
        from fints.evaluation.arma_garch import arma_garch

        forecast = arma_garch(table, fold, returns=returns, horizon=horizon)
    else:
        if features is None:
            raise ValueError(f"{name} needs the feature frame; pass features=.")
        names = list(feature_names or [c for c in features.columns if c not in ("date", "asset")])
        design = _design(name, table, features, names, fold, context)
        if name == "ridge":
            forecast = _ridge(design)
        else:
            from fints.evaluation.regressions import elastic_net, gradient_boosting

            forecast = elastic_net(design) if name == "elastic_net" else gradient_boosting(design)
    return _with_outcomes(test, forecast)


def oracle_forecasts(signal: pl.DataFrame, *, targets: pl.DataFrame, fold: Fold) -> pl.DataFrame:
    r"""Return the best possible forecasts of a fold's test rows, from the signal planted in the panel.

    .. math:: p_{i,t} = s_{i,t} / \sigma_{i,t}

    with the signal s, the expected log return over the next day, and the target's `scale`
    :math:`\sigma`, which is known at t. So it is exact for targets over one day that are log returns
    or log returns over a causal volatility, and for those only.

    Parameters
    ----------
    signal
        `date`, `asset`, `signal`.
    targets, fold
        As `baseline_forecasts`; `scale` is required.

    Raises
    ------
    ValueError
        If the target has no scale, or no row of the test period has an outcome.
    """
    test = fold.select(_table(targets), "test").drop_nulls("target")
    if test.height == 0:
        raise ValueError(_without_outcome(fold, "test"))
    if test["scale"].null_count():
        raise ValueError("the oracle is known for targets with a scale only: log_return, volatility_scaled.")
    forecast = test.join(signal, on=["date", "asset"], how="inner").select(
        "date", "asset", (pl.col("signal") / pl.col("scale")).alias("forecast")
    )
    return _with_outcomes(test, forecast)


def _with_outcomes(test: pl.DataFrame, forecast: pl.DataFrame) -> pl.DataFrame:
    return (
        test.select("date", "asset", pl.col("target").alias("realised"), pl.col("scale").alias("unit_scale"))
        .join(forecast, on=["date", "asset"], how="inner")
        .select("date", "asset", "forecast", "realised", "unit_scale", *forecast.columns[3:])
        .sort("date", "asset")
    )


def _table(targets: pl.DataFrame) -> pl.DataFrame:
    missing = [c for c in ("date", "asset", "target", "label_end") if c not in targets.columns]
    if missing:
        raise ValueError(f"targets lack {', '.join(missing)}; they have {', '.join(targets.columns)}.")
    scale = pl.col("scale") if "scale" in targets.columns else pl.lit(None)
    return targets.select(
        "date",
        "asset",
        pl.col("target").cast(pl.Float64).fill_nan(None),
        "label_end",
        scale.cast(pl.Float64).alias("scale"),
    ).sort("asset", "date")


def _latest_outcome(table: pl.DataFrame) -> pl.DataFrame:
    """Add `latest`: the asset's newest outcome known on the row's date (0 before there is one)."""
    known = (
        table.drop_nulls(["target", "label_end"])
        .sort("asset", "date")
        .unique(["asset", "label_end"], keep="last", maintain_order=True)
        .select("asset", pl.col("label_end").alias("known_on"), pl.col("target").alias("latest"))
        .sort("known_on", "asset")
    )
    joined = table.sort("date", "asset").join_asof(
        known, left_on="date", right_on="known_on", by="asset", strategy="backward", check_sortedness=False
    )
    return joined.with_columns(pl.col("latest").fill_null(0.0)).sort("asset", "date")


def _ar1(table: pl.DataFrame, fold: Fold, *, by_asset: bool) -> pl.DataFrame:
    rows = _latest_outcome(table)
    train = _training_rows(rows, fold).sort("asset", "date")
    pieces = []
    for (asset,), test in (
        fold.select(rows, "test").partition_by("asset", as_dict=True, maintain_order=True).items()
    ):
        seen = train.filter(pl.col("asset") == asset) if by_asset else train
        mean, intercept, slope = _least_squares(seen["latest"].to_numpy(), seen["target"].to_numpy())
        forecast = intercept + slope * (pl.col("latest") - mean)
        pieces.append(test.select("date", "asset", forecast.alias("forecast")))
    return pl.concat(pieces)


def _least_squares(x: np.ndarray, y: np.ndarray) -> tuple[float, float, float]:
    """Return the mean of x and the fitted intercept and slope around it; zeros without a row."""
    if len(x) == 0:
        return 0.0, 0.0, 0.0
    centred = x - x.mean()
    variance = float(centred @ centred)
    slope = float(centred @ y) / variance if variance > 0 else 0.0
    return float(x.mean()), float(y.mean()), slope


@dataclass(frozen=True, kw_only=True)
class Design:
    """What a regression is fitted, tuned and asked on: columns (N, T F) of the window, and outcomes (N,)."""

    x: np.ndarray
    y: np.ndarray
    validation_x: np.ndarray
    validation_y: np.ndarray
    test_x: np.ndarray
    test: pl.DataFrame

    def forecast(self, values: np.ndarray) -> pl.DataFrame:
        """Return forecasts (N,) of the test rows by their keys."""
        return self.test.with_columns(pl.Series("forecast", values, dtype=pl.Float64))


def _design(
    baseline: str, table: pl.DataFrame, features: pl.DataFrame, names: list[str], fold: Fold, context: int
) -> Design:
    missing = [name for name in ("date", "asset", *names) if name not in features.columns]
    if missing or not names or context < 1:
        raise ValueError(
            f"{baseline} needs features {names} (missing {missing}), context >= 1; got {context}."
        )
    numeric = features.select("date", "asset", pl.col(names).cast(pl.Float64).fill_nan(None))
    seen = _training_rows(table, fold).join(numeric, on=["date", "asset"], how="inner")
    mean = {name: _float(seen[name].mean(), 0.0) for name in names}
    # A constant or absent feature is only shifted.
    spread = {name: _float(seen[name].std(ddof=0), 1.0) or 1.0 for name in names}
    # Scaled by training rows, so that a missing feature (0 below) is an average one.
    scaled = numeric.sort("asset", "date").with_columns(
        ((pl.col(name) - mean[name]) / spread[name]).fill_null(0.0) for name in names
    )
    lagged = scaled.select(
        "date",
        "asset",
        *(
            pl.col(name).shift(lag).over("asset", order_by="date").fill_null(0.0).alias(f"{name}@{lag}")
            for lag in range(context)
            for name in names
        ),
    )
    columns = lagged.columns[2:]
    rows = table.join(lagged, on=["date", "asset"], how="inner").sort("date", "asset")
    train = _training_rows(rows, fold)
    validation = fold.select(rows, "validation").drop_nulls("target")
    test = fold.select(rows, "test")
    if validation.height == 0:
        raise ValueError(_without_outcome(fold, "validation"))
    return Design(
        x=train.select(columns).to_numpy(),
        y=train["target"].to_numpy(),
        validation_x=validation.select(columns).to_numpy(),
        validation_y=validation["target"].to_numpy(),
        test_x=test.select(columns).to_numpy(),
        test=test.select("date", "asset"),
    )


def _ridge(design: Design) -> pl.DataFrame:
    from sklearn.linear_model import Ridge

    best_loss, best = np.inf, None
    # The largest penalty wins a tie.
    for penalty in reversed(RIDGE_PENALTIES):
        model = Ridge(alpha=penalty * len(design.y)).fit(design.x, design.y)
        loss = float(np.mean((design.validation_y - model.predict(design.validation_x)) ** 2))
        if loss < best_loss:
            best_loss, best = loss, model
    assert best is not None
    return design.forecast(best.predict(design.test_x))


def _training_rows(rows: pl.DataFrame, fold: Fold) -> pl.DataFrame:
    train = fold.select(rows, "train").drop_nulls("target")
    if train.height == 0:
        raise ValueError(_without_outcome(fold, "train"))
    return train


def _without_outcome(fold: Fold, part: Part) -> str:
    first, last = fold.period(part)
    return f"fold {fold.index}: no {part} row between {first} and {last} has an outcome; check the dates."


def _float(value: object, otherwise: float) -> float:
    return float(value) if isinstance(value, int | float) else otherwise

"""How good is a forecast? Every metric takes one long frame and drops what has no outcome.

A frame has one row a (date, asset) with `forecast` and `realised` in the same units. Let p be the
forecast made on date t and r the outcome over (t, t + h]. Rows without an outcome or without a
forecast (null or NaN) do not count; infinite numbers are refused. A metric that does not exist
for the frame (no variance, one asset a day) is None, never NaN and never 0.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from fints.evaluation.distribution import coverage, crps, log_score
from fints.evaluation.rows import columns, group_starts, known_rows, refuse_infinite, require_columns
from fints.evaluation.serial import mean_t

__all__ = [
    "ic_series",
    "metrics",
    "prevailing_mean",
    "r2_by_asset",
    "r2_mean",
    "r2_precision",
    "r2_zero",
    "share_of_oracle",
]

# Forecasts leave networks in float32 (relative rounding 1.2e-7): a spread below this share of the
# largest value is rounding, not an opinion about the cross-section.
CONSTANT = 1e-6
# With two assets an IC is +1 or -1 and says nothing.
FEWEST_ASSETS = 3


def metrics(frame: pl.DataFrame, *, horizon: int = 1) -> dict[str, float | int | None]:
    """Return all metrics that the columns of `frame` allow.

    Optional columns add metrics: `prevailing_mean` (`r2_mean`), `variance` (`r2_precision`, causal
    variance of the outcome), `unit_scale` (`r2_zero_return`: the pooled R2 in log-return units),
    `log_scale` and `degrees` (`log_score`, `crps`, `coverage_50`, `coverage_90`), `oracle`
    (`share_of_oracle`).

    Returns
    -------
    dict
        `r2_zero`, `r2_mean`, `r2_zero_return`, `r2_precision`, `r2_median_asset`, `ic`, `ic_ir`,
        `ic_t`, `rank_ic`, `rank_ic_ir`, `rank_ic_t`, `days`, `missing_days`, `rows`,
        `missing_rows`, `forecast_sd_ratio`, `mse`; information ratios are per date, not annualised.

    Raises
    ------
    ValueError
        If a column is missing, a key is repeated, a number is infinite, or no row is left.
    """
    # The door is passed once: below here rows are known, unique and in order.
    rows = known_rows(frame)
    forecast, realised = columns(rows, "forecast", "realised")
    ics = _ic_series(rows, FEWEST_ASSETS)
    found: dict[str, float | int | None] = {
        "r2_zero": _r2(realised - forecast, realised, np.ones_like(realised)),
        "r2_mean": _r2_mean(rows) if "prevailing_mean" in rows.columns else None,
        "r2_zero_return": None,
        "r2_precision": _r2_precision(rows) if "variance" in rows.columns else None,
        "r2_median_asset": _median(_r2_by_asset(rows)["r2_zero"]),
        "mse": float(np.mean((realised - forecast) ** 2)),
        "forecast_sd_ratio": _ratio(float(np.std(forecast)), float(np.std(realised))),
    }
    if "unit_scale" in rows.columns and rows["unit_scale"].null_count() == 0:
        scale = rows["unit_scale"].to_numpy()
        forecast_return, return_ = forecast * scale, realised * scale
        found["r2_zero_return"] = _r2(return_ - forecast_return, return_, np.ones_like(return_))
    for name in ("ic", "rank_ic"):
        series = ics[name].drop_nulls().to_numpy()
        mean = float(series.mean()) if len(series) else None
        spread = float(series.std(ddof=1)) if len(series) > 1 else 0.0
        found[name] = mean
        found[f"{name}_ir"] = None if mean is None else _ratio(mean, spread)
        found[f"{name}_t"] = mean_t(series, horizon=horizon)
    found["days"] = ics.height - ics["rank_ic"].null_count()
    found["missing_days"] = ics["rank_ic"].null_count()
    found["rows"] = rows.height
    found["missing_rows"] = frame.height - rows.height
    if "log_scale" in rows.columns and rows["log_scale"].null_count() == 0:
        found["log_score"] = log_score(rows)
        found["crps"] = crps(rows)
        found["coverage_50"] = coverage(rows, 0.5)
        found["coverage_90"] = coverage(rows, 0.9)
    if "oracle" in rows.columns:
        found["share_of_oracle"] = share_of_oracle(rows)
    return found


def r2_zero(frame: pl.DataFrame) -> float | None:
    r"""Return the pooled out-of-sample R2 against a forecast of zero.

    .. math:: 1 - \sum (r - p)^2 / \sum r^2

    None if every outcome is 0. Source: Gu, Kelly, Xiu (2020), equation 19.

    >>> import datetime as dt
    >>> day = dt.date(2024, 1, 2)
    >>> table = {"date": [day, day], "asset": ["A", "B"], "forecast": [0.01, 0.0], "realised": [0.02, 0.02]}
    >>> round(r2_zero(pl.DataFrame(table)), 6)
    0.375
    """
    forecast, realised = columns(known_rows(frame), "forecast", "realised")
    return _r2(realised - forecast, realised, np.ones_like(realised))


def r2_mean(frame: pl.DataFrame) -> float | None:
    r"""Return the pooled out-of-sample R2 against each asset's prevailing mean.

    .. math:: 1 - \sum (r - p)^2 / \sum (r - \bar r_{i,t})^2

    with :math:`\bar r_{i,t}` from column `prevailing_mean` (see `prevailing_mean`). Rows where it is
    null count in neither sum. The baseline of that name forecasts 0 before an asset's first known
    outcome, so that a study counts such rows, against 0. Source: Campbell, Thompson (2008).
    """
    return _r2_mean(known_rows(frame, "prevailing_mean"))


def _r2_mean(rows: pl.DataFrame) -> float | None:
    rows = rows.drop_nulls("prevailing_mean")
    if rows.height == 0:
        return None
    forecast, realised, mean = columns(rows, "forecast", "realised", "prevailing_mean")
    return _r2(realised - forecast, realised - mean, np.ones_like(realised))


def r2_precision(frame: pl.DataFrame) -> float | None:
    r"""Return the precision-weighted R2 against zero, each row weighted by 1 / `variance`.

    .. math:: 1 - \sum (r - p)^2 / \sigma^2 \big/ \sum r^2 / \sigma^2

    `variance` must have been known on date t. Calm days count as much as wild ones here; in
    the pooled R2 the wild ones decide. Rows with null variance count in neither sum.
    """
    return _r2_precision(known_rows(frame, "variance"))


def _r2_precision(rows: pl.DataFrame) -> float | None:
    rows = rows.drop_nulls("variance")
    if rows.height == 0:
        return None
    forecast, realised, variance = columns(rows, "forecast", "realised", "variance")
    if not (variance > 0).all():
        raise ValueError(f"variance must be above 0 (null where unknown); got {variance.min()!r}.")
    return _r2(realised - forecast, realised, 1.0 / variance)


def r2_by_asset(frame: pl.DataFrame) -> pl.DataFrame:
    """Return one row an asset: `asset`, `r2_zero` (null if all its outcomes are 0), `rows`."""
    return _r2_by_asset(known_rows(frame))


def _r2_by_asset(rows: pl.DataFrame) -> pl.DataFrame:
    rows = rows.sort("asset", "date")
    forecast, realised = columns(rows, "forecast", "realised")
    starts = group_starts(rows["asset"])
    error = np.add.reduceat((realised - forecast) ** 2, starts)
    total = np.add.reduceat(realised**2, starts)
    return pl.DataFrame(
        {
            "asset": rows["asset"].gather(starts),
            "r2_zero": [1 - float(e / t) if t > 0 else None for e, t in zip(error, total, strict=True)],
            "rows": np.diff(np.append(starts, rows.height)),
        },
        schema_overrides={"r2_zero": pl.Float64, "rows": pl.Int64},
    )


def ic_series(frame: pl.DataFrame, *, fewest_assets: int = FEWEST_ASSETS) -> pl.DataFrame:
    """Return the cross-sectional correlations of forecast and outcome by date.

    `ic` is Pearson's, `rank_ic` Spearman's (average ranks for ties). A date on which the forecast
    or the outcome is constant over the assets, or that has fewer than `fewest_assets`, has no
    correlation: it stays in the frame as null. Columns `date`, `ic`, `rank_ic`, `assets`.
    """
    return _ic_series(known_rows(frame), fewest_assets)


def _ic_series(rows: pl.DataFrame, fewest_assets: int) -> pl.DataFrame:
    ranked = rows.select(pl.col("forecast", "realised").rank("average").over("date"))
    forecast, realised = columns(rows, "forecast", "realised")
    starts = group_starts(rows["date"])
    assets = np.diff(np.append(starts, rows.height))
    missing = _is_constant(forecast, starts) | _is_constant(realised, starts) | (assets < fewest_assets)
    found = {
        "ic": _correlations(forecast, realised, starts),
        "rank_ic": _correlations(ranked["forecast"].to_numpy(), ranked["realised"].to_numpy(), starts),
    }
    return pl.DataFrame(
        {
            "date": rows["date"].gather(starts),
            **{
                name: pl.Series(np.where(missing, np.nan, values)).fill_nan(None)
                for name, values in found.items()
            },
            "assets": pl.Series(assets, dtype=pl.Int64),
        }
    )


def prevailing_mean(frame: pl.DataFrame, *, horizon: int = 1) -> pl.Series:
    r"""Return each asset's expanding mean of the outcomes known on the row's date.

    .. math:: \bar r_{i,t} = \text{mean} \{ r_{i,s} : s + h \le t \}

    An outcome over (s, s + h] is known on date s + h. With a column `label_end` (the date an
    outcome is known) that date decides; without it, `horizon` counts the asset's own rows. The
    outcome is `realised`, else `target`. The series has the order of `frame`, is null before an
    asset's first known outcome, and skips null outcomes. Give it the whole history, not the
    test rows alone.
    """
    outcome = "realised" if "realised" in frame.columns else "target"
    require_columns(frame, "date", "asset", outcome)
    keyed = frame.select(
        pl.int_range(pl.len()).alias("row"),
        "date",
        "asset",
        pl.col(outcome).cast(pl.Float64).fill_nan(None).alias("outcome"),
        *(["label_end"] if "label_end" in frame.columns else []),
    ).sort("asset", "date")
    if "label_end" not in frame.columns:
        if horizon < 1:
            raise ValueError(f"horizon must be at least 1; got {horizon}.")
        known = pl.col("outcome").shift(horizon)
        total, count = known.fill_null(0.0).cum_sum(), known.is_not_null().cum_sum()
        mean = pl.when(count > 0).then(total / count).otherwise(None).over("asset", order_by="date")
        return keyed.select("row", mean.alias("prevailing_mean")).sort("row")["prevailing_mean"]
    outcomes = pl.col("outcome")
    known_by = (
        keyed.drop_nulls(["outcome", "label_end"])
        .sort("asset", "label_end")
        .select(
            "asset",
            "label_end",
            (outcomes.cum_sum() / outcomes.cum_count()).over("asset").alias("prevailing_mean"),
        )
        .unique(["asset", "label_end"], keep="last", maintain_order=True)
        .sort("label_end", "asset")
    )
    joined = (
        keyed.drop("label_end")
        .sort("date", "asset")
        .join_asof(
            known_by,
            left_on="date",
            right_on="label_end",
            by="asset",
            strategy="backward",
            check_sortedness=False,
        )
    )
    return joined.sort("row")["prevailing_mean"]


def share_of_oracle(frame: pl.DataFrame) -> float | None:
    r"""Return the share of the planted signal that the forecast recovers.

    .. math:: 1 - \sum (p - s)^2 / \sum s^2

    with the signal s in column `oracle`, in the units of the forecast. 1 for the oracle itself, 0
    for the zero forecast, below 0 for a forecast further from s than zero is; None without signal.
    """
    require_columns(frame, "forecast", "oracle")
    rows = frame.select(pl.col("forecast", "oracle").cast(pl.Float64).fill_nan(None)).drop_nulls()
    forecast, oracle = columns(rows, "forecast", "oracle")
    refuse_infinite(rows, ["forecast", "oracle"])
    return _r2(oracle - forecast, oracle, np.ones_like(oracle)) if len(oracle) else None


def _is_constant(values: np.ndarray, starts: np.ndarray) -> np.ndarray:
    spread = np.maximum.reduceat(values, starts) - np.minimum.reduceat(values, starts)
    return spread <= CONSTANT * np.maximum.reduceat(np.abs(values), starts)


def _correlations(a: np.ndarray, b: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Return Pearson's correlation within each run, NaN where one side has no spread."""
    counts = np.diff(np.append(starts, len(a)))
    a = a - np.repeat(np.add.reduceat(a, starts) / counts, counts)
    b = b - np.repeat(np.add.reduceat(b, starts) / counts, counts)
    # Each run at its own scale, so that tiny numbers do not underflow when squared.
    for values in (a, b):
        largest = np.maximum.reduceat(np.abs(values), starts)
        values /= np.repeat(np.where(largest > 0, largest, 1.0), counts)
    product, first, second = (np.add.reduceat(values, starts) for values in (a * b, a * a, b * b))
    under = np.sqrt(first * second)
    return np.divide(product, under, out=np.full(len(starts), np.nan), where=under > 0)


def _r2(error: np.ndarray, benchmark_error: np.ndarray, weight: np.ndarray) -> float | None:
    total = float(np.sum(weight * benchmark_error**2))
    return 1.0 - float(np.sum(weight * error**2)) / total if total > 0 else None


def _ratio(over: float, under: float) -> float | None:
    return over / under if under > 0 else None


def _median(series: pl.Series) -> float | None:
    values = series.drop_nulls().to_numpy()
    return float(np.median(values)) if len(values) else None

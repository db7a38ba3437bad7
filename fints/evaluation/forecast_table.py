"""The door for anyone's forecast table: names, dates, keys, and the outcomes that belong to it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field

import polars as pl

from fints.words import counted

__all__ = ["LATE", "LEAST_OVERLAP", "ForecastTable", "forecast_table", "join_outcomes"]

# What other libraries call these columns, compared in lower case. The first found is used.
ALIASES: dict[str, tuple[str, ...]] = {
    "date": ("decision_time", "date", "datetime", "timestamp", "time", "ds", "eval_date"),
    "asset": ("asset", "symbol", "ticker", "instrument", "unique_id", "permno", "code", "sid"),
    "forecast": (
        "forecast",
        "prediction",
        "predicted",
        "pred",
        "y_pred",
        "yhat",
        "score",
        "signal",
        "factor",
    ),
    "realised": ("realised", "realized", "target", "actual", "label", "y_true", "y"),
}
OPTIONAL = ("horizon", "scale", "degrees", "q05", "q95", "available_at")
# The share of forecasts whose (date, asset) must be in the panel.
LEAST_OVERLAP = 0.95
# The reason for which rows are left out that could not have been forecast on their date.
LATE = "made after their date (available_at)"
SHOWN = 5


@dataclass(frozen=True, kw_only=True)
class ForecastTable:
    """A forecast table in the names of fints.

    `frame` has `date` (Date), `asset` (text), `forecast`, and where they were given `realised`, `scale`,
    `degrees`, `q05`, `q95`; sorted, keys unique, each row with a forecast. `horizon` is None where the
    table does not say it. `read_as` maps the names of fints to those of the table; `left_out` counts
    rows by the reason for which they are not judged.
    """

    frame: pl.DataFrame
    horizon: int | None
    read_as: dict[str, str]
    left_out: dict[str, int] = field(default_factory=dict)


def forecast_table(
    frame: pl.DataFrame, *, names: Mapping[str, str] | None = None, horizon: int | None = None
) -> ForecastTable:
    """Read a table of forecasts whatever its order and column names.

    Parameters
    ----------
    frame
        A row a (date, asset). Dates are Date, Datetime at midnight or ISO text, without zone.
    names
        Name of fints to column of the frame, for those not recognised by `ALIASES`.
    horizon
        Chooses the rows of one horizon where the table has several; else what the table does not say.

    Returns
    -------
    ForecastTable
        Rows without a forecast, and rows that could not have been forecast on their date (column
        `available_at` is later), are left out and counted.

    Raises
    ------
    ValueError
        If a column is missing or unusable, keys are repeated, a forecast is infinite, dates carry a zone
        or a time of day, or the horizon is not clear.
    """
    read_as = _recognise(frame, dict(names or {}))
    table = frame.select(pl.col(source).alias(name) for name, source in read_as.items())
    if table.height == 0:
        raise ValueError("the table has no row.")
    numeric = [name for name in table.columns if name not in ("date", "asset", "available_at")]
    for name in numeric:
        if not (table[name].dtype.is_numeric() or table[name].null_count() == table.height):
            raise ValueError(f"column {read_as[name]!r} must hold numbers; got {table[name].dtype}.")
    table = table.with_columns(
        _dates(table["date"], read_as["date"]),
        pl.col("asset").cast(pl.String),
        *(pl.col(name).cast(pl.Float64).fill_nan(None) for name in numeric if name != "horizon"),
    )
    table, horizon = _one_horizon(table, horizon)
    left_out: dict[str, int] = {}
    for name in ("date", "asset"):
        if table[name].null_count():
            raise ValueError(
                f"column {read_as[name]!r} has {counted(table[name].null_count(), 'row')} without a value."
            )
    if "available_at" in table.columns:
        late = _dates(table["available_at"], read_as["available_at"]) > table["date"]
        left_out[LATE] = int(late.fill_null(False).sum())
        table = table.filter(~late.fill_null(False)).drop("available_at")
    left_out["without a forecast"] = table["forecast"].null_count()
    table = table.drop_nulls("forecast").sort("date", "asset")
    if table.height == 0:
        raise ValueError(f"no row can be judged: {_told(left_out)}.")
    if table["forecast"].is_infinite().any():
        raise ValueError(f"column {read_as['forecast']!r} has infinite forecasts; drop or repair them.")
    repeated = table.filter(table.select("date", "asset").is_duplicated())
    if repeated.height:
        date, asset = repeated.select("date", "asset").row(0)
        raise ValueError(
            f"{repeated.height:,} rows repeat a (date, asset), first {date} {asset}; give one forecast each "
            "(of one model, one seed)."
        )
    return ForecastTable(
        frame=table,
        horizon=horizon,
        read_as=read_as,
        left_out={reason: count for reason, count in left_out.items() if count},
    )


def join_outcomes(table: ForecastTable, outcomes: pl.DataFrame) -> ForecastTable:
    """Put a panel's outcomes beside the forecasts, in place of those of the table.

    `outcomes` has a row for each (date, asset) of the panel: `date`, `asset`, `realised` (null where not
    known yet) and any further columns, which come along.

    Raises
    ------
    ValueError
        If less than 95 % of the forecasts have a row there; the message shows the first that have none.
    """
    keys = ["date", "asset"]
    forecasts = table.frame.drop([name for name in outcomes.columns if name not in keys], strict=False)
    unmatched = forecasts.join(outcomes, on=keys, how="anti").sort(keys)
    matched = 1 - unmatched.height / forecasts.height
    if matched < LEAST_OVERLAP:
        first = ", ".join(f"{date} {asset}" for date, asset in unmatched.select(keys).head(SHOWN).rows())
        raise ValueError(
            f"only {100 * matched:.1f} % of the {counted(forecasts.height, 'forecast')} have their (date, "
            "asset) in "
            f"the panel; at least {100 * LEAST_OVERLAP:.0f} % must. First without: {first}. "
            f"{_why(unmatched, outcomes)}"
        )
    left_out = table.left_out | {"not in the panel": unmatched.height}
    joined = forecasts.join(outcomes, on=keys, how="inner").sort(keys)
    left_out["without an outcome yet"] = joined["realised"].null_count()
    return ForecastTable(
        frame=joined,
        horizon=table.horizon,
        read_as=table.read_as,
        left_out={reason: count for reason, count in left_out.items() if count},
    )


def _recognise(frame: pl.DataFrame, names: dict[str, str]) -> dict[str, str]:
    unknown = [name for name in names if name not in (*ALIASES, *OPTIONAL)]
    if unknown:
        raise ValueError(f"unknown names {unknown}; known: {', '.join((*ALIASES, *OPTIONAL))}.")
    lower: dict[str, str] = {}
    for column in frame.columns:
        lower.setdefault(column.lower(), column)
    read_as = {}
    for name in (*ALIASES, *OPTIONAL):
        if name in names:
            if names[name] not in frame.columns:
                raise ValueError(f"no column {names[name]!r}; the table has {', '.join(frame.columns)}.")
            read_as[name] = names[name]
            continue
        found = next((lower[alias] for alias in ALIASES.get(name, (name,)) if alias in lower), None)
        if found is not None and found not in names.values():
            read_as[name] = found
    missing = [name for name in ("date", "asset", "forecast") if name not in read_as]
    if missing:
        raise ValueError(
            f"no column was recognised as {', '.join(missing)}; the table has {', '.join(frame.columns)}. "
            f"Name it: --{missing[0]} COLUMN."
        )
    return read_as


def _dates(dates: pl.Series, column: str) -> pl.Series:
    name, kind = dates.name, dates.dtype
    if kind == pl.Date:
        return dates
    if kind == pl.String:
        parsed = dates.str.slice(0, 10).str.to_date("%Y-%m-%d", strict=False)
        wrong = dates.filter(parsed.is_null() & dates.is_not_null())
        if len(wrong):
            raise ValueError(f"column {column!r} must hold ISO dates such as 2012-01-31; got {wrong[0]!r}.")
        if dates.str.contains(r"\d\d:\d\d.*(Z|[+-]\d\d:?\d\d)$").any():
            raise ValueError(_zone(column))
        return parsed
    if isinstance(kind, pl.Datetime):
        if kind.time_zone is not None:
            raise ValueError(_zone(column))
        timed = dates.filter(dates.dt.time() != dt.time(0)) if len(dates) else dates
        if len(timed):
            raise ValueError(
                f"column {column!r} must hold dates; got the time {timed[0]}. fints judges daily (or slower) "
                "forecasts: give the date of the close that each forecast has seen."
            )
        return dates.cast(pl.Date).alias(name)
    raise ValueError(f"column {column!r} must hold dates; got {kind}. Convert it to Date or ISO text.")


def _zone(column: str) -> str:
    return (
        f"column {column!r} carries a time zone, and a date in another zone is another date. Convert it to "
        "the exchange's local date first."
    )


def _one_horizon(table: pl.DataFrame, horizon: int | None) -> tuple[pl.DataFrame, int | None]:
    if horizon is not None and horizon < 1:
        raise ValueError(f"horizon must be at least 1; got {horizon}.")
    if "horizon" not in table.columns:
        return table, horizon
    found = table["horizon"].drop_nulls().unique().sort().to_list()
    whole = [int(value) for value in found if value >= 1 and value == int(value)]
    if len(whole) < len(found) or not found:
        raise ValueError(f"column horizon must hold whole numbers of at least 1; got {found[:SHOWN]}.")
    if horizon is None and len(whole) > 1:
        raise ValueError(f"the table has the horizons {whole}; choose one: --horizon {whole[0]}.")
    chosen = whole[0] if horizon is None else horizon
    if chosen not in whole:
        raise ValueError(f"the table has no forecast of horizon {chosen}; it has {whole}.")
    return table.filter(pl.col("horizon") == chosen).drop("horizon"), chosen


def _why(unmatched: pl.DataFrame, outcomes: pl.DataFrame) -> str:
    dates, assets = (outcomes[name].unique().sort() for name in ("date", "asset"))
    strange = unmatched["asset"].unique().sort()
    strange = strange.filter(~strange.is_in(assets.implode()))
    if len(strange):
        return (
            f"The panel has no asset {', '.join(strange.head(3).to_list())}; its assets are "
            f"{', '.join(assets.head(3).to_list())} ..."
        )
    outside = unmatched.filter(~pl.col("date").is_in(dates.implode()))
    if outside.height:
        return f"The panel has no date {outside['date'][0]}; its dates run from {dates[0]} to {dates[-1]}."
    return "Dates and assets are known, but not together: were these assets listed then?"


def _told(left_out: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {reason}" for reason, count in left_out.items() if count) or "it is empty"

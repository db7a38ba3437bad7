"""The rows a study is judged on, and the metrics of each final fit on them.

A failed fit is judged as the zero forecast by every metric, here and nowhere else: someone who gets
a broken model holds no position.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from fints.evaluation.metrics import metrics

__all__ = [
    "FAILED",
    "FINISHED",
    "KEYS",
    "cell_frames",
    "cell_metrics",
    "final_fits",
    "fit_scores",
    "judged_rows",
    "optional_table",
    "overlapping",
    "plain_mean",
    "read_table",
    "seed_average",
    "to_frame",
    "with_references",
]

FINISHED = ("finished", "stopped_early")
FAILED = ("diverged",)
KEYS = ["fold", "date", "asset"]
# What a distributional head stores beside its forecast.
LAW = ("log_scale", "degrees")
REMEDY = "run the study again, which writes this file anew from the stored fits"
# Tables that a study may have, and the columns that each of them has then.
OPTIONAL = {
    "baselines": ["baseline", *KEYS, "forecast", "realised"],
    "profiles": ["arm", "fold", "seed", "step", "layer"],
    "mixing": ["arm", "fold", "seed", "reader", "source", "mean", "composed"],
    "history": ["arm", "fold", "seed", "step", "train_loss", "validation_loss"],
}
CELL_METRICS = (
    "r2_zero",
    "r2_mean",
    "r2_zero_return",
    "r2_median_asset",
    "ic",
    "rank_ic",
    "mse",
    "forecast_sd_ratio",
    "share_of_oracle",
    "log_score",
    "crps",
    "coverage_50",
    "coverage_90",
)


def final_fits(spec: Mapping[str, Any], fits: pl.DataFrame) -> pl.DataFrame:
    """One row a planned final fit, with its outcome or "missing"."""
    planned = pl.DataFrame(
        [
            {"arm": arm["name"], "fold": int(fold["index"]), "seed": int(seed)}
            for arm in spec["arms"]
            for fold in spec["folds"]
            for seed in spec["seeds"]
        ],
        schema={"arm": pl.String, "fold": pl.Int64, "seed": pl.Int64},
    )
    done = fits.filter(pl.col("role") == "final").select("arm", "fold", "seed", "outcome")
    if done.select("arm", "fold", "seed").is_duplicated().any():
        raise ValueError("fits.parquet holds a final fit twice; each (arm, fold, seed) must appear once.")
    unknown = sorted(set(fits["outcome"]) - {*FINISHED, *FAILED})
    if unknown:
        raise ValueError(
            f"a fit is one of {', '.join((*FINISHED, *FAILED))}; fits.parquet holds {', '.join(unknown)}. "
            "Run those fits again."
        )
    return (
        planned.join(done, on=["arm", "fold", "seed"], how="left", maintain_order="left")
        .with_columns(pl.col("outcome").fill_null("missing"))
        .with_columns(failed=pl.col("outcome").is_in(FAILED), finished=pl.col("outcome").is_in(FINISHED))
    )


def judged_rows(forecasts: pl.DataFrame, final: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    """Rows of each fold that every finished fit forecast; and how many had to be left out."""
    known = forecasts.filter(pl.col("realised").is_not_null() & pl.col("realised").is_not_nan())
    finished = final.filter("finished")
    if finished.height == 0:
        # Nothing to intersect: a zero forecast is judged on every row with an outcome.
        if known.height == 0:
            raise ValueError(
                "forecasts.parquet has no row with an outcome: no final fit has been written yet."
            )
        keyed = known.unique(KEYS, keep="first", maintain_order=True).sort(KEYS)
        return keyed.drop("arm", "seed", "forecast"), 0
    usable = known.filter(pl.col("forecast").is_not_null() & pl.col("forecast").is_not_nan()).join(
        finished.select("arm", "fold", "seed"), on=["arm", "fold", "seed"], how="semi"
    )
    wanted = finished.group_by("fold").len("wanted")
    counted = usable.group_by(KEYS).len("got").join(wanted, on="fold")
    shared = counted.filter(pl.col("got") == pl.col("wanted")).select(KEYS)
    rows = (
        usable.join(shared, on=KEYS, how="semi")
        .sort([*KEYS, "arm", "seed"])
        .unique(KEYS, keep="first", maintain_order=True)
        .drop("arm", "seed", "forecast")
    )
    if rows.height == 0:
        raise ValueError(
            "no test row was forecast by every finished fit; were the fits run on different panels?"
        )
    return rows, counted.height - rows.height


def overlapping(baselines: pl.DataFrame | None, rows: pl.DataFrame) -> pl.DataFrame | None:
    """Return the baselines that forecast any of the judged rows: of a run that goes on some may not yet."""
    if baselines is None:
        return None
    names = baselines.join(rows.select(KEYS), on=KEYS, how="semi")["baseline"].unique().to_list()
    found = baselines.filter(pl.col("baseline").is_in(names))
    return found if found.height else None


def with_references(rows: pl.DataFrame, baselines: pl.DataFrame | None) -> pl.DataFrame:
    """Add what a metric compares with: the prevailing mean and, on simulated data, the oracle."""
    if baselines is None:
        return rows
    for name in ("prevailing_mean", "oracle"):
        reference = baselines.filter(pl.col("baseline") == name)
        if reference.height:
            reference = reference.select(*KEYS, pl.col("forecast").alias(name))
            rows = rows.join(reference, on=KEYS, how="left", maintain_order="left")
    return rows


def cell_frames(
    forecasts: pl.DataFrame, final: pl.DataFrame, rows: pl.DataFrame
) -> dict[tuple[str, int, int], pl.DataFrame]:
    """Forecast frame of each final fit that has run, on the judged rows."""
    names = ["forecast", *(name for name in LAW if name in forecasts.columns)]
    by_cell = forecasts.select("arm", "seed", *KEYS, *names).partition_by("arm", "fold", "seed", as_dict=True)
    rows = rows.drop(LAW, strict=False)
    by_fold = {fold: part for (fold,), part in rows.partition_by("fold", as_dict=True).items()}
    frames = {}
    for arm, fold, seed, failed, finished in final.select(
        "arm", "fold", "seed", "failed", "finished"
    ).iter_rows():
        judged = by_fold.get(fold)
        if judged is None or not (failed or finished):
            continue
        if failed:
            frames[arm, fold, seed] = _as_zero(judged)
        elif (arm, fold, seed) not in by_cell:
            raise ValueError(
                f"forecasts.parquet lacks arm {arm}, fold {fold}, seed {seed}; fits.parquet has it."
            )
        else:
            own = by_cell[arm, fold, seed].select(*KEYS, *names)
            # Another arm's head may have a scale or degrees that this one does not.
            own = own.select(
                name for name in own.columns if name not in LAW or own[name].null_count() < own.height
            )
            frames[arm, fold, seed] = judged.join(own, on=KEYS, how="inner", maintain_order="left")
    return frames


def fit_scores(forecasts: pl.DataFrame, *, outcome: str, horizon: int) -> dict[str, float]:
    """Return the test metrics of one final fit on its own rows, as far as they exist.

    Parameters
    ----------
    forecasts
        `date`, `asset`, `forecast`, `realised` and what else a fit stores.
    outcome
        How the fit ended; a failed one is judged as the zero forecast.
    horizon
        Of the target.
    """
    failed = outcome in FAILED
    # Weights that were no longer finite leave forecasts that are null.
    known = _as_zero(forecasts) if failed else forecasts.drop_nulls("forecast")
    known = known.drop_nulls("realised")
    found = _score(known, failed=failed, horizon=horizon) if known.height else {}
    return {name: float(value) for name, value in found.items() if value is not None}


def _as_zero(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.drop(LAW, strict=False).with_columns(forecast=pl.lit(0.0))


def _score(frame: pl.DataFrame, *, failed: bool, horizon: int) -> dict[str, float | int | None]:
    found = metrics(frame, horizon=horizon)
    if failed:
        # Zero has no correlation with anything; as a forecast that is no skill, and its pair must
        # not drop out: that would favour the arm that failed.
        found |= {"ic": 0.0, "rank_ic": 0.0, "days": None, "missing_days": None}
    return found


def cell_metrics(
    final: pl.DataFrame, frames: Mapping[tuple[str, int, int], pl.DataFrame], horizon: int
) -> pl.DataFrame:
    """Return one row a final fit with its metrics on the judged rows, null where it has not run."""
    rows = []
    for row in final.iter_rows(named=True):
        frame = frames.get((row["arm"], row["fold"], row["seed"]))
        found = {} if frame is None else _score(frame, failed=row["failed"], horizon=horizon)
        rows.append(row | {name: found.get(name) for name in (*CELL_METRICS, "days", "missing_days", "rows")})
    whole = dict.fromkeys(("days", "missing_days", "rows"), pl.Int64)
    return pl.DataFrame(rows, schema_overrides={**dict.fromkeys(CELL_METRICS, pl.Float64), **whole})


def seed_average(
    arm: str, final: pl.DataFrame, frames: Mapping[tuple[str, int, int], pl.DataFrame]
) -> pl.DataFrame | None:
    """Return the arm's forecast averaged over seeds, all folds after one another."""
    pieces = []
    own = final.filter(pl.col("arm") == arm)
    for fold in own["fold"].unique().sort():
        parts = [
            frames[arm, fold, seed]
            for seed in own.filter(pl.col("fold") == fold)["seed"]
            if (arm, fold, seed) in frames
        ]
        if parts:
            average = np.mean([part["forecast"].to_numpy() for part in parts], axis=0)
            kept = [name for name in ("realised", "prevailing_mean") if name in parts[0].columns]
            pieces.append(parts[0].select(*KEYS, *kept).with_columns(pl.Series("forecast", average)))
    return pl.concat(pieces) if pieces else None


def read_table(folder: Path, name: str, columns: Sequence[str]) -> pl.DataFrame:
    """Return a required table of the folder, its keys as 64-bit integers.

    Raises
    ------
    ValueError
        If the file or a column is missing, or the file cannot be read.
    """
    return _whole_keys(_read(folder / f"{name}.parquet", columns))


def optional_table(folder: Path, name: str) -> pl.DataFrame | None:
    """Return a table of the folder, None if the study has none.

    Raises
    ------
    ValueError
        If the file cannot be read or lacks a column that every such table has.
    """
    path = folder / f"{name}.parquet"
    return _whole_keys(_read(path, OPTIONAL[name])) if path.is_file() else None


def _read(path: Path, columns: Sequence[str]) -> pl.DataFrame:
    if not path.is_file():
        raise ValueError(f"{path} does not exist: run the study first, its report is made from that file.")
    try:
        frame = pl.read_parquet(path)
    # Some damage makes polars panic, which is no Exception.
    except (OSError, pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise ValueError(
            f"{path} must hold parquet and cannot be read ({_line(error)}): {REMEDY}."
        ) from error
    missing = [column for column in columns if column not in frame.columns]
    if missing:
        has = ", ".join(frame.columns)
        raise ValueError(f"{path} lacks {', '.join(missing)}; it has {has}: {REMEDY}.")
    return frame


def _line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), "") or type(error).__name__


def _whole_keys(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.with_columns(
        pl.col(name).cast(pl.Int64) for name in ("fold", "seed", "step", "layer") if name in frame.columns
    )


def plain_mean(series: pl.Series) -> float | None:
    """Return the mean of the known values, None without any."""
    values = series.cast(pl.Float64).fill_nan(None).drop_nulls().sort().to_numpy()
    return float(values.mean()) if len(values) else None


def to_frame(rows: Iterable[Mapping[str, Any]]) -> pl.DataFrame:
    """Return rows as a frame; a column without any value is a column of numbers."""
    frame = pl.DataFrame(list(rows), infer_schema_length=None)
    return frame.with_columns(
        pl.col(name).cast(pl.Float64) for name, kind in frame.schema.items() if kind == pl.Null
    )

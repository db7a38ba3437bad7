"""One cell: train, forecast, write. The same function whoever runs it, and whenever."""

from __future__ import annotations

import dataclasses
import math
import os
import platform
import re
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fints.config import Experiment
from fints.study.store import finish_folder, fit_json, write_json

if TYPE_CHECKING:
    import polars as pl

    from fints.data import Panel
    from fints.forecaster import Forecaster
    from fints.training import FitResult

__all__ = ["WEIGHTS", "Cell", "read_result", "run_cell", "run_job"]

# A fit that takes about this long saves its state as it goes, so that a kill costs little.
CHECKPOINT_FROM_SECONDS = 60.0
# How many windows the depth-mixing matrix of a fit is a mean over; each has all its days.
MIXING_WINDOWS = 8
# Where a final fit keeps its forecaster.
WEIGHTS = "forecaster"


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One training: an arm at a design point on a fold with a seed.

    `dates` holds first and last decision date (ISO) of "train", "validation" and "test"; a cell of
    role "tuning" never forecasts its test dates. `experiment` has the design point put in. A cell of
    role "baseline" is no arm's: it forecasts a fold's test dates with the baseline that `point` names.

    `members` holds several cells as `to_dict` gives them: this one then stands for all of them, which are
    fitted at once (`fints.study.grouping`), and is no fit itself.
    """

    key: str
    arm: str
    role: str
    fold: int
    seed: int
    point: dict[str, Any]
    dates: dict[str, list[str]]
    experiment: dict[str, Any]
    seconds: float = 0.0
    members: Sequence[dict[str, Any]] = ()

    def __post_init__(self) -> None:
        # It names a folder, and comes from a database that others write, too.
        if not re.fullmatch(r"\w[\w.-]*", self.key):
            raise ValueError(f"the key of a fit must be a plain name; got {self.key!r}.")

    def to_dict(self) -> dict[str, Any]:
        """Return what `Cell(**...)` takes, JSON-able."""
        tree = dataclasses.asdict(self)
        if not self.members:
            # As it was before there were any.
            del tree["members"]
        return tree

    def cells(self) -> list[Cell]:
        """Return the fits that this is: itself, or its members."""
        return [Cell(**member) for member in self.members] or [self]

    def __str__(self) -> str:
        """Say which cell this is in a few words."""
        if self.members:
            first, *_, last = self.cells()
            return f"{len(self.members)} fits at once, {first} to {last}"
        point = ", ".join(f"{name.rsplit('.', 1)[-1]} {value}" for name, value in self.point.items())
        if self.role == "baseline":
            return f"baseline {self.point['baseline']} fold {self.fold}"
        if self.role == "tuning":
            return f"{self.arm} tuning {point}, fold {self.fold}"
        return f"{self.arm} final fold {self.fold} seed {self.seed}"


def run_job(
    job: Cell,
    panel: Panel,
    *,
    tmp: Path,
    fits: Path,
    checkpoints: Path | None = None,
    signal: pl.DataFrame | None = None,
    keep_weights: bool = True,
) -> None:
    """Make the fit, or all the fits, of a job; see `run_cell`.

    Fits that are made at once are all made again unless every one of them is there, since their last bits may
    depend on each other; one that is there stays as it is, which is what would be written. They have no
    checkpoint. A fit's `seconds` are an even share of what was done for all, and what was done for it alone.

    Raises
    ------
    MemoryError
        If there was too little memory; nothing is written then.
    """
    from fints.forecaster import Forecaster, fit_all

    if not job.members:
        run_cell(
            job,
            panel,
            tmp=tmp,
            fits=fits,
            checkpoints=checkpoints,
            signal=signal,
            keep_weights=keep_weights,
        )
        return
    cells = job.cells()
    if all((fits / cell.key).is_dir() for cell in cells):
        return
    started, clock = datetime.now(UTC), time.perf_counter()
    spans = [_spans(cell) for cell in cells]
    seen = {own["test"][0]: _seen(panel, own) for own in spans}
    forecasters = [Forecaster(Experiment.from_dict(cell.experiment), seed=cell.seed) for cell in cells]
    fit_all(
        forecasters,
        [seen[own["test"][0]] for own in spans],
        train=[own["train"] for own in spans],
        validation=[own["validation"] for own in spans],
    )
    results = [_result(forecaster) for forecaster in forecasters]
    for_all = time.perf_counter() - clock - sum(result.seconds for result in results)
    for cell, own, forecaster, result in zip(cells, spans, forecasters, results, strict=True):
        clock = time.perf_counter()
        if (fits / cell.key).is_dir():
            continue
        fresh = _empty(tmp / f"{cell.key}-{os.getpid()}")
        told = _written(cell, forecaster, panel, seen[own["test"][0]], own, fresh, keep_weights=keep_weights)
        seconds = for_all / len(cells) + result.seconds + time.perf_counter() - clock
        _finish(cell, told, fresh, fits / cell.key, started=started, seconds=seconds)


def run_cell(
    cell: Cell,
    panel: Panel,
    *,
    tmp: Path,
    fits: Path,
    checkpoints: Path | None = None,
    signal: pl.DataFrame | None = None,
    keep_weights: bool = True,
) -> Path:
    """Train one cell and write its folder; a folder that exists is returned as it is.

    Parameters
    ----------
    cell : Cell
        What to train.
    panel : Panel
        All dates the study may see.
    tmp, fits : Path
        Where the folder grows, and where it ends; on one file system.
    checkpoints : Path, optional
        Where a long fit keeps its state while it runs.
    signal : DataFrame, optional
        What was planted in a simulated panel, for the baselines.
    keep_weights : bool
        Whether a final fit keeps its forecaster, from which the arm's model is made.

    Raises
    ------
    MemoryError
        If there was too little memory; nothing is written then, so another try may do better.
    """
    final = fits / cell.key
    if final.is_dir():
        return final
    started, clock = datetime.now(UTC), time.perf_counter()
    fresh = tmp / f"{cell.key}-{os.getpid()}"
    checkpoint = None
    if checkpoints is not None and cell.seconds >= CHECKPOINT_FROM_SECONDS:
        checkpoint = checkpoints / f"{cell.key}.pt"
    if cell.role == "baseline":
        told = _baseline(cell, panel, signal, _empty(fresh))
    else:
        told = _train(cell, panel, fresh, checkpoint=checkpoint, keep_weights=keep_weights)
    _finish(cell, told, fresh, final, started=started, seconds=time.perf_counter() - clock)
    if checkpoint is not None:
        checkpoint.unlink(missing_ok=True)
    return final


def _finish(
    cell: Cell, told: dict[str, Any], fresh: Path, final: Path, *, started: datetime, seconds: float
) -> None:
    """Write what a fit is and what it took, and let its folder appear."""
    timing = told.pop("timing")
    identity = {name: getattr(cell, name) for name in ("key", "arm", "role", "fold", "seed", "point")}
    write_json(fresh / "result.json", {**identity, **told})
    write_json(
        fresh / "timing.json",
        {
            "started": started.isoformat(timespec="seconds"),
            "seconds": seconds,
            **timing,
            "host": platform.node(),
        },
    )
    finish_folder(fresh, final)


def _spans(cell: Cell) -> dict[str, tuple[date, date]]:
    return {
        name: (date.fromisoformat(first), date.fromisoformat(last))
        for name, (first, last) in cell.dates.items()
    }


def _seen(panel: Panel, spans: Mapping[str, tuple[date, date]]) -> Panel:
    """Return the panel without its test dates: no mistake further down can read what is cut off."""
    return panel[: spans["test"][0] - timedelta(days=1)]


def _result(forecaster: Forecaster) -> FitResult:
    """Return how a fit ended.

    Raises
    ------
    MemoryError
        If there was too little memory: what was free at that moment says nothing about the arm, so no folder
        stands for such a fit.
    """
    result = forecaster.result_
    assert result is not None
    if result.outcome == "out_of_memory":
        raise MemoryError(f"{result.reason} Fewer workers leave more for each.")
    return result


def _train(
    cell: Cell,
    panel: Panel,
    fresh: Path,
    *,
    checkpoint: Path | None,
    keep_weights: bool,
) -> dict[str, Any]:
    """Train, and forecast the test dates if the cell is final; return what result.json says."""
    from fints.forecaster import Forecaster
    from fints.training.checkpoint import UnusableCheckpoint

    forecaster = Forecaster(Experiment.from_dict(cell.experiment), seed=cell.seed)
    dates = _spans(cell)
    seen = _seen(panel, dates)
    train, validation = dates["train"], dates["validation"]
    try:
        forecaster.fit(seen, train=train, validation=validation, checkpoint=checkpoint)
    except UnusableCheckpoint as error:
        # Ours, and of use to nobody else: what a disk made of it costs the time since the fit began.
        assert checkpoint is not None
        print(f"{cell} begins anew: {error}", file=sys.stderr)
        checkpoint.unlink()
        forecaster = Forecaster(Experiment.from_dict(cell.experiment), seed=cell.seed)
        forecaster.fit(seen, train=train, validation=validation, checkpoint=checkpoint)
    _result(forecaster)
    return _written(cell, forecaster, panel, seen, dates, _empty(fresh), keep_weights=keep_weights)


def _written(
    cell: Cell,
    forecaster: Forecaster,
    panel: Panel,
    seen: Panel,
    dates: Mapping[str, tuple[date, date]],
    fresh: Path,
    *,
    keep_weights: bool,
) -> dict[str, Any]:
    """Write what a fit has come to, and forecast the test dates if it is final; return as `_train`."""
    from fints.study.cells import FINISHED, fit_scores

    result = _result(forecaster)
    write_rows(fresh / "history.parquet", result.history)
    write_rows(fresh / "profile.parquet", result.profiles)
    scores: dict[str, float] = {}
    if cell.role == "final":
        if keep_weights and result.outcome in FINISHED:
            forecaster.save(fresh / WEIGHTS)
        write_rows(fresh / "mixing.parquet", _mixing(forecaster, seen, dates["validation"]))
        forecasts = finite(forecaster.evaluate_frame(panel, *dates["test"]))
        forecasts.write_parquet(fresh / "forecasts.parquet")
        scores = fit_scores(forecasts, outcome=result.outcome, horizon=forecaster.experiment_.data.horizon)
    write_json(fresh / "metrics.json", scores)
    return {
        "outcome": result.outcome,
        "reason": result.reason,
        "steps": result.steps,
        "best_step": result.best_step,
        "validation_loss": plain(result.best_validation_loss),
        "parameters": forecaster.parameter_count_,
        "timing": {
            "training_seconds": result.seconds,
            "seconds_a_step": plain(result.seconds_a_step),
            "peak_memory": plain(result.peak_memory),
        },
    }


def _mixing(forecaster: Forecaster, seen: Panel, validation: tuple[date, date]) -> list[dict[str, Any]]:
    """Return the depth-mixing matrix of the network that forecasts, on windows spread over `validation`."""
    import torch

    from fints.diagnostics import depth_mixing

    windows = forecaster.windows(seen, *validation)
    if not len(windows):
        return []
    spread = torch.linspace(0, len(windows) - 1, MIXING_WINDOWS, dtype=torch.float64).round().long()
    inputs, _ = windows.gather(spread)
    device = next(forecaster.model_.parameters()).device
    return depth_mixing(forecaster.model_, inputs.to(device)).rows()


def _baseline(cell: Cell, panel: Panel, signal: pl.DataFrame | None, fresh: Path) -> dict[str, Any]:
    """Forecast a fold's test dates with one baseline on the study's features and target."""
    from fints.study.baselines import forecast_baseline

    forecast_baseline(
        cell.point["baseline"],
        panel,
        experiment=Experiment.from_dict(cell.experiment),
        fold=cell.fold,
        dates=cell.dates,
        seed=cell.seed,
        signal=signal,
    ).write_parquet(fresh / "forecasts.parquet")
    return {"outcome": "finished", "reason": "", "validation_loss": 0.0, "timing": {}}


def _empty(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def read_result(folder: Path) -> dict[str, Any]:
    """Return result.json of one finished fit.

    Raises
    ------
    DamagedFit
        If it is not as it was written.
    """
    return fit_json(folder, "result.json")


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write rows as parquet, numbers that are not finite as null; no rows give no file."""
    import polars as pl

    if rows:
        finite(pl.DataFrame(rows, infer_schema_length=None)).write_parquet(path)


def finite(frame: pl.DataFrame) -> pl.DataFrame:
    """Return the frame with NaN and infinity as null."""
    import polars as pl
    import polars.selectors as cs

    floats = cs.float()
    return frame.with_columns(pl.when(floats.is_finite()).then(floats).otherwise(None))


def plain(value: Any) -> float | None:
    """Return a finite number as it is, anything else as None."""
    return value if isinstance(value, int | float) and math.isfinite(value) else None

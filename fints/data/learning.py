"""What a fit learns from: windows of scaled features and targets of a panel, whatever its size.

The same code makes them for every panel. What differs is where (A, D, F) features and (A, D) tables lie: in
memory, or, from 1 GiB of features on, in files (`fints.data.window_store`, `fints.data.space`).
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch

from fints.config import DataConfig
from fints.data.decisions import DateRange, Day, decision_ranges, show
from fints.data.feature_table import FeatureTable
from fints.data.grid import Grid
from fints.data.labels import NEVER, Labels
from fints.data.panel import Panel
from fints.data.scaling import StandardScaler
from fints.data.space import Files, Memory, Space
from fints.data.window_store import large_from, store_folder, stored_scaler, stored_values
from fints.data.windows import Windows, check_context, window_places

__all__ = ["Learning", "has_window", "is_large", "prepare", "windows_of"]


@dataclass(frozen=True, eq=False)
class Learning:
    """What a fit learns from.

    Attributes
    ----------
    windows : Windows
        Scaled features, and targets divided by `target_std`.
    scaler : StandardScaler
        Fitted to the training dates.
    target_std : float
        Root mean square of the training targets; 1 if all are 0.
    train, validation : (date, date)
        First and last decision date, both included; None is open, or no validation.
    as_of : date
        Last date whose outcome is learnt from or chosen by.
    """

    windows: Windows
    scaler: StandardScaler
    target_std: float
    train: DateRange
    validation: tuple[dt.date, dt.date] | None
    as_of: dt.date


def is_large(panel: Panel, num_features: int) -> bool:
    """Tell whether the features of a panel are kept in a file."""
    return 4 * len(panel.assets) * len(panel.dates) * num_features >= large_from()


def prepare(
    panel: Panel,
    data: DataConfig,
    *,
    train: tuple[Day | None, Day | None] | None = None,
    validation: tuple[Day, Day] | float = 0.15,
) -> Learning:
    """Compute features, targets, scaler and windows of a panel.

    Parameters
    ----------
    train, validation
        As `fints.forecaster.Forecaster.fit`.

    Raises
    ------
    ValueError
        If the panel is too short, a feature or target is unknown, the dates overlap or hold no outcome, or
        the disk is full.
    """
    check_context(data.context, data.min_valid)
    with _space(panel, len(data.features)) as space:
        grid = Grid(panel, space)
        table = FeatureTable(grid, data.features)
        labels = Labels(grid, data.target, data.horizon)
        train_range, validation_range = decision_ranges(labels.known_dates, train, validation)
        if validation_range is not None:
            labels.purge(validation_range[0])
        outcomes = labels.moments(*train_range)
        if not outcomes.count:
            raise ValueError(
                f"the training dates {show(train_range)} of panel {panel.name!r} hold no outcome of target "
                f"{data.target!r}; give a longer panel or other dates "
                "(prices that never move have no scaled target)."
            )
        days = labels.days(*train_range)
        unfitted = StandardScaler(clip=data.clip)
        if is_large(panel, len(data.features)):
            scaler = stored_scaler(panel, table, unfitted, *days)
        else:
            scaler = unfitted.of(table.moments(*days), len(panel))
        scaler = scaler.leaving(data.unscaled)
        target_std = outcomes.root_mean_square or 1.0
        check_context(data.context, data.min_valid, len(grid.dates))
        outcome = grid.array(np.float32)
        for first, last in grid.blocks():
            outcome[first:last] = labels.values[first:last] / target_std
        return Learning(
            windows=_windows(panel, data, table, scaler, outcome, labels.ends),
            scaler=scaler,
            target_std=target_std,
            train=train_range,
            validation=validation_range,
            as_of=labels.last_outcome(train_range, validation_range),
        )


def windows_of(panel: Panel, data: DataConfig, scaler: StandardScaler) -> Windows:
    """Return the windows of a panel without targets, scaled by what was learnt elsewhere.

    Raises
    ------
    ValueError
        As `prepare`.
    """
    check_context(data.context, data.min_valid, len(panel.dates))
    with _space(panel, len(data.features)) as space:
        grid = Grid(panel, space)
        table = FeatureTable(grid, data.features)
        return _windows(panel, data, table, scaler, grid.array(np.float32), grid.array(np.int32, NEVER))


def has_window(panel: Panel, data: DataConfig, start: dt.date, end: dt.date) -> bool:
    """Tell whether a window with an outcome ends in [start, end]; looks no further than the first found.

    Raises
    ------
    ValueError
        As `prepare`.
    """
    check_context(data.context, data.min_valid, len(panel.dates))
    with _space(panel, len(data.features)) as space:
        grid = Grid(panel, space)
        labels = Labels(grid, data.target, data.horizon)
        # A rank is there where what it ranks is, and needs no other asset to be so.
        names = dict.fromkeys(name.removeprefix("rank_") for name in data.features)
        table = FeatureTable(grid, list(names))
        for first, last in grid.blocks():
            outcome = torch.from_numpy(labels.values[first:last].astype(np.float32))
            if outcome.isfinite().any():
                values = np.stack([*table.block(first, last)], axis=-1)
                windows = Windows(
                    dates=grid.dates,
                    assets=grid.assets[first:last],
                    values=torch.from_numpy(values),
                    targets=outcome,
                    label_ends=labels.ends[first:last],
                    context=data.context,
                    min_present=math.ceil(data.min_valid * data.context),
                )
                if len(windows.select(start, end, labelled=True)):
                    return True
    return False


def _windows(
    panel: Panel,
    data: DataConfig,
    table: FeatureTable,
    scaler: StandardScaler,
    outcome: np.ndarray,
    ends: np.ndarray,
) -> Windows:
    grid = table.grid
    if is_large(panel, len(data.features)):
        values = stored_values(panel, table, scaler)
    else:
        values = np.empty((*grid.shape, len(table.names)), np.float32)
        for first, last, block in table.scaled(scaler):
            values[first:last] = block
    return Windows(
        dates=grid.dates,
        assets=grid.assets,
        values=torch.from_numpy(values),
        targets=torch.from_numpy(outcome),
        label_ends=ends,
        context=data.context,
        min_present=math.ceil(data.min_valid * data.context),
        scaled_by_window=window_places(data),
    )


@contextmanager
def _space(panel: Panel, num_features: int) -> Iterator[Space]:
    if not is_large(panel, num_features):
        yield Memory()
        return
    folder = store_folder()
    try:
        yield Files(folder)
    except OSError as error:
        raise ValueError(
            f"the tables of panel {panel.name!r} could not be kept in {folder} ({error.strerror}). Make "
            "room, or set FINTS_HOME to another disk."
        ) from error

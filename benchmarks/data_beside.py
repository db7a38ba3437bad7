"""Beside `data.py`: the same features by pandas, neuralforecast's loader, and the watch on memory."""

from __future__ import annotations

import argparse
import re
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from packages import install

__all__ = ["HORIZON", "NAMES", "measure_neuralforecast", "measure_pandas", "memory"]

RETURNS = (1, 2, 3, 5, 10, 21, 42, 63, 126, 252)
VOLATILITIES = (5, 10, 21, 42, 63, 126, 252)
MOMENTA = ((21, 5), (63, 21), (126, 21), (252, 21), (252, 63))
RANKED = ("return_1", "return_5", "return_21", "log_volatility_21", "momentum_252_21")
NAMES = (
    *(f"return_{k}" for k in RETURNS),
    *(f"volatility_{k}" for k in VOLATILITIES[2:]),
    *(f"log_volatility_{k}" for k in VOLATILITIES),
    *(f"momentum_{far}_{near}" for far, near in MOMENTA),
    *(f"rank_{name}" for name in RANKED),
)
HORIZON = 1
WANTED = (
    "neuralforecast",
    "coreforecast",
    "utilsforecast",
    "pytorch-lightning",
    "lightning-utilities",
    "torchmetrics",
    "fsspec",
)


def measure_pandas(arguments: argparse.Namespace) -> dict[str, Any]:
    """Compute the features of a tenth of the assets in pandas, from the same rows."""
    from fints.data import Panel, features

    frame = _tenth(arguments)
    table = frame.to_pandas()
    with memory() as peak_since:
        started = time.perf_counter()
        made = pandas_features(table.sort_values(["asset", "date"], ignore_index=True))
        seconds = time.perf_counter() - started
        peak = peak_since()
    ours = features(Panel(frame), NAMES).sort("asset", "date")
    difference = 0.0
    for name in NAMES:
        own, other = ours[name].to_numpy(), made[name].to_numpy(dtype=np.float64)
        both = np.isfinite(own) & np.isfinite(other)
        difference = max(difference, float(np.abs(own - other)[both].max() / own[both].std()))
    return {"seconds": seconds, "peak": peak, "difference": difference}


def pandas_features(table: Any) -> Any:
    """Return `NAMES` of a long frame sorted by asset and date, as one would write them in pandas."""
    import pandas as pd

    log = np.log(table["close"])
    groups = table["asset"]
    columns: dict[str, Any] = {}

    def lagged(k: int) -> Any:
        return log.groupby(groups, sort=False).shift(k)

    for k in RETURNS:
        columns[f"return_{k}"] = log - lagged(k)
    for k in VOLATILITIES:
        rolled = columns["return_1"].groupby(groups, sort=False).rolling(k).std()
        columns[f"volatility_{k}"] = rolled.reset_index(level=0, drop=True)
        columns[f"log_volatility_{k}"] = np.log(columns[f"volatility_{k}"])
    for far, near in MOMENTA:
        columns[f"momentum_{far}_{near}"] = lagged(near) - lagged(far)
    for name in RANKED:
        by_date = columns[name].groupby(table["date"], sort=False)
        columns[f"rank_{name}"] = (by_date.rank() - 1) / (by_date.transform("count") - 1) - 0.5
    return pd.DataFrame({name: columns[name].astype(np.float32) for name in NAMES})


def measure_neuralforecast(arguments: argparse.Namespace) -> dict[str, Any]:
    """Iterate random windows of neuralforecast's data set on a tenth of the assets, with the same columns."""
    if arguments.packages is None:
        return {"skipped": "give --packages FOLDER to install and measure it"}
    folder = arguments.packages.resolve()
    if (reason := install(folder, WANTED, proof="neuralforecast")) is not None:
        return {"skipped": f"it could not be installed: {reason}"}
    # The package's own beginning imports ray and all its models; its data set needs neither.
    package = types.ModuleType("neuralforecast")
    package.__path__ = [str(folder / "neuralforecast")]
    sys.modules["neuralforecast"] = package
    try:
        from neuralforecast.tsdataset import TimeSeriesDataset
    except ImportError as error:
        return {"skipped": f"it was installed and cannot be imported: {error}"}
    import torch

    torch.set_num_threads(arguments.threads)
    table = _tenth(arguments).to_pandas().sort_values(["asset", "date"], ignore_index=True)
    made = pandas_features(table).fillna(0.0)
    made.insert(0, "y", made["return_1"])
    made.insert(0, "ds", table["date"])
    made.insert(0, "unique_id", table["asset"])
    with memory() as peak_since:
        started = time.perf_counter()
        dataset, *_ = TimeSeriesDataset.from_df(made)
        built = time.perf_counter() - started
        peak = peak_since()
        # As BaseModel draws a training batch: 32 series in full length, unfolded into all their windows, of
        # which some are kept. Its default is 1,024.
        context, count, drawn, rows = arguments.context + HORIZON, 1024, 0, len(dataset)
        generator = torch.Generator().manual_seed(0)
        started = time.perf_counter()
        while (elapsed := time.perf_counter() - started) < arguments.seconds:
            series = torch.randint(rows, (32,), generator=generator).tolist()
            temporal = torch.stack([dataset[place]["temporal"] for place in series])
            windows = temporal.unfold(-1, context, 1).permute(0, 2, 3, 1)
            windows = windows.reshape(-1, context, temporal.shape[1])
            kept = windows[torch.randperm(len(windows), generator=generator)[:count]]
            drawn += len(kept)
        peak = max(peak, peak_since())
    return {"built": built, "peak": peak, "windows_a_second": drawn / elapsed}


def _tenth(arguments: argparse.Namespace) -> Any:
    """Return the rows of a tenth of the assets, of every tenth one, with polars."""
    import polars as pl

    files = arguments.root / "prices" / "*.parquet"
    tenth = pl.col("asset").str.ends_with("0")
    return pl.scan_parquet(files).filter(tenth).sort("date", "asset").collect(engine="streaming")


@contextmanager
def memory() -> Iterator[Callable[[], int]]:
    """Yield a function that returns the peak of anonymous memory since its last call, beyond the start."""
    base, peak, ended = anonymous(), [0], threading.Event()

    def watch() -> None:
        while not ended.wait(0.01):
            peak[0] = max(peak[0], anonymous())

    def since() -> int:
        found, peak[0] = max(peak[0], anonymous()), 0
        return found - base

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield since
    finally:
        ended.set()
        thread.join()


def anonymous() -> int:
    """Return the bytes of anonymous memory of this process (Linux)."""
    found = re.search(r"RssAnon:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="utf-8"))
    assert found is not None
    return int(found[1]) * 1024

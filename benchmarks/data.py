"""What a large panel costs: features, targets, scaling and one epoch of windows, in seconds and memory.

    python benchmarks/data.py --folder ~/.cache/fints/benchmark-data
    python benchmarks/data.py --small
    python benchmarks/data.py --packages ~/.cache/fints/benchmark-packages

Prices of 5,000 assets over 6,300 days are simulated a piece at a time and written to parquet; a tenth of the
assets is listed late and one price in a hundred is missing. A process of its own then reads them, computes 32
features and the target, fits the scaler, and gathers every window of an epoch once in random order, as a fit
does (no network is trained). Memory is anonymous memory (RssAnon of /proc/self/status, every 10 ms) beyond
that of the process with its libraries loaded: the pages of the store are the file's, and the system may take
them back.

Between batches stand plain copies of as many bytes from one place of the store to a new tensor; the rate of
windows is told as a share of the copies of the same moment, so that whatever else the machine does falls on
both alike. With one thread both are in seconds of its processor.

Beside it, each in a process of its own and on a tenth of the assets: pandas computing the same features from
the same rows, and with --packages FOLDER the data set of neuralforecast, whose windows are drawn the way its
models draw them. Their figures times ten are told beside ours.

The folder needs 7 GiB at full size and is emptied of what was made.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from packages import install

SIZES = {"large": (5000, 6300), "small": (60, 700)}
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
TARGET, HORIZON = "volatility_scaled", 1
BATCH = 64
# Batches, then copies of as many bytes, in turn.
TURN = 64
MOST_MEMORY = 2.0 * 2**30
LEAST_SHARE = 0.5
WANTED = (
    "neuralforecast",
    "coreforecast",
    "utilsforecast",
    "pytorch-lightning",
    "lightning-utilities",
    "torchmetrics",
    "fsspec",
)


def main() -> int:
    """Measure and print; return 1 if the memory or the rate misses its mark."""
    arguments = _arguments()
    if arguments.part:
        print(json.dumps(PARTS[arguments.part](arguments)))
        return 0
    size = "small" if arguments.small else "large"
    assets, days = SIZES[size]
    root = Path(tempfile.mkdtemp(prefix="fints-data-", dir=arguments.folder))
    try:
        started = time.perf_counter()
        write_prices(root / "prices", assets, days)
        print(
            f"{assets:,} assets x {days:,} days x {len(NAMES)} features, float32: "
            f"{4 * assets * days * len(NAMES) / 2**30:.2f} GiB of features from "
            f"{_size(root / 'prices') / 2**30:.2f} GiB of prices (simulated and written in "
            f"{time.perf_counter() - started:.0f} s)\n",
            flush=True,
        )
        found = _apart("fints", root, arguments)
        _print_fints(found)
        pandas = _apart("pandas", root, arguments)
        ours = sum(found["seconds"][name] for name in ("read", "features"))
        print(
            f"\npandas, the same features of a tenth of the assets: {pandas['seconds']:.1f} s and "
            f"{pandas['peak'] / 2**30:.2f} GiB; times ten {10 * pandas['seconds']:.0f} s and "
            f"{10 * pandas['peak'] / 2**30:.1f} GiB: {10 * pandas['seconds'] / ours:.1f} times our "
            f"{ours:.0f} s (reading, features, targets, scaling, writing) and "
            f"{10 * pandas['peak'] / found['peak']:.1f} times our peak. Largest "
            f"difference from ours: {pandas['difference']:.1e} deviations.",
            flush=True,
        )
        _print_loader(_apart("neuralforecast", root, arguments), found)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return int(found["peak"] > MOST_MEMORY or (size == "large" and found["share"] < LEAST_SHARE))


def write_prices(folder: Path, assets: int, days: int, seed: int = 0) -> None:
    """Write a simulated panel of prices, ``date, asset, close`` by date and asset, a few dates a file."""
    import polars as pl

    folder.mkdir(parents=True)
    draw = np.random.default_rng(seed)
    names = pl.Series([f"S{place:05d}" for place in range(assets)])
    level = np.log(draw.uniform(5, 200, assets))
    listed = np.where(draw.random(assets) < 0.1, draw.integers(0, days // 2, assets), 0)
    volatility = draw.uniform(0.008, 0.03, assets)
    first = dt.date(2000, 1, 3)
    step = max(1, 500_000 // assets)
    for begin in range(0, days, step):
        count = min(step, days - begin)
        factor = 0.008 * draw.standard_normal((count, 1))
        moves = factor + volatility * draw.standard_t(5, (count, assets)) * 0.775
        path = level + np.cumsum(moves, axis=0)
        level = path[-1]
        there = (begin + np.arange(count)[:, None] >= listed) & (draw.random((count, assets)) >= 0.01)
        day, asset = np.nonzero(there)
        dates = pl.Series([first + dt.timedelta(days=begin + k) for k in range(count)])
        frame = pl.DataFrame(
            {"date": dates.gather(day), "asset": names.gather(asset), "close": np.exp(path[there])}
        )
        frame.write_parquet(folder / f"{begin:06d}.parquet")


def measure_fints(arguments: argparse.Namespace) -> dict[str, Any]:
    """Read, prepare and iterate one epoch; return seconds, peaks and rates."""
    import polars as pl
    import torch

    from fints.config import DataConfig
    from fints.data import Panel, window_store
    from fints.data.learning import prepare
    from fints.training.batches import BatchOrder

    torch.set_num_threads(arguments.threads)
    # Where others compute too, seconds on the wall are longer for what takes longer than a time slice.
    clock = time.thread_time if arguments.threads == 1 else time.perf_counter
    data = DataConfig(features=NAMES, target=TARGET, horizon=HORIZON, context=arguments.context)
    seconds: dict[str, float] = {}
    peaks: dict[str, int] = {}
    with memory() as peak_since:

        @contextmanager
        def stage(name: str) -> Iterator[None]:
            peak_since()
            started = time.perf_counter()
            yield
            seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - started
            peaks[name] = peak_since()

        with stage("read"):
            files = sorted((arguments.root / "prices").glob("*.parquet"))
            panel = Panel(pl.concat([pl.read_parquet(file) for file in files]))
        with stage("features"):
            learning = prepare(panel, data, validation=0.15)
        with stage("prepared again"):
            learning = prepare(panel, data, validation=0.15)
        with stage("windows chosen"):
            chosen = learning.windows.select(*learning.train, labelled=True, every_token=True)
            order = BatchOrder(len(chosen), BATCH, seed=0)
        inputs = learning.windows.values
        flat, bytes_a_batch = inputs.view(-1), 4 * BATCH * arguments.context * len(NAMES)
        numbers = bytes_a_batch // 4
        gather, copy, turn, digest = [], [], 0, 0.0
        steps = min(-(-len(chosen) // BATCH), arguments.most_batches)
        with stage("epoch"):
            for begin in range(0, steps, TURN):
                number = min(TURN, steps - begin)
                started = clock()
                for place in range(begin, begin + number):
                    batch, outcome = chosen.gather(order(place))
                gather.append((clock() - started) / number)
                digest += float(batch[0, -1, 0]) + float(outcome[0, -1])
                if begin // TURN % 16 == 0:
                    started = clock()
                    for _ in range(TURN):
                        start = turn * numbers % (len(flat) - numbers)
                        flat[start : start + numbers].clone()
                        turn += 1
                    copy.append((gather[-1], (clock() - started) / TURN))
    return {
        "assets": len(panel.assets),
        "days": len(panel.dates),
        "rows": len(panel),
        "seconds": seconds,
        "peaks": peaks,
        "peak": max(peaks.values()),
        "windows": len(chosen),
        "gathered": steps * BATCH,
        "bytes_a_batch": bytes_a_batch,
        "gather": statistics.median(gather),
        "copy": statistics.median(time for _, time in copy),
        "share": statistics.median(time / own for own, time in copy),
        "shares": statistics.quantiles([time / own for own, time in copy], n=4)[::2] if len(copy) > 1 else [],
        "large": inputs.untyped_storage().nbytes() >= window_store.large_from(),
    }


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


PARTS: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "fints": measure_fints,
    "pandas": measure_pandas,
    "neuralforecast": measure_neuralforecast,
}


def _print_fints(found: dict[str, Any]) -> None:
    where = "a store mapped into memory" if found["large"] else "memory"
    print(f"{found['rows']:,} rows; features lie in {where}; anonymous memory beyond the libraries:\n")
    print(f"{'stage':<16} {'seconds':>8} {'peak GiB':>9}")
    for name, seconds in found["seconds"].items():
        print(f"{name:<16} {seconds:8.1f} {found['peaks'][name] / 2**30:9.2f}")
    size = found["bytes_a_batch"]
    print(
        f"\npeak {found['peak'] / 2**30:.2f} GiB (at most {MOST_MEMORY / 2**30:.0f})\n"
        f"{found['gathered']:,} of {found['windows']:,} windows gathered in random order, {BATCH} a batch of "
        f"{size / 2**10:.0f} KiB: {size / found['gather'] / 2**30:.2f} GiB/s, a plain copy "
        f"{size / found['copy'] / 2**30:.2f} GiB/s\nshare of a plain copy {found['share']:.2f} (quartiles "
        f"{', '.join(f'{share:.2f}' for share in found['shares'])}; at least {LEAST_SHARE})",
        flush=True,
    )


def _print_loader(loader: dict[str, Any], found: dict[str, Any]) -> None:
    if "skipped" in loader:
        print(f"\nneuralforecast: not measured; {loader['skipped']}")
        return
    ours = BATCH / found["gather"]
    print(
        f"\nneuralforecast, the same features of a tenth of the assets: data set made in "
        f"{loader['built']:.1f} s, peak {loader['peak'] / 2**30:.2f} GiB (times ten "
        f"{10 * loader['peak'] / 2**30:.1f} GiB); {loader['windows_a_second']:,.0f} windows a second, "
        f"ours {ours:,.0f}: "
        f"{ours / loader['windows_a_second']:.1f} times as many."
    )


def _apart(part: str, root: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    own = [*sys.argv[1:], "--part", part, "--root", str(root)]
    environment = {**os.environ, "FINTS_HOME": str(root / "home")}
    if arguments.small:
        environment["FINTS_STORE_FROM_MIB"] = "1"
    command = [sys.executable, __file__, *own]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir())


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--small", action="store_true", help="60 assets over 700 days")
    parser.add_argument("--folder", type=Path, metavar="FOLDER", help="where what is made lies meanwhile")
    parser.add_argument("--packages", type=Path, metavar="FOLDER", help="where neuralforecast is installed")
    parser.add_argument("--context", type=int, default=24, help="days of a window")
    parser.add_argument("--threads", type=int, default=1, help="of torch, for windows and copies alike")
    parser.add_argument("--seconds", type=float, default=20, help="for the other loader")
    parser.add_argument("--most-batches", type=int, default=sys.maxsize, help="of the epoch")
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    parser.add_argument("--root", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())

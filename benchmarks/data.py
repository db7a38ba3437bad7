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

The rate of windows is told as a share of two plain copies made between batches, so that whatever else the
machine does falls on all alike: of the same bytes, those of batches half an epoch away, one after the other
into one piece by the standard library (nothing but memcpy: what memory gives at places that random order
names); and of as many bytes that lie in one piece, which the processor fetches ahead. All three are timed by
the processor's seconds and on the wall.

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
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from data_beside import HORIZON, NAMES, measure_neuralforecast, measure_pandas, memory

SIZES = {"large": (5000, 6300), "small": (60, 700)}
TARGET = "volatility_scaled"
BATCH = 64
# Batches of a turn. At most every 16th turn has copies beside it.
TURN, COPIED_TURNS = 64, 16
CLOCKS = ("processor", "wall")
MOST_MEMORY = 2.0 * 2**30
LEAST_SHARE = 0.5


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
    return int(found["peak"] > MOST_MEMORY or (size == "large" and _share(found) < LEAST_SHARE))


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
        steps = min(-(-len(chosen) // BATCH), arguments.most_batches)
        with stage("epoch"):
            seconds_a_batch = iterate(chosen, order, steps, arguments.threads)
    return {
        "assets": len(panel.assets),
        "days": len(panel.dates),
        "rows": len(panel),
        "seconds": seconds,
        "peaks": peaks,
        "peak": max(peaks.values()),
        "windows": len(chosen),
        "gathered": steps * BATCH,
        "bytes_a_batch": 4 * BATCH * arguments.context * len(NAMES),
        "seconds_a_batch": seconds_a_batch,
        "large": inputs.untyped_storage().nbytes() >= window_store.large_from(),
    }


def iterate(chosen: Any, order: Callable[[int], Any], steps: int, threads: int) -> dict[str, list[Any]]:
    """Gather the batches of an epoch; return seconds a batch, (processor, wall), of turns with copies beside.

    Each array is of as many turns: ``windows``, ``same bytes`` and ``one piece``.
    """
    cpu = time.thread_time if threads == 1 else time.process_time
    values, cell = chosen.windows.values, chosen.cell
    context, width = chosen.windows.context, values.shape[-1]
    flat, store = values.view(-1), memoryview(values.numpy().reshape(-1)).cast("B")
    numbers = BATCH * context * width

    def timed(work: Callable[[int], Any], number: int) -> list[float]:
        started = cpu(), time.perf_counter()
        for place in range(number):
            work(place)
        return [(cpu() - started[0]) / number, (time.perf_counter() - started[1]) / number]

    def pieces(step: int) -> list[memoryview]:
        starts = (cell[order(step)].long() - (context - 1)) * (4 * width)
        return [store[start : start + 4 * width * context] for start in starts.tolist()]

    def one_piece(turn: int) -> None:
        start = turn * numbers % (len(flat) - numbers)
        flat[start : start + numbers].clone()

    turns = -(-steps // TURN)
    every = max(1, min(COPIED_TURNS, turns // 8))
    found: dict[str, list[Any]] = {"windows": [], "same bytes": [], "one piece": []}
    for turn in range(turns):
        begin = turn * TURN
        number = min(TURN, steps - begin)
        seconds = timed(lambda place, begin=begin: chosen.gather(order(begin + place)), number)
        if turn % every == 0:
            batches = [pieces((begin + steps // 2 + place) % steps) for place in range(number)]
            found["windows"].append(seconds)
            found["same bytes"].append(timed(lambda place, batches=batches: b"".join(batches[place]), number))
            found["one piece"].append(timed(lambda place, begin=begin: one_piece(begin + place), number))
    return found


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
    print(
        f"\npeak {found['peak'] / 2**30:.2f} GiB (at most {MOST_MEMORY / 2**30:.0f})\n"
        f"{found['gathered']:,} of {found['windows']:,} windows gathered in random order, {BATCH} a batch of "
        f"{found['bytes_a_batch'] / 2**10:.0f} KiB\n\n{'median (quartiles)':<36}"
        + "".join(f"{f'seconds of the {clock}':>28}" for clock in CLOCKS)
    )
    for name, seconds in found["seconds_a_batch"].items():
        rates = found["bytes_a_batch"] / 2**30 / np.array(seconds)
        print(f"{f'{name}, GiB a second':<36}" + "".join(f"{_quartiles(rate):>28}" for rate in rates.T))
    for name in ("same bytes", "one piece"):
        told = "a plain copy of the same bytes" if name == "same bytes" else "a copy of one piece as large"
        print(
            f"{f'share of {told}':<36}" + "".join(f"{_quartiles(one):>28}" for one in _shares(found, name).T)
        )
    print(f"share of a plain copy of the same bytes wanted: at least {LEAST_SHARE}", flush=True)


def _shares(found: dict[str, Any], name: str) -> Any:
    """Return (turns, clocks) the rate of windows over that of a copy of the same moment."""
    return np.array(found["seconds_a_batch"][name]) / np.array(found["seconds_a_batch"]["windows"])


def _share(found: dict[str, Any]) -> float:
    """Return the median share of a plain copy of the same bytes, by the processor's seconds."""
    return float(np.median(_shares(found, "same bytes")[:, 0]))


def _quartiles(values: Any) -> str:
    low, middle, high = np.quantile(values, (0.25, 0.5, 0.75))
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


def _print_loader(loader: dict[str, Any], found: dict[str, Any]) -> None:
    if "skipped" in loader:
        print(f"\nneuralforecast: not measured; {loader['skipped']}")
        return
    ours = BATCH / float(np.median(np.array(found["seconds_a_batch"]["windows"])[:, 1]))
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

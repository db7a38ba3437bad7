"""How long one more day takes: forecast it, load the forecaster, refit it.

    python benchmarks/latency.py
    python benchmarks/latency.py --assets 500 --days 2520 --depths 2,4,8

A simulated panel stands for the user's. "wall" is the least of several calls, "cpu" the processor time
of that call in all threads: on a machine that does other work wall is longer. The plain loop computes
the same features of the whole history with pandas and sends the last window through the same network.
Exit code 1 if a warm forecast of one day at the first depth takes more than 0.2 s wall.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import torch

from fints import Forecaster
from fints.data import Panel, simulate

WANTED_S = 0.2
FITTED_DAYS, FITTED_ASSETS = 700, 20
COLD = """
import sys, time
clock = time.perf_counter()
import fints
forecaster = fints.load(sys.argv[1])
loaded = time.perf_counter()
import polars as pl
panel = fints.Panel(pl.read_parquet(sys.argv[2]))
ready = time.perf_counter()
forecaster.predict(panel, start=panel.dates[-1])
print(loaded - clock, ready - loaded, time.perf_counter() - ready)
"""


def timed(call: Callable[[], Any], times: int) -> tuple[float, float, Any]:
    """Return wall and processor seconds of the fastest of some calls, and what it returned."""
    best = None
    for _ in range(times):
        wall, cpu = time.perf_counter(), time.process_time()
        result = call()
        found = (time.perf_counter() - wall, time.process_time() - cpu, result)
        best = found if best is None or found[0] < best[0] else best
    assert best is not None
    return best


def fitted(depth: int, residual: str) -> Forecaster:
    """Return a forecaster after two steps on a small panel: its numbers do not matter, its size does."""
    small = simulate(num_assets=FITTED_ASSETS, num_days=FITTED_DAYS, seed=1).panel
    return Forecaster(residual=residual, depth=depth, steps=2).fit(small)


def plain(forecaster: Forecaster, frame: pd.DataFrame) -> np.ndarray:
    """Return the forecasts (A,) of the last date as a loop without fints would make them."""
    price = np.log(frame.pivot(index="date", columns="asset", values="close"))
    returns = price.diff()

    def rank(wide: pd.DataFrame) -> pd.DataFrame:
        return (wide.rank(axis=1) - 1).div(wide.count(axis=1) - 1, axis=0) - 0.5

    made = {
        "return_1": returns,
        "return_5": price.diff(5),
        "return_21": price.diff(21),
        "log_volatility_21": np.log(returns.rolling(21).std()),
        "momentum_252_21": price.shift(21) - price.shift(252),
        "rank_return_1": rank(returns),
        "rank_return_21": rank(price.diff(21)),
    }
    data, scaler = forecaster.experiment_.data, forecaster.scaler_
    layers = [
        ((made[name] - mean) / std).clip(-scaler.clip, scaler.clip).to_numpy()
        for name, mean, std in zip(scaler.names, scaler.mean, scaler.std, strict=True)
    ]
    windows = np.stack(layers, axis=-1)[-data.context :].transpose(1, 0, 2)
    with torch.inference_mode():
        output = forecaster.model_(torch.from_numpy(windows.astype(np.float32)))
    weights = 0.5 ** (np.arange(63) / 21)
    sigma = np.sqrt((weights[::-1, None] / weights.sum() * returns.to_numpy()[-63:] ** 2).sum(0))
    return output.mean[:, -1, 0].double().numpy() * forecaster.target_std_ * sigma


def show(label: str, wall: float, cpu: float | None = None, more: str = "") -> None:
    """Print a line of the table."""
    print(f"{label:<58} {wall:8.3f} {'' if cpu is None else f'{cpu:8.3f}':>8}  {more}", flush=True)


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--assets", type=int, default=500)
    parser.add_argument("--days", type=int, default=2520)
    parser.add_argument("--depths", default="4,2,8")
    parser.add_argument("--residual", default="pre_norm")
    parser.add_argument("--times", type=int, default=7)
    parser.add_argument("--refit-days", default="756,1260,2520")
    parser.add_argument("--refit-assets", type=int, default=100)
    parser.add_argument("--steps", type=int, default=20)
    given = parser.parse_args()
    depths = [int(text) for text in given.depths.split(",")]

    panel = simulate(num_assets=given.assets, num_days=given.days, seed=1).panel
    last = panel.dates[-1]
    models = {depth: fitted(depth, given.residual) for depth in depths}
    one = models[depths[0]]
    model, data = one.experiment_.model, one.experiment_.data
    print(
        f"{given.assets} assets x {given.days} days; {given.residual}, width {model.width}, context "
        f"{data.context}, {len(data.features)} features; torch {torch.__version__}, "
        f"{torch.get_num_threads()} threads"
    )
    print(f"{'seconds':<58} {'wall':>8} {'cpu':>8}")
    first = None
    for depth, forecaster in models.items():
        wall, cpu, table = timed(lambda f=forecaster: f.predict(panel, start=last), given.times)
        first = wall if first is None else first
        assert table.height == given.assets
        assert table["forecast"].null_count() == 0
        show(f"forecast one more day, warm, depth {depth}", wall, cpu)
    whole = panel.frame.to_pandas()
    wall, cpu, numbers = timed(lambda: plain(one, whole), max(1, given.times // 3))
    ours = one.predict(panel, start=last).sort("asset")["forecast"].to_numpy()
    apart = np.abs(numbers - ours).max() / np.abs(ours).max()
    show(f"the same in pandas and torch, depth {depths[0]}", wall, cpu, f"largest difference {apart:.1e}")
    assert apart < 1e-4, "the plain loop computes something else"

    with tempfile.TemporaryDirectory() as scratch:
        folder, file = one.save(Path(scratch) / "model"), Path(scratch) / "prices.parquet"
        panel.frame.write_parquet(file)
        wall, cpu, again = timed(lambda: _load(folder), given.times)
        show("load a forecaster, warm", wall, cpu, f"{_bytes(folder) / 1e3:.0f} kB")
        told = subprocess.run(
            [sys.executable, "-c", COLD, str(folder), str(file)], capture_output=True, text=True, check=True
        )
        for label, text in zip(
            ("new process: import fints and load", "  read and check the panel", "  first forecast"),
            told.stdout.split(),
            strict=True,
        ):
            show(label, float(text))
        del again

    print(f"\nrefit on {given.refit_assets} assets, {given.steps} steps, depth {depths[0]}")
    print("(beside the steps: features, one validation on 15 % of the days, a profile)")
    print(f"{'training days':<58} {'wall':>8} {'cpu':>8}")
    few = panel.assets[: given.refit_assets]
    for days in (int(text) for text in given.refit_days.split(",")):
        since = panel.dates[max(0, len(panel.dates) - days)]
        part = Panel(panel.frame.filter(pl.col("asset").is_in(few), pl.col("date") >= since))
        again = Forecaster(residual=given.residual, depth=depths[0], steps=given.steps)
        wall, cpu, done = timed(lambda f=again, p=part: f.fit(p), 1)
        result = done.result_
        steps = result.seconds_a_step * given.steps
        show(f"{days}", wall, cpu, f"of it {steps:.2f} in steps, {1e3 * result.seconds_a_step:.0f} ms each")
    assert first is not None
    print(f"\none more day, warm, depth {depths[0]}: {first:.3f} s (at most {WANTED_S} wanted)")
    return 0 if first <= WANTED_S else 1


def _load(folder: Path) -> Any:
    import fints

    return fints.load(folder)


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


if __name__ == "__main__":
    sys.exit(main())

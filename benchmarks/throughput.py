"""Fits an hour with 1 and 2 workers, and windows a second against other people's transformers.

    python benchmarks/throughput.py workers --rounds 3
    python benchmarks/throughput.py packages FOLDER --rounds 5

`workers` lets one and two `fints worker` processes, in turn, make the same 24 fits on a PostgreSQL server of
its own on loopback. The rate is that of the storage: fits stored over the time from the first to the last of
them, so that imports, which take a worker longer than a fit here, are left out.

`packages` installs neuralforecast and pyqlib into FOLDER (torch and numpy stay the environment's) and trains
on the returns of the bundled panel: same width, depth, heads, feed-forward, context, batch and number of
threads, float32, no dropout, squared error. With one thread times are those of the process on its core, which
others on the machine do not lengthen; with more, those of a clock on the wall. All take turns in one process;
a ratio is (theirs / ours) within a round, the median over rounds. "step" is one optimiser step, the mean of a
fit without the first five; "whole" is all that the package's own call to fit takes, preparation of the data
included and imports not, over the windows trained on. What differs:

- neuralforecast's VanillaTransformer has `depth` encoder layers over the context, as ours has blocks, and the
  one decoder layer that it must have, over two tokens: the least that can be set. Its attention sees the
  whole window, ours the past. Each of its steps cuts the windows of the series in the batch anew. With all 20
  series in a batch its batches are ours, windows of any asset; with one series, which is its faster setting,
  all windows of a batch are of one asset.
- qlib's Transformer has no setting for its feed-forward, which is 2048, and nearly all of a step is then its
  matrix products: ours is given the same. Beside stands theirs with the feed-forward set from outside to what
  the others have. It is fed by its own `train_epoch` on arrays made before; its whole call is left out, since
  its data handlers want data in a format of their own.
- "fits at once" is `training.vectorise`: the windows and seconds of one of them, as a study has several seeds
  to train; the other packages train one network a process.
- ours clips gradients, warms up and decays the learning rate, and counts losses; theirs do not all of it.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import os
import runpy
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from packages import install

from fints import Forecaster
from fints.config import DataConfig, Experiment, ModelConfig, TrainingConfig
from fints.data import Panel, load, simulate
from fints.fitting import material, start
from fints.training import fit_together

TESTS = Path(__file__).resolve().parents[1] / "tests" / "study"
LEFT_OUT = 5
NEURALFORECAST = (
    "neuralforecast==3.3.0",
    "pytorch-lightning==2.6.6",
    "lightning-utilities==0.15.3",
    "torchmetrics==1.9.0",
    "coreforecast==0.0.20",
    "utilsforecast==0.2.17",
)
QLIB = (
    "pyqlib==0.9.7",
    "dill==0.4.1",
    "gym==0.26.2",
    "gym-notices==0.1.0",
    "loguru==0.7.3",
    "pydantic-settings==2.16.3",
    "python-redis-lock==4.0.1",
    "redis==8.1.0",
    "ruamel.yaml==0.19.1",
)
Clock = Callable[[], float]
# Seconds a step and, where the package has such a call, seconds a step of the whole fit.
Timed = tuple[float, float | None]


def main() -> None:
    """Read the command line and measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    workers = verbs.add_parser("workers")
    workers.add_argument("--steps", type=int, default=600, help="of a fit")
    packages = verbs.add_parser("packages")
    packages.add_argument("folder", type=Path, help="where the packages are installed and kept")
    packages.add_argument("--only", choices=("neuralforecast", "qlib"), help="of the two")
    packages.add_argument("--width", type=int, default=32)
    packages.add_argument("--depth", type=int, default=4)
    packages.add_argument("--heads", type=int, default=4)
    packages.add_argument("--context", type=int, default=32)
    packages.add_argument("--batch", type=int, default=64)
    packages.add_argument("--steps", type=int, default=60)
    packages.add_argument("--threads", type=int, default=1)
    packages.add_argument("--members", type=int, default=8, help="fits that fints makes at once, too")
    for verb in (workers, packages):
        verb.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    (_workers if arguments.verb == "workers" else _packages)(arguments)


def _workers(arguments: argparse.Namespace) -> None:
    """Print fits an hour with 1 and 2 workers, a row a round."""
    servers = runpy.run_path(str(TESTS / "servers.py"))
    with tempfile.TemporaryDirectory(prefix="fints-throughput-") as scratch:
        base = Path(scratch)
        panel = base / "prices.parquet"
        simulate(num_assets=4, num_days=160, seed=3).panel.frame.write_parquet(panel)
        server = servers["Postgres"](base / "postgres")
        print(f"24 fits of {arguments.steps} steps each, fits an hour\n")
        print(f"{'round':>5} {'1 worker':>10} {'2 workers':>10} {'ratio':>6}")
        ratios = []
        try:
            for number in range(arguments.rounds):
                order = (1, 2) if number % 2 == 0 else (2, 1)
                rate = {
                    count: _rate(
                        count,
                        server.url(f"r{number}_{count}"),
                        panel,
                        base / f"{number}-{count}",
                        arguments.steps,
                    )
                    for count in order
                }
                ratios.append(rate[2] / rate[1])
                print(f"{number + 1:5} {rate[1]:10.0f} {rate[2]:10.0f} {ratios[-1]:6.2f}", flush=True)
        finally:
            server.stop()
        print(f"\nmedian ratio {statistics.median(ratios):.2f} on {os.cpu_count()} cores")


def _rate(count: int, url: str, panel: Path, root: Path, steps: int) -> float:
    """Return fits an hour of `count` workers on a fresh study."""
    from fints.study.shared_open import open_shared

    environment = {**os.environ, "FINTS_STORAGE": url, "OMP_NUM_THREADS": "1"}
    environment.pop("MLFLOW_TRACKING_URI", None)
    words = [str(TESTS / "tiny.py"), "run", "--preset", "chaos", "--data", str(panel), "--no-models"]
    words += ["--set", f"training.steps={steps}", "--root", str(root), "--workers", "0"]
    subprocess.run([sys.executable, *words], check=True, env=environment, stdout=subprocess.DEVNULL)
    worker = [sys.executable, "-m", "fints", "worker", "--study", "tiny"]
    started = [subprocess.Popen(worker, env=environment, stdout=subprocess.DEVNULL) for _ in range(count)]
    codes = [process.wait() for process in started]
    if any(codes):
        sys.exit(f"a worker ended with code {max(codes)}")
    store = open_shared(url)
    try:
        (name,) = store.studies()
        return store.rate(name, last=1000)
    finally:
        store.close()


def _packages(arguments: argparse.Namespace) -> None:
    """Print seconds a step and windows a second of each package, and their ratios to ours."""
    torch.set_num_threads(arguments.threads)
    panel = load("sp500-20")
    arguments.clock = time.process_time if arguments.threads == 1 else time.perf_counter
    print(
        f"{arguments.depth} blocks, D {arguments.width}, {arguments.heads} heads, context "
        f"{arguments.context}, batch {arguments.batch}, {arguments.steps} steps, threads: "
        f"{arguments.threads}, torch {torch.__version__}"
    )
    if arguments.only != "qlib":
        _compare("neuralforecast", NEURALFORECAST, arguments, panel, 4.0, _neuralforecast)
    if arguments.only != "neuralforecast":
        _compare("qlib", QLIB, arguments, panel, 2048 / arguments.width, _qlib)
        _compare("qlib", QLIB, arguments, panel, 4.0, _qlib)


def _compare(
    name: str,
    wanted: tuple[str, ...],
    arguments: argparse.Namespace,
    panel: Panel,
    ratio: float,
    arms_of: Callable[[argparse.Namespace, Panel, int], dict[str, Callable[[], Timed]]],
) -> None:
    hidden = round(ratio * arguments.width)
    reason = install(arguments.folder / name, wanted, proof=name)
    theirs: dict[str, Callable[[], Timed]] = {}
    if reason is None:
        try:
            theirs = arms_of(arguments, panel, hidden)
        except ImportError as error:
            reason = str(error)
    if reason is not None:
        print(f"\n{name}: left out, it could not be installed or imported ({reason})")
        return
    arms = {
        "fints, plain": lambda: _fints(arguments, panel, ratio, compiled=False),
        "fints, training.compile": lambda: _fints(arguments, panel, ratio, compiled=True),
        f"fints, {arguments.members} fits at once": lambda: _fints_together(arguments, panel, ratio),
        **theirs,
    }
    times: dict[str, list[Timed]] = {arm: [] for arm in arms}
    for number in range(arguments.rounds + 1):
        for arm, run in arms.items():
            found = run()
            # The first round builds kernels and fills caches.
            if number:
                times[arm].append(found)
    print(f"\n{f'feed-forward {hidden}':<36} {'ms a step':>9} {'windows/s':>10} {'whole/s':>9}")
    for arm, found in times.items():
        step = statistics.median(seconds for seconds, _ in found)
        whole = [seconds for _, seconds in found if seconds is not None]
        told = f"{arguments.batch / statistics.median(whole):9.0f}" if whole else f"{'-':>9}"
        print(f"{arm:<36} {1e3 * step:9.2f} {arguments.batch / step:10.0f} {told}")
    for ours in [arm for arm in arms if arm not in theirs]:
        for other in theirs:
            pairs = list(zip(times[ours], times[other], strict=True))
            step = statistics.median(b / a for (a, _), (b, _) in pairs)
            whole = [b / a for (_, a), (_, b) in pairs if a is not None and b is not None]
            in_all = f", {statistics.median(whole):.2f} x in all" if whole else ""
            print(f"{ours} against {other}: {step:.2f} x its windows a second in steps{in_all}")


def _experiment(arguments: argparse.Namespace, ratio: float, *, compiled: bool) -> Experiment:
    return Experiment(
        data=DataConfig(features=("return_1",), context=arguments.context, horizon=1),
        model=ModelConfig(
            width=arguments.width,
            depth=arguments.depth,
            num_heads=arguments.heads,
            feed_forward_ratio=ratio,
            dropout=0.0,
        ),
        training=TrainingConfig(
            steps=arguments.steps,
            warmup_steps=LEFT_OUT,
            batch_size=arguments.batch,
            evaluate_every=LEFT_OUT,
            keep="last",
            compile=compiled,
            device="cpu",
            threads=arguments.threads,
        ),
    )


def _fints(arguments: argparse.Namespace, panel: Panel, ratio: float, *, compiled: bool) -> Timed:
    experiment = _experiment(arguments, ratio, compiled=compiled)
    clock: Clock = arguments.clock
    marks: list[float] = []
    started = clock()
    Forecaster(experiment).fit(panel, validation=0, on_row=lambda row: marks.append(clock()))
    whole = clock() - started
    return (marks[-1] - marks[0]) / (arguments.steps - LEFT_OUT), whole / arguments.steps


def _fints_together(arguments: argparse.Namespace, panel: Panel, ratio: float) -> Timed:
    """Return the times of one of several fits that are made at once, as a study makes its seeds."""
    experiment = _experiment(arguments, ratio, compiled=False)
    clock: Clock = arguments.clock
    marks: list[float] = []
    started = clock()
    windows = material(panel, experiment, train=None, validation=0)
    members = [start(experiment, windows, seed=seed).member() for seed in range(arguments.members)]
    members[0] = replace(members[0], on_row=lambda row: marks.append(clock()))
    fit_together(members)
    whole = clock() - started
    fits = arguments.members
    return (marks[-1] - marks[0]) / (arguments.steps - LEFT_OUT) / fits, whole / arguments.steps / fits


def _neuralforecast(
    arguments: argparse.Namespace, panel: Panel, hidden: int
) -> dict[str, Callable[[], Timed]]:
    # It warns of what it does without (a logger, workers of its loader).
    warnings.simplefilter("ignore")
    import polars as pl
    import pytorch_lightning
    from neuralforecast import NeuralForecast
    from neuralforecast.losses.pytorch import MSE
    from neuralforecast.models import VanillaTransformer

    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    frame = (
        panel.frame.sort("asset", "date")
        .select(
            unique_id="asset",
            ds="date",
            y=(pl.col("close").log().diff().over("asset") * 100).fill_null(0.0),
        )
        .to_pandas()
    )

    clock: Clock = arguments.clock
    ends: list[float] = []

    class Marks(pytorch_lightning.Callback):  # type: ignore[misc]
        """Notes when each step ended; the package works on a copy of it."""

        def on_train_batch_end(self, *arguments: Any) -> None:
            ends.append(clock())

    def run(series: int) -> Timed:
        ends.clear()
        model = VanillaTransformer(
            h=1,
            input_size=arguments.context,
            decoder_input_size_multiplier=1 / arguments.context,
            hidden_size=arguments.width,
            n_head=arguments.heads,
            conv_hidden_size=hidden,
            encoder_layers=arguments.depth,
            decoder_layers=1,
            dropout=0.0,
            loss=MSE(),
            max_steps=arguments.steps,
            batch_size=series,
            windows_batch_size=arguments.batch,
            accelerator="cpu",
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=[Marks()],
        )
        started = clock()
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            NeuralForecast(models=[model], freq="B").fit(frame)
        whole = clock() - started
        assert len(ends) == arguments.steps
        return (ends[-1] - ends[LEFT_OUT - 1]) / (arguments.steps - LEFT_OUT), whole / arguments.steps

    return {
        "neuralforecast, 20 series a batch": lambda: run(20),
        "neuralforecast, one series a batch": lambda: run(1),
    }


def _qlib(arguments: argparse.Namespace, panel: Panel, hidden: int) -> dict[str, Callable[[], Timed]]:
    clock: Clock = arguments.clock
    import numpy as np
    import pandas as pd
    import polars as pl
    from qlib.contrib.model.pytorch_transformer import TransformerModel

    logging.getLogger("qlib").setLevel(logging.ERROR)
    returns = (
        panel.frame.sort("asset", "date")
        .select("asset", value=(pl.col("close").log().diff().over("asset") * 100).fill_null(0.0))
        .partition_by("asset")
    )
    span = arguments.context + 1
    windows = np.concatenate(
        [np.lib.stride_tricks.sliding_window_view(part["value"].to_numpy(), span) for part in returns]
    )
    rows = (arguments.steps + LEFT_OUT) * arguments.batch
    windows = windows[np.random.default_rng(0).choice(len(windows), rows)]
    inputs, outcome = pd.DataFrame(windows[:, :-1]), pd.DataFrame(windows[:, -1:])

    class Layer(torch.nn.TransformerEncoderLayer):
        """The layer that the package asks for, with another feed-forward."""

        def __init__(self, **settings: Any) -> None:
            super().__init__(**settings, dim_feedforward=hidden)

    def run() -> Timed:
        # The package has no setting for it; at its own size this changes nothing.
        with mock.patch.object(torch.nn, "TransformerEncoderLayer", Layer):
            model = TransformerModel(
                d_feat=1,
                d_model=arguments.width,
                batch_size=arguments.batch,
                nhead=arguments.heads,
                num_layers=arguments.depth,
                dropout=0.0,
                GPU=-1,
                seed=0,
            )
        first = LEFT_OUT * arguments.batch
        model.train_epoch(inputs[:first], outcome[:first])
        started = clock()
        model.train_epoch(inputs[first:], outcome[first:])
        return (clock() - started) / arguments.steps, None

    return {"qlib": run}


if __name__ == "__main__":
    main()

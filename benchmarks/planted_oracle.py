"""Show that the forecaster finds what was planted, walk-forward, and nothing where nothing was.

python benchmarks/planted_oracle.py [--r2 0.05] [--seeds 1] [--steps 400] [--first-year 5] [--skip-study]

Simulated panels of 40 assets over 10 years whose signal is one of the two features. The forecaster
with its defaults (depth 4, 24 days, the last 15 % of the dates choose the weights) but for the
number of steps is refitted each year, and each year is forecast by the model of the day before it.
Printed for each refit and over all, with a 95 % interval over refits (Student t; another year is
another fit and other days):

    share of oracle = 1 - E (p - s)^2 / E s^2,  p the forecast, s the planted signal.

Then the same without a signal: the R2 against zero with its 95 % interval over dates and the verdict
of `fints evaluate`, and what the report of a small study of two arms says of a panel of 10 assets and
4 years (its fits are short: that report is asked for its words). Exit code 1 if the share over
all refits is below 0.8, the R2 without a signal lies above 0 beyond its error, or a report of nothing
does not say so. The settings were tried on the panel of seed 500; the seeds here are others.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import polars as pl

from fints import Forecaster, WalkForwardForecaster
from fints.config import DataConfig, Experiment, ModelConfig, TrainingConfig, override
from fints.data import Simulation, simulate, targets
from fints.evaluation import (
    WalkForward,
    clustered_mean,
    judge,
    prevailing_mean,
    r2_interval,
    r2_zero,
    share_of_oracle,
)
from fints.study import Contrast, Preset, Study, Tuning
from fints.study.analysis import analyse
from fints.study.assemble import assemble
from fints.study.fits import read_result, run_cell
from fints.study.plan import loss_or_infinity, make_plan
from fints.study.report import write_report

ASSETS, YEAR, YEARS = 40, 252, 10
FIRST_SEED = 700
WANTED = 0.8
CPU = {"training.device": "cpu"}
SIMULATED = {"data.features": ["a", "b"], **CPU}


def main() -> int:
    """Walk forward with a signal and without one, then study the panel without."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--r2", type=float, default=0.05, help="of the oracle")
    parser.add_argument("--seeds", type=int, default=1, help="panels")
    parser.add_argument("--steps", type=int, default=400, help="of a fit")
    parser.add_argument("--first-year", type=int, default=5, help="years before the first forecast")
    parser.add_argument("--skip-study", action="store_true", help="leave the report of a study out")
    asked = parser.parse_args()
    if not 0 < asked.r2 < 1 or not 1 <= asked.first_year < YEARS - 1 or asked.seeds < 1:
        parser.error(f"--r2 must lie in (0, 1), --first-year in 1 to {YEARS - 2}, --seeds be at least 1.")
    changes = SIMULATED | {"training.steps": asked.steps, "training.warmup_steps": asked.steps // 20}
    experiment = override(Experiment(), changes)
    passed = True
    print(f"{ASSETS} assets, {YEARS} years, linear signal, oracle R2 {asked.r2:.0%}, refitted each year")
    shares = []
    for seed in range(FIRST_SEED, FIRST_SEED + asked.seeds):
        made, started = draw(asked.r2, seed), time.process_time()
        found = refit_shares(made, walk_forward(made, experiment, asked.first_year, seed))
        shares.append(found.with_columns(seed=pl.lit(seed)))
        told = "  ".join(f"{year}: {share:.3f}" for year, share in found.select("fold", "share").rows())
        print(f"  panel {seed}, share of oracle  {told}   ({time.process_time() - started:.0f} s of CPU)")
    over = clustered_mean(pl.concat(shares).with_columns(fold=pl.int_range(pl.len())), "share")
    print(f"  over all refits {over.estimate:.3f}, 95 % interval {over.low:.3f} to {over.high:.3f}")
    passed &= over.estimate >= WANTED

    print("\nwithout a signal")
    for seed in range(FIRST_SEED, FIRST_SEED + asked.seeds):
        made = draw(0.0, seed)
        frame = walk_forward(made, experiment, asked.first_year, seed)
        interval = r2_interval(frame)
        assert interval is not None
        print(
            f"  panel {seed}, R2 {100 * r2_zero(frame):.3f} %, 95 % interval {100 * interval[0]:.3f} to "
            f"{100 * interval[1]:.3f} %"
        )
        passed &= interval[0] <= 0
        verdict = judge(with_mean(made, experiment, frame)).verdict
        print(f"  {verdict}")
        passed &= verdict.startswith("Nothing found")
    if not asked.skip_study:
        with tempfile.TemporaryDirectory() as folder:
            said = null_study(Path(folder), seed=FIRST_SEED)
        print(f"\nthe report of a small study without a signal\n  {said}")
        passed &= said.startswith("**Nothing found:**")
    print(
        f"\n{'as wanted' if passed else 'NOT as wanted'}: a share of at least {WANTED:.0%}, nothing in noise"
    )
    return 0 if passed else 1


def draw(r2: float, seed: int) -> Simulation:
    """Return the simple panel: one feature is the signal, noise of constant volatility."""
    return simulate(num_assets=ASSETS, num_days=YEAR * YEARS, r2=r2, signal="linear", seed=seed)


def walk_forward(
    made: Simulation, experiment: Experiment, first_year: int, seed: int, num_seeds: int = 1
) -> pl.DataFrame:
    """Return forecasts beside outcomes, in target units, of all years from `first_year` on."""
    start = made.panel.dates[YEAR * first_year]
    walk = WalkForwardForecaster(Forecaster(experiment, seed=seed), refit_every=YEAR, num_seeds=num_seeds)
    return walk.fit(made.panel, start=start).evaluate_frame(made.panel)


def refit_shares(made: Simulation, frame: pl.DataFrame) -> pl.DataFrame:
    """Return `fold` (the number of the refit) and its `share` of the oracle."""
    dates = frame["date"].unique().sort()
    signal = made.signal.rename({"signal": "planted"})
    judged = frame.join(signal, on=["date", "asset"]).with_columns(
        oracle=pl.col("planted") / pl.col("unit_scale"),
        refit=pl.lit(dates).search_sorted(pl.col("date")) // YEAR,
    )
    parts = judged.partition_by("refit", as_dict=True, maintain_order=True).items()
    rows = [{"fold": number, "share": share_of_oracle(part)} for (number,), part in parts]
    return pl.DataFrame(rows).sort("fold")


def with_mean(made: Simulation, experiment: Experiment, frame: pl.DataFrame) -> pl.DataFrame:
    """Add the prevailing mean of all outcomes known, those before the first refit too."""
    labels = targets(made.panel, experiment.data.target, experiment.data.horizon)
    mean = labels.select("date", "asset", prevailing_mean=prevailing_mean(labels).fill_null(0.0))
    return frame.join(mean, on=["date", "asset"], how="left", maintain_order="left")


def null_study(folder: Path, *, seed: int) -> str:
    """Run a small study of a small panel without a signal; return what its report says was found."""
    panel = simulate(num_assets=10, num_days=YEAR * 4, r2=0.0, signal="linear", seed=seed).panel
    panel.frame.write_parquet(folder / "noise.parquet")
    study = Study(
        title="Does a scheme find something where nothing is?",
        base=Experiment(
            data=DataConfig(features=("a", "b"), context=4),
            model=ModelConfig(depth=1, width=16),
            training=TrainingConfig(steps=60, warmup_steps=3, evaluate_every=30, device="cpu"),
        ),
        factors={"residual": {name: {"model.residual": name} for name in ("pre_norm", "post_norm")}},
        folds=WalkForward(num_folds=4, test_days=YEAR // 2, validation_days=YEAR // 4, purge=1),
        tuning=Tuning(space={"training.learning_rate": (1e-3, 3e-3)}),
        seeds=(1,),
        primary=Contrast(compare=("residual", "post_norm"), against="pre_norm"),
        smallest_effect=0.001,
        presets={"quick": Preset()},
    )
    plan = make_plan(
        study, name="noise", docstring="Noise.", preset="quick", data=str(folder / "noise.parquet")
    )
    fits = folder / "fits"
    fits.mkdir()

    def fitted(cells: list) -> list:
        for cell in cells:
            run_cell(cell, plan.dataset.panel, tmp=folder / "tmp", fits=fits)
        return cells

    cells = fitted(plan.baseline_cells())
    for arm in plan.arms:
        tuning = fitted(plan.tuning_cells(arm))
        losses = {cell.key: loss_or_infinity(read_result(fits / cell.key)) for cell in tuning}
        cells += [*tuning, *fitted(plan.final_cells(arm, plan.choose(arm, losses)))]
    assemble(folder, cells, plan.spec())
    report = write_report(analyse(plan.spec(), folder), folder).with_suffix(".md")
    lines = report.read_text(encoding="utf-8").splitlines()
    return next((line for line in lines if "found" in line and line.startswith("**")), "")


if __name__ == "__main__":
    sys.exit(main())

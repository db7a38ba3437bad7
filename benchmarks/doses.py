"""Say at which dose a relief moves what it aims at, and nothing else.

    python benchmarks/doses.py [--reliefs NAME,...] [--scheme post_norm] [--depth 16] [--rate 7e-4]
                               [--steps 400] [--batch 32] [--width 32] [--context 24] [--r2 0.2]
                               [--panels 2] [--largest] [--optimizer adamw] [--keep FILE]

A relief carries a verdict only if its manipulation check passes: in the deep network, over training, a
mediator it aims at moves by at least 50 % and those of every other cause by less than 10 %. This trains
networks on the panels of `studies/collapse_or_vanishing.py` (memory chain, 64 assets), without and with each
relief at each of its doses (`fints.interventions.RELIEFS`, and their placebos at the largest), and prints how
far each mediator moved, with the share of the oracle. The first row is what chance moves: the plain
networks of the first half of the panels against those of the second. A fit is kept in FILE as soon as it
is done, and not done again. Panels 50 to 89 are for this: no confirmatory study judges them.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import polars as pl
from fixed_steps import fixed_steps

from fints.config import Experiment, override
from fints.diagnostics import MEDIATORS
from fints.interventions import RELIEFS, changes
from fints.study.causes import check_of, mean_mediators
from fints.study.panel_cells import PanelFit
from fints.study.panel_fits import train_on_panel
from fints.study.panel_store import Fits

FIRST_PANEL = 50
DAYS = {"train": 1200, "validation": 100, "test": 100}


def main() -> int:
    """Fit what is not yet kept, print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--reliefs", type=lambda text: text.split(","), default=list(RELIEFS))
    parser.add_argument("--scheme", default="post_norm")
    parser.add_argument("--optimizer", default="adamw")
    for name, default in (("depth", 16), ("steps", 400), ("batch", 32), ("width", 32), ("context", 24)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--rate", type=float, default=7e-4)
    parser.add_argument("--r2", type=float, default=0.2, help="of the oracle")
    parser.add_argument("--panels", type=int, default=2, help="how many; one alone tells nothing of chance")
    parser.add_argument("--largest", action="store_true", help="the largest dose of each alone, no placebos")
    parser.add_argument("--keep", type=Path, help="a file of fits, one JSON line each")
    asked = parser.parse_args()
    if asked.panels < 1:
        parser.error(f"--panels must be at least 1; got {asked.panels}.")
    unknown = sorted(set(asked.reliefs) - set(RELIEFS))
    if unknown:
        parser.error(f"unknown relief {unknown[0]}; choose of {', '.join(RELIEFS)}.")

    base = fixed_steps(
        asked.steps,
        {
            "data.context": asked.context,
            "model.residual": asked.scheme,
            "model.depth": asked.depth,
            "model.width": asked.width,
            "training.optimizer": asked.optimizer,
            "training.learning_rate": asked.rate,
            "training.batch_size": asked.batch,
            "training.warmup_steps": asked.steps // 16,
        },
    )
    arms: dict[tuple[str, float], tuple[Experiment, str]] = {("none", 0.0): (base, "")}
    for name in asked.reliefs:
        relief = RELIEFS[name]
        for dose in relief.doses[-1:] if asked.largest else relief.doses:
            arms[name, dose] = (override(base, changes(name, dose)), relief.cause)
        if relief.placebo is not None and not asked.largest:
            dose = max(relief.doses)
            arms[relief.placebo, dose] = (override(base, changes(relief.placebo, dose)), relief.cause)
    panels = list(range(FIRST_PANEL, FIRST_PANEL + asked.panels))
    fits = {arm: _fits(arm, experiment, panels, asked) for arm, (experiment, _) in arms.items()}

    names = [name for own in MEDIATORS.values() for name in own]
    print(
        f"{asked.scheme}, depth {asked.depth}, {asked.optimizer} at {asked.rate:g}, {asked.steps} steps, R2 "
        f"{asked.r2:.1%}, {asked.panels} panels: how far each mediator moved"
    )
    print(
        f"{'relief':28}{'dose':>6}" + "".join(f"{name[:14]:>15}" for name in names) + f"{'share':>7}  check"
    )
    plain = fits["none", 0.0]
    before = mean_mediators(plain, plain.table, panels)
    half = len(panels) // 2
    if half:
        halves = [mean_mediators(plain, plain.table, part) for part in (panels[:half], panels[half:])]
        _row("chance alone", None, check_of(*halves, "noise").moves, names, plain, "")
    else:
        _row("none", None, {}, names, plain, "")
    for (name, dose), (_, cause) in arms.items():
        if name == "none":
            continue
        own = fits[name, dose]
        check = check_of(before, mean_mediators(own, own.table, panels), cause)
        _row(name, dose, check.moves, names, own, "passed" if check.passed else check.reason)
    return 0


def _row(
    name: str, dose: float | None, moves: dict[str, float], names: list[str], fits: Fits, said: str
) -> None:
    told = "".join(f"{moves[one]:>15.0%}" if one in moves else f"{'-':>15}" for one in names)
    shares = fits.table["share_of_oracle"].to_list()
    share = sum(shares) / len(shares)
    print(f"{name:28}{'' if dose is None else f'{dose:g}':>6}{told}{share:>7.2f}  {said}")


def _fits(
    arm: tuple[str, float], experiment: Experiment, panels: list[int], asked: argparse.Namespace
) -> Fits:
    """Return the fits of one arm; what is kept already is not fitted again."""
    table: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []
    for panel in panels:
        key = json.dumps([experiment.to_dict(), panel, asked.r2], sort_keys=True)
        found = _kept(asked.keep, key)
        if found is None:
            cell = PanelFit(
                key=key,
                design=key,
                arm=f"{arm[0]} {arm[1]:g}",
                role="final",
                panel=panel,
                seed=panel,
                point={},
                experiment=experiment.to_dict(),
                simulation={"num_assets": 64, "signal": "memory_chain", "depth_demand": 2, "r2": asked.r2},
                days=DAYS,
                watched=True,
            )
            result, watched = train_on_panel(cell)
            found = {"key": key, "result": result, "rows": watched}
            told = f"{cell.arm}, panel {panel}: share {result['share_of_oracle']:.3f}"
            print(f"{told}, {result['timing']['training_seconds']:.0f} s", file=sys.stderr, flush=True)
            if asked.keep is not None:
                with asked.keep.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(found) + "\n")
        result = {name: value for name, value in found["result"].items() if name != "timing"}
        table.append({"key": key, "panel": panel, **result})
        rows += [{"key": key, **row} for row in found["rows"]]
    return Fits(
        table=pl.DataFrame(table, infer_schema_length=None),
        rows=pl.DataFrame(rows, infer_schema_length=None),
        missing=0,
    )


def _kept(keep: Path | None, key: str) -> dict[str, Any] | None:
    if keep is None or not keep.is_file():
        return None
    for line in keep.read_text(encoding="utf-8").splitlines():
        found: dict[str, Any] = json.loads(line)
        if found["key"] == key:
            return found
    return None


if __name__ == "__main__":
    sys.exit(main())

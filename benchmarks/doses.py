"""Say at which dose a relief moves what it aims at, and nothing else.

    python benchmarks/doses.py [--reliefs NAME,...] [--scheme post_norm] [--depth 16] [--reference 4]
                               [--rate 7e-4] [--steps 800] [--batch 32] [--width 32] [--context 24] [--r2 0.2]
                               [--panels 3] [--doses D,...] [--optimizer adamw] [--warm-up-only] [--keep FILE]

A relief carries a verdict only if its manipulation check passes: in the deep network, at a moment before its
penalty shows, a mediator it aims at moves by at least 50 %, the way that relieves, and in the reference those
of every other cause by less than 10 % (`fints.diagnostics.manipulation_check`). This trains networks on the
panels of `studies/collapse_or_vanishing.py` (memory chain, 64 assets), without and with each relief at each
of its doses (`fints.interventions.RELIEFS`, and their placebos at the largest), and prints how far each
mediator moved, as the typical size over sublayers (signed mean), in the reference over moments too, with the
share of the oracle.
With `--warm-up-only` the deep network is trained no further than its warm-up and asked of that, which costs
a tenth and tells nothing of its share or of noise. A fit is kept in FILE as soon as it is done, and not
done again. Panels 50 to 89 are for this: no confirmatory study judges them.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import polars as pl
from fixed_steps import fixed_steps, moments

from fints.config import Experiment, override
from fints.diagnostics import MEDIATORS, Move, manipulation_check
from fints.interventions import RELIEFS, changes
from fints.study.mediator_moves import mediator_moves, strongest_moves
from fints.study.panel_cells import PanelFit
from fints.study.panel_fits import train_on_panels
from fints.study.panel_store import Fits
from fints.study.presence import before_the_penalty

FIRST_PANEL = 50
# A gap between training and test below this is compared with this: a tenth of what an oracle earns.
LEAST_GAP = 0.02
DAYS = {"train": 1200, "validation": 100, "test": 100}


def main() -> int:
    """Fit what is not yet kept, print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--reliefs", type=lambda text: text.split(","), default=list(RELIEFS))
    parser.add_argument("--scheme", default="post_norm")
    parser.add_argument("--optimizer", default="adamw")
    sizes = {"depth": 16, "reference": 4, "steps": 800, "batch": 32, "width": 32, "context": 24}
    for name, default in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--rate", type=float, default=7e-4)
    parser.add_argument("--r2", type=float, default=0.2, help="of the oracle")
    parser.add_argument("--panels", type=int, default=3, help="how many; one alone tells nothing of chance")
    parser.add_argument(
        "--doses", type=lambda text: [float(one) for one in text.split(",")], help="instead of the table's"
    )
    parser.add_argument(
        "--warm-up-only", action="store_true", help="of the deep network: all that most reliefs are asked"
    )
    parser.add_argument("--keep", type=Path, help="a file of fits, one JSON line each")
    asked = parser.parse_args()
    if asked.panels < 1:
        parser.error(f"--panels must be at least 1; got {asked.panels}.")
    unknown = sorted(set(asked.reliefs) - set(RELIEFS))
    if unknown:
        parser.error(f"unknown relief {unknown[0]}; choose of {', '.join(RELIEFS)}.")

    doses = {name: list(asked.doses or RELIEFS[name].doses) for name in asked.reliefs}
    wanted = [(name, dose, RELIEFS[name].cause) for name in asked.reliefs for dose in doses[name]]
    wanted += [
        (placebo, max(doses[name]), RELIEFS[name].cause)
        for name in asked.reliefs
        if (placebo := RELIEFS[name].placebo) is not None
    ]
    panels = list(range(FIRST_PANEL, FIRST_PANEL + asked.panels))
    plain = {depth: _fits("none", _base(asked, depth), panels, asked) for depth in _depths(asked)}
    early = _early(plain[asked.depth], plain[asked.reference], panels, asked)
    names = [name for own in MEDIATORS.values() for name in own]
    print(
        f"{asked.scheme}, {asked.optimizer} at {asked.rate:g}, {asked.steps} steps, R2 {asked.r2:.1%}, "
        f"{asked.panels} panels: how far each mediator moved, and the signed mean"
    )
    head = "".join(f"{name.replace('gradient', 'grad')[:14]:>15}" for name in names)
    print(f"{'relief':28}{'dose':>6}{'depth':>6}{head}{'share':>7}  check")
    for depth, fits in plain.items():
        _row("none", None, depth, {}, names, fits, "")
    for name, dose, cause in wanted:
        own = {
            depth: _fits(
                f"{name} {dose:g}", override(_base(asked, depth), changes(name, dose)), panels, asked
            )
            for depth in plain
        }
        until = {asked.depth: early, asked.reference: None}
        moves = {depth: _moves(plain[depth], own[depth], panels, until[depth]) for depth in plain}
        check = manipulation_check(moves[asked.depth], moves[asked.reference], cause=cause)
        said = {asked.depth: "passed" if check.passed else check.reason}
        for depth, fits in own.items():
            _row(name, dose, depth, moves[depth], names, fits, said.get(depth, ""))
    return 0


def _early(deep: Fits, reference: Fits, panels: list[int], asked: argparse.Namespace) -> int:
    """Return the last moment before the penalty shows; of the warm-up where no more was trained."""
    both = Fits(table=deep.table, rows=pl.concat([deep.rows, reference.rows]), missing=0)
    shown = None if asked.warm_up_only else before_the_penalty(both, deep.table, reference.table, panels)
    return shown or asked.steps // 16


def _depths(asked: argparse.Namespace) -> tuple[int, int]:
    return asked.depth, asked.reference


def _base(asked: argparse.Namespace, depth: int) -> Experiment:
    warm_up = asked.steps // 16
    # The rate rises as it would in the whole fit, whose later fall is not seen.
    short = {"training.steps": warm_up + 1, "training.evaluate_every": warm_up + 1}
    early = {**short, "training.profile_at": [step for step in moments(asked.steps) if step <= warm_up]}
    return fixed_steps(
        asked.steps,
        {
            "data.context": asked.context,
            "model.residual": asked.scheme,
            "model.depth": depth,
            "model.width": asked.width,
            "training.optimizer": asked.optimizer,
            "training.learning_rate": asked.rate,
            "training.batch_size": asked.batch,
            "training.warmup_steps": warm_up,
            **(early if asked.warm_up_only and depth == asked.depth else {}),
        },
    )


def _moves(before: Fits, after: Fits, panels: list[int], until: int | None) -> dict[str, Move]:
    both = Fits(table=before.table, rows=pl.concat([before.rows, after.rows]), missing=0)
    tables = (before.table, after.table)
    if until is None:
        return mediator_moves(both, *tables, panels, least=LEAST_GAP)
    return strongest_moves(both, *tables, panels, least=LEAST_GAP, until=until)


def _row(
    name: str,
    dose: float | None,
    depth: int,
    moves: dict[str, Move],
    names: list[str],
    fits: Fits,
    said: str,
) -> None:
    told = "".join(
        f"{f'{moves[one].size:.0%} ({moves[one].mean:+.0%})' if one in moves else '-':>15}" for one in names
    )
    shares = fits.table["share_of_oracle"].to_list()
    share = sum(shares) / len(shares)
    shown = "" if dose is None else f"{dose:g}"
    print(f"{name:28}{shown:>6}{depth:>6}{told}{share:>7.2f}  {said}", flush=True)


def _fits(arm: str, experiment: Experiment, panels: list[int], asked: argparse.Namespace) -> Fits:
    """Return the fits of one arm; what is kept already is not fitted again."""
    cells = [_cell(f"depth {experiment.model.depth}, {arm}", experiment, panel, asked.r2) for panel in panels]
    found = _kept(asked.keep, {cell.key for cell in cells})
    missing = [cell for cell in cells if cell.key not in found]
    for cell, (result, watched) in zip(missing, train_on_panels(missing), strict=True):
        seconds = result.pop("timing")["training_seconds"]
        told = f"{cell.arm}, panel {cell.panel}: share {result['share_of_oracle']:.3f}"
        print(f"{told}, {seconds:.0f} s", file=sys.stderr, flush=True)
        found[cell.key] = {"key": cell.key, "result": result, "rows": watched}
        if asked.keep is not None:
            with asked.keep.open("a", encoding="utf-8") as file:
                file.write(json.dumps(found[cell.key]) + "\n")
    table = [{"key": cell.key, "panel": cell.panel, **found[cell.key]["result"]} for cell in cells]
    rows = [{"key": cell.key, **row} for cell in cells for row in found[cell.key]["rows"]]
    return Fits(
        table=pl.DataFrame(table, infer_schema_length=None),
        rows=pl.DataFrame(rows, infer_schema_length=None),
        missing=0,
    )


def _cell(arm: str, experiment: Experiment, panel: int, r2: float) -> PanelFit:
    key = json.dumps([experiment.to_dict(), panel, r2], sort_keys=True)
    return PanelFit(
        key=key,
        design=key,
        arm=arm,
        role="final",
        panel=panel,
        seed=panel,
        point={},
        experiment=experiment.to_dict(),
        simulation={"num_assets": 64, "signal": "memory_chain", "depth_demand": 2, "r2": r2},
        days=DAYS,
        watched=True,
    )


def _kept(keep: Path | None, keys: set[str]) -> dict[str, dict[str, Any]]:
    if keep is None or not keep.is_file():
        return {}
    lines = map(json.loads, keep.read_text(encoding="utf-8").splitlines())
    return {line["key"]: line for line in lines if line["key"] in keys}


if __name__ == "__main__":
    sys.exit(main())

"""Print what the verdict rule says of networks that were made ill on purpose.

    python benchmarks/confusion.py [--diseases NAME,...] [--panels 8] [--draws 200] [--steps 200]
                                   [--depth 4] [--width 16] [--unchecked] [--seen] [--keep FILE]

Two mechanisms a disease, so that no cure is merely the inverse of what made ill (`fints.interventions`):

    representation   tokens pulled towards their mean; branch outputs of low rank
    gradient         gradients shrunk at each sublayer; saturated branches (both under SGD)
    noise            few windows; noisy targets
    amplification    sharp inputs; updates that rise with depth

and a healthy network, which differs from its reference by its seed alone. The penalty of a panel is the
loss of the ill network less that of the healthy one of the same depth, seed and panel, or of the healthy
one under the same relief if that is the better. The healthy network is what a relief may touch nothing else
in. The rule is that of `studies/collapse_or_vanishing.py` (`fints.evaluation.causes`), its manipulation
checks included; `--unchecked` leaves them out, and `--seen` leaves the reliefs out and says what is seen
alone. With more than 8 panels the rule is asked `--draws` times of 8 panels drawn without replacement, and
the table counts its answers; the checks are of all panels, as is the moment at which the penalty shows. A
fit is kept in FILE as soon as it is done, and not done again: so the table can be made in pieces. Panels 60
to 89 are for this: no study judges them.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from fixed_steps import fixed_steps

from fints.config import Experiment, override
from fints.diagnostics import Move, manipulation_check
from fints.evaluation.causes import LEAST_CLUSTERS, judge_causes
from fints.interventions import DOSES, changes
from fints.study.mediator_moves import mediator_moves, strongest_moves
from fints.study.panel_cells import PanelFit
from fints.study.panel_fits import train_on_panels
from fints.study.panel_store import Fits
from fints.study.presence import Presence, before_the_penalty, presence, suspects

FIRST_PANEL = 60
SMALLEST = 0.02
DAYS = {"train": 300, "validation": 60, "test": 100}
PANEL = {"num_assets": 32, "signal": "memory_chain", "depth_demand": 1, "r2": 0.5}


class Disease(NamedTuple):
    """How a network is made ill, and what the healthy one beside it has too."""

    cause: str
    dose: float
    optimizer: str = "adamw"
    both: Mapping[str, float] = MappingProxyType({})


# Doses that cost a network of this size some of the oracle. Targets can only be learnt by heart where windows
# come again. Branches saturated more strongly say so little that ranks fall too, and two suspects are there.
DISEASES = {
    "healthy": Disease("", 0.0),
    "token_pull": Disease("representation", 0.5),
    "low_rank_outputs": Disease("representation", 1.0),
    "shrunk_gradients": Disease("gradient", 0.6, "sgd"),
    "saturated_branches": Disease("gradient", 0.35, "sgd"),
    "few_windows": Disease("noise", 0.97),
    "noisy_targets": Disease("noise", 1.5, both={"few_windows": 0.9}),
    "sharp_inputs": Disease("amplification", 4.0),
    "rising_updates": Disease("amplification", 40.0),
}
RATES = {"adamw": 4e-3, "sgd": 3e-2}
CAUSES = {
    "representation": "hinged_decorrelation",
    "gradient": "gradient_equaliser",
    "noise": "best_weights",
    "amplification": "output_change_step",
}
# What 99 of 100 steps of a healthy network of this size stay below, with optimiser and rate: `python
# benchmarks/thresholds.py --width 16 --context 12 --steps 200 --assets 32 --demand 1 --r2 0.5 --days 300
# --schemes post_norm`. No update can be shrunk by depth where ill and healthy networks have one depth.
BUDGETS = {"adamw": 0.1, "sgd": 0.16}
# Looks at the validation loss in a fit.
LOOKS = 8
PLACEBOS = {"representation": "hinged_decorrelation_placebo", "gradient": "gradient_equaliser_placebo"}


def main() -> int:
    """Fit what is not yet kept, print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--diseases", type=lambda text: text.split(","), default=list(DISEASES))
    parser.add_argument("--panels", type=int, default=LEAST_CLUSTERS, help="how many, from 8 to 30")
    parser.add_argument("--draws", type=int, default=200)
    for name, default in (("steps", 200), ("depth", 4), ("width", 16)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--unchecked", action="store_true", help="leave the manipulation checks out")
    parser.add_argument("--seen", action="store_true", help="without any relief")
    parser.add_argument("--keep", type=Path, help="a file of fits, one JSON line each")
    asked = parser.parse_args()
    unknown = sorted(set(asked.diseases) - set(DISEASES))
    if unknown:
        parser.error(f"unknown disease {unknown[0]}; choose of {', '.join(DISEASES)}.")
    if not LEAST_CLUSTERS <= asked.panels <= 30:
        parser.error(f"--panels must be from {LEAST_CLUSTERS} to 30; got {asked.panels}.")
    panels = list(range(FIRST_PANEL, FIRST_PANEL + asked.panels))
    kept = _read(asked.keep)

    causes = {} if asked.seen else CAUSES
    placebos = {} if asked.seen else PLACEBOS
    levels = ("none", *causes.values(), *placebos.values())
    print(f"{'planted':20}{'cause':16}{'penalty':>9}  {'checks passed':34}{'present':34}verdicts")
    right = 0
    for name in asked.diseases:
        cause, dose, optimizer, both_have = DISEASES[name]
        ill, well = {}, {}
        for level in levels:
            base = _base(asked, optimizer, level)
            for other, other_dose in both_have.items():
                base = override(base, _planted(base, other, other_dose))
            planted = base if name == "healthy" else override(base, _planted(base, name, dose))
            well[level] = _fits(base, panels, kept, asked.keep, other_seed=False)
            ill[level] = _fits(planted, panels, kept, asked.keep, other_seed=name == "healthy")
        both = _together(ill["none"], well["none"])
        plain = (ill["none"].table, well["none"].table)
        early = before_the_penalty(both, *plain, panels) or asked.steps // 10
        checked = {
            one: manipulation_check(
                _moves(ill["none"], ill[level], panels, early),
                _moves(well["none"], well[level], panels, None),
                cause=one,
            )
            for one, level in causes.items()
        }
        penalty = {
            level: _excess(ill[level])
            - min((_excess(well[one]) for one in ("none", level)), key=lambda values: float(values.mean()))
            for level in levels
        }
        there = partial(
            _there,
            fits=both,
            tables=plain,
            panels=panels,
            until=early,
            penalty=penalty["none"],
            generalisation=penalty["none"] - _less(ill, well, "train_excess"),
            optimizer=optimizer,
        )
        passed = {one: asked.unchecked or check.passed for one, check in checked.items()}
        answers = Counter(
            _answer(
                {level: values[chosen] for level, values in penalty.items()}, passed, there(chosen), placebos
            )
            for chosen in _draws(asked.panels, asked.draws)
        )
        total = sum(answers.values())
        named = sum(answers[answer] for answer in (cause or "no_penalty", f"points to {cause}"))
        right += named / total > 0.5
        told = ", ".join(f"{answer} {count / total:.0%}" for answer, count in answers.most_common())
        names = ", ".join(one for one, check in checked.items() if check.passed) or "none"
        whole = there(np.arange(asked.panels))
        seen = ", ".join(one for one, state in whole.items() if state == "present") or "none"
        print(f"{name:20}{cause:16}{penalty['none'].mean():>9.3f}  {names:34}{seen:34}{told}", flush=True)
    print(f"\ncalled by their own name in most draws: {right} of {len(asked.diseases)}")
    return 0


def _there(
    chosen: np.ndarray,
    *,
    fits: Fits,
    tables: tuple[pl.DataFrame, pl.DataFrame],
    panels: Sequence[int],
    until: int,
    penalty: np.ndarray,
    generalisation: np.ndarray,
    optimizer: str,
) -> dict[str, Presence]:
    """Return which suspects are there on the chosen panels."""
    return suspects(
        presence(fits, *tables, [panels[place] for place in chosen], until=until),
        penalty=penalty[chosen].tolist(),
        generalisation=generalisation[chosen].tolist(),
        optimizer=optimizer,
    )


def _base(asked: argparse.Namespace, optimizer: str, level: str) -> Experiment:
    base = fixed_steps(
        asked.steps,
        {
            "data.context": 12,
            "model.depth": asked.depth,
            "model.width": asked.width,
            "training.optimizer": optimizer,
            "training.learning_rate": RATES[optimizer],
            "training.batch_size": 32,
            "training.warmup_steps": asked.steps // 10,
        },
    )
    if level == "none":
        return base
    dose = asked.steps // LOOKS if level == "best_weights" else DOSES[level]
    options = {"budget": BUDGETS[optimizer]} if level == "output_change_step" else None
    return override(base, changes(level, dose, options))


def _planted(base: Experiment, name: str, dose: float) -> dict[str, Any]:
    # Beside the relief that is there already.
    return {"training.interventions": {**base.training.interventions, name: {"dose": dose}}}


def _draws(number: int, draws: int) -> list[np.ndarray]:
    if number == LEAST_CLUSTERS:
        return [np.arange(number)]
    generator = np.random.default_rng(0)
    return [generator.choice(number, LEAST_CLUSTERS, replace=False) for _ in range(draws)]


def _answer(
    penalty: dict[str, np.ndarray],
    passed: dict[str, bool],
    there: dict[str, Presence],
    placebos: dict[str, str],
) -> str:
    verdict = judge_causes(
        penalty["none"].tolist(),
        {cause: penalty[CAUSES[cause]].tolist() for cause in passed},
        placebos={cause: penalty[level].tolist() for cause, level in placebos.items()},
        checked=passed,
        present=there,
        smallest=SMALLEST,
    )
    return verdict.cause or (f"points to {verdict.pointed}" if verdict.pointed else verdict.decision)


def _moves(before: Fits, after: Fits, panels: Sequence[int], until: int | None) -> dict[str, Move]:
    both = _together(before, after)
    tables = (before.table, after.table)
    if until is None:
        return mediator_moves(both, *tables, panels, least=SMALLEST)
    return strongest_moves(both, *tables, panels, least=SMALLEST, until=until)


def _together(one: Fits, other: Fits) -> Fits:
    return Fits(table=one.table, rows=pl.concat([one.rows, other.rows]).unique(), missing=0)


def _less(ill: dict[str, Fits], well: dict[str, Fits], name: str) -> np.ndarray:
    first, second = (fits["none"].table.sort("panel")[name].to_numpy() for fits in (ill, well))
    return first - second


def _excess(fits: Fits) -> np.ndarray:
    return fits.table.sort("panel")["test_excess"].to_numpy()


def _fits(
    experiment: Experiment,
    panels: Sequence[int],
    kept: dict[str, dict[str, Any]],
    keep: Path | None,
    *,
    other_seed: bool,
) -> Fits:
    """Return the fits of one network on every panel; what is kept already is not fitted again."""
    cells = [_cell(experiment, panel, panel + 1000 * other_seed) for panel in panels]
    missing = [cell for cell in cells if cell.key not in kept]
    for cell, (result, watched) in zip(missing, train_on_panels(missing), strict=True):
        result.pop("timing")
        kept[cell.key] = {"key": cell.key, "result": result, "rows": watched}
        if keep is not None:
            with keep.open("a", encoding="utf-8") as file:
                file.write(json.dumps(kept[cell.key]) + "\n")
    table = [{"key": cell.key, "panel": cell.panel, **kept[cell.key]["result"]} for cell in cells]
    rows = [{"key": cell.key, **row} for cell in cells for row in kept[cell.key]["rows"]]
    return Fits(
        table=pl.DataFrame(table, infer_schema_length=None),
        rows=pl.DataFrame(rows, infer_schema_length=None),
        missing=0,
    )


def _cell(experiment: Experiment, panel: int, seed: int) -> PanelFit:
    key = json.dumps([experiment.to_dict(), panel, seed], sort_keys=True)
    return PanelFit(
        key=key,
        design=key,
        arm="",
        role="final",
        panel=panel,
        seed=seed,
        point={},
        experiment=experiment.to_dict(),
        simulation=PANEL,
        days=DAYS,
        watched=True,
    )


def _read(keep: Path | None) -> dict[str, dict[str, Any]]:
    if keep is None or not keep.is_file():
        return {}
    lines = [json.loads(line) for line in keep.read_text(encoding="utf-8").splitlines()]
    return {line["key"]: line for line in lines}


if __name__ == "__main__":
    sys.exit(main())

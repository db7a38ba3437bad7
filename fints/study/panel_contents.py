"""What the runs of a panel study hold in MLflow; a `fints.study.run_contents.Contents`."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fints.config import fingerprint
from fints.study.claims import CLAIM_WORDS
from fints.study.notes import arm_lines, num_diverged, table_lines
from fints.study.panel_cells import PanelFit
from fints.study.run_contents import Data, point_text
from fints.study.store import fit_bytes, fit_json
from fints.words import counted

__all__ = ["PanelFits", "last_by_sublayer"]

# Of a fit's result, what is no number of the test.
NUMBERS = {
    "validation_loss": "validation/loss",
    "steps": "train/steps",
    "parameters": "train/parameters",
    "train_excess": "train/excess",
    "final_training_loss": "train/final_loss",
    "spikes_per_thousand": "train/spikes_per_thousand",
    "signal_size": "test/signal_size",
    "test_excess": "test/excess",
    "test_excess_noisy": "test/excess_noisy",
}
IDENTITY = ("key", "arm", "role", "panel", "seed", "point", "sources", "outcome", "reason")
# What the table of a study's fits has beside their results.
OF_ITS_MAKING = ("design", "started", "seconds")
# The section of MLflow's page that a measure stands in, by a part of its name; others stand among "inside".
SECTIONS = {"gradient": "gradient", "cosine": "similarity", "rank": "similarity", "update": "similarity"}
SHOWN = ("test_excess", "share_of_oracle", "validation_loss")


class PanelFits:
    """Runs of a study on simulated panels; see `fints.study.run_contents.Contents`."""

    def __init__(self, spec: Mapping[str, Any]) -> None:
        self._spec = spec

    def note(self) -> str:
        """Return the words beside all runs."""
        spec = self._spec
        days = spec["days"]
        arms = "\n".join(f"| {arm['name']} |" for arm in spec["arms"])
        words = [
            f"Preset {spec['preset']} **{CLAIM_WORDS[spec['claim']]}**.",
            f"Each fit has a simulated panel of its own, named by its seed: {days['train']} days to train,",
            f"{days['validation']} to validate, {days['test']} to test. `test/excess` is the mean square",
            "distance of the forecast to the planted signal, in units of the training targets' mean square.",
        ]
        runs = [
            "Each arm is a parent run; its children are tuning trials (validation only) and final fits",
            f"({counted(len(spec['panels']), 'panel')}). Select the arms and press *Compare*, or group",
            "charts by the tag `fints.arm`. In metrics ending in `by_sublayer` the step is the sublayer.",
            "The run *answer* has the finding, the figures and the report.",
        ]
        parts = [f"# {spec['title']}", " ".join(words), " ".join(runs), f"| arm |\n|---|\n{arms}", "---"]
        return "\n\n".join([*parts, f"{spec['docstring'].strip()}\n"])

    def data(self) -> Data:
        """Return what the study as a whole is given."""
        told = {"simulation": self._spec["simulation"], "days": self._spec["days"]}
        return Data(name="simulated", digest=fingerprint(told), source=told)

    def data_of(self, cell: PanelFit) -> Data:
        """Return what a fit is given."""
        told = {"simulation": {**cell.simulation, "seed": cell.panel}, "days": cell.days}
        return Data(name=f"simulated-{cell.panel}", digest=fingerprint(told), source=told)

    def place(self, cell: PanelFit) -> dict[str, str]:
        """Return by name where a fit of an arm stands."""
        return {"panel": str(cell.panel), "seed": str(cell.seed)}

    def name(self, cell: PanelFit) -> str:
        """Return what a fit's run is called."""
        if cell.role == "tuning":
            return f"tuning {point_text(cell.point)} panel {cell.panel}"
        role = "final" if cell.role == "final" else f"{cell.role} {point_text(cell.point)}"
        return f"{role} panel {cell.panel}" + (f" seed {cell.seed}" if cell.seed != cell.panel else "")

    def metrics(self, folder: Path, result: Mapping[str, Any]) -> Iterator[tuple[str, float, int]]:
        """Yield (name, value, step) of one fit, finite values only."""
        numbers = {_name(column): value for column, value in result.items() if column not in IDENTITY}
        numbers["train/seconds"] = fit_json(folder, "timing.json")["seconds"]
        for name, value in numbers.items():
            if value is not None and math.isfinite(value):
                yield name, float(value), 0
        written = fit_bytes(folder, "rows.json")
        rows = [] if written is None else json.loads(written)
        for row in rows:
            if row["layer"] is None and row["value"] is not None:
                yield _section(row["measure"]), float(row["value"]), int(row["step"] or 0)
        for row in last_by_sublayer({"key": "", **row} for row in rows):
            yield f"{_section(row['measure'])}_by_sublayer", float(row["value"]), int(row["layer"])

    def arm_note(self, arm: str, rows: Sequence[Mapping[str, Any]]) -> tuple[str, dict[str, float]]:
        """Return an arm's words, and numbers of all its fits."""
        lines = arm_lines(arm, rows, place="panel")
        if not rows:
            return "\n".join(lines), {}
        final = [row for row in rows if row["role"] == "final"]
        best: dict[str, float] = {"train/diverged_fits": float(num_diverged(rows))}
        if final:
            if final[0]["point"]:
                lines += [f"Chosen: {point_text(final[0]['point'])}", ""]
            shown = [name for name in SHOWN if final[0].get(name) is not None]
            lines += table_lines(
                "Final fits",
                ["panel", "seed", *(name.replace("_", " ") for name in shown), "seconds", "outcome"],
                [
                    [
                        row["panel"],
                        row["seed"],
                        *(_rounded(row[name]) for name in shown),
                        f"{row['seconds']:.0f}",
                        row["outcome"],
                    ]
                    for row in final
                ],
            )
            for column in (name for name in final[0] if name not in (*IDENTITY, *OF_ITS_MAKING)):
                values = [row[column] for row in final if row.get(column) is not None]
                if values:
                    best[_name(column)] = statistics.fmean(values)
            # Sections stand in the order of their names: this one first.
            for name in ("excess", "share_of_oracle"):
                if f"test/{name}" in best:
                    best[f"best/{name}"] = best[f"test/{name}"]
            best["train/seconds"] = statistics.fmean(row["seconds"] for row in final)
        return "\n".join(lines), {name: value for name, value in best.items() if math.isfinite(value)}

    def profile(self, means: Mapping[str, Sequence[tuple[int, float]]]) -> Iterator[tuple[str, float, int]]:
        """Yield (name, value, sublayer) of an arm's means by sublayer."""
        for measure, points in means.items():
            yield from ((f"{_section(measure)}_by_sublayer", value, layer) for layer, value in points)


def last_by_sublayer(rows: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield of each fit (`key`) and measure by sublayer what was watched last, without what has no value."""
    kept = [row for row in rows if row["layer"] is not None and row["value"] is not None]
    last: dict[tuple[str, str], int] = {}
    for row in kept:
        name = row["key"], row["measure"]
        last[name] = max(last.get(name, 0), row["step"] or 0)
    yield from (row for row in kept if (row["step"] or 0) == last[row["key"], row["measure"]])


def _name(column: str) -> str:
    return NUMBERS.get(column, f"test/{column}")


def _section(measure: str) -> str:
    if measure.startswith("validation_"):
        return f"validation/{measure.removeprefix('validation_')}"
    section = next((section for part, section in SECTIONS.items() if part in measure), "inside")
    return f"{section}/{measure.removeprefix('gradient_')}"


def _rounded(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"

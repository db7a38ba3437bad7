"""The words on an MLflow page: a study's note, and an arm's table of trials and final fits."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from fints.study.cells import FAILED
from fints.study.claims import CLAIM_WORDS
from fints.words import counted

__all__ = ["arm_lines", "arm_note", "experiment_note", "num_diverged", "table_lines"]

# Shown in the table of an arm, as far as the metrics of a fit hold them.
SHOWN = ("r2_zero", "r2_mean", "ic", "rank_ic")


def experiment_note(spec: Mapping[str, Any]) -> str:
    """Return the question, the size and how to read the runs."""
    arms = "\n".join(f"| {arm['name']} | {_levels(arm)} |" for arm in spec["arms"])
    return (
        f"# {spec['title']}\n\nPreset {spec['preset']} **{CLAIM_WORDS[spec['claim']]}**. "
        f"Outcome: `test/{spec['outcome']}`; smallest effect of interest "
        f"{spec['smallest_effect']:g}. Data: {spec['dataset']['name']} (checksum {spec['checksum']}), "
        f"{spec['span'][0]} to {spec['span'][1]}, {counted(spec['num_assets'], 'asset')}.\n\n"
        f"Each arm is a parent run; its children are tuning trials (validation only) and final fits "
        f"(folds x seeds). Select the arms and press *Compare*, or group charts by the tag `fints.arm`. "
        f"In metrics ending in `by_sublayer` the step is the sublayer.\n\n"
        f"| arm | levels |\n|---|---|\n{arms}\n\n---\n\n{spec['docstring'].strip()}\n"
    )


def arm_note(
    spec: Mapping[str, Any], arm: str, rows: Sequence[Mapping[str, Any]]
) -> tuple[str, dict[str, float]]:
    """Return an arm's note in Markdown and its ``best/...`` and ``test/...`` numbers.

    Parameters
    ----------
    spec : mapping
        study.json.
    arm : str
        Name of the arm.
    rows : sequence of dict
        result.json of its fits, each with "metrics" (test metrics) and "seconds" beside.
    """
    tuning = [row for row in rows if row["role"] == "tuning"]
    final = [row for row in rows if row["role"] == "final"]
    best: dict[str, float] = {}
    lines = arm_lines(arm, rows, place="fold")
    if not rows:
        return "\n".join(lines), best
    if final:
        shown = [name for name in SHOWN if any(name in row["metrics"] for row in final)]
        lines += [
            "Chosen: "
            + ", ".join(f"{_short(name)} {_number(value)}" for name, value in final[0]["point"].items()),
            "",
        ]
        lines += table_lines(
            "Final fits (test)",
            ["fold", "seed", *shown, "validation loss", "seconds", "outcome"],
            [
                [
                    row["fold"],
                    row["seed"],
                    *(_rounded(row["metrics"].get(name)) for name in shown),
                    _number(row["validation_loss"]),
                    f"{row['seconds']:.0f}",
                    row["outcome"],
                ]
                for row in final
            ],
        )
        names = sorted({name for row in final for name in row["metrics"]})
        for name in names:
            values = [row["metrics"][name] for row in final if name in row["metrics"]]
            best[f"test/{name}"] = statistics.fmean(values)
        best["train/seconds"] = statistics.fmean(row["seconds"] for row in final)
        best["train/parameters"] = float(final[0]["parameters"])
    best |= _best_loss(tuning)
    if final and f"test/{spec['outcome']}" in best:
        # MLflow's charts round to two decimals, at which every R2 of a daily return is 0.00.
        percent = spec["outcome"].startswith("r2")
        name = f"best/{spec['outcome']}_percent" if percent else f"best/{spec['outcome']}"
        best[name] = best[f"test/{spec['outcome']}"] * (100 if percent else 1)
    best["train/diverged_fits"] = float(num_diverged(rows))
    return "\n".join(lines), {name: value for name, value in best.items() if math.isfinite(value)}


def arm_lines(arm: str, rows: Sequence[Mapping[str, Any]], *, place: str) -> list[str]:
    """Return how the note of an arm begins: its name, how many fits diverged, its trials by their `place`."""
    lines = [f"## {arm}", ""]
    if not rows:
        return [*lines, "Running: the table appears when the arm has ended."]
    diverged = num_diverged(rows)
    if diverged:
        lines += [
            f"{diverged} of {counted(len(rows), 'fit')} **diverged**; a final one is scored as the zero "
            "forecast.",
            "",
        ]
    tuning = [row for row in rows if row["role"] == "tuning"]
    if tuning:
        fields = list(tuning[0]["point"])
        lines += table_lines(
            "Tuning (validation loss decides)",
            [*(_short(name) for name in fields), place, "validation loss", "outcome"],
            [
                [
                    *(_number(row["point"][name]) for name in fields),
                    row[place],
                    _number(row["validation_loss"]),
                    row["outcome"],
                ]
                for row in tuning
            ],
        )
    return lines


def num_diverged(rows: Sequence[Mapping[str, Any]]) -> int:
    """Return how many of these fits failed."""
    return sum(row["outcome"] in FAILED for row in rows)


def _best_loss(tuning: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the lowest mean validation loss of a design point; a point with a failed fit has none."""
    points: dict[str, list[float]] = {}
    for row in tuning:
        loss = row["validation_loss"]
        points.setdefault(str(row["point"]), []).append(math.inf if loss is None else loss)
    means = [statistics.fmean(losses) for losses in points.values()]
    return {"best/validation_loss": min(means)} if means else {}


def _levels(arm: Mapping[str, Any]) -> str:
    return ", ".join(f"{factor} {level}" for factor, level in arm["levels"].items())


def table_lines(title: str, head: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    """Return a table in Markdown under its title, numbers to the right."""
    body = ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return [f"**{title}**", "", "| " + " | ".join(head) + " |", "|" + "---:|" * len(head), *body, ""]


def _short(dotted: str) -> str:
    return dotted.rsplit(".", 1)[-1]


def _rounded(value: float | None) -> str:
    """Return a test metric as far as a fold of a year can tell it."""
    return "-" if value is None else f"{value:.4f}"


def _number(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.5g}" if isinstance(value, float) else str(value)

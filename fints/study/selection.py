"""Which of many levels to pick: a verdict over all of them at once, by a rule fixed before any run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import polars as pl

from fints.evaluation import (
    Pairwise,
    holm,
    loss_table,
    model_confidence_set,
    pairwise_differences,
    superior_ability,
)
from fints.study.cells import KEYS
from fints.study.matching import TIME_TOLERANCE
from fints.study.verdict import ALPHA, MEASURES, Measure, p_text
from fints.words import counted

__all__ = ["SELECTION_RULE", "Comparison", "Selection", "select"]

# They are what the arms nest: Clark-West compares with them, not a test of superior ability.
NESTED = ("zero", "prevailing_mean", "oracle")
HELD_EQUAL = {"width": "same width", "parameters": "same parameters", "time": "same time"}

SELECTION_RULE = (
    "The rule was fixed before the run. Within a comparison all differences between its levels are taken at "
    "once, paired on (fold, seed), over folds as clusters; their 95 % intervals hold together "
    "(`fints.evaluation.pairwise_differences`: the largest t statistic of all pairs, with the signs of whole "
    "folds turned). Levels that are surely behind the best, whatever that is, by less than the smallest "
    "effect "
    "of interest are good enough. In this order: (1) fewer than two folds, or a level without a finished "
    "fit: "
    "no verdict. (2) One level surely exceeds every other and no other is good enough: it is to be picked. "
    "(3) Of the levels that are good enough the one whose step takes least time is to be picked, and of "
    "those "
    "within 5 % of that the one with the highest outcome. (4) Without any: undecided, among those that no "
    "other level surely exceeds. A level with failed fits is never to be picked. Beside it stand Hansen's "
    "model confidence set, which takes the forecasts as given and knows nothing of the noise of training, "
    "and "
    "his test that some level beats a baseline."
)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The levels of one comparison, held equal in `how`.

    `rows` has one entry a level with `level, arm, outcome, difference, low, high, p` (against the reference),
    `behind` (the best, at most), `may_be_best`, `good_enough`, `confidence` (p of the model confidence set),
    `time` (of a fit, over the reference's), `failed`. `kind` is "void", "good_enough", "best" or "undecided";
    `pick` is None unless something is to be picked; `folds_needed` would decide.
    """

    how: str
    kind: str
    pick: str | None
    clusters: int
    folds_needed: int | None
    rows: tuple[dict[str, Any], ...]

    def chosen(self, name: str) -> list[str]:
        """Return the levels whose row says yes to `name`."""
        return [row["level"] for row in self.rows if row[name]]


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The comparisons, the primary first; tests against `baselines`; and the verdict in words."""

    comparisons: tuple[Comparison, ...]
    baselines: tuple[dict[str, Any], ...]
    sentence: str

    @property
    def kind(self) -> str:
        """What the primary comparison says."""
        return self.comparisons[0].kind


def select(
    spec: Mapping[str, Any],
    cells: pl.DataFrame,
    averages: Mapping[str, pl.DataFrame | None],
    baselines: pl.DataFrame | None,
    *,
    outcome: str,
    horizon: int,
) -> Selection:
    """Apply `SELECTION_RULE` to every comparison of a study that declares a matching.

    Parameters
    ----------
    spec
        With `matching` (`fints.study.matching.Matching.to_dict` and its "comparisons" and "time").
    cells
        One row a final fit with its metrics on the judged rows.
    averages
        Arm to its forecast averaged over seeds.
    baselines
        Stored forecasts of the baselines, None if there are none.
    outcome, horizon
        As the study has them.
    """
    matching, smallest = spec["matching"], float(spec["smallest_effect"])
    made = []
    for how, arms in matching["comparisons"].items():
        losses = _losses({level: averages[arm] for level, arm in arms.items()}, None)
        confidence = _confidence(losses, horizon)
        made.append(_compare(how, arms, cells, matching, confidence, outcome=outcome, smallest=smallest))
    first = matching["comparisons"][made[0].how]
    against = _against(first, averages, baselines, horizon)
    words = _sentence(made, against, matching, MEASURES[outcome], smallest, spec["claim"])
    return Selection(comparisons=tuple(made), baselines=tuple(against), sentence=words)


def _compare(
    how: str,
    arms: Mapping[str, str],
    cells: pl.DataFrame,
    matching: Mapping[str, Any],
    confidence: Mapping[str, float],
    *,
    outcome: str,
    smallest: float,
) -> Comparison:
    levels = list(arms)
    own = {level: cells.filter(pl.col("arm") == arm) for level, arm in arms.items()}
    table = _by_fold(own, outcome)
    finished = all(bool(part["finished"].any()) for part in own.values())
    found = None
    if finished and table is not None and min(table.shape) > 1:
        found = pairwise_differences(table)
    failed = {level: int(part["failed"].sum()) for level, part in own.items()}
    home = levels.index(matching["reference"])
    best = [] if found is None else found.may_be_best()
    behind = None if found is None else found.behind_the_best()
    rows = []
    for place, level in enumerate(levels):
        row: dict[str, Any] = {"level": level, "arm": arms[level]}
        row["outcome"] = None if table is None else float(table[:, place].mean())
        for name in ("estimate", "low", "high", "p"):
            value = None if found is None or place == home else float(getattr(found, name)[place, home])
            row[name if name != "estimate" else "difference"] = value
        row["behind"] = None if behind is None or math.isinf(behind[place]) else float(behind[place])
        row["may_be_best"] = place in best
        row["good_enough"] = bool(behind is not None and behind[place] < smallest and not failed[level])
        row["confidence"] = confidence.get(level)
        row["time"] = matching["time"][arms[level]]
        row["failed"] = failed[level]
        rows.append(row)
    kind, pick = "undecided", None
    if found is None:
        kind = "void"
    else:
        good = [row for row in rows if row["good_enough"]]
        winner = levels[best[0]] if len(best) == 1 and not failed[levels[best[0]]] else None
        if winner is not None and all(row["level"] == winner for row in good):
            kind, pick = "best", winner
        elif good:
            kind, pick = "good_enough", _cheapest(good)
    return Comparison(
        how=how,
        kind=kind,
        pick=pick,
        clusters=0 if table is None else len(table),
        folds_needed=None if found is None else _folds_needed(found, best, smallest),
        rows=tuple(rows),
    )


def _by_fold(own: Mapping[str, pl.DataFrame], outcome: str) -> np.ndarray | None:
    """Return means over seeds (folds, levels) of the (fold, seed) that every level has; None without any."""
    joined: pl.DataFrame | None = None
    for place, part in enumerate(own.values()):
        values = part.select("fold", "seed", pl.col(outcome).alias(str(place))).drop_nulls()
        joined = values if joined is None else joined.join(values, on=["fold", "seed"], how="inner")
    if joined is None or not joined.height:
        return None
    # In a fixed order, so that sums are the same to the last bit.
    ordered = joined.sort("fold", "seed")
    folds = ordered["fold"].unique().sort()
    columns = [str(place) for place in range(len(own))]
    return np.stack(
        [ordered.filter(pl.col("fold") == fold)[columns].to_numpy().mean(axis=0) for fold in folds]
    )


def _cheapest(rows: Sequence[Mapping[str, Any]]) -> str:
    least = min(row["time"] for row in rows)
    near = [row for row in rows if row["time"] <= least * (1 + TIME_TOLERANCE)]
    return str(max(near, key=lambda row: row["outcome"])["level"])


def _folds_needed(found: Pairwise, best: Sequence[int], smallest: float) -> int | None:
    """Return how many folds bring the widest interval among what may be best to the smallest effect."""
    if len(best) < 2 or not math.isfinite(found.critical):
        return None
    widest = float(found.se[np.ix_(best, best)].max())
    return max(found.clusters + 1, math.ceil(found.clusters * (found.critical * widest / smallest) ** 2))


def _losses(frames: Mapping[str, pl.DataFrame | None], baselines: pl.DataFrame | None) -> pl.DataFrame | None:
    """Return daily losses of the forecasts, with those of `baselines` beside."""
    known = {name: frame for name, frame in frames.items() if frame is not None}
    if len(known) < len(frames):
        return None
    if baselines is not None:
        first = next(iter(known.values()))
        rows = first.select(*KEYS, "realised")
        for (name,), part in baselines.partition_by("baseline", as_dict=True, maintain_order=True).items():
            if name != "oracle":
                own = part.select(*KEYS, "forecast")
                known[f"baseline {name}"] = rows.join(own, on=KEYS, how="inner", maintain_order="left")
    keys = [frame.select(KEYS) for frame in known.values()]
    shared = reduce(lambda one, other: one.join(other, on=KEYS, how="semi"), keys)
    table = loss_table(known) if len(known) > 1 and shared.height else None
    return None if table is None or table.height < LEAST_DATES else table


# Below this a bootstrap of dates says nothing.
LEAST_DATES = 60


def _confidence(losses: pl.DataFrame | None, horizon: int) -> dict[str, float]:
    if losses is None or _alike(losses):
        return {}
    return model_confidence_set(losses, size=ALPHA, horizon=horizon).p


def _alike(losses: pl.DataFrame) -> bool:
    """Tell whether two columns are equal on every date: nothing can be resampled of their difference."""
    names = [name for name in losses.columns if name != "date"]
    return any((losses[one] == losses[two]).all() for n, one in enumerate(names) for two in names[n + 1 :])


def _against(
    arms: Mapping[str, str],
    averages: Mapping[str, pl.DataFrame | None],
    baselines: pl.DataFrame | None,
    horizon: int,
) -> list[dict[str, Any]]:
    """Return one row a baseline: p of "no level beats it", and that of the set with it."""
    losses = _losses({level: averages[arm] for level, arm in arms.items()}, baselines)
    if losses is None or baselines is None:
        return []
    confidence = _confidence(losses, horizon)
    names = [name for name in losses.columns if name.startswith("baseline ")]
    rows: list[dict[str, Any]] = []
    for column in names:
        name = column.removeprefix("baseline ")
        p = None
        if name not in NESTED:
            p = superior_ability(losses.select("date", *arms, column), column, horizon=horizon)
        rows.append({"baseline": name, "p": p, "confidence": confidence.get(column)})
    tested = [row for row in rows if row["p"] is not None]
    for row, p in zip(tested, holm([row["p"] for row in tested]), strict=True):
        row["p_holm"] = p
    return [{"p_holm": None, **row} for row in rows]


def _sentence(
    made: Sequence[Comparison],
    against: Sequence[Mapping[str, Any]],
    matching: Mapping[str, Any],
    measure: Measure,
    smallest: float,
    claim: str,
) -> str:
    if claim == "none":
        return "Claims nothing: a run this short only checks that the path works."
    parts = [_said(one, matching, measure, smallest) for one in made]
    tested = [row for row in against if row["p"] is not None]
    if tested:
        beaten = [row["baseline"] for row in tested if row["p_holm"] < ALPHA]
        least = min(row["p_holm"] for row in tested)
        names = _listed([row["baseline"].replace("_", " ") for row in tested])
        if beaten:
            told = _listed([name.replace("_", " ") for name in beaten])
            parts.append(f"Some scheme beats {told} (superior ability, Holm over {names}).")
        else:
            parts.append(
                f"No scheme is shown to beat any of {names} (superior ability, Holm: smallest "
                f"{p_text(least)})."
            )
    return ("Exploratory: " if claim == "exploratory" else "") + " ".join(parts)


def _said(one: Comparison, matching: Mapping[str, Any], measure: Measure, smallest: float) -> str:
    place = f"At the {HELD_EQUAL[one.how]}"
    digits = measure.decimals(smallest)
    unit = f" {measure.difference_unit}" if measure.difference_unit else ""
    margin = f"{measure.text(smallest, digits)}{unit}"
    if one.kind == "void":
        return f"{place} there is no verdict: a level has no finished fit, or there are fewer than two folds."
    row = {entry["level"]: entry for entry in one.rows}
    if one.kind == "good_enough":
        good = one.chosen("good_enough")
        assert one.pick is not None
        whole = "every scheme is" if len(good) == len(one.rows) else f"{_listed(good)} {_are(good)}"
        cost = (
            ""
            if one.how == "time"
            else f", the cheapest of them at {row[one.pick]['time']:.2f} of {matching['reference']}'s time"
        )
        return (
            f"{place} {whole} within {margin} of {measure.label} of the best, whichever that is: "
            f"pick {one.pick}{cost}."
        )
    if one.kind == "best":
        assert one.pick is not None
        return f"{place} {one.pick} surely exceeds every other scheme in {measure.label}: pick it."
    best, home = one.chosen("may_be_best"), row[matching["reference"]]
    out = [level for level in row if level not in best]
    told = f"any of {counted(len(best), 'scheme')} may be best" if not out else f"{_listed(best)} may be best"
    told += f", {_listed(out)} surely {_are(out)} not" if out else ""
    bound = (
        "; how far any is behind the best cannot be bounded with so few folds"
        if home["behind"] is None
        else f"; {matching['reference']} is behind the best by at most "
        f"{measure.text(home['behind'], digits)}{unit}"
    )
    need = (
        ""
        if one.folds_needed is None
        else f"; needs about {counted(one.folds_needed - one.clusters, 'more fold')} like these"
    )
    return f"{place} it is undecided which to pick: {told}{bound}{need}."


def _are(names: Sequence[str]) -> str:
    return "is" if len(names) == 1 else "are"


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"

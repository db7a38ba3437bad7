"""The tables of a report, each with the note that says how to read it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from fints.study.analysis import REFERENCE_R2, Analysis
from fints.study.canvas import digits_of
from fints.study.cells import FAILED, FINISHED
from fints.study.document import Block, Table, Text
from fints.study.levels import DISTRIBUTION
from fints.study.verdict import MEASURES, Measure, number, p_text
from fints.words import counted

__all__ = [
    "arms_table",
    "baselines_table",
    "contrasts_table",
    "distributions_table",
    "outcomes_table",
    "power_table",
    "tried_table",
]

# Below this many clusters a report says that its intervals are rough.
FEW_FOLDS = 8


def arms_table(analysis: Analysis) -> Table:
    """Return one row an arm: its outcome and metrics, its size, what was chosen, what failed."""
    outcome, measure, digits = analysis.spec["outcome"], analysis.measure, digits_of(analysis)
    factors = list(analysis.factors)
    chosen = _chosen(analysis)
    columns = [*factors, _with_unit(outcome), "95 % interval"]
    others = [name for name in ("r2_zero", "r2_mean", "rank_ic", "share_of_oracle") if name != outcome]
    others = [name for name in others if analysis.arms[name].null_count() < analysis.arms.height]
    columns += [_with_unit(name) for name in others]
    columns += ["Clark-West p", "sd ratio", "parameters", *chosen, "failed fits"]
    rows = []
    for row in analysis.arms.iter_rows(named=True):
        rows.append(
            (
                *(row[name] for name in factors),
                measure.text(row[outcome], digits),
                _range(analysis.measure, row[f"{outcome}_low"], row[f"{outcome}_high"], digits),
                *(_metric(row[name], name, analysis) for name in others),
                _p(row["clark_west_p"]),
                "–" if row["forecast_sd_ratio"] is None else number(row["forecast_sd_ratio"], 2),
                "–" if row["parameters"] is None else f"{row['parameters']:,}",
                *(values.get(row["arm"], "–") for values in chosen.values()),
                f"{row['failed']} of {row['fits']}"
                + (f", {row['missing']} not run" if row["missing"] else ""),
            )
        )
    return Table(
        columns=tuple(columns),
        rows=tuple(rows),
        left=tuple(factors),
        note=(
            "Means over (fold, seed); intervals with errors clustered by fold. Clark-West: one-sided test on "
            "dates that the seeds' mean forecast beats zero. sd ratio: standard deviation of forecasts over "
            "that of outcomes; under squared loss a calibrated forecast has √R², so small is not collapsed."
            + _ic_note(analysis)
        ),
    )


def distributions_table(analysis: Analysis) -> list[Block]:
    """Tell how good the forecast distributions are, where arms give one."""
    arms = analysis.arms.filter(pl.col("log_score").is_not_null())
    if not arms.height:
        return []
    rows = []
    for row in arms.iter_rows(named=True):
        shown = {"log_score": 4, "crps": 4, "coverage_50": 1, "coverage_90": 1}
        texts = (MEASURES[name].text(row[name], digits) for name, digits in shown.items())
        rows.append((*(row[name] for name in analysis.factors), *texts))
    note = (
        "Means over the finished fits on the judged rows. Log score: mean log density of the outcome, higher "
        "is better; CRPS: lower is better; coverage: share of outcomes inside the central interval of that "
        "probability. A failed fit has no distribution and does not enter."
    )
    return [
        Table(
            columns=(*analysis.factors, *(_with_unit(name) for name in DISTRIBUTION)),
            rows=tuple(rows),
            left=tuple(analysis.factors),
            note=note,
        )
    ]


def _ic_note(analysis: Analysis) -> str:
    days = sum(analysis.cells["days"].drop_nulls().to_list())
    missing = sum(analysis.cells["missing_days"].drop_nulls().to_list())
    if not missing:
        return ""
    return (
        f" Rank IC: {missing:,} of {days + missing:,} fit-days have none (constant forecast or too few "
        "assets); they count as missing, not as 0."
    )


def contrasts_table(analysis: Analysis) -> Table:
    """Return one row a contrast: the difference, its interval, the decision and its p values."""
    measure, digits = analysis.measure, digits_of(analysis) + 1
    unit = f" ({measure.difference_unit})" if measure.difference_unit else ""
    rows = []
    for row in analysis.contrasts.iter_rows(named=True):
        rows.append(
            (
                row["contrast"] + (" (primary)" if row["primary"] else ""),
                measure.text(row["estimate"], digits),
                _range(measure, row["low"], row["high"], digits),
                _DECISIONS[row["decision"]],
                _p(row["p"]),
                "" if row["primary"] else _p(row["p_holm"]),
                _p(row["equivalence_p"]),
                _p(row["diebold_mariano_p"]),
            )
        )
    unpaired = int(analysis.contrasts["unpaired"].sum())
    note = (
        "p: t test over folds; Holm: adjusted over the secondary contrasts; equivalence: two one-sided tests "
        "against the smallest effect; Diebold-Mariano: the two arms' seed-mean forecasts compared by date, "
        "which knows the noise of the test days but not that of training."
    )
    if unpaired:
        note += f" {counted(unpaired, 'pair')} had a side without a value and did not enter."
    return Table(
        columns=(
            "contrast",
            f"difference{unit}",
            "95 % interval",
            "by the rule",
            "p",
            "p, Holm",
            "p, equivalence",
            "p, Diebold-Mariano",
        ),
        rows=tuple(rows),
        left=("contrast", "by the rule"),
        note=note,
    )


_DECISIONS = {
    "withheld": "no verdict: failed fits",
    "better": "first is better",
    "worse": "second is better",
    "equivalent": "no difference that matters",
    "undecided": "undecided",
    "void": "no verdict",
}


def power_table(analysis: Analysis) -> list[Block]:
    """Return what each contrast could have found, and what its interval leans on."""
    measure, digits, scope = analysis.measure, digits_of(analysis) + 1, analysis.scope
    rows = []
    for row in analysis.contrasts.iter_rows(named=True):
        needed = "–" if row["folds_needed"] is None else f"{row['folds_needed']:,}"
        if row["sd"] is not None and row["folds_needed"] is None:
            needed = "> 10,000"
        rows.append(
            (
                row["contrast"] + (" (primary)" if row["primary"] else ""),
                str(row["clusters"] or 0),
                measure.text(row["sd"], digits),
                "–" if row["power"] is None else f"{number(100 * row['power'], 0)} %",
                measure.text(row["detectable"], digits),
                needed,
            )
        )
    unit = f" ({measure.difference_unit})" if measure.difference_unit else ""
    smallest = measure.text(analysis.spec["smallest_effect"], digits_of(analysis))
    table = Table(
        columns=("contrast", "folds", f"sd by fold{unit}", "power", f"detectable{unit}", "folds to decide"),
        rows=tuple(rows),
        left=("contrast",),
        note=(
            f"Power: probability of finding a difference of {smallest} {measure.difference_unit}".rstrip()
            + " at 5 % with the folds at hand and the spread between folds observed. Detectable: the "
            "difference found with 80 %. Folds to decide: how many, in all, find that difference or its "
            "absence with 80 %."
        ),
    )
    error = number(100 * float(scope["r2_error"] or 0), 3)
    text = (
        f"{counted(scope['assets'], 'asset')} {'counts' if scope['assets'] == 1 else 'count'} as "
        "about "
        f"{number(float(scope['effective_assets'] or 0), 1)} independent on these dates (N² / Σρ²). With "
        f"{counted(scope['outcomes'], 'outcome')} one after another "
        f"a true R² of {100 * REFERENCE_R2:g} % has a standard error of about {error} percentage "
        "points, 2√(R²/TN)."
    )
    folds = len(analysis.spec["folds"])
    text += (
        " Folds share most of their training dates, so their results are not quite independent: intervals "
        "over folds may be too narrow."
    )
    if folds < FEW_FOLDS:
        text += (
            f" Intervals over {counted(folds, 'fold')} use Student's t at {max(folds - 1, 0)} df and "
            "lean on nearly normal fold means: read them as rough."
        )
    return [table, Text(text=text)]


def baselines_table(analysis: Analysis) -> Table:
    """Return one row a baseline, judged as the arms are."""
    outcome, digits = analysis.spec["outcome"], digits_of(analysis)
    baselines = analysis.baselines
    others = [name for name in ("r2_zero", "r2_mean", "rank_ic") if name != outcome]
    others = [name for name in others if baselines[name].null_count() < baselines.height]
    rows = [
        (
            str(row["baseline"]).replace("_", " "),
            _metric(row[outcome], outcome, analysis),
            _range(analysis.measure, row[f"{outcome}_low"], row[f"{outcome}_high"], digits),
            *(_metric(row[name], name, analysis) for name in others),
            _p(row["clark_west_p"]),
        )
        for row in baselines.iter_rows(named=True)
    ]
    note = "Fitted on each fold's training rows, judged on the rows of the arms."
    if baselines.height == 1:
        note += " Only the zero forecast is known for this study: it stored no others."
    if "oracle" in baselines["baseline"].to_list():
        note += " The oracle is the planted signal itself: no forecast can do better in expectation."
    elif analysis.spec["simulated"]:
        note += (
            " The oracle is not shown: the planted signal is the expected log return of the next day, and "
            "gives that of this target in no exact way."
        )
    return Table(
        columns=(
            "baseline",
            _with_unit(outcome),
            "95 % interval",
            *(_with_unit(name) for name in others),
            "Clark-West p",
        ),
        rows=tuple(rows),
        left=("baseline",),
        note=note,
    )


def outcomes_table(analysis: Analysis) -> list[Block]:
    """Return how the fits of each arm ended, and how a failed one enters."""
    kinds = sorted(
        analysis.outcomes["outcome"].unique().to_list(), key=lambda kind: (_KINDS.get(kind, 9), kind)
    )
    rows = []
    for arm in (item["name"] for item in analysis.spec["arms"]):
        for role in ("tuning", "final"):
            own = analysis.outcomes.filter((pl.col("arm") == arm) & (pl.col("role") == role))
            if own.height:
                counts = dict(own.select("outcome", "fits").iter_rows())
                rows.append((arm, role, *(str(counts.get(kind, 0)) for kind in kinds)))
    return [
        Table(
            columns=("arm", "role", *(kind.replace("_", " ") for kind in kinds)),
            rows=tuple(rows),
            left=("arm", "role"),
        ),
        Text(
            text=(
                "Rule for failed fits, fixed before the run: a final fit that diverged enters as the zero "
                "forecast on its test rows, whatever it left behind, and is counted. Its R² against zero and "
                "its IC are then 0. An arm with such fits is never declared better or equivalent. A tuning "
                "fit that failed loses to every one that did not."
            )
        ),
    ]


_KINDS = {kind: place for place, kind in enumerate((*FINISHED, *FAILED, "missing"))}


def tried_table(analysis: Analysis) -> list[Block]:
    """Return the validation loss of every design point of every arm."""
    spec, scope = analysis.spec, analysis.scope
    tuning = spec["tuning"]
    fields = list(tuning["space"])
    total = int(scope["tuning_fits"] or 0) + int(scope["final_fits"] or 0)
    folds = int(tuning["folds"])
    text = (
        f"{counted(total, 'fit')} in all: {scope['tuning_fits']} to tune, {scope['final_fits']} to judge. "
        f"Every arm tried the same design points on the first {'fold' if folds == 1 else f'{folds} folds'}; "
        "the point with the lowest mean validation loss was fitted again on every fold with fresh seeds, and "
        f"only those fits are judged. {counted(analysis.contrasts.height, 'contrast')}, one of them primary."
    )
    blocks: list[Block] = [Text(text=text)]
    if analysis.tried.height:
        points = analysis.tried.select(fields).unique(maintain_order=True).sort(fields).rows()
        rows = []
        for arm in (item["name"] for item in spec["arms"]):
            trials = analysis.tried.filter(pl.col("arm") == arm).to_dicts()
            own = {tuple(row[name] for name in fields): row for row in trials}
            rows.append((arm, *(_trial(own.get(point)) for point in points)))
        name = ", ".join(field.rsplit(".", 1)[-1].replace("_", " ") for field in fields)
        blocks.append(
            Table(
                columns=("arm", *(", ".join(_value(value) for value in point) for point in points)),
                rows=tuple(rows),
                left=("arm",),
                note=f"Mean validation loss by {name}; **bold**: chosen.",
            )
        )
    return blocks


def _trial(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return "–"
    if row["validation_loss"] is None:
        return f"{row['failed']} of {row['fits']} failed"
    text = f"{row['validation_loss']:#.5g}"
    return f"**{text}**" if row["chosen"] else text


def _chosen(analysis: Analysis) -> dict[str, dict[str, str]]:
    """Column title to arm to the chosen value, one column a tuned field."""
    fields = list(analysis.spec["tuning"]["space"])
    if not analysis.tried.height:
        return {}
    chosen = analysis.tried.filter("chosen").to_dicts()
    return {
        field.rsplit(".", 1)[-1].replace("_", " "): {row["arm"]: _value(row[field]) for row in chosen}
        for field in fields
    }


def _metric(value: float | None, name: str, analysis: Analysis) -> str:
    """Return a metric with the digits of the smallest effect, or its usual ones if it is another kind."""
    measure = MEASURES[name]
    same = measure.factor == analysis.measure.factor
    return measure.text(value, digits_of(analysis) if same else 2 if measure.factor != 1 else 3)


def _range(measure: Measure, low: float | None, high: float | None, digits: int) -> str:
    return "–" if low is None else f"{measure.text(low, digits)} to {measure.text(high, digits)}"


def _with_unit(name: str) -> str:
    measure = MEASURES[name]
    return measure.short + (f" ({measure.unit})" if measure.unit else "")


def _p(p: float | None) -> str:
    return "–" if p is None else p_text(p).removeprefix("p = ").removeprefix("p ")


def _value(value: Any) -> str:
    return f"{value:g}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)

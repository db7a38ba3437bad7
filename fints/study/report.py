"""The report of a study: its verdict first, then all that a sceptical reader needs to check it.

It is a function of the study's folder alone. Times and dates of runs stand in `timing.parquet`,
so that an interrupted run and an undisturbed one give the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from fints.study.analysis import DISTRIBUTION, REFERENCE_R2, Analysis
from fints.study.cells import FAILED, FINISHED
from fints.study.claims import CLAIM_WORDS
from fints.study.document import (
    Block,
    Code,
    Heading,
    Items,
    Picture,
    Table,
    Text,
    from_docstring,
    to_html,
    to_markdown,
)
from fints.study.figures import Figure, draw
from fints.study.verdict import MEASURES, RULE, Measure, number, p_text

__all__ = ["write_report"]

# Below this many clusters a report says that its intervals are rough.
FEW_FOLDS = 8


def write_report(analysis: Analysis, folder: Path) -> Path:
    """Write `report.md`, `report.html` and `figures/` into a study's folder; return the HTML's path.

    The Markdown links the SVG files relatively; the HTML holds them.
    """
    folder = Path(folder)
    figures = draw(analysis, folder / "figures")
    blocks = _blocks(analysis, figures)
    (folder / "report.md").write_text(to_markdown(blocks), encoding="utf-8", newline="\n")
    page = folder / "report.html"
    title = analysis.spec.get("title") or analysis.spec["name"]
    page.write_text(to_html(blocks, title=title, folder=folder), encoding="utf-8", newline="\n")
    return page


def _blocks(analysis: Analysis, figures: Sequence[Figure]) -> list[Block]:
    spec = analysis.spec
    pictures = {
        figure.name: Picture(path=f"figures/{figure.name}.svg", caption=figure.caption, alt=figure.alt)
        for figure in figures
    }

    def shown(*names: str) -> list[Block]:
        return [pictures[name] for name in names if name in pictures]

    return [
        Text(text=analysis.verdict, lead=True),
        Heading(text=spec.get("title") or spec["name"], level=1),
        Text(text=_standing(analysis)),
        *shown("outcome"),
        Heading(text="As declared before the run"),
        *from_docstring(spec.get("docstring") or ""),
        Heading(text="Design"),
        *_design(analysis),
        Heading(text="Arms"),
        _arms(analysis),
        *_distributions(analysis),
        Heading(text="Contrasts"),
        _contrasts(analysis),
        *shown("contrasts"),
        Text(text=RULE),
        Heading(text="Power"),
        *_power(analysis),
        Heading(text="Baselines"),
        _baselines(analysis),
        *shown("oracle"),
        Heading(text="Inside the networks"),
        *(
            shown("similarity", "gradient", "update", "training")
            or [Text(text="No profile was stored for this study.")]
        ),
        Heading(text="Outcomes of the fits"),
        *_outcomes(analysis),
        Heading(text="What was tried"),
        *_tried(analysis),
        *shown("tuning"),
        Heading(text="Data"),
        *_data(analysis),
        Heading(text="How to make this again"),
        *_again(analysis),
    ]


def _standing(analysis: Analysis) -> str:
    text = f"Preset `{analysis.spec['preset']}` {CLAIM_WORDS[analysis.claim]}."
    return text + (" No number below is a result." if analysis.claim == "none" else "")


def _design(analysis: Analysis) -> list[Block]:
    spec, scope = analysis.spec, analysis.scope
    first = analysis.contrasts.row(0, named=True)
    smallest = analysis.measure.text(spec["smallest_effect"], _digits(analysis))
    dropped = int(scope["rows_dropped"] or 0)
    left_out = f"; {dropped:,} rows left out because not every fit could forecast them" if dropped else ""
    items = [
        f"Primary outcome, named beforehand: out-of-sample {analysis.measure.label}, {first['contrast']}.",
        f"Smallest effect of interest: {smallest} {analysis.measure.difference_unit}".rstrip() + ".",
        *(f"Factor {name}: {', '.join(levels)}." for name, levels in analysis.factors.items()),
        f"{_count(len(spec['arms']), 'arm')} × {_count(len(spec['folds']), 'fold')} × "
        f"{_count(len(spec['seeds']), 'seed')} "
        f"({', '.join(map(str, spec['seeds']))}) = {scope['final_fits']} final fits; "
        f"{scope['tuning_fits']} tuning fits before them. "
        "A seed gives every arm the same branch weights, batch order and dropout stream.",
        *_budget(spec),
        f"Judged on {scope['rows']:,} rows: {scope['dates']:,} dates, {scope['assets']} assets{left_out}.",
    ]
    parts = ("train", "validation", "test")
    folds = Table(
        columns=("fold", *parts),
        rows=tuple(
            (str(fold["index"]), *(f"{fold[part][0]} to {fold[part][1]}" for part in parts))
            for fold in spec["folds"]
        ),
        left=("fold", *parts),
        note=(
            "First and last decision date of each period. No label reaches into the next period. "
            "Learning rates and weights are chosen on validation dates alone."
        ),
    )
    return [Items(items=tuple(items)), folds]


def _budget(spec: Mapping[str, Any]) -> list[str]:
    training = spec["arms"][0]["experiment"].get("training", {})
    data = spec["arms"][0]["experiment"].get("data", {})
    parts = []
    if "steps" in training:
        parts.append(
            f"Budget of each fit: {training['steps']} steps of {training['batch_size']} windows, loss "
            f"{training['loss']}, weights kept: {training['keep']}."
        )
    if "features" in data:
        parts.append(
            f"Target: {data['target']} over {_count(data['horizon'], 'day')}; "
            f"context {data['context']} days; features: {', '.join(data['features'])}."
        )
    return parts


def _arms(analysis: Analysis) -> Table:
    outcome, measure, digits = analysis.spec["outcome"], analysis.measure, _digits(analysis)
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


def _distributions(analysis: Analysis) -> list[Block]:
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


def _contrasts(analysis: Analysis) -> Table:
    measure, digits = analysis.measure, _digits(analysis) + 1
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
        note += f" {_count(unpaired, 'pair')} had a side without a value and did not enter."
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


def _power(analysis: Analysis) -> list[Block]:
    measure, digits, scope = analysis.measure, _digits(analysis) + 1, analysis.scope
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
    smallest = measure.text(analysis.spec["smallest_effect"], _digits(analysis))
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
        f"The {scope['assets']} assets count as about {number(float(scope['effective_assets'] or 0), 1)} "
        f"independent ones on these dates (N² / Σρ²). With {scope['outcomes']:,} outcomes one after another "
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
            f" Intervals over {_count(folds, 'fold')} use Student's t at {max(folds - 1, 0)} df and "
            "lean on nearly normal fold means: read them as rough."
        )
    return [table, Text(text=text)]


def _baselines(analysis: Analysis) -> Table:
    outcome, digits = analysis.spec["outcome"], _digits(analysis)
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


def _outcomes(analysis: Analysis) -> list[Block]:
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


def _tried(analysis: Analysis) -> list[Block]:
    spec, scope = analysis.spec, analysis.scope
    tuning = spec.get("tuning", {})
    fields = list(tuning.get("space", {}))
    total = int(scope["tuning_fits"] or 0) + int(scope["final_fits"] or 0)
    folds = int(tuning.get("folds", 1))
    text = (
        f"{total} fits in all: {scope['tuning_fits']} to tune, {scope['final_fits']} to judge. "
        f"Every arm tried the same design points on the first {'fold' if folds == 1 else f'{folds} folds'}; "
        "the point with the lowest mean validation loss was fitted again on every fold with fresh seeds, and "
        f"only those fits are judged. {_count(analysis.contrasts.height, 'contrast')}, one of them primary."
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


def _data(analysis: Analysis) -> list[Block]:
    spec = analysis.spec
    card = spec["dataset"]
    items = [f"Dataset: `{card['name']}`" + (f", {card['title']}" if card.get("title") else "") + "."]
    for name, label in (("origin", "Origin"), ("licence", "Licence")):
        if card.get(name):
            items.append(f"{label}: {str(card[name]).rstrip('.')}.")
    first, last = spec["span"]
    items.append(f"Span used: {first} to {last}, {spec['num_assets']} assets.")
    if spec["sealed_from"]:
        fate = "were opened by this study" if spec["opens_seal"] else "no fit read them"
        items.append(f"Dates from {spec['sealed_from']} on are sealed; {fate}.")
    items += [f"Known fault: {fault.rstrip('.')}." for fault in card.get("faults", ())]
    items.append(f"Checksum of the panel: `{spec['checksum']}`.")
    return [Items(items=tuple(items))]


def _again(analysis: Analysis) -> list[Block]:
    spec = analysis.spec
    command = spec.get("command") or f"python studies/{spec['name']}.py run --preset {spec['preset']}"
    commit = spec.get("commit")
    lines = [f"git checkout {commit}"] if commit else []
    known = f"commit `{commit}`" if commit else "a commit that was not recorded"
    return [
        Text(
            text=(
                f"Last run at {known}. Every fit was made by sources with the hash `{spec['sources']}`, "
                "whichever commit held them: an earlier fit is kept only while that hash is the same."
            )
        ),
        Code(text="\n".join([*lines, command])),
        Text(
            text=(
                "The tables above are computed from `forecasts.parquet`, `fits.parquet`, `profiles.parquet` "
                f"and `history.parquet` beside this report; `python studies/{spec['name']}.py report` makes "
                "them again and trains nothing. How long each fit took, when and where, is in "
                "`timing.parquet`."
            )
        ),
    ]


def _chosen(analysis: Analysis) -> dict[str, dict[str, str]]:
    """Column title to arm to the chosen value, one column a tuned field."""
    fields = list(analysis.spec.get("tuning", {}).get("space", {}))
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
    return measure.text(value, _digits(analysis) if same else 2 if measure.factor != 1 else 3)


def _range(measure: Measure, low: float | None, high: float | None, digits: int) -> str:
    return "–" if low is None else f"{measure.text(low, digits)} to {measure.text(high, digits)}"


def _with_unit(name: str) -> str:
    measure = MEASURES[name]
    return measure.short + (f" ({measure.unit})" if measure.unit else "")


def _p(p: float | None) -> str:
    return "–" if p is None else p_text(p).removeprefix("p = ").removeprefix("p ")


def _value(value: Any) -> str:
    return f"{value:g}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


def _digits(analysis: Analysis) -> int:
    return analysis.measure.decimals(analysis.spec["smallest_effect"])


def _count(count: int, noun: str) -> str:
    return f"{count:,} {noun}" + ("" if count == 1 else "s")

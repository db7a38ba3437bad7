"""The report of a study: its verdict first, then all that a sceptical reader needs to check it.

It is a function of the study's folder alone. Times and dates of runs stand in `timing.parquet`,
so that an interrupted run and an undisturbed one give the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fints.study.analysis import Analysis
from fints.study.canvas import digits_of
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
from fints.study.found import FOUND_RULE
from fints.study.selection import HELD_EQUAL
from fints.study.selection_report import selection_blocks
from fints.study.still_open import still_open
from fints.study.tables import (
    arms_table,
    baselines_table,
    contrasts_table,
    distributions_table,
    outcomes_table,
    power_table,
    tried_table,
)
from fints.study.verdict import RULE
from fints.words import counted

__all__ = ["write_report"]


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
        Heading(text=spec["title"], level=1),
        *([Text(text=analysis.found.sentence)] if analysis.found.sentence else []),
        Text(text=_standing(analysis)),
        *shown("selection", "outcome"),
        Heading(text="As declared before the run"),
        *from_docstring(spec["docstring"]),
        Heading(text="Design"),
        *_design(analysis),
        Heading(text="Arms"),
        arms_table(analysis),
        Text(text=FOUND_RULE),
        *distributions_table(analysis),
        *selection_blocks(analysis),
        Heading(text="Contrasts"),
        contrasts_table(analysis),
        *shown("contrasts"),
        Text(text=RULE),
        Heading(text="Power"),
        *power_table(analysis),
        *still_open(analysis),
        Heading(text="Baselines"),
        baselines_table(analysis),
        *shown("oracle"),
        Heading(text="Inside the networks"),
        *(
            shown("similarity", "gradient", "update", "mixing", "training")
            or [Text(text="No profile was stored for this study.")]
        ),
        Heading(text="Outcomes of the fits"),
        *outcomes_table(analysis),
        Heading(text="What was tried"),
        *tried_table(analysis),
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
    smallest = analysis.measure.text(spec["smallest_effect"], digits_of(analysis))
    dropped = int(scope["rows_dropped"] or 0)
    left_out = f"; {counted(dropped, 'row')} left out that not every fit could forecast" if dropped else ""
    items = [
        f"Primary outcome, named beforehand: out-of-sample {analysis.measure.label}, {_asked(analysis)}.",
        f"Smallest effect of interest: {smallest} {analysis.measure.difference_unit}".rstrip() + ".",
        *(f"Factor {name}: {', '.join(levels)}." for name, levels in analysis.factors.items()),
        f"{counted(len(spec['arms']), 'arm')} × {counted(len(spec['folds']), 'fold')} × "
        f"{counted(len(spec['seeds']), 'seed')} "
        f"({', '.join(map(str, spec['seeds']))}) = {counted(scope['final_fits'], 'final fit')}; "
        f"{counted(scope['tuning_fits'], 'tuning fit')} before. "
        "A seed gives every arm the same branch weights, batch order and dropout stream.",
        *_budget(spec),
        f"Judged on {counted(scope['rows'], 'row')}: {counted(scope['dates'], 'date')}, "
        f"{counted(scope['assets'], 'asset')}{left_out}.",
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


def _asked(analysis: Analysis) -> str:
    if analysis.selection is None:
        return str(analysis.contrasts["contrast"][0])
    one = analysis.selection.comparisons[0]
    return f"which of {counted(len(one.rows), 'scheme')} to pick at the {HELD_EQUAL[one.how]}"


def _budget(spec: Mapping[str, Any]) -> list[str]:
    training, data = spec["arms"][0]["experiment"]["training"], spec["arms"][0]["experiment"]["data"]
    return [
        f"Budget of each fit: {counted(training['steps'], 'step')} of "
        f"{counted(training['batch_size'], 'window')}, loss {training['loss']}, weights kept: "
        f"{training['keep']}.",
        f"Target: {data['target']} over {counted(data['horizon'], 'day')}; "
        f"context {counted(data['context'], 'day')}; features: {', '.join(data['features'])}.",
    ]


def _data(analysis: Analysis) -> list[Block]:
    spec = analysis.spec
    card = spec["dataset"]
    items = [f"Dataset: `{card['name']}`" + (f", {card['title']}" if card.get("title") else "") + "."]
    for name, label in (("origin", "Origin"), ("licence", "Licence")):
        if card.get(name):
            items.append(f"{label}: {str(card[name]).rstrip('.')}.")
    first, last = spec["span"]
    items.append(f"Span used: {first} to {last}, {counted(spec['num_assets'], 'asset')}.")
    if opened := spec.get("opened"):
        items.append(
            f"This run has read sealed dates, as no other one may: first on {opened['opened']}, at commit "
            f"`{opened['commit']}`."
        )
    if spec["sealed_from"]:
        fate = "were opened by this study" if spec["opens_seal"] else "no fit read them"
        items.append(f"Dates from {spec['sealed_from']} on are sealed; {fate}.")
    items += [f"Known fault: {fault.rstrip('.')}." for fault in card.get("faults", ())]
    items.append(f"Checksum of the panel: `{spec['checksum']}`.")
    return [Items(items=tuple(items))]


def _made_by(spec: Mapping[str, Any]) -> str:
    """Return which code made the fits: committed ones count whatever made them."""
    earlier = spec.get("earlier", ())
    if not earlier:
        return (
            f"Every fit was made by sources with the hash `{spec['sources']}`, "
            "whichever commit held them: an earlier fit is kept only while that hash is the same."
        )
    told = "; ".join(
        f"{counted(one['fits'], 'fit')} by sources `{one['sources']}`, torch {one['torch']}, {one['device']}"
        for one in earlier
    )
    return (
        f"Its sources have the hash `{spec['sources']}`, its torch is {spec['torch']} and its device "
        f"{spec['device']}. Others made fits that had been committed before and count as done: {told}."
    )


def _again(analysis: Analysis) -> list[Block]:
    spec = analysis.spec
    command = spec.get("command") or f"python studies/{spec['name']}.py run --preset {spec['preset']}"
    commit = spec.get("commit")
    lines = [f"git checkout {commit}"] if commit else []
    known = f"commit `{commit}`" if commit else "a commit that was not recorded"
    return [
        Text(text=(f"Last run at {known}. {_made_by(spec)}")),
        Code(text="\n".join([*lines, command])),
        Text(
            text=(
                "The tables above are computed from `forecasts.parquet`, `fits.parquet`, `profiles.parquet`, "
                "`mixing.parquet` and `history.parquet` in the study's folder. From fits that are there, or "
                f"committed under `studies/published/{spec['name']}/`, "
                f"`{command.replace(' run', ' report', 1)}` makes them and this page again; it "
                "trains nothing. How long each fit took, when and where, is in `timing.parquet`."
            )
        ),
    ]

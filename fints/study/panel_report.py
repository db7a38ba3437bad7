"""The report of a panel study: the answer first, then what was declared, done and tried."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import polars as pl

from fints.study.cells import plain_mean
from fints.study.claims import CLAIM_WORDS, FULL
from fints.study.document import (
    Block,
    Code,
    Heading,
    Items,
    Table,
    Text,
    from_docstring,
    to_html,
    to_markdown,
)
from fints.study.estimates import duration
from fints.study.fingerprint import torch_version
from fints.study.panel_design import Answer
from fints.study.panel_plan import PanelPlan
from fints.study.panel_store import Fits
from fints.study.still_open import open_chapter
from fints.words import counted

__all__ = ["Larger", "first_started", "write_panel_report"]


@dataclass(frozen=True, kw_only=True)
class Larger:
    """The preset that asks the same of more panels: how many, of how many fits, and the command."""

    panels: int
    fits: int
    command: str


def write_panel_report(
    plan: PanelPlan,
    found: Fits,
    folder: Path,
    *,
    declared: tuple[str, str] | None,
    commands: Mapping[str, str],
    before: tuple[str, str, str] | None = None,
    larger: Larger | None = None,
) -> tuple[Path, str]:
    """Write the report, its figures and the answer's tables; return the HTML's path and the finding.

    Parameters
    ----------
    plan, found
        What was planned, and its finished fits.
    folder
        Of the study.
    declared
        Commit and time since when the study's file has had its docstring (`checkout.declared_in`).
    commands
        "run" and "report", to be typed.
    before
        Commit, time and docstring of the file's last commit before the first fit began
        (`checkout.declared_before`): what is shown where the docstring was changed since.
    larger
        What decides where this size does not; None where nothing larger is declared.

    Raises
    ------
    ValueError
        If no final fit is there.
    """
    if not found.table.height or not found.table.filter(pl.col("role") == "final").height:
        raise ValueError(f"no final fit is finished; first: {commands['run']}")
    figures = folder / "figures"
    shutil.rmtree(figures, ignore_errors=True)
    figures.mkdir(parents=True)
    answer = plan.study.answered(found, figures)
    for name, rows in answer.tables.items():
        pl.DataFrame(rows, infer_schema_length=None).write_parquet(folder / f"{name}.parquet")
    blocks = _blocks(plan, found, answer, _declared(plan, found, declared, before), commands, larger)
    (folder / "report.md").write_text(to_markdown(blocks), encoding="utf-8", newline="\n")
    page = folder / "report.html"
    page.write_text(to_html(blocks, title=plan.study.title, folder=folder), encoding="utf-8", newline="\n")
    return page, answer.sentence


def _blocks(
    plan: PanelPlan,
    found: Fits,
    answer: Answer,
    declared: list[Block],
    commands: Mapping[str, str],
    larger: Larger | None,
) -> list[Block]:
    claim = plan.study.presets[plan.preset].claim
    standing = f"Preset `{plan.preset}` {CLAIM_WORDS[claim]}."
    standing += " No number below is a result." if claim == "none" else ""
    missing = (
        f"Incomplete: {counted(found.missing, 'fit')} of the plan are missing. " if found.missing else ""
    )
    return [
        Text(text=missing + answer.sentence, lead=True),
        Heading(text=plan.study.title, level=1),
        Text(text=standing),
        *answer.blocks,
        *([] if claim == "none" else _still_open(plan, answer, larger)),
        Heading(text="As declared before the run"),
        *declared,
        Heading(text="Design"),
        *_design(plan),
        Heading(text="What was tried"),
        *_tried(plan, found),
        Heading(text="Outcomes of the fits"),
        *_outcomes(found, plan.sources),
        Heading(text="How to make this again"),
        Text(text="The first command fits what is not there yet, the second only makes this page again."),
        Code(text=f"{commands['run']}\n{commands['report']}"),
    ]


def _still_open(plan: PanelPlan, answer: Answer, larger: Larger | None) -> list[Block]:
    here, number = len(plan.study.panels), len(answer.undecided)
    undecided = {
        name: "no number of panels decides it, at these estimates" if more is None else f"about {more} more"
        for name, more in answer.undecided.items()
    }
    asked: list[Block] = []
    if larger is not None:
        within = sum(more is not None and here + more <= larger.panels for more in answer.undecided.values())
        told = (
            f"The preset `{FULL}` asks the same of {counted(larger.panels, 'panel')} of its own, with "
            f"longer training, in {counted(larger.fits, 'fit')}; {within} of {number} would be decided by so "
            "many alone. It is made for one GPU, and uses the one that is there:"
        )
        asked = [Text(text=told), Code(text=larger.command)]
    return open_chapter(undecided, asked, of="panels more")


def first_started(found: Fits) -> str | None:
    """Return when the first of the fits began; None where there is none."""
    return min(found.table["started"].drop_nulls(), default=None) if found.table.height else None


def _declared(
    plan: PanelPlan,
    found: Fits,
    declared: tuple[str, str] | None,
    before: tuple[str, str, str] | None,
) -> list[Block]:
    """Return the text that the fits were made under, and what tells that it is that."""
    first = first_started(found)
    fitted = "" if first is None else f" The first fit began on {first}."
    if declared is None:
        told = "No commit holds the text below: this run states no question beforehand." + fitted
        since = "which no commit holds"
    else:
        now, when = declared
        told = f"The text below stands unchanged since commit `{now}` of {when}.{fitted}"
        since = f"since commit `{now}` of {when}"
        if first is None or datetime.fromisoformat(first) >= datetime.fromisoformat(when):
            return [Text(text=told), *from_docstring(plan.docstring)]
    # Results that claim nothing may be made under a text that no commit holds; others are refused.
    if before is None or (declared is None and plan.study.presets[plan.preset].claim == "none"):
        if declared is not None:
            told += " **That is later than the first fit: the text was changed after it.**"
        return [Text(text=told), *from_docstring(plan.docstring)]
    commit, when, earlier = before
    text = f"The text below is that of commit `{commit}` of {when}, the file's last before the first fit."
    text += fitted
    if earlier != plan.docstring:
        text += f" The file now has another text, {since}."
    else:
        text += " The file had another one in between, and has it again."
    return [Text(text=text), *from_docstring(earlier)]


def _design(plan: PanelPlan) -> list[Block]:
    study, days = plan.study, plan.study.days
    training, model = study.base.training, study.base.model
    dials = ", ".join(f"{name} {value}" for name, value in study.simulation.items())
    fits, tuned = plan.num_fits(), study.tuning.panels
    items = [
        f"Panels: `fints.data.simulate` with {dials}; {days.train} days to learn from, {days.validation} to "
        f"choose by, {days.test} to be judged on. Panels {_numbers(study.panels)} are judged, "
        + (f"{_numbers(study.tuning.panels)} only tuned on." if tuned else "none is only tuned on."),
        *(f"Factor {name}: {', '.join(levels)}." for name, levels in study.factors.items()),
        f"{counted(len(plan.arms), 'arm')}; {counted(fits['tuning'], 'tuning fit')} and "
        f"{counted(fits['final'], 'final fit')}. On one panel all arms have the same branch weights, batch "
        "order and dropout stream.",
        *_yoked(plan),
        f"Each fit: width {model.width}, context {study.base.data.context}, {training.steps} steps of "
        f"{training.batch_size} windows, {training.warmup_steps} of them warm-up, {_kept(plan)}.",
        "Unit: the mean square of the training targets, so 0.01 is one percentage point of R2. Losses are "
        "those above the oracle's on the same windows.",
        f"Code of this plan: sources `{plan.sources}`, torch {torch_version()}.",
    ]
    return [Items(items=tuple(items))]


def _yoked(plan: PanelPlan) -> list[str]:
    yoked = plan.study.yoked
    if yoked is None or not plan.most_yoked():
        return []
    own = [level for level in yoked.levels if level in plan.study.factors[yoked.factor]]
    return [
        f"Yoked: where an arm at {yoked.factor} {', '.join(own)} chose another design point than that with "
        f"{yoked.plain} in its place, the latter was fitted at that one too: to be compared with, not judged."
    ]


def _kept(plan: PanelPlan) -> str:
    """Say which weights of a fit are judged."""
    best = [arm for arm in plan.arms if arm.experiment.training.keep == "best"]
    last = [arm for arm in plan.arms if arm not in best]
    if not best:
        return "the last weights kept"
    if not last:
        return "the weights of the best validation loss kept"
    elsewhere = {level for arm in last for level in arm.levels.values()}
    shared = set.intersection(*(set(arm.levels.values()) for arm in best)) - elsewhere
    where = f"under {', '.join(sorted(shared))}" if shared else f"in {counted(len(best), 'arm')}"
    return f"the last weights kept, and {where} those of the best validation loss"


def _tried(plan: PanelPlan, found: Fits) -> list[Block]:
    if not plan.study.tuning.panels:
        text = f"All {counted(len(plan.arms), 'arm')} of the plan, on every panel; nothing was chosen before."
        return [Text(text=text)]
    names = [name.rsplit(".", 1)[-1] for name in plan.study.tuning.space]
    rows = []
    points = plan.study.tuning.points()
    for arm in plan.arms:
        own = found.of(arm.name, role="tuning")
        final = found.of(arm.name)
        cells = []
        for point in points:
            text = json.dumps(point, sort_keys=True)
            loss = plain_mean(own.filter(pl.col("point") == text)["validation_loss"])
            shown = "–" if loss is None else f"{loss:.4f}"
            chosen = final.height and final["point"][0] == text
            cells.append(f"**{shown}**" if chosen else shown)
        rows.append((arm.name, *cells))
    columns = tuple(", ".join(f"{value:g}" for value in point.values()) for point in points)
    return [
        Table(
            columns=("arm", *columns),
            rows=tuple(rows),
            left=("arm",),
            note=f"Mean validation loss by {', '.join(names)} on the tuning panels; bold is what the final "
            "fits were made with.",
        )
    ]


def _outcomes(found: Fits, sources: str) -> list[Block]:
    counts = found.table.group_by("role", "outcome").len().sort("role", "outcome").rows()
    told = ", ".join(f"{number} {role} {outcome}" for role, outcome, number in counts)
    seconds = duration(float(found.table["seconds"].sum()))
    made = found.table.group_by("sources").len().sort("len", "sources", descending=True).rows()
    code = "; ".join(f"{counted(number, 'fit')} with sources `{sources}`" for sources, number in made)
    text = f"{told}. A diverged fit enters as the zero forecast. All fits one after another: {seconds}."
    mixed = " **They are not all of one code.**" if len(made) > 1 else ""
    earlier = " A committed fit counts by its design, whatever code made it."
    other = earlier if any(one != sources for one, _ in made) else ""
    return [Text(text=text), Text(text=f"Made by: {code}.{mixed}{other}")]


def _numbers(values: tuple[int, ...]) -> str:
    whole = list(range(values[0], values[0] + len(values)))
    return (
        f"{values[0]} to {values[-1]}"
        if len(values) > 2 and list(values) == whole
        else ", ".join(map(str, values))
    )

r"""One training on a simulated panel of its own, judged against the oracle.

A study of causes asks of independent panels, not of folds of one: a panel is a cluster. Everything is in
units of the training targets' mean square, so that 0.01 is one percentage point of R2:

.. math:: \mathrm{excess} = \frac1N \sum \bigl[(p - y)^2 - (s - y)^2\bigr]

with p the forecast, y the target and s the planted signal: how much worse than the oracle, on the same
windows. On the test, where p knows nothing of the noise, its expectation :math:`\frac1N\sum (p - s)^2` is
used, which the noise does not blur. On the training windows it is below that by what the network has learnt
of their noise.
"""

from __future__ import annotations

import functools
import json
import math
import os
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fints.config import Experiment
from fints.data import Simulation, simulate
from fints.data.learning import prepare
from fints.data.windows import WindowSet
from fints.diagnostics import calibrated_share, probe_rows, spikes_per_thousand
from fints.diagnostics.watch import Watch
from fints.interventions import Applied, intervene
from fints.model import Transformer, build
from fints.study.grouping import why_alone
from fints.study.panel_cells import Days, PanelFit
from fints.study.panel_inside import Curve, inside_rows
from fints.study.panel_measures import further_measures
from fints.study.panel_planted import planted
from fints.study.panel_windows import Chosen, Places, spread
from fints.study.store import finish_folder, write_json
from fints.training import Member, derive, fit, fit_together, make_loss

if TYPE_CHECKING:
    from fints.training.result import FitResult

__all__ = ["run_panel_fit", "run_panel_job", "train_on_panel", "train_on_panels"]

# Windows that a training loss is a mean over: as many steps' worth of forward passes as 8192 / 64.
TRAIN_WINDOWS = 8192
# Of the batch that mediators and profiles are measured on, spread over the training dates.
WATCHED_WINDOWS = 32
PROBE_WINDOWS = 2048
FAILED = ("diverged", "out_of_memory")


def run_panel_job(job: PanelFit, *, tmp: Path, fits: Path) -> None:
    """Make the fit, or all the fits, of a job and write their folders; see `fints.study.fits.run_job`.

    Raises
    ------
    MemoryError
        If there was too little memory; nothing is written then.
    """
    if not job.members:
        run_panel_fit(job, tmp=tmp, fits=fits)
        return
    cells = job.cells()
    if all((fits / cell.key).is_dir() for cell in cells):
        return
    started, clock = datetime.now(UTC), time.perf_counter()
    begun, results = _trained_together(cells)
    for_all = time.perf_counter() - clock - sum(result.seconds for result in results)
    for each, result in zip(begun, results, strict=True):
        clock = time.perf_counter()
        if not (fits / each.cell.key).is_dir():
            told = _told(each, result)
            seconds = for_all / len(cells) + result.seconds + time.perf_counter() - clock
            _write(each.cell, *told, tmp=tmp, fits=fits, started=started, seconds=seconds)


def run_panel_fit(cell: PanelFit, *, tmp: Path, fits: Path) -> Path:
    """Train one fit and write its folder; a folder that exists is returned as it is.

    Raises
    ------
    MemoryError
        If there was too little memory; nothing is written then.
    """
    final = fits / cell.key
    if final.is_dir():
        return final
    started, clock = datetime.now(UTC), time.perf_counter()
    told = train_on_panel(cell)
    _write(cell, *told, tmp=tmp, fits=fits, started=started, seconds=time.perf_counter() - clock)
    return final


def train_on_panel(cell: PanelFit) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the numbers of one fit, and the rows of what was watched in it.

    A diverged fit enters as the zero forecast.

    Raises
    ------
    ValueError
        If the target is not over one day, whose expectation is what was planted.
    MemoryError
        If there was too little memory.
    """
    begun = _begun(cell)
    member = begun.member()
    result = fit(
        member.model,
        member.train,
        member.validation,
        member.config,
        seed=member.seed,
        profiler=member.profiler,
        steering=begun.steering,
    )
    _refuse_shortage(result)
    return _told(begun, result)


def train_on_panels(cells: Sequence[PanelFit]) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Return what `train_on_panel` does of each, made at once if fits of one arm can be.

    Raises
    ------
    ValueError, MemoryError
        As `train_on_panel`, or if they cannot be made together though one of them could.
    """
    if len(cells) < 2 or why_alone(Experiment.from_dict(cells[0].experiment)) is not None:
        return [train_on_panel(cell) for cell in cells]
    return [_told(each, result) for each, result in zip(*_trained_together(cells), strict=True)]


def _trained_together(cells: Sequence[PanelFit]) -> tuple[list[_Begun], list[FitResult]]:
    begun = [_begun(cell) for cell in cells]
    results = fit_together([each.member() for each in begun])
    for result in results:
        _refuse_shortage(result)
    return begun, results


@dataclass(frozen=True, kw_only=True)
class _Begun:
    """A fit before its first step: its panel's windows, what was planted for each day, its network."""

    cell: PanelFit
    experiment: Experiment
    made: Simulation
    parts: dict[str, WindowSet]
    clean: Tensor
    model: Transformer
    steering: Applied | None
    watch: Watch | Curve | None

    def member(self) -> Member:
        """Return what is trained."""
        return Member(
            model=self.model,
            train=self.parts["train"],
            # To choose weights by, where they are chosen; nothing else in a training depends on it.
            validation=self.parts["validation"] if self.experiment.training.keep == "best" else None,
            config=self.experiment.training,
            seed=derive(self.cell.seed, "training"),
            profiler=self.watch,
            steering=self.steering,
        )


def _begun(cell: PanelFit) -> _Begun:
    experiment = Experiment.from_dict(cell.experiment)
    data, training = experiment.data, experiment.training
    if data.horizon != 1:
        raise ValueError(f"a fit against the oracle needs data.horizon = 1; got {data.horizon}.")
    days = Days(**cell.days)
    made = _simulated(json.dumps({"num_days": days.total, **cell.simulation, "seed": cell.panel}))
    spans = _spans(made.panel.dates.to_list(), days)
    learning = prepare(made.panel, data, train=spans["train"], validation=spans["validation"])
    clean = torch.from_numpy(planted(made, data.target).T.copy() / learning.target_std).flatten()
    parts = {
        name: learning.windows.select(*span, labelled=True, every_token=name == "train" and every)
        for every in (experiment.model.forecast_from == "every_token",)
        for name, span in spans.items()
    }
    model = _network(cell, experiment)
    steering = intervene(model, training.interventions, seed=derive(cell.seed, "interventions"))
    watch: Watch | Curve | None = None
    if cell.asked.get("curve") and not cell.watched:
        validation = Chosen.of(parts["validation"])
        watch = Curve(validation, validation.said(clean))
    if cell.watched:
        watched = Chosen.of(parts["train"], WATCHED_WINDOWS)
        inputs, targets = watched.gather(torch.arange(len(watched)))
        watch = Watch(inputs, targets, training, steering=steering, noise_free=watched.said_by_token(clean))
    return _Begun(
        cell=cell,
        experiment=experiment,
        made=made,
        parts=parts,
        clean=clean,
        model=model,
        steering=steering,
        watch=watch,
    )


def _refuse_shortage(result: FitResult) -> None:
    if result.outcome == "out_of_memory":
        raise MemoryError(f"{result.reason} Fewer workers leave more for each.")


def _told(begun: _Begun, result: FitResult) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the numbers of a fit that has ended, and the rows of what was watched in it."""
    cell, model, parts, clean = begun.cell, begun.model, begun.parts, begun.clean
    failed = result.outcome in FAILED
    found: dict[str, Any] = {
        "outcome": result.outcome,
        "reason": result.reason,
        "steps": result.steps,
        "parameters": sum(p.numel() for p in model.parameters()),
        "validation_loss": _judge(model, Chosen.of(parts["validation"]), clean, failed=failed)["loss"],
        "timing": {"training_seconds": result.seconds, "seconds_a_step": result.seconds_a_step},
    }
    if cell.role != "tuning":
        judged, forecast = _judged(begun, result, failed=failed)
        test = Chosen.of(parts["test"])
        days = Days(**cell.days).total
        volatility = begun.made.volatility["volatility"].to_numpy().reshape(days, -1).T.copy()
        found |= judged | further_measures(
            cell.asked,
            model,
            test,
            features=begun.experiment.data.features,
            forecast=forecast,
            signal=test.said(clean),
            volatility=test.said(torch.from_numpy(volatility).flatten()),
            failed=failed,
        )
    rows = [row for row in result.profiles if not failed] if begun.watch is not None else []
    if cell.watched and not failed:
        rows += _probes(model, parts, clean)
    if cell.asked.get("inside") and not failed:
        test = Chosen.of(parts["test"])
        loss = make_loss(begun.experiment.training)
        rows += inside_rows(model, _network(cell, begun.experiment), test, test.said(clean), loss=loss)
    return found, rows


def _network(cell: PanelFit, experiment: Experiment) -> Transformer:
    """Return the network of a fit before its first step."""
    return build(
        experiment.model,
        num_features=len(experiment.data.features),
        context=experiment.data.context,
        seed=derive(cell.seed, "model"),
    )


def _write(
    cell: PanelFit,
    found: dict[str, Any],
    rows: list[dict[str, Any]],
    *,
    tmp: Path,
    fits: Path,
    started: datetime,
    seconds: float,
) -> None:
    """Let the folder of a fit appear."""
    fresh = tmp / f"{cell.key}-{os.getpid()}"
    fresh.mkdir(parents=True, exist_ok=True)
    timing = found.pop("timing")
    names = ("key", "arm", "role", "panel", "seed", "point", "sources")
    identity = {name: getattr(cell, name) for name in names}
    write_json(fresh / "result.json", {**identity, **found})
    if rows:
        write_json(fresh / "rows.json", rows)
    told = {"started": started.isoformat(timespec="seconds"), "seconds": seconds}
    write_json(fresh / "timing.json", {**told, **timing, "host": platform.node()})
    finish_folder(fresh, fits / cell.key)


def _judged(begun: _Begun, result: FitResult, *, failed: bool) -> tuple[dict[str, Any], Tensor]:
    """Return what a final fit is judged by, and its forecasts of the test."""
    model, parts, clean = begun.model, begun.parts, begun.clean
    test, validation = Chosen.of(parts["test"]), Chosen.of(parts["validation"])
    train, outcomes = _trained_on(begun)
    judged = {
        "train": _judge(model, train, clean, failed=failed, outcomes=outcomes),
        "validation": _judge(model, validation, clean, failed=failed),
        "test": _judge(model, test, clean, failed=failed),
    }
    p, s = judged["test"]["forecast"], test.said(clean)
    size = float(s.square().mean())
    # The scalar is chosen on validation outcomes, and judged on the test.
    _, scalar = calibrated_share(judged["validation"]["forecast"], validation.outcomes())
    excess = float((p - s).square().mean())
    calibrated = float((scalar * p - s).square().mean())
    numbers = {
        "signal_size": size,
        "train_excess": judged["train"]["excess"],
        "test_excess": excess,
        "test_excess_noisy": judged["test"]["excess"],
        "calibrated_excess": calibrated,
        "share_of_oracle": 1 - excess / size if size else None,
        "forecast_variance_ratio": float(p.square().mean()) / size if size else None,
        "final_training_loss": sum(result.losses[-50:]) / max(1, len(result.losses[-50:]))
        if result.losses
        else None,
        "spikes_per_thousand": spikes_per_thousand(result.losses),
    }
    return numbers, p


def _judge(
    model: Transformer, part: Chosen, clean: Tensor, *, failed: bool, outcomes: Tensor | None = None
) -> dict[str, Any]:
    """Return forecasts of the last day of each window, their loss, and what that is above the oracle's."""
    y = part.outcomes() if outcomes is None else outcomes
    p = part.forecasts(model, failed=failed)
    loss = float((p - y).square().mean())
    oracle = float((part.said(clean) - y).square().mean())
    return {"forecast": p, "loss": loss, "excess": loss - oracle}


def _trained_on(begun: _Begun) -> tuple[Chosen, Tensor]:
    """Return windows evenly spread over those that were trained on, and the outcomes they were given.

    An intervention may leave windows out or change what they are told.
    """
    train = begun.parts["train"]
    if begun.steering is None:
        chosen = Chosen.of(train, TRAIN_WINDOWS)
        return chosen, chosen.outcomes()
    given = begun.steering.windows(train)
    places = spread(len(given), TRAIN_WINDOWS)
    # Where each of them is in the whole set: what stands in place of the inputs goes through unchanged.
    which, _ = begun.steering.windows(Places(len(train))).gather(places)
    return Chosen(train, which), given.gather(places)[1][:, -1].double()


def _probes(model: Transformer, parts: dict[str, WindowSet], clean: Tensor) -> list[dict[str, Any]]:
    before, after = Chosen.of(parts["train"], PROBE_WINDOWS), Chosen.of(parts["test"], PROBE_WINDOWS)
    said, held_out = before.said(clean), after.said(clean)
    if not bool(held_out.square().sum() > 0):
        return []
    rows = probe_rows(model, before, after, said=said, held_out=held_out)
    return [
        {"step": None, "layer": row["layer"], "measure": "probe_share", "value": row["share"]}
        for row in rows
        if math.isfinite(row["share"])
    ]


def _spans(dates: list[date], days: Days) -> dict[str, tuple[date, date]]:
    """Return first and last decision date of each part; an outcome takes a day to be known."""
    first, second = days.train, days.train + days.validation
    return {
        "train": (dates[0], dates[first - 2]),
        "validation": (dates[first], dates[second - 2]),
        "test": (dates[second], dates[second + days.test - 1]),
    }


@functools.lru_cache(maxsize=2)
def _simulated(recipe: str) -> Simulation:
    """Return the panel of a recipe in JSON; a worker fits several arms on the same one."""
    return simulate(**json.loads(recipe))

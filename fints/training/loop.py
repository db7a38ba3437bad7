"""The one training loop.

Shapes: B batch, T tokens, F features, H horizons.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fints.config import TrainingConfig
from fints.training.batches import Batches, BatchOrder
from fints.training.checkpoint import read_checkpoint, write_checkpoint
from fints.training.common import (
    STEPS_A_CHECK,
    LayerProfiler,
    calibrated,
    copied,
    ending,
    profile_rows,
    shortage,
    too_large,
)
from fints.training.device import is_out_of_memory, release, resolve_device, unless_memory_runs_out
from fints.training.evaluate import move
from fints.training.identity import fit_identity
from fints.training.losses import make_loss
from fints.training.optimizer import learning_rate, make_optimizer
from fints.training.passes import loss_of, validate
from fints.training.progress import DivergedError, Progress, content_of, restore
from fints.training.result import FitResult, Outcome
from fints.training.seeds import derive, reseed
from fints.training.steering import NEEDS_PLAIN_PASS, Steering
from fints.training.surroundings import compiled, surroundings

__all__ = ["fit"]


def fit(
    model: nn.Module,
    train: Batches,
    validation: Batches | None,
    config: TrainingConfig,
    *,
    seed: int,
    checkpoint: Path | None = None,
    checkpoint_every: int = 0,
    on_row: Callable[[dict[str, Any]], None] | None = None,
    profiler: LayerProfiler | None = None,
    estimated_bytes: int | None = None,
    compile_backend: str | None = None,
    steering: Steering | None = None,
) -> FitResult:
    r"""Train `model` in place; it ends in evaluation mode, on the device, with the kept weights.

    .. math:: \theta \leftarrow \mathrm{AdamW}\bigl(\theta,\; g \min(1, c/\lVert g\rVert)\bigr), \qquad
        g = \nabla_\theta \frac{\sum \mathrm{loss}(\mathrm{model}(x), r)}{\text{targets in the batch}}

    Deterministic: the same model, data, configuration and seed on the same machine and number of
    threads give the same bits on the CPU, interrupted and resumed or not. Batches and dropout of
    step s derive from (seed, s) alone, so they are the same in every arm, and nothing that a
    callback draws can move them. torch's global generators, its number of threads and the grad
    mode are left as found.

    A model that `calibrates` measures training windows before the first step, which is no step of its
    own: all of them, or 2,048 at equal distances if there are more, whatever the seed.

    Parameters
    ----------
    model
        Maps inputs (B, T, F) to a forecast of (B, T, H) fields.
    train, validation
        Windows to train on; windows whose mean loss decides what is kept and when to stop. The
        last batch of `validation` is filled up with rows without targets, so that shapes stay
        fixed.
    config
        The schedule. `precision` "bfloat16" runs the forward pass under autocast, here and in
        evaluation; `keep` "best" without validation keeps the last weights.
    seed
        Of the batch order and of dropout; the weights come with the model.
    checkpoint
        A file to write the whole state to, every `checkpoint_every` steps (0: at each
        evaluation), and to resume from if it exists. To resume, pass the model as it was when the
        fit began. The file stays when the fit ends.
    on_row
        Called with a copy of each row of the history as it is made. After a resume, rows made
        since the last checkpoint come a second time, equal to the first.
    profiler
        Called before the first step and after the last; with `profile_every` > 0 also at that cadence, after
        the steps of `profile_at` too, and with either the rows of the first call are kept. Where
        memory runs out in a profile there are no rows of it, the reason says so, and the fit goes on.
    estimated_bytes
        What the fit will need; if the device has less free, the fit ends before it starts. It
        does too if the model is on the meta device, undrawn because it was found too large.
    compile_backend
        Used with `config.compile`: the backend of torch.compile. Without one a network that has a fast
        pass of its own (`compiled`, as `fints.model.Transformer` has) chooses for its device.
    steering
        What stands for the plain windows, backward pass and step (`fints.interventions`).

    Returns
    -------
    FitResult
        A divergence or a lack of memory is an outcome, not an error. The model then holds the
        best weights so far by validation (with `keep` "last": those of the last evaluation),
        or, before the first evaluation, those it came with. Out of memory before the first
        step leaves it on the CPU.

    Raises
    ------
    ValueError
        If the device is absent, a set holds no target, `patience` lacks a validation set, the
        checkpoint is damaged or belongs to another fit, or a compiled or recomputed pass is to be steered.
    """
    device = resolve_device(config.device)
    if config.patience and validation is None:
        raise ValueError(
            f"early stopping (training.patience = {config.patience}) needs a validation set; got None. "
            "Give one or set training.patience = 0."
        )
    if validation is not None and len(validation) == 0:
        raise ValueError("validation needs at least one window; got none. Widen its dates, or pass None.")
    if steering is not None:
        if config.compile or config.activation_checkpointing:
            raise ValueError(NEEDS_PLAIN_PASS)
        train = steering.windows(train)
    order = BatchOrder(len(train), config.batch_size, seed)
    progress = Progress()
    if estimated_bytes is not None:
        reason = too_large([model], estimated_bytes, device)
        if reason is not None:
            model.eval()
            return progress.result("out_of_memory", reason, device)

    identity = fit_identity(model, train, validation, config, seed) if checkpoint is not None else ""
    kept = copied(model)
    started = time.perf_counter()
    outcome: Outcome
    with surroundings(model, config, device):
        try:
            outcome, reason = _train(
                model,
                train,
                validation,
                config,
                order=order,
                seed=seed,
                device=device,
                progress=progress,
                kept=kept,
                checkpoint=checkpoint,
                checkpoint_every=checkpoint_every or config.evaluate_every,
                identity=identity,
                on_row=on_row,
                profiler=profiler,
                compile_backend=compile_backend,
                steering=steering,
                started=started,
            )
        except DivergedError as error:
            outcome, reason = "diverged", str(error)
            progress.step = error.step
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            outcome, reason = "out_of_memory", shortage(error, progress.step, device)
        # Outside the handlers: an exception in flight keeps the frames, and their tensors, alive.
        model.zero_grad(set_to_none=True)
        if outcome == "out_of_memory":
            if progress.step == 0:
                # The weights themselves may not have fitted: half of them would be left behind.
                model.to("cpu")
            release(device)
        failed = outcome in ("diverged", "out_of_memory")
        if failed or (config.keep == "best" and progress.best_loss is not None):
            model.load_state_dict(kept)
        model.eval()
    progress.seconds += time.perf_counter() - started
    return progress.result(outcome, reason, device)


def _train(
    model: nn.Module,
    train: Batches,
    validation: Batches | None,
    config: TrainingConfig,
    *,
    order: BatchOrder,
    seed: int,
    device: torch.device,
    progress: Progress,
    kept: dict[str, Tensor],
    checkpoint: Path | None,
    checkpoint_every: int,
    identity: str,
    on_row: Callable[[dict[str, Any]], None] | None,
    profiler: LayerProfiler | None,
    compile_backend: str | None,
    steering: Steering | None,
    started: float,
) -> tuple[Outcome, str]:
    model.to(device)
    optimizer = make_optimizer(model, config)
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    named = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    loss = make_loss(config)
    forward: Callable[[Tensor], Any] = model
    if config.compile:
        forward = compiled(model, compile_backend)
    pending: list[Tensor] = []
    steps_a_check = STEPS_A_CHECK[device.type]

    def check() -> None:
        """Read the numbers of the pending steps; raise at the first that is not finite."""
        if not pending:
            return
        rows = torch.stack(pending).tolist()
        first = progress.step + 2 - len(rows)
        pending.clear()
        for number, (total, count, norm) in enumerate(rows, start=first):
            progress.count(total, count, norm, number=number, config=config)

    def stopped() -> bool:
        return config.patience > 0 and progress.waited >= config.patience

    def profiled(step: int, before: dict[str, Tensor] | None) -> list[dict[str, Any]]:
        """Return the rows of a profile, none if memory runs out in it; `before`: weights a step ago."""
        assert profiler is not None

        def update() -> dict[str, Tensor] | None:
            if before is None:
                return None
            return {name: named[name].detach() - old for name, old in before.items()}

        return profile_rows(profiler, model, step, update, progress, device)

    aside = time.perf_counter()
    content = None
    if checkpoint is not None and checkpoint.exists():
        content = read_checkpoint(checkpoint, identity)
    # Before the weights of a checkpoint are put in: a resumed fit measures the same beginning, and
    # calibrates for that alone; the constants that it trains with come from the checkpoint.
    if (content is None or profiler is not None) and calibrated(model, train, seed, device):
        kept.update(copied(model))
    rows = [] if profiler is None else profiled(0, {})
    if content is not None:
        unprofiled = progress.unprofiled
        restore(content, model, optimizer, progress, kept)
        progress.unprofiled = sorted({*unprofiled, *progress.unprofiled})
    elif config.profile_every > 0 or config.profile_at:
        progress.profiles.extend(rows)
    progress.seconds_aside += time.perf_counter() - aside
    model.train()
    while progress.step < config.steps and not stopped():
        step, number = progress.step, progress.step + 1
        last = number == config.steps
        evaluation_due = last or number % config.evaluate_every == 0
        profile_due = last or config.profiled(number)
        checkpoint_due = checkpoint is not None and (last or number % checkpoint_every == 0)

        inputs, targets = move(train.gather(order(step)), device)
        reseed(derive(seed, "dropout", step), device)
        passed = partial(loss_of, forward, inputs, targets, loss, config, device)
        if steering is None:
            total, count = passed()
            (total / count.clamp(min=1)).backward()
        else:
            total, count = steering.gradients(model, passed, step=step)
        norm = nn.utils.clip_grad_norm_(parameters, config.clip_norm)
        pending.append(torch.stack((total.detach(), count.to(total.dtype), norm.detach().to(total.dtype))))
        if len(pending) >= steps_a_check or evaluation_due or profile_due or checkpoint_due:
            check()
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, config)
        # Only an evaluation can end the fit early, and the last step is always profiled.
        may_profile = profiler is not None and (profile_due or (evaluation_due and config.patience > 0))
        before = unless_memory_runs_out(lambda: _clone(named), device) if may_profile else None
        if steering is None:
            optimizer.step()
        else:
            rate_share = learning_rate(step, config) / config.learning_rate
            steering.update(model, optimizer.step, inputs, rate_share=rate_share)
        optimizer.zero_grad(set_to_none=True)
        progress.step = number
        if not (evaluation_due or profile_due or checkpoint_due):
            continue

        aside = time.perf_counter()
        if evaluation_due:
            row = progress.row(config)
            if validation is not None:
                model.eval()
                row["validation_loss"] = validate(forward, validation, loss, config, device, number)
                model.train()
            progress.history.append(row)
            if on_row is not None:
                on_row(dict(row))
            if progress.improves(row["validation_loss"]) or config.keep == "last":
                kept.update(copied(model))
        if profiler is not None and (profile_due or stopped()):
            progress.profiles.extend(profiled(number, before))
            model.train()
        progress.seconds_aside += time.perf_counter() - aside
        if checkpoint is not None and (checkpoint_due or stopped()):
            aside = time.perf_counter()
            content = content_of(model, optimizer, progress, kept)
            content["progress"]["seconds"] += time.perf_counter() - started
            write_checkpoint(checkpoint, identity, content)
            progress.seconds_aside += time.perf_counter() - aside
    early = stopped() and progress.step < config.steps
    return "stopped_early" if early else "finished", ending(progress, config)


def _clone(named: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
    return {name: weight.detach().clone() for name, weight in named.items()}

"""The one training loop.

Shapes: B batch, T tokens, F features, H horizons.
"""

from __future__ import annotations

import dataclasses
import gc
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from fints.config import TrainingConfig
from fints.training.batches import Batches, BatchOrder
from fints.training.checkpoint import read_checkpoint, write_checkpoint
from fints.training.device import free_bytes, is_out_of_memory, resolve_device
from fints.training.identity import fit_identity
from fints.training.losses import Loss, make_loss
from fints.training.optimizer import learning_rate, make_optimizer
from fints.training.seeds import derive, private_stream, reseed, threads

__all__ = ["FitResult", "LayerProfiler", "evaluate", "fit"]

Outcome = Literal["finished", "stopped_early", "diverged", "out_of_memory"]

# A loss this many times the first one has left every useful region, though it is still finite.
BLOW_UP = 1e4
# Reading a number off an accelerator waits for all work queued on it, so steps are checked in
# groups there; on the CPU every step is, before its weights move.
STEPS_A_CHECK = {"cpu": 1, "cuda": 16, "mps": 16}
# The attribute of a transformer that makes it recompute activations in the backward pass.
CHECKPOINTING = "activation_checkpointing"
LESS_MEMORY = "lower training.batch_size or model.width, or set training.activation_checkpointing."


class LayerProfiler(Protocol):
    """What the loop calls to measure the network; `fints.diagnostics.Profiler` is one."""

    def __call__(self, model: nn.Module, step: int, update: Mapping[str, Tensor]) -> list[dict[str, Any]]:
        """Return one row of plain values a sublayer, after `step` steps.

        `update` holds what the last optimiser step added to each parameter, by name; it is empty
        at step 0. The same arguments must give the same rows, or a resumed fit would differ.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class FitResult:
    """How a fit ended and what it measured; every number is finite.

    Attributes
    ----------
    outcome
        "finished" (all steps), "stopped_early" (no better validation loss for `patience`
        evaluations), "diverged", or "out_of_memory".
    reason
        One sentence that says why.
    steps
        Optimiser steps taken, those before an interruption included.
    best_step, best_validation_loss
        The step of the lowest validation loss and that loss. Without validation, or before the
        first evaluation: the step of the kept weights, and None.
    history
        One row an evaluation: "step", "train_loss" (mean over the targets of the steps since the
        row before), "validation_loss" (None without validation), "learning_rate" (of the step),
        "gradient_norm" (before clipping, mean over the same steps).
    profiles
        The rows of the profiler, each with its step.
    seconds, seconds_a_step
        Wall clock of the whole fit, interruptions left out; of one training step, evaluation,
        profiles and checkpoints left out.
    peak_memory
        Bytes: the peak of torch's allocator on CUDA, of the whole process on the CPU, None where
        nothing tells.
    device
        Where the fit ran.
    """

    outcome: Outcome
    reason: str
    steps: int
    best_step: int
    best_validation_loss: float | None
    history: list[dict[str, Any]]
    profiles: list[dict[str, Any]]
    seconds: float
    seconds_a_step: float
    peak_memory: int | None
    device: str


@dataclass(kw_only=True)
class _Progress:
    """Everything of a fit that is neither weights nor optimiser; saved in a checkpoint."""

    step: int = 0
    first_loss: float | None = None
    loss_total: float = 0.0
    loss_count: float = 0.0
    norm_total: float = 0.0
    norm_count: int = 0
    best_step: int = 0
    best_loss: float | None = None
    waited: int = 0
    history: list[dict[str, Any]] = field(default_factory=list)
    profiles: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0
    seconds_aside: float = 0.0


class _DivergedError(Exception):
    """Training left the finite numbers after `step` good steps."""

    def __init__(self, step: int, reason: str) -> None:
        super().__init__(reason)
        self.step = step


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
    compile_backend: str = "inductor",
) -> FitResult:
    r"""Train `model` in place; it ends in evaluation mode, on the device, with the kept weights.

    .. math:: \theta \leftarrow \mathrm{AdamW}\bigl(\theta,\; g \min(1, c/\lVert g\rVert)\bigr), \qquad
        g = \nabla_\theta \frac{\sum \mathrm{loss}(\mathrm{model}(x), r)}{\text{targets in the batch}}

    Deterministic: the same model, data, configuration and seed on the same machine and number of
    threads give the same bits on the CPU, interrupted and resumed or not. Batches and dropout of
    step s derive from (seed, s) alone, so they are the same in every arm, and nothing that a
    callback draws can move them. torch's global generators, its number of threads and the grad
    mode are left as found.

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
        Called after the last step and, with `profile_every` > 0, before the first step and at
        that cadence.
    estimated_bytes
        What the fit will need; if the device has less free, the fit ends before it starts.
    compile_backend
        The backend of torch.compile, used with `config.compile`.

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
        If the device is absent, a set holds no target, `patience` lacks a validation set, or the
        checkpoint is damaged or belongs to another fit.
    """
    device = resolve_device(config.device)
    if config.patience and validation is None:
        raise ValueError(
            f"early stopping (training.patience = {config.patience}) needs a validation set; got None. "
            "Give one or set training.patience = 0."
        )
    if validation is not None and len(validation) == 0:
        raise ValueError("validation needs at least one window; got none. Widen its dates, or pass None.")
    order = BatchOrder(len(train), config.batch_size, seed)
    progress = _Progress()
    if estimated_bytes is not None:
        free = free_bytes(device)
        if free is not None and estimated_bytes > free:
            model.eval()
            reason = (
                f"the fit needs about {_gibibytes(estimated_bytes)} and {device} has {_gibibytes(free)} "
                f"free; {LESS_MEMORY}"
            )
            return _result("out_of_memory", reason, progress, device)

    identity = fit_identity(model, train, validation, config, seed) if checkpoint is not None else ""
    kept = _copy(model)
    started = time.perf_counter()
    outcome: Outcome
    with _surroundings(model, config, device):
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
                started=started,
            )
        except _DivergedError as error:
            outcome, reason = "diverged", str(error)
            progress.step = error.step
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            outcome, reason = "out_of_memory", _shortage(error, progress.step, device)
        # Outside the handlers: an exception in flight keeps the frames, and their tensors, alive.
        model.zero_grad(set_to_none=True)
        if outcome == "out_of_memory":
            if progress.step == 0:
                # The weights themselves may not have fitted: half of them would be left behind.
                model.to("cpu")
            _release(device)
        failed = outcome in ("diverged", "out_of_memory")
        if failed or (config.keep == "best" and progress.best_loss is not None):
            model.load_state_dict(kept)
        model.eval()
    progress.seconds += time.perf_counter() - started
    return _result(outcome, reason, progress, device)


def _train(
    model: nn.Module,
    train: Batches,
    validation: Batches | None,
    config: TrainingConfig,
    *,
    order: BatchOrder,
    seed: int,
    device: torch.device,
    progress: _Progress,
    kept: dict[str, Tensor],
    checkpoint: Path | None,
    checkpoint_every: int,
    identity: str,
    on_row: Callable[[dict[str, Any]], None] | None,
    profiler: LayerProfiler | None,
    compile_backend: str,
    started: float,
) -> tuple[Outcome, str]:
    model.to(device)
    optimizer = make_optimizer(model, config)
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    named = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    loss = make_loss(config)
    forward: Callable[[Tensor], Any] = model
    if config.compile:
        forward = torch.compile(model, dynamic=False, backend=compile_backend)
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
            value = total / max(count, 1.0)
            _refuse_divergence(value, norm, number, progress, config)
            progress.loss_total += total
            progress.loss_count += count
            progress.norm_total += norm
            progress.norm_count += 1

    def stopped() -> bool:
        return config.patience > 0 and progress.waited >= config.patience

    if checkpoint is not None and checkpoint.exists():
        _restore(read_checkpoint(checkpoint, identity), model, optimizer, progress, kept)
    elif profiler is not None and config.profile_every > 0:
        progress.profiles.extend(profiler(model, 0, {}))
    model.train()
    while progress.step < config.steps and not stopped():
        step, number = progress.step, progress.step + 1
        last = number == config.steps
        evaluation_due = last or number % config.evaluate_every == 0
        profile_due = last or (config.profile_every > 0 and number % config.profile_every == 0)
        checkpoint_due = checkpoint is not None and (last or number % checkpoint_every == 0)

        inputs, targets = _move(train.gather(order(step)), device)
        reseed(derive(seed, "dropout", step), device)
        with _autocast(config, device):
            forecast = forward(inputs)
        total, count = loss(forecast, targets)
        (total / count.clamp(min=1)).backward()
        norm = nn.utils.clip_grad_norm_(parameters, config.clip_norm)
        pending.append(torch.stack((total.detach(), count.to(total.dtype), norm.detach().to(total.dtype))))
        if len(pending) >= steps_a_check or evaluation_due or profile_due or checkpoint_due:
            check()
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, config)
        # Only an evaluation can end the fit early, and the last step is always profiled.
        may_profile = profiler is not None and (profile_due or (evaluation_due and config.patience > 0))
        before = {name: weight.detach().clone() for name, weight in named.items()} if may_profile else {}
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        progress.step = number
        if not (evaluation_due or profile_due or checkpoint_due):
            continue

        aside = time.perf_counter()
        if evaluation_due:
            row = _row(progress, config, step)
            if validation is not None:
                model.eval()
                row["validation_loss"] = _validate(forward, validation, loss, config, device, number)
                model.train()
            progress.history.append(row)
            if on_row is not None:
                on_row(dict(row))
            _keep(model, row["validation_loss"], progress, kept, config)
        if profiler is not None and (profile_due or stopped()):
            update = {name: parameter.detach() - before[name] for name, parameter in named.items()}
            progress.profiles.extend(profiler(model, number, update))
            model.train()
        progress.seconds_aside += time.perf_counter() - aside
        if checkpoint is not None and (checkpoint_due or stopped()):
            content = _content(model, optimizer, progress, kept)
            content["progress"]["seconds"] += time.perf_counter() - started
            write_checkpoint(checkpoint, identity, content)
            progress.seconds_aside += time.perf_counter() - aside
    if stopped() and progress.step < config.steps:
        reason = (
            f"no validation loss below that of step {progress.best_step} in {config.patience} evaluations, "
            f"up to step {progress.step}"
        )
        return "stopped_early", reason
    return "finished", f"all {config.steps} steps taken"


def evaluate(
    forward: Callable[[Tensor], Any],
    batches: Batches,
    loss: Loss,
    *,
    batch_size: int,
    device: torch.device,
    autocast: AbstractContextManager[Any],
) -> float:
    """Return the mean loss over every target of `batches`, whatever the batch size.

    Losses are summed and divided once by the number of targets: a mean of batch means would
    weigh the last, partial batch as much as a full one. Evaluation mode is the caller's to set.

    Raises
    ------
    ValueError
        If `batches` holds no target.
    """
    sums = []
    number = len(batches)
    with torch.no_grad():
        for start in range(0, number, batch_size):
            positions = torch.arange(start, start + batch_size)
            inputs, targets = batches.gather(positions.clamp(max=number - 1))
            filled = number - start
            if filled < batch_size:
                targets = targets.clone()
                targets[filled:] = torch.nan
            inputs, targets = _move((inputs, targets), device)
            with autocast:
                forecast = forward(inputs)
            total, count = loss(forecast, targets)
            sums.append(torch.stack((total, count.to(total.dtype))))
        total, count = torch.stack(sums).cpu().double().sum(0).tolist()
    if count == 0:
        raise ValueError(
            f"an evaluation needs at least one target; got {number} windows without any. "
            "Give a set whose decision dates have outcomes."
        )
    return total / count


def _validate(
    forward: Callable[[Tensor], Any],
    validation: Batches,
    loss: Loss,
    config: TrainingConfig,
    device: torch.device,
    number: int,
) -> float:
    value = evaluate(
        forward,
        validation,
        loss,
        batch_size=config.batch_size,
        device=device,
        autocast=_autocast(config, device),
    )
    if not math.isfinite(value):
        raise _DivergedError(number, f"the validation loss is not finite after step {number}")
    return value


def _row(progress: _Progress, config: TrainingConfig, step: int) -> dict[str, Any]:
    """Return the row of the steps since the one before, and begin the next."""
    if progress.loss_count == 0:
        raise ValueError(
            f"training needs targets; the windows of steps {progress.step - progress.norm_count + 1} to "
            f"{progress.step} hold none. Give a set whose decision dates have outcomes."
        )
    row = {
        "step": progress.step,
        "train_loss": progress.loss_total / progress.loss_count,
        "validation_loss": None,
        "learning_rate": learning_rate(step, config),
        "gradient_norm": progress.norm_total / progress.norm_count,
    }
    progress.loss_total = progress.loss_count = progress.norm_total = 0.0
    progress.norm_count = 0
    return row


def _keep(
    model: nn.Module,
    value: float | None,
    progress: _Progress,
    kept: dict[str, Tensor],
    config: TrainingConfig,
) -> None:
    """Note whether `value` is the best so far, and copy the weights if they are to be kept."""
    better = value is not None and (progress.best_loss is None or value < progress.best_loss)
    if better:
        progress.best_loss = value
        progress.waited = 0
    else:
        progress.waited += 1
    if better or value is None:
        progress.best_step = progress.step
    if better or value is None or config.keep == "last":
        kept.update(_copy(model))


def _refuse_divergence(
    value: float, norm: float, number: int, progress: _Progress, config: TrainingConfig
) -> None:
    rate = f"learning rate {learning_rate(number - 1, config):.3g}"
    if not math.isfinite(value):
        raise _DivergedError(number - 1, f"the training loss is not finite at step {number} ({rate})")
    if not math.isfinite(norm):
        raise _DivergedError(number - 1, f"the gradient norm is not finite at step {number} ({rate})")
    if progress.first_loss is None:
        progress.first_loss = value
    # A likelihood may start near zero or below; a squared error that starts at zero has no scale.
    first = progress.first_loss
    limit = first + BLOW_UP * max(1.0, abs(first)) if config.loss == "nll" else BLOW_UP * (first or math.inf)
    if value > limit:
        raise _DivergedError(
            number - 1,
            f"the training loss {value:.3g} at step {number} is over {BLOW_UP:g} times the first, "
            f"{first:.3g} ({rate})",
        )


def _move(batch: tuple[Tensor, Tensor], device: torch.device) -> tuple[Tensor, Tensor]:
    inputs, targets = batch
    if device.type == "cpu":
        return inputs, targets
    if device.type == "cuda" and inputs.device.type == "cpu":
        # From pinned memory the copy runs while the host gathers on.
        inputs, targets = inputs.pin_memory(), targets.pin_memory()
    return inputs.to(device, non_blocking=True), targets.to(device, non_blocking=True)


def _autocast(config: TrainingConfig, device: torch.device) -> torch.autocast:
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=config.precision == "bfloat16")


@contextmanager
def _surroundings(model: nn.Module, config: TrainingConfig, device: torch.device) -> Iterator[None]:
    """Set what the fit needs of torch and the model, and put it back."""
    checkpointing = bool(getattr(model, CHECKPOINTING, False))
    with private_stream(device), threads(config.threads), torch.inference_mode(False), torch.enable_grad():
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        if config.activation_checkpointing:
            setattr(model, CHECKPOINTING, True)
        try:
            yield
        finally:
            if config.activation_checkpointing:
                setattr(model, CHECKPOINTING, checkpointing)
            if config.compile:
                # Compiled code is cached by function, not by model: after eight models of one
                # class torch would stop compiling and run them eagerly.
                torch.compiler.reset()


def _copy(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in model.state_dict().items()}


def _content(
    model: nn.Module, optimizer: torch.optim.Optimizer, progress: _Progress, kept: dict[str, Tensor]
) -> dict[str, Any]:
    return {
        "progress": dataclasses.asdict(progress),
        "model": dict(model.state_dict()),
        "optimizer": optimizer.state_dict(),
        "kept": kept,
    }


def _restore(
    content: dict[str, Any],
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    progress: _Progress,
    kept: dict[str, Tensor],
) -> None:
    model.load_state_dict(content["model"])
    optimizer.load_state_dict(content["optimizer"])
    kept.update(content["kept"])
    for name, value in content["progress"].items():
        setattr(progress, name, value)


def _release(device: torch.device) -> None:
    gc.collect()
    if device.type != "cpu":
        torch.get_device_module(device).empty_cache()


def _shortage(error: BaseException, step: int, device: torch.device) -> str:
    said = str(error).splitlines()[0] if str(error) else type(error).__name__
    return f"memory ran out on {device} at step {step + 1} ({said}); {LESS_MEMORY}"


def _gibibytes(number: int) -> str:
    return f"{number / 2**30:.2f} GiB"


def _result(outcome: Outcome, reason: str, progress: _Progress, device: torch.device) -> FitResult:
    return FitResult(
        outcome=outcome,
        reason=reason,
        steps=progress.step,
        best_step=progress.best_step,
        best_validation_loss=progress.best_loss,
        history=progress.history,
        profiles=progress.profiles,
        seconds=progress.seconds,
        seconds_a_step=max(0.0, progress.seconds - progress.seconds_aside) / max(1, progress.step),
        peak_memory=_peak_memory(device),
        device=str(device),
    )


def _peak_memory(device: torch.device) -> int | None:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if device.type != "cpu" or sys.platform == "win32":
        return None
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024

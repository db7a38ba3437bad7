"""What one fit has in common with several that are made together (`fints.training.vectorised`).

Shapes: B batch, T tokens, F features.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn

from fints.config import TrainingConfig
from fints.training.batches import Batches
from fints.training.device import free_bytes, unless_memory_runs_out
from fints.training.evaluate import move
from fints.training.progress import Progress
from fints.training.seeds import derive, reseed

__all__ = [
    "STEPS_A_CHECK",
    "LayerProfiler",
    "calibrated",
    "copied",
    "ending",
    "profile_rows",
    "shortage",
    "too_large",
]

# Reading a number off an accelerator waits for all work queued on it, so steps are checked in
# groups there; on the CPU every step is, before its weights move.
STEPS_A_CHECK = {"cpu": 1, "cuda": 16, "mps": 16}
# The attribute of a transformer that says whether it measures real data before its first step.
CALIBRATES = "calibrates"
# Volatility clusters by date, so the variances of one batch of 64 windows of a panel of prices differ by
# 7 % between batches, those of 1,024 random ones by 2 %. Spread over all dates, these are within 1 %.
CALIBRATION_WINDOWS = 2048
LESS_MEMORY = "lower training.batch_size or model.width, or set training.activation_checkpointing."


class Calibrating(Protocol):
    """A model whose `calibrates` is true; `fints.model.Transformer` is one."""

    def calibrate(self, inputs: Tensor) -> None:
        """Set constants from real windows (B, T, F)."""
        ...


class LayerProfiler(Protocol):
    """What the loop calls to measure the network; `fints.diagnostics.Profiler` is one."""

    def __call__(self, model: nn.Module, step: int, update: Mapping[str, Tensor]) -> list[dict[str, Any]]:
        """Return one row of plain values a sublayer, after `step` steps.

        `update` holds what the last optimiser step added to each parameter, by name; it is empty
        at step 0. A fit begins with the call at step 0, of the model as it came, whether or not the
        rows are kept and also when it is resumed. The same calls must give the same rows, or a
        resumed fit would differ.
        """
        ...


def calibrated(model: nn.Module, train: Batches, seed: int, device: torch.device) -> bool:
    """Let a model that `calibrates` measure training windows; return whether it does.

    All of them, or 2,048 at equal distances if there are more, whatever the seed, which is that of dropout.
    """
    if not getattr(model, CALIBRATES, False):
        return False
    chosen = min(len(train), CALIBRATION_WINDOWS)
    inputs, _ = move(train.gather(torch.arange(chosen) * len(train) // chosen), device)
    reseed(derive(seed, "calibration"), device)
    cast(Calibrating, model).calibrate(inputs)
    return True


def profile_rows(
    profiler: LayerProfiler,
    model: nn.Module,
    step: int,
    update: Callable[[], Mapping[str, Tensor] | None],
    progress: Progress,
    device: torch.device,
) -> list[dict[str, Any]]:
    """Return the rows of a profile; none, which `progress` notes, if memory runs out in it.

    `update` makes what the last optimiser step added to each parameter, None if there was no memory for it.
    """

    def measured() -> list[dict[str, Any]] | None:
        added = update()
        return None if added is None else profiler(model, step, added)

    rows = unless_memory_runs_out(measured, device)
    if rows is None:
        progress.unprofiled.append(step)
    return rows or []


def too_large(models: Sequence[nn.Module], estimated_bytes: int, device: torch.device) -> str | None:
    """Return why networks that will need so much cannot be trained on a device, None if they can.

    They cannot either if one is on the meta device, undrawn because it was found too large.
    """
    free = free_bytes(device)
    undrawn = any(parameter.is_meta for model in models for parameter in model.parameters())
    if not undrawn and (free is None or estimated_bytes <= free):
        return None
    needing = "the fit needs" if len(models) == 1 else f"{len(models)} fits together need"
    left = "too little" if free is None else _gibibytes(free)
    return f"{needing} about {_gibibytes(estimated_bytes)} and {device} has {left} free; {LESS_MEMORY}"


def ending(progress: Progress, config: TrainingConfig) -> str:
    """Return the sentence that says why a fit ended that did not fail."""
    without = _without(progress.unprofiled)
    if progress.step < config.steps:
        return (
            f"no validation loss below that of step {progress.best_step} in {config.patience} evaluations, "
            f"up to step {progress.step}{without}"
        )
    return f"all {config.steps} steps taken{without}"


def copied(model: nn.Module) -> dict[str, Tensor]:
    """Return a copy of the weights of a model, on the CPU."""
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in model.state_dict().items()}


def shortage(error: BaseException, step: int, device: torch.device) -> str:
    """Return the sentence that says where memory ran out, after `step` steps."""
    said = str(error).splitlines()[0] if str(error) else type(error).__name__
    return f"memory ran out on {device} at step {step + 1} ({said}); {LESS_MEMORY}"


def _without(steps: list[int]) -> str:
    """Return the part of a reason that names the steps whose profile is missing."""
    listed = ", ".join(str(step) for step in steps)
    return f"; memory ran out in the profile of step {listed}" if steps else ""


def _gibibytes(number: int) -> str:
    return f"{number / 2**30:.2f} GiB"

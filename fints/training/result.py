"""How a fit ended and what it measured."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, Literal

import torch

__all__ = ["FitResult", "Outcome", "peak_memory"]

Outcome = Literal["finished", "stopped_early", "diverged", "out_of_memory"]


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
    losses
        The training loss of every step, in order; those of a fit that diverged end before it did.
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
    losses: list[float]
    seconds: float
    seconds_a_step: float
    peak_memory: int | None
    device: str


def peak_memory(device: torch.device) -> int | None:
    """Return the peak so far, in bytes: torch's allocator on CUDA, the whole process on the CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if device.type != "cpu" or sys.platform == "win32":
        return None
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024

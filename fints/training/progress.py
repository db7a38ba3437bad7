"""The numbers of a fit in the making, and the point at which they say that it has diverged."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from fints.config import TrainingConfig
from fints.training.optimizer import learning_rate
from fints.training.result import FitResult, Outcome, peak_memory

__all__ = ["DivergedError", "Progress", "content_of", "restore"]

# A loss this many times the first one has left every useful region, though it is still finite.
BLOW_UP = 1e4


class DivergedError(Exception):
    """Training left the finite numbers after `step` good steps."""

    def __init__(self, step: int, reason: str) -> None:
        super().__init__(reason)
        self.step = step


@dataclass(kw_only=True)
class Progress:
    """Everything of a fit that is neither weights nor optimiser; saved in a checkpoint.

    Attributes
    ----------
    step
        Optimiser steps taken.
    first_loss
        Of the first step: the scale of a divergence.
    loss_total, loss_count, norm_total, norm_count
        Sums since the last row of the history.
    best_step, best_loss, waited
        The lowest validation loss, its step, and the evaluations since.
    history, profiles, unprofiled
        Rows so far, and the steps whose profile found no memory.
    losses
        The training loss of every step.
    seconds, seconds_aside
        Wall clock of earlier tries; of both, what was no training step.
    """

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
    unprofiled: list[int] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    seconds: float = 0.0
    seconds_aside: float = 0.0

    def count(self, total: float, count: float, norm: float, *, number: int, config: TrainingConfig) -> None:
        """Take in the loss, the targets and the gradient norm of step `number`.

        Raises
        ------
        DivergedError
            If one is not finite, or the loss is far above the first.
        """
        self._refuse_divergence(total / max(count, 1.0), norm, number, config)
        self.losses.append(total / max(count, 1.0))
        self.loss_total += total
        self.loss_count += count
        self.norm_total += norm
        self.norm_count += 1

    def row(self, config: TrainingConfig) -> dict[str, Any]:
        """Return the row of the steps since the one before, and begin the next.

        Raises
        ------
        ValueError
            If these steps had no target.
        """
        if self.loss_count == 0:
            raise ValueError(
                f"training needs targets; the windows of steps {self.step - self.norm_count + 1} to "
                f"{self.step} hold none. Give a set whose decision dates have outcomes."
            )
        row = {
            "step": self.step,
            "train_loss": self.loss_total / self.loss_count,
            "validation_loss": None,
            "learning_rate": learning_rate(self.step - 1, config),
            "gradient_norm": self.norm_total / self.norm_count,
        }
        self.loss_total = self.loss_count = self.norm_total = 0.0
        self.norm_count = 0
        return row

    def improves(self, value: float | None) -> bool:
        """Note a validation loss, None without validation; return whether these weights are better."""
        better = value is not None and (self.best_loss is None or value < self.best_loss)
        if better:
            self.best_loss = value
            self.waited = 0
        else:
            self.waited += 1
        if better or value is None:
            self.best_step = self.step
        return better or value is None

    def result(self, outcome: Outcome, reason: str, device: torch.device) -> FitResult:
        """Return what the fit has come to."""
        return FitResult(
            outcome=outcome,
            reason=reason,
            steps=self.step,
            best_step=self.best_step,
            best_validation_loss=self.best_loss,
            history=self.history,
            profiles=self.profiles,
            losses=self.losses,
            seconds=self.seconds,
            seconds_a_step=max(0.0, self.seconds - self.seconds_aside) / max(1, self.step),
            peak_memory=peak_memory(device),
            device=str(device),
        )

    def _refuse_divergence(self, value: float, norm: float, number: int, config: TrainingConfig) -> None:
        rate = f"learning rate {learning_rate(number - 1, config):.3g}"
        if not math.isfinite(value):
            raise DivergedError(number - 1, f"the training loss is not finite at step {number} ({rate})")
        if not math.isfinite(norm):
            raise DivergedError(number - 1, f"the gradient norm is not finite at step {number} ({rate})")
        if self.first_loss is None:
            self.first_loss = value
        # A likelihood may start near zero or below; a squared error that starts at zero has no scale.
        first = self.first_loss
        limit = (
            first + BLOW_UP * max(1.0, abs(first)) if config.loss == "nll" else BLOW_UP * (first or math.inf)
        )
        if value > limit:
            raise DivergedError(
                number - 1,
                f"the training loss {value:.3g} at step {number} is over {BLOW_UP:g} times the first, "
                f"{first:.3g} ({rate})",
            )


def content_of(
    model: nn.Module, optimizer: torch.optim.Optimizer, progress: Progress, kept: dict[str, Tensor]
) -> dict[str, Any]:
    """Return the whole state of a fit, as a checkpoint holds it."""
    return {
        "progress": dataclasses.asdict(progress),
        "model": dict(model.state_dict()),
        "optimizer": optimizer.state_dict(),
        "kept": kept,
    }


def restore(
    content: dict[str, Any],
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    progress: Progress,
    kept: dict[str, Tensor],
) -> None:
    """Put the state of `content_of` back in place."""
    model.load_state_dict(content["model"])
    optimizer.load_state_dict(content["optimizer"])
    kept.update(content["kept"])
    for name, value in content["progress"].items():
        setattr(progress, name, value)

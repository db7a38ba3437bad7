"""The mediators and the profile of a fit at several moments, as rows of one number each."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fints.config import TrainingConfig
from fints.diagnostics.mediators import mediators
from fints.diagnostics.profile import evaluation_mode, profile
from fints.model import Transformer
from fints.training import Steering, make_loss, one_thread

__all__ = ["PROFILED", "Watch"]

# What figures by sublayer are drawn from; the mediators come beside.
PROFILED = (
    "adjacent_cosine",
    "adjacent_cosine_centred",
    "adjacent_cosine_null",
    "increment_cosine",
    "relative_update",
    "update_to_weight",
)


class Watch:
    """Measures a network during a fit, on one batch that stays the same; a `fints.training.LayerProfiler`.

    Rows are ``step, layer, measure, value``: the mediators of `fints.diagnostics.mediators`, and the measures
    `PROFILED`. The layer is None where a measure is of the whole network; a value that is not finite is None.
    Under a steering ``gradient_norm`` is of the gradient that the fit trains with, and
    ``gradient_norm_plain`` of the plain one at the same weights. With `noise_free` there is
    ``signal_distance``, the mean squared distance of the forecasts to it: how far the network has got.

    Parameters
    ----------
    inputs, targets
        The batch, (B, T, F) and (B, T).
    config
        Names the loss.
    steering
        That of the fit.
    noise_free
        What the targets would be without noise, (B, T), where that is known.
    """

    def __init__(
        self,
        inputs: Tensor,
        targets: Tensor,
        config: TrainingConfig,
        *,
        steering: Steering | None = None,
        noise_free: Tensor | None = None,
    ) -> None:
        self._inputs, self._targets, self._noise_free = inputs, targets, noise_free
        self._loss = make_loss(config)
        self._steering = steering

    def __call__(self, model: nn.Module, step: int, update: Mapping[str, Tensor]) -> list[dict[str, Any]]:
        """Return the rows after `step` steps."""
        if not isinstance(model, Transformer):
            raise ValueError(f"a watch needs a fints.model.Transformer; got {type(model).__name__}.")
        device = next(model.parameters()).device
        x, y = self._inputs.to(device), self._targets.to(device)
        profiled = profile(model, x, y, loss=self._loss, step=step, update=update)
        found: dict[str, list[Any]] = {name: [row[name] for row in profiled] for name in PROFILED}
        found["gradient_norm_plain"] = [row["gradient_norm"] for row in profiled]
        found |= mediators(
            model,
            x,
            y,
            loss=self._loss,
            steering=self._steering,
            update=dict(update) if update else None,
            noise_free=None if self._noise_free is None else self._noise_free.to(device),
        )
        if self._noise_free is not None:
            found["signal_distance"] = [_distance(model, x, self._noise_free, self._targets.isfinite())]
        return [
            {
                "step": step,
                "layer": layer if len(values) > 1 else None,
                "measure": measure,
                "value": value if value is not None and math.isfinite(value) else None,
            }
            for measure, values in found.items()
            for layer, value in enumerate(values)
        ]


def _distance(model: Transformer, x: Tensor, noise_free: Tensor, labelled: Tensor) -> float:
    with evaluation_mode(model), one_thread(), torch.no_grad():
        forecast = model(x).mean.squeeze(-1).cpu().double()
    return float((forecast - noise_free.cpu().double())[labelled.cpu()].square().mean())

"""From the read-out of a token to a forecast.

Shapes: B batch, T tokens, D width, H horizons.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fints.residual.base import full_precision

__all__ = ["HEADS", "Forecast", "GaussianHead", "PointHead", "StudentTHead"]

# e^-10 to e^10 holds any unit of return; squared and inverted it stays finite in float32.
_LOG_SCALE_BOUND = 10.0
# Below 2 a Student t has no variance; above 100 it cannot be told from a Gaussian, and the
# difference of log-gammas in its density loses its digits in float32.
_DEGREES_LOW, _DEGREES_HIGH, _DEGREES_START = 2.01, 100.0, 8.0


class Forecast(NamedTuple):
    """A forecast for every token, each field (B, T, H) or None where the head has none.

    `mean` is in target units, `log_scale` the logarithm of the scale parameter, `degrees` the
    degrees of freedom of a Student t, above 2.
    """

    mean: Tensor
    log_scale: Tensor | None = None
    degrees: Tensor | None = None


class PointHead(nn.Module):
    """One linear map: mean = W z + b."""

    def __init__(self, width: int, num_horizons: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, num_horizons)

    def forward(self, z: Tensor) -> Forecast:
        """Return the forecast of the read-out z (B, T, D)."""
        return Forecast(_project(self.linear, z))


class GaussianHead(nn.Module):
    """Mean and log-scale of a Gaussian, one linear map for both.

    The log-scale is 10 tanh(r / 10): close to r where it matters, and bounded, so that a likelihood
    never overflows.
    """

    def __init__(self, width: int, num_horizons: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, 2 * num_horizons)

    def forward(self, z: Tensor) -> Forecast:
        """Return the forecast of the read-out z (B, T, D)."""
        mean, log_scale = _project(self.linear, z).chunk(2, dim=-1)
        return Forecast(mean, _bounded(log_scale))


class StudentTHead(nn.Module):
    """Location, log-scale and degrees of freedom of a Student t, one linear map for all.

    Degrees lie in (2.01, 100) and start at 8, a usual value for daily returns; the log-scale is
    that of `GaussianHead`.
    """

    def __init__(self, width: int, num_horizons: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, 3 * num_horizons)

    def forward(self, z: Tensor) -> Forecast:
        """Return the forecast of the read-out z (B, T, D)."""
        mean, log_scale, raw = _project(self.linear, z).chunk(3, dim=-1)
        share = torch.sigmoid(raw + _START_LOGIT)
        return Forecast(mean, _bounded(log_scale), _DEGREES_LOW + (_DEGREES_HIGH - _DEGREES_LOW) * share)


HEADS: dict[str, type[PointHead | GaussianHead | StudentTHead]] = {
    "point": PointHead,
    "gaussian": GaussianHead,
    "student_t": StudentTHead,
}

_START_LOGIT = math.log((_DEGREES_START - _DEGREES_LOW) / (_DEGREES_HIGH - _DEGREES_START))


def _project(linear: nn.Linear, z: Tensor) -> Tensor:
    """Apply a linear map in its weight's precision: forecasts of returns are too small for bfloat16."""
    with full_precision(z):
        return F.linear(z.to(linear.weight.dtype), linear.weight, linear.bias)


def _bounded(log_scale: Tensor) -> Tensor:
    return _LOG_SCALE_BOUND * torch.tanh(log_scale / _LOG_SCALE_BOUND)

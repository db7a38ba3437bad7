"""Losses: what one forecast of one token costs, averaged over the tokens that have a target.

Symbols: p the mean, r the target, e = r - p, sigma the scale, nu the degrees of freedom.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from fints.config import TrainingConfig

__all__ = ["Loss", "LossSum", "gaussian_nll", "huber", "make_loss", "mse", "student_t_nll"]

LOG_2_PI = math.log(2 * math.pi)


class Forecast(Protocol):
    """What a head returns: `mean`, `log_scale` and `degrees`, each (B, T, H) or None."""

    @property
    def mean(self) -> Tensor: ...

    @property
    def log_scale(self) -> Tensor | None: ...

    @property
    def degrees(self) -> Tensor | None: ...


class LossSum(NamedTuple):
    """A loss summed over the targets of a batch, and how many they are; both 0-d tensors."""

    total: Tensor
    number: Tensor

    def mean(self) -> Tensor:
        """Return the mean over the targets; 0, with zero gradients, if there is none."""
        return self.total / self.number.clamp(min=1)


class Loss(Protocol):
    """A loss of one batch: ``loss(forecast, targets) -> LossSum``."""

    def __call__(self, forecast: Forecast, targets: Tensor) -> LossSum: ...  # noqa: D102


def mse(error: Tensor) -> Tensor:
    r"""Return the squared error, :math:`e^2`."""
    return error.square()


def huber(error: Tensor, delta: float = 1.0) -> Tensor:
    r"""Return Huber's loss: quadratic near zero, linear in the tails.

    .. math:: \rho(e) = e^2/2 \;\text{ if } |e| \le \delta, \qquad \delta\,(|e| - \delta/2) \;\text{ else}
    """
    size = error.abs()
    inner = size.clamp(max=delta)
    return inner * (size - 0.5 * inner)


def gaussian_nll(error: Tensor, log_scale: Tensor) -> Tensor:
    r"""Return the negative log density of a Gaussian.

    .. math:: \tfrac12 (e/\sigma)^2 + \log\sigma + \tfrac12 \log 2\pi
    """
    return 0.5 * (error * torch.exp(-log_scale)).square() + log_scale + 0.5 * LOG_2_PI


def student_t_nll(error: Tensor, log_scale: Tensor, degrees: Tensor) -> Tensor:
    r"""Return the negative log density of a Student t with location, scale and degrees of freedom.

    .. math:: \log\Gamma(\tfrac\nu2) - \log\Gamma(\tfrac{\nu+1}2) + \tfrac12\log(\nu\pi) + \log\sigma
        + \tfrac{\nu+1}2 \log\bigl(1 + \tfrac{(e/\sigma)^2}{\nu}\bigr)

    The scale is not the standard deviation, which is :math:`\sigma\sqrt{\nu/(\nu-2)}`.
    """
    ratio = error * torch.exp(-log_scale)
    half = 0.5 * (degrees + 1)
    constant = torch.lgamma(0.5 * degrees) - torch.lgamma(half) + 0.5 * torch.log(degrees * math.pi)
    return constant + log_scale + half * torch.log1p(ratio.square() / degrees)


def make_loss(config: TrainingConfig) -> Loss:
    """Return the loss that `config.loss` names: "mse", "huber" or "nll".

    "nll" is the density of the head: Gaussian where the forecast has no degrees of freedom,
    Student t where it has. A target that is NaN is no target: it adds nothing to the sum, the
    count or any gradient. Half precision is raised to that of the targets first.

    Raises
    ------
    ValueError
        When called with a forecast that lacks what the loss needs, or of another shape.
    """

    def loss(forecast: Forecast, targets: Tensor) -> LossSum:
        mean = forecast.mean
        if targets.dim() == mean.dim() - 1:
            targets = targets.unsqueeze(-1)
        if targets.shape != mean.shape:
            raise ValueError(
                f"forecasts must have one value a target; got forecasts {tuple(mean.shape)} for targets "
                f"{tuple(targets.shape)}. Build the model with as many horizons as the targets have."
            )
        present = ~targets.isnan()
        dtype = torch.promote_types(mean.dtype, targets.dtype)
        # The NaN is replaced before it meets a parameter: 0 * NaN would poison the gradient.
        error = torch.where(present, targets - mean.to(dtype), 0.0)
        if config.loss == "mse":
            values = mse(error)
        elif config.loss == "huber":
            values = huber(error, config.huber_delta)
        elif forecast.log_scale is None:
            raise ValueError(
                'the loss "nll" needs a scale; got a point forecast. Choose model.head = "gaussian" or '
                '"student_t", or training.loss = "mse" or "huber".'
            )
        elif forecast.degrees is None:
            values = gaussian_nll(error, forecast.log_scale.to(dtype))
        else:
            values = student_t_nll(error, forecast.log_scale.to(dtype), forecast.degrees.to(dtype))
        return LossSum(torch.where(present, values, 0.0).sum(), present.sum())

    return loss

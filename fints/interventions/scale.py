"""do(x := c x): the same windows on another scale, at test time.

Shapes: B batch, T tokens, F features, H horizons.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fints.training import Batches, predict

__all__ = ["ScaledInputs", "forecasts_by_scale", "moved_by_scale"]


class ScaledInputs:
    """Windows whose inputs are multiplied by a constant; targets and missing values are left as they are.

    Parameters
    ----------
    windows : Batches
        Any windows.
    factor : float
        c.
    columns : sequence of int, optional
        The features that are multiplied; all if not given. A feature that is a logarithm of a scale, such
        as ``log_volatility_21``, does not belong to them.
    """

    def __init__(self, windows: Batches, factor: float, *, columns: Sequence[int] | None = None) -> None:
        if not factor > 0:
            raise ValueError(f"the factor of a scale must be above 0; got {factor!r}.")
        self._windows = windows
        self._factor = factor
        self._columns = None if columns is None else list(columns)

    def __len__(self) -> int:
        """Return the number of windows."""
        return len(self._windows)

    def gather(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return scaled inputs (B, T, F), and targets (B, T) as they are."""
        inputs, targets = self._windows.gather(positions)
        if self._columns is None:
            return inputs * self._factor, targets
        scaled = inputs.clone()
        scaled[..., self._columns] *= self._factor
        return scaled, targets


def forecasts_by_scale(
    model: nn.Module,
    windows: Batches,
    factors: Sequence[float] = (0.25, 1.0, 4.0),
    *,
    columns: Sequence[int] | None = None,
) -> dict[float, Tensor]:
    """Return the mean forecasts (N, H) of the last token under each factor."""
    return {
        factor: predict(model, ScaledInputs(windows, factor, columns=columns))["mean"] for factor in factors
    }


def moved_by_scale(forecasts: dict[float, Tensor]) -> dict[float, float]:
    r"""Return how far each scale moves the forecasts, over their own size at c = 1.

    .. math:: \mathrm{rms}(p_c - p_1) / \mathrm{rms}(p_1)

    0 where the network does not see the scale of its input at all.
    """
    if 1.0 not in forecasts:
        raise ValueError(f"the forecasts at the factor 1 are needed; got {sorted(forecasts)}.")
    own = forecasts[1.0].double()
    size = own.square().mean().sqrt()
    moved = {c: (p.double() - own).square().mean().sqrt() for c, p in forecasts.items()}
    return {c: float(change / torch.where(size > 0, size, torch.nan)) for c, change in moved.items()}

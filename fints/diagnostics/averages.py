"""Means over tokens: first within each series, then over series, if asked at each place of the window.

Shapes: B windows, T tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["by_position", "over_series"]


def over_series(values: Tensor, series: Tensor | None = None) -> Tensor:
    r"""Return the mean over tokens within each series, averaged over series, a 0-d tensor.

    .. math:: \frac1S \sum_s \frac1{N_s} \sum_{(b, t):\, \mathrm{series}(b) = s} z_{bt}

    so that a series with many windows counts no more than another.

    Parameters
    ----------
    values
        (B, T), or (B,); NaN is left out. A series without any value is left out, and without any series
        the result is NaN.
    series
        (B,) whole numbers that name the series (asset) of each window; one series if not given.
    """
    if series is None:
        return torch.nanmean(values)
    return torch.nanmean(_series_means(values, series))


def by_position(values: Tensor, series: Tensor | None = None) -> Tensor:
    """Return `over_series` at each of the T places of the window, (T,)."""
    columns = [over_series(values[:, place], series) for place in range(values.shape[1])]
    return torch.stack(columns)


def _series_means(values: Tensor, series: Tensor) -> Tensor:
    if series.shape != values.shape[:1]:
        raise ValueError(
            f"each window needs the number of its series; got {tuple(series.shape)} for "
            f"{values.shape[0]} windows."
        )
    flat = values.reshape(values.shape[0], -1)
    known = ~flat.isnan()
    names, place = series.to(flat.device).unique(return_inverse=True)
    totals = flat.new_zeros(len(names)).index_add_(0, place, torch.where(known, flat, 0.0).sum(1))
    counts = flat.new_zeros(len(names)).index_add_(0, place, known.sum(1).to(flat.dtype))
    return totals / torch.where(counts > 0, counts, torch.nan)

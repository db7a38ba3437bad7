r"""What a final fit may be asked beside its losses: where it is good, and what it makes of its input's scale.

A study asks for these by `PanelStudy.asked`; none costs more than some passes over the test windows.

==================  =====================================================================================
asked               found
==================  =====================================================================================
blocks: K           ``worst_block_share``: the least share of oracle among K blocks of test dates
volatility: q       ``calm_share``, ``volatile_share``: on the shares q of windows of least and of most
                    volatility on their last day
scales: c, ...      ``moved_at_C``: how far ``do(x := c x)`` moves the forecasts, over their own size
                    (`fints.interventions.moved_by_scale`), x the features of `scaled_features`
scaled_features     ``input_share``: their share of the embedded stream's mean square,
                    :math:`\mathrm E|W_x x|^2 / \mathrm E|e|^2`; the rest is bias, positions and the other
                    features, and what all have in common
==================  =====================================================================================
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fints.interventions import forecasts_by_scale, moved_by_scale
from fints.model import Transformer
from fints.training import Batches

__all__ = ["further_measures"]

# Windows that a move or a share of the stream is a mean over, spread over the test dates: a ratio of two root
# mean squares is known to a few hundredths from as many.
SPREAD_WINDOWS = 1024


def further_measures(
    asked: Mapping[str, Any],
    model: Transformer,
    test: Batches,
    *,
    features: Sequence[str],
    forecast: Tensor,
    signal: Tensor,
    volatility: Tensor,
    failed: bool,
) -> dict[str, float | None]:
    """Return what is asked of a final fit; None where it has no answer, as where nothing was planted.

    Parameters
    ----------
    asked : mapping
        As the module's text says.
    model : Transformer
        Fitted.
    test : Batches
        Its test windows in the order of dates.
    features : sequence of str
        What it sees, in order.
    forecast, signal, volatility : Tensor
        (N,) of the last day of each window.
    failed : bool
        Whether the fit did, and enters as the zero forecast, which nothing moves.
    """
    found: dict[str, float | None] = {}
    if "blocks" in asked:
        pairs = zip(forecast.tensor_split(asked["blocks"]), signal.tensor_split(asked["blocks"]), strict=True)
        shares = [_share(p, s) for p, s in pairs]
        known = [share for share in shares if share is not None]
        found["worst_block_share"] = min(known) if len(known) == len(shares) else None
    if "volatility" in asked:
        order = volatility.argsort(stable=True)
        count = math.ceil(asked["volatility"] * len(order))
        for name, places in (("calm_share", order[:count]), ("volatile_share", order[-count:])):
            found[name] = _share(forecast[places], signal[places])
    columns = [list(features).index(name) for name in asked.get("scaled_features", ())]
    few = _Spread(test)
    factors = asked.get("scales", ())
    moved: dict[float, float] = {}
    if factors and not failed:
        moved = moved_by_scale(forecasts_by_scale(model, few, (1.0, *factors), columns=columns))
    for factor in factors:
        size = moved.get(factor, math.nan)
        found[f"moved_at_{factor:g}"] = size if math.isfinite(size) else None
    if columns:
        found["input_share"] = None if failed else _input_share(model, few, columns)
    return found


class _Spread:
    """Some windows of a set, evenly spread."""

    def __init__(self, windows: Batches) -> None:
        count = min(len(windows), SPREAD_WINDOWS)
        self._windows = windows
        self._positions = torch.arange(count) * len(windows) // count

    def __len__(self) -> int:
        return len(self._positions)

    def gather(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        return self._windows.gather(self._positions[positions])


def _share(forecast: Tensor, signal: Tensor) -> float | None:
    size = float(signal.square().mean())
    return 1 - float((forecast - signal).square().mean()) / size if size else None


@torch.no_grad()
def _input_share(model: Transformer, windows: Batches, columns: Sequence[int]) -> float:
    inputs, _ = windows.gather(torch.arange(len(windows)))
    # The embedding is affine: what the features add is the difference to the stream without them.
    without = inputs.clone()
    without[..., list(columns)] = 0.0
    whole, rest = model.embedding(inputs), model.embedding(without)
    return float((whole - rest).double().square().mean() / whole.double().square().mean())

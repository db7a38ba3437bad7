"""Running sublayers one after another, with or without recomputing them in the backward pass."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.utils.checkpoint import checkpoint

__all__ = ["passed_through", "segment_length", "streams_of"]

Sublayer = Callable[[Any, int, Tensor | None], tuple[Any, Tensor | None]]


def segment_length(num_streams: float, num_sublayers: int) -> int:
    """Return how many sublayers are recomputed at once, an even number.

    ::

        s = sqrt(n L / (n + 2))

    A state of n streams is kept every s sublayers, n L / s in all, and what s sublayers keep, (n + 2) s,
    lives while they are recomputed; this s makes the sum least (Xie et al. 2025, arXiv 2512.24880). So
    memory grows with the root of the depth, and hardly with n.
    """
    best = math.sqrt(num_streams * num_sublayers / (num_streams + 2))
    return 2 * max(1, round(best / 2))


def passed_through(
    sublayer: Sublayer, x: Tensor, state: Any, num_sublayers: int, *, checkpointed: bool, stride: int = 1
) -> Any:
    """Return the state after all sublayers.

    Parameters
    ----------
    sublayer
        Maps a state, a layer and the values of the first attention (or None) to the next ones.
    x
        The embedding (B, T, D) that the state was opened from.
    state
        A tensor, or a tuple of tensors.
    num_sublayers
        L.
    checkpointed
        Whether only the states between segments are kept, and the rest is computed again.
    stride
        How many sublayers one call of `sublayer` takes.
    """
    first_value: Tensor | None = None
    if not checkpointed:
        for layer in range(0, num_sublayers, stride):
            state, first_value = sublayer(state, layer, first_value)
        return state
    parts: tuple[Tensor, ...] = (state,) if isinstance(state, Tensor) else state
    length = segment_length(streams_of(x, parts), num_sublayers)
    for start in range(0, num_sublayers, length):
        layers = range(start, min(start + length, num_sublayers), stride)
        # A mixture by depth changes from one kind of state to another.
        whole = isinstance(state, Tensor)
        parts = (state,) if whole else state

        # Tensors are passed one by one, where autograd sees them. The first values are an output of
        # the segment that recomputes them, so a later attention's gradient reaches them through it.
        def segment(
            first_value: Tensor | None, *parts: Tensor, layers: range = layers, whole: bool = whole
        ) -> Any:
            now: Any = parts[0] if whole else parts
            for layer in layers:
                now, first_value = sublayer(now, layer, first_value)
            return now, first_value

        state, first_value = checkpoint(segment, first_value, *parts, use_reentrant=False)
    return state


def streams_of(x: Tensor, parts: Sequence[Tensor | None]) -> float:
    """Return how many times the numbers of x (B, T, D) the parts of a state hold."""
    return sum(part.numel() for part in parts if part is not None) / x.numel()

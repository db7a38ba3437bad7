"""The depth-mixing matrix: with which weight each sublayer reads the embedding and every earlier output.

With v_0 the embedding and v_{j+1} what sublayer j adds, every scheme that is linear in what its
branches return reads::

    u_k = sum_{j <= k} M[k, j] v_j,        k = 0 ... L

where u_k is the input of sublayer k before any norm, and u_L the read-out before the final norm.
Under Pre-Norm all M[k, j] with j <= k are 1. Where a token has mixing weights of its own, so has M.

Shapes: B batch, T tokens, D width, n slots, L sublayers; M[reader, source] (..., L + 1, L + 1).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fints.diagnostics.normed_trunk import held_scale_mixing
from fints.diagnostics.profile import evaluation_mode
from fints.model import Trace, Transformer
from fints.residual import Residual, State
from fints.training import one_thread

__all__ = ["DepthMixing", "compose", "depth_mixing", "reach", "summary"]


@dataclass(frozen=True, kw_only=True)
class DepthMixing:
    """M over the tokens of one batch.

    Attributes
    ----------
    mean, spread : Tensor
        Mean and standard deviation over tokens (L + 1, L + 1), [reader, source]; 0 above the
        diagonal. NaN where no token has a value.
    composed : bool
        Whether M is composed from the scheme's mixing weights, and u_k is exactly the sum above.
        Else it is that of `held_scale_mixing`, since the scheme norms its trunk or mixes within a source.
    """

    mean: Tensor
    spread: Tensor
    composed: bool

    def rows(self) -> list[dict[str, Any]]:
        """Return one row an entry: reader, source, mean, spread, composed; plain numbers."""
        mean, spread = self.mean.tolist(), self.spread.tolist()
        return [
            {
                "reader": reader,
                "source": source,
                "mean": mean[reader][source],
                "spread": spread[reader][source],
                "composed": self.composed,
            }
            for reader in range(len(mean))
            for source in range(reader + 1)
        ]


def depth_mixing(model: Transformer, x: Tensor) -> DepthMixing:
    """Return M of a network on one batch x (B, T, F), in evaluation mode.

    Composed where every sublayer of the scheme has mixing weights, else by `held_scale_mixing`. The
    network is left as found.
    """
    trace = Trace()
    with evaluation_mode(model), one_thread(), torch.no_grad():
        model(x, trace=trace)
        residual, outputs = model.residual, trace.outputs
        last = len(outputs) - 1
        # The pass does not hand on its last state; the branch does not run again for it.
        states = [*trace.states, residual.step(trace.states[last], last, lambda _: outputs[last])]
        matrix = compose(residual, states)
        composed = matrix is not None
        if matrix is None:
            matrix = held_scale_mixing(residual, model.embedding(x), outputs)
    tokens = matrix.reshape(-1, *matrix.shape[-2:])
    mean = tokens.nanmean(0)
    return DepthMixing(mean=mean, spread=(tokens - mean).square().nanmean(0).sqrt(), composed=composed)


def compose(residual: Residual[Any], states: Sequence[State]) -> Tensor | None:
    """Return M (..., L + 1, L + 1) from the mixing weights at `states`; None if a sublayer has none.

    The slots of the scheme are followed as combinations C (..., n, L + 1) of the sources: at the
    start each holds v_0 alone, and at sublayer k::

        M[k] = read^T C,       C <- carry^T C,  C[:, k + 1] <- write

    after the last one M[L] = merging^T C.

    Parameters
    ----------
    residual
        The scheme.
    states
        What it carries into each sublayer, and out of the last: L + 1 states.

    Returns
    -------
    Tensor or None
        On the CPU in double precision. Leading axes (B, T) only where weights differ by token.
    """
    num_sublayers = len(states) - 1
    held: Tensor | None = None
    rows = []
    for layer, state in enumerate(states[:-1]):
        mixing = residual.mixing(state, layer)
        if mixing is None:
            return None
        read, carry, write = (_double(weights) for weights in mixing)
        if held is None:
            held = _sources_at_start(read.shape[-1], num_sublayers + 1)
        rows.append(torch.einsum("...i,...ij->...j", read, held))
        held = torch.einsum("...io,...ij->...oj", carry, held)
        arrived = torch.zeros(num_sublayers + 1, dtype=torch.float64)
        arrived[layer + 1] = 1.0
        held = held + write.unsqueeze(-1) * arrived
    merging = residual.merging(states[-1], num_sublayers)
    if merging is None:
        return None
    merging = _double(merging)
    if held is None:
        held = _sources_at_start(merging.shape[-1], 1)
    rows.append(torch.einsum("...i,...ij->...j", merging, held))
    return torch.stack(torch.broadcast_tensors(*rows), dim=-2)


def reach(mean: Tensor) -> list[dict[str, float]]:
    """Return how each reader's weights |M| are spread, one row a reader.

    ================  ==================================================================
    reader            k; L is the read-out
    embedding         share of the embedding in sum_j |M[k, j]|
    distance          mean of k - j over the outputs of sublayers j < k, weighted by their
                      |M|: 1 if only the last one is read
    sources           (sum_j |M|)^2 / sum_j M^2: how many sources of equal weight are as
                      spread out
    negative          share of negative weights in sum_j |M[k, j]|
    ================  ==================================================================

    Where all weights are 0 the shares are NaN. Under Pre-Norm: 1 / (k + 1), (k + 1) / 2, k + 1, 0.
    """
    rows = []
    for reader, weights in enumerate(mean.double()):
        own = weights[: reader + 1]
        size = own.abs()
        steps = torch.arange(reader, 0, -1, dtype=torch.float64)
        rows.append(
            {
                "reader": reader,
                "embedding": float(size[0] / size.sum()),
                "distance": float(size[1:] @ steps / size[1:].sum()) if reader else math.nan,
                "sources": float(size.sum() ** 2 / own.square().sum()),
                "negative": float(-own.clamp(max=0).sum() / size.sum()),
            }
        )
    return rows


def summary(mixing: DepthMixing) -> list[str]:
    """Return M in a few sentences, each with its value under plain sums beside it."""
    rows = reach(mixing.mean)
    last = rows[-1]
    count = len(rows)
    deeper = [row for row in rows[1:-1] if math.isfinite(row["distance"])]
    weights = mixing.mean[torch.tril(torch.ones_like(mixing.mean)) > 0]
    finite = weights[weights.isfinite()]
    lines = [
        _range(finite),
        f"The read-out gives the embedding {last['embedding']:.1%} of its weight (plain sums: "
        f"{1 / count:.1%}), and uses {last['sources']:.1f} of {count} sources.",
    ]
    if deeper:
        mean = sum(row["distance"] for row in deeper) / len(deeper)
        plain = sum((row["reader"] + 1) / 2 for row in deeper) / len(deeper)
        lines.append(
            f"Sublayers read outputs {mean:.1f} sublayers back on average (plain sums: {plain:.1f})."
        )
    negative = max(row["negative"] for row in rows)
    if negative > 0:
        lines.append(f"Negative weights have up to {negative:.1%} of a reader's weight.")
    spread = float(mixing.spread.nan_to_num().max())
    if spread > 1e-9:
        lines.append(f"Between tokens a weight varies by up to {spread:.2g} (standard deviation).")
    if not mixing.composed:
        lines.append(
            "No source has one weight here (the trunk is normed, or parts of a source are mixed): these are "
            "directional derivatives with the scales of the norms held as they are."
        )
    return lines


def _range(weights: Tensor) -> str:
    if not weights.numel():
        return "No source has a weight."
    low, high = float(weights.min()), float(weights.max())
    if high - low < 1e-6:
        return f"Every weight is {high:.3g} (plain sums: 1)."
    return f"The weights lie between {low:.3g} and {high:.3g} (plain sums: all 1)."


def _sources_at_start(slots: int, sources: int) -> Tensor:
    held = torch.zeros(slots, sources, dtype=torch.float64)
    held[:, 0] = 1.0
    return held


def _double(tensor: Tensor) -> Tensor:
    # Off the device first: some have no double precision.
    return tensor.detach().cpu().double()

"""The fused form of schemes that attend over depth; see `fints.residual.fused`."""

from __future__ import annotations

from torch import Tensor

from fints.residual.attention_residuals import AttentionResiduals, BlockAttentionResiduals
from fints.residual.base import Branch, full_precision
from fints.residual.depth_functions import Filled, Slots, fill_and_attend, reserve
from fints.residual.native import LANES
from fints.residual.state_attention import StateAttention

__all__ = ["FusedDepth"]


class FusedDepth:
    """A scheme that attends over depth, with all its sources in one tensor of L + 1 slots.

    Slot k + 1 is what sublayer k adds: its output, the sum of its block so far, or the state after it.

    Parameters
    ----------
    scheme : AttentionResiduals, BlockAttentionResiduals or StateAttention
        Its parameters and options are read at every step; nothing is copied.
    """

    def __init__(self, scheme: AttentionResiduals | BlockAttentionResiduals | StateAttention) -> None:
        self.scheme = scheme

    def fits(self) -> bool:
        """Return whether the kernels are made for the scheme's sizes and options."""
        queries = self.scheme.queries
        return queries.static and queries.width % LANES == 0

    def open(self, x: Tensor) -> Filled:
        """Return room for all sources, x being the first to be filled in."""
        return reserve(x, self.scheme.num_sublayers + 1)

    def step(self, filled: Filled, layer: int, branch: Branch) -> Filled:
        """Return the state after sublayer `layer`."""
        u, sources = self._attend(Filled(*filled), layer)
        y = branch(self.scheme.norms[layer](u))
        return Filled(sources, filled[1], y.to(sources.dtype))

    def close(self, filled: Filled, layer: int) -> Tensor:
        """Return N(u)."""
        z: Tensor = self.scheme.final_norm(self._attend(Filled(*filled), layer)[0])
        return z

    def _attend(self, filled: Filled, layer: int) -> tuple[Tensor, Tensor]:
        queries = self.scheme.queries
        with full_precision(filled.sources):
            if layer == 0:
                query = filled.y.new_zeros(filled.y.shape[-1])
            else:
                query = queries.w[layer - 1]
                query = query * queries.gain[layer - 1] if queries.normed else query
            return fill_and_attend(filled, query, self._slots(layer))

    def _slots(self, layer: int) -> Slots:
        scheme, queries = self.scheme, self.scheme.queries
        block_size = scheme.block_size if isinstance(scheme, BlockAttentionResiduals) else 1
        all_slots = list(range(0, layer + 1, block_size))
        if layer % block_size:
            all_slots.append(layer)
        chosen = tuple(all_slots[i] for i in queries.seen(len(all_slots)))
        within_block = layer > 0 and (layer - 1) % block_size > 0
        return Slots(
            chosen=chosen,
            fill=layer,
            grows=within_block or (layer > 0 and isinstance(scheme, StateAttention)),
            normed=queries.normed,
            sigmoid=queries.normaliser == "sigmoid",
            eps=queries.eps,
            factor=scheme.scale(len(chosen)),
        )

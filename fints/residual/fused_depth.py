"""The fused form of schemes that attend over depth; see `fints.residual.fused`."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fints.residual.attention_residuals import AttentionResiduals, BlockAttentionResiduals
from fints.residual.base import Branch, full_precision
from fints.residual.depth_functions import Filled, Reads, fill_and_attend, planned, reserve
from fints.residual.native import LANES
from fints.residual.norm_arguments import NormArguments, norm_arguments
from fints.residual.state_attention import StateAttention

__all__ = ["FusedDepth"]


class FusedDepth:
    """A scheme that attends over depth, with all its sources in one tensor of L + 1 slots.

    Slot k + 1 is what sublayer k adds: its output, the sum of its block so far, or the state after it.

    Parameters
    ----------
    scheme : AttentionResiduals, BlockAttentionResiduals or StateAttention
        Its parameters are read in every pass; nothing is copied.
    """

    def __init__(self, scheme: AttentionResiduals | BlockAttentionResiduals | StateAttention) -> None:
        self.scheme = scheme
        reads = [self._reads(layer) for layer in range(scheme.num_sublayers + 1)]
        # A group of g steps reads L^2 / 2 g sources in phase one and g L / 2 in phase two: least at the root.
        block_size = scheme.block_size if isinstance(scheme, BlockAttentionResiduals) else 1
        self.steps = planned(reads, block_size if block_size > 1 else max(1, math.isqrt(len(reads))))

    def fits(self) -> bool:
        """Return whether the kernels are made for the scheme's sizes and options."""
        queries = self.scheme.queries
        return queries.static and queries.width % LANES == 0

    def open(self, x: Tensor) -> Filled:
        """Return room for all sources, x being the first to be filled in."""
        return reserve(x, self._all_queries(x), self.steps)

    def step(self, filled: Filled, layer: int, branch: Branch) -> Filled:
        """Return the state after sublayer `layer`."""
        z, filled = self._attend(Filled(*filled), layer, norm_arguments(self.scheme.norms[layer]))
        return filled._replace(y=branch(z).to(filled.sources.dtype))

    def close(self, filled: Filled, layer: int) -> Tensor:
        """Return N(u)."""
        return self._attend(Filled(*filled), layer, norm_arguments(self.scheme.final_norm))[0]

    def _attend(self, filled: Filled, layer: int, norm: NormArguments) -> tuple[Tensor, Filled]:
        queries = self.scheme.queries
        with full_precision(filled.sources):
            return fill_and_attend(
                filled,
                norm,
                self.steps[layer],
                normed=queries.normed,
                eps=queries.eps,
                sigmoid=queries.normaliser == "sigmoid",
            )

    def _all_queries(self, x: Tensor) -> Tensor:
        """Return the queries of the layers 1 ... L with their gains (L, D)."""
        queries = self.scheme.queries
        if not len(queries.w):
            return x.new_empty(0, x.shape[-1])
        w = torch.stack(list(queries.w))
        return w * torch.stack(list(queries.gain)) if queries.normed else w

    def _reads(self, layer: int) -> Reads:
        scheme = self.scheme
        block_size = scheme.block_size if isinstance(scheme, BlockAttentionResiduals) else 1
        slots = list(range(0, layer + 1, block_size))
        if layer % block_size:
            slots.append(layer)
        chosen = tuple(slots[i] for i in scheme.queries.seen(len(slots)))
        within_block = layer > 0 and (layer - 1) % block_size > 0
        grows = within_block or (layer > 0 and isinstance(scheme, StateAttention))
        return Reads(chosen, grows, scheme.scale(len(chosen)))

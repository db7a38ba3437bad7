"""Attention over sources in two phases: what the fused pass on a CPU does, written as its equation.

A softmax over two groups of sources follows from one sum over each. With the scores s_i of a group::

    m = max_i s_i,      l = sum_i e^(s_i - m),      o = sum_i e^(s_i - m) v_i

and of two groups together, whatever their order::

    m = max(m_1, m_2),  l = e^(m_1 - m) l_1 + e^(m_2 - m) l_2,  o = e^(m_1 - m) o_1 + e^(m_2 - m) o_2

the weighted mean is o / l. So sublayers that have sources in common can read those once for all their
queries, and each adds what came since (Kimi Team 2026, arXiv 2603.15031). Reading sources again is what
attention over depth costs beside its two products, and saved where they lie in memory, not in a cache.

Shapes: n sources, Q queries, B batch, T tokens, D width.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Partial", "merged", "partial_of"]


class Partial(NamedTuple):
    """The sums of a softmax over some of its sources."""

    most: Tensor
    """m (Q, B, T)"""
    sum: Tensor
    """l (Q, B, T)"""
    total: Tensor
    """o (Q, B, T, D)"""

    def mean(self) -> Tensor:
        """Return o / l (Q, B, T, D), the weighted mean of the sources so far."""
        return self.total / self.sum.unsqueeze(-1)


def partial_of(scores: Tensor, sources: Tensor) -> Partial:
    """Return the sums over sources (n, B, T, D) with the scores (Q, n, B, T) of Q queries."""
    # The mean does not depend on m, so m needs no gradient.
    most = scores.detach().amax(1)
    powers = (scores - most.unsqueeze(1)).exp()
    return Partial(most, powers.sum(1), torch.einsum("qnbt,nbtd->qbtd", powers, sources))


def merged(first: Partial, second: Partial) -> Partial:
    """Return the sums over the sources of both."""
    most = torch.maximum(first.most, second.most)
    of_first, of_second = (first.most - most).exp(), (second.most - most).exp()
    return Partial(
        most,
        of_first * first.sum + of_second * second.sum,
        of_first.unsqueeze(-1) * first.total + of_second.unsqueeze(-1) * second.total,
    )

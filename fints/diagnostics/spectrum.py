r"""How many directions the centred tokens of one site fill, counted in three ways.

s_i are the singular values of the centred tokens (N, D), in descending order. Each count is computed in
double precision on the CPU, is at most min(N - 1, D), is NaN if all tokens are equal, and grows with N while
N is not far above D: compare at equal N only. The raw tokens would tell of their mean instead.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fints.diagnostics.similarity import centred

__all__ = ["participation_ratio", "singular_values", "stable_rank"]


def singular_values(z: Tensor) -> Tensor:
    """Return the singular values of the centred tokens of z (..., D), in descending order."""
    tokens = centred(z).cpu().double()
    if not bool(tokens.isfinite().all()):
        return tokens.new_full((1,), torch.nan)
    gram = tokens.T @ tokens if tokens.shape[0] >= tokens.shape[1] else tokens @ tokens.T
    return torch.linalg.eigvalsh(gram).clamp(min=0).sqrt().flip(0)


def participation_ratio(z: Tensor) -> Tensor:
    r"""Return :math:`(\sum_i s_i^2)^2 / \sum_i s_i^4`: how many equal variances are as spread out."""
    variances = singular_values(z).square()
    fourth = variances.square().sum()
    return variances.sum().square() / torch.where(fourth > 0, fourth, torch.nan)


def stable_rank(z: Tensor) -> Tensor:
    r"""Return :math:`\sum_i s_i^2 / s_1^2`: the whole variance over that of the first direction."""
    variances = singular_values(z).square()
    first = variances[0]
    return variances.sum() / torch.where(first > 0, first, torch.nan)

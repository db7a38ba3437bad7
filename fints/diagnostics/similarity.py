r"""How alike the tensors of neighbouring sublayers are, and how many directions they fill.

Every function takes tokens Z of one tensor at one site, (..., D), and flattens the leading axes:
**all tokens of all windows, with equal weight**. A window has the same number of tokens as any
other, so this is also the mean over windows of their means. Tokens of length zero have no
direction and are left out; where none is left the result is NaN.

Read with the null: a high cosine between neighbours is what independent increments give, not a
finding. And with the centred version: a direction that all tokens share raises every raw cosine.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = [
    "centred",
    "effective_rank",
    "mean_cosine",
    "null_cosine",
    "relative_size",
    "token_cosine",
]


def centred(z: Tensor) -> Tensor:
    r"""Return tokens minus the mean token of this site, :math:`Z_t - \bar Z`, flattened to (N, D).

    A token that differs from the mean by no more than rounding becomes exactly zero: collapsed
    tokens must read as having no direction, not as having the random ones of their rounding.
    """
    flat = _flat(z)
    rest = flat - flat.mean(0, keepdim=True)
    rounding = 8 * torch.finfo(flat.dtype).eps * flat.norm(dim=-1, keepdim=True)
    return torch.where(rest.norm(dim=-1, keepdim=True) > rounding, rest, 0.0)


def mean_cosine(a: Tensor, b: Tensor) -> Tensor:
    r"""Return the mean over tokens of the cosine between two tensors, a 0-d tensor.

    .. math:: \frac1N \sum_t \frac{a_t \cdot b_t}{\lVert a_t\rVert \, \lVert b_t\rVert}

    On the branch inputs u of neighbouring sublayers this is the adjacent cosine of
    Hyper-Connections (arXiv 2409.19606, Fig. 3), which takes u before the branch norm and shows
    the median over tokens; this is the mean.
    """
    a, b = _flat(a), _flat(b)
    products = (a * b).sum(-1)
    lengths = a.norm(dim=-1) * b.norm(dim=-1)
    return _mean(products, lengths)


def null_cosine(k: int, *, normalises_trunk: bool = False) -> float:
    r"""Return the adjacent cosine at sublayer k if all increments are independent and of equal length.

    On a trunk that sums its terms, as in Pre-Norm, it rises with depth by itself:

    .. math:: \cos\Bigl(\sum_{j<k} v_j,\; \sum_{j \le k} v_j\Bigr) = \sqrt{k/(k+1)}

    The embedding is one of the terms: sublayer k reads the sum of k + 1 of them, and sublayer
    k - 1 the first k. .707, .894, .949, .981 at k = 1, 4, 9, 25. On a trunk that is normed after
    each addition, as in Post-Norm, an increment of the trunk's own length gives
    :math:`\cos(h, h + v) = \sqrt{1/2}` at every k.

    Parameters
    ----------
    k
        The sublayer, from 1.
    normalises_trunk
        Of the scheme; see `fints.residual.Residual`.
    """
    if k < 1:
        raise ValueError(f"neighbours start at sublayer 1, which has one before it; got k = {k}.")
    return math.sqrt(1 / 2 if normalises_trunk else k / (k + 1))


def token_cosine(z: Tensor) -> Tensor:
    r"""Return the mean cosine between two different tokens of one site, a 0-d tensor.

    .. math:: \frac{1}{N(N-1)} \sum_{t \ne t'} \cos(Z_t, Z_{t'})
        = \frac{\lVert \sum_t \hat Z_t \rVert^2 - N}{N(N-1)}, \qquad \hat Z_t = Z_t / \lVert Z_t\rVert

    Over all pairs, those of two windows included. Near 1: token collapse, or one shared direction;
    which of the two, ``token_cosine(centred(z))`` tells.
    """
    flat = _flat(z)
    lengths = flat.norm(dim=-1, keepdim=True)
    unit = flat / torch.where(lengths > 0, lengths, 1.0)
    number = (lengths > 0).sum()
    pairs = number * (number - 1)
    return (unit.sum(0).square().sum() - number) / torch.where(pairs > 0, pairs, torch.nan)


def relative_size(y: Tensor, trunk: Tensor) -> Tensor:
    r"""Return the mean over tokens of :math:`\lVert y_t\rVert / \lVert trunk_t\rVert`, a 0-d tensor.

    With y the output of a branch and the trunk it is added to: the relative update. Independent
    increments of equal length give :math:`1/\sqrt k` after k terms.
    """
    return _mean(_flat(y).norm(dim=-1), _flat(trunk).norm(dim=-1))


def effective_rank(z: Tensor) -> Tensor:
    r"""Return how many directions the centred tokens of one site fill, a 0-d tensor in [1, min(N-1, D)].

    .. math:: \exp\Bigl(-\sum_i p_i \log p_i\Bigr), \qquad p_i = s_i / \sum_j s_j

    with s the singular values of the centred Z (N, D), in double precision on the CPU; NaN if all
    tokens are equal. It grows with N while N is not far above D: compare at equal N only.
    Source: Roy and Vetterli 2007, "The effective rank".
    """
    tokens = centred(z).cpu().double()
    # The Gram matrix of the shorter side has the squares of the same singular values, and is
    # D x D however many tokens there are; what squaring loses lies below 1e-8 of the largest.
    gram = tokens.T @ tokens if tokens.shape[0] >= tokens.shape[1] else tokens @ tokens.T
    if not bool(gram.isfinite().all()):
        return gram.new_tensor(torch.nan)
    singular = torch.linalg.eigvalsh(gram).clamp(min=0).sqrt()
    share = singular / singular.sum()
    return torch.exp(torch.special.entr(share).sum())


def _flat(z: Tensor) -> Tensor:
    return z.detach().reshape(-1, z.shape[-1])


def _mean(values: Tensor, lengths: Tensor) -> Tensor:
    """Return the mean of values / lengths over the tokens whose length is not zero."""
    ratios = values / torch.where(lengths != 0, lengths, torch.nan)
    return torch.nanmean(ratios) if bool(values.isfinite().all()) else values.new_tensor(torch.nan)

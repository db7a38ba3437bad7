r"""Linear centred kernel alignment: how alike two sites are, up to rotation and scale.

X (N, D) and Y (N, D') are the tokens of two sites. Source: Kornblith et al. 2019, arXiv 1905.00414.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["linear_cka", "unbiased_hsic", "without_first_direction"]


def linear_cka(a: Tensor, b: Tensor) -> Tensor:
    r"""Return the debiased linear CKA of two sites, a 0-d tensor; 1 for equal geometry, 0 for none shared.

    .. math:: \mathrm{HSIC}_u(X, Y) / \sqrt{\mathrm{HSIC}_u(X, X)\, \mathrm{HSIC}_u(Y, Y)}

    With the biased estimator two independent sites get a value that grows as D / N; this one has
    expectation about 0 there, and may fall below it. Neighbouring sites of a sum are close to 1 by
    themselves, since the first directions outweigh the others: read it also of increments, and
    `without_first_direction`. NaN where a site does not vary.

    Tokens of one window are not independent, so with few windows it is above 0 between unrelated sites.
    """
    shared, own, other = (unbiased_hsic(x, y) for x, y in ((a, b), (a, a), (b, b)))
    scale = own * other
    return shared / torch.where(scale > 0, scale, torch.nan).sqrt()


def unbiased_hsic(a: Tensor, b: Tensor) -> Tensor:
    r"""Return the unbiased estimator of the Hilbert-Schmidt independence criterion with linear kernels.

    .. math:: \frac{1}{N(N-3)} \Bigl( \mathrm{tr}(\tilde K \tilde L)
        + \frac{1^\top \tilde K 1\; 1^\top \tilde L 1}{(N-1)(N-2)}
        - \frac{2}{N-2} 1^\top \tilde K \tilde L 1 \Bigr)

    with :math:`\tilde K` the products :math:`X X^\top` with a zero diagonal. Computed from (D, D') sums, in
    double precision: N^2 numbers are never made.

    Raises
    ------
    ValueError
        If there are fewer than four tokens, or not as many in both.

    Notes
    -----
    Source: Song et al. 2012, JMLR 13, Theorem 5; Nguyen, Raghu and Kornblith 2021, arXiv 2010.15327.
    """
    x, y = (z.detach().reshape(-1, z.shape[-1]).cpu().double() for z in (a, b))
    number = len(x)
    if number < 4 or len(y) != number:
        raise ValueError(f"CKA needs as many tokens at both sites, at least four; got {number} and {len(y)}.")
    # Moving all tokens changes nothing, and keeps the sums below from cancelling.
    x, y = x - x.mean(0), y - y.mean(0)
    k, m = x.square().sum(1), y.square().sum(1)
    sums_k = x @ x.sum(0) - k
    sums_m = y @ y.sum(0) - m
    trace = (x.T @ y).square().sum() - k @ m
    both = sums_k.sum() * sums_m.sum() / ((number - 1) * (number - 2))
    return (trace + both - 2 / (number - 2) * (sums_k @ sums_m)) / (number * (number - 3))


def without_first_direction(z: Tensor) -> Tensor:
    """Return centred tokens (N, D) less their part along their first principal direction."""
    flat = z.detach().reshape(-1, z.shape[-1]).cpu().double()
    rest = flat - flat.mean(0)
    first = torch.linalg.eigh(rest.T @ rest).eigenvectors[:, -1]
    return rest - torch.outer(rest @ first, first)

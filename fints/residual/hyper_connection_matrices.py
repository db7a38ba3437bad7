"""Matrices that make Hyper-Connections compute known layouts (Zhu et al. 2025, arXiv 2409.19606, App. H).

One sublayer's matrix is::

    HC = [[0, B  ],     (n + 1, n + 1);   u = A_m^T H,   H_j <- sum_i A_r[i, j] H_i + B_j F(N(u))
          [A_m, A_r]]

`StaticHyperConnections.from_matrices` builds the scheme from a list of them, one a sublayer. Indices
count from 0; e_t is a unit vector, J a matrix of ones.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = [
    "exact_parallel_matrices",
    "exact_parallel_read_out",
    "matrix",
    "parallel_matrices",
    "post_norm_matrix",
    "pre_norm_matrix",
    "sequential_matrix",
]


def matrix(B: Tensor, A_m: Tensor, A_r: Tensor) -> Tensor:
    """Return [[0, B], [A_m, A_r]] of B (..., n), A_m (..., n) and A_r (..., n, n)."""
    above = torch.cat([torch.zeros_like(B[..., :1]), B], dim=-1)
    below = torch.cat([A_m.unsqueeze(-1), A_r], dim=-1)
    return torch.cat([above.unsqueeze(-2), below], dim=-2)


def pre_norm_matrix() -> Tensor:
    """Return [[0, 1], [1, 1]]: h <- h + F(N(h)), with one stream."""
    return torch.tensor([[0.0, 1.0], [1.0, 1.0]])


def post_norm_matrix(h: Tensor, y: Tensor, *, eps: float = 0.0) -> Tensor:
    """Return [[0, w], [1, w]] (..., 2, 2) of each token: h <- LayerNorm(h + F(h)), with one stream.

    ::

        w = 1 / sqrt(var(h) + var(y) + 2 cov(h, y) + eps)

    with the moments of one token over D. The equality holds with a LayerNorm of gain 1 and bias 0
    whose input is centred: h and y must each have mean 0 over D, as w alone centres nothing. The
    matrix depends on the branch's output, so it is not a constant that the scheme could hold.

    Parameters
    ----------
    h : Tensor
        The trunk before the sublayer (..., D).
    y : Tensor
        The branch's output (..., D), y = F(h).
    eps : float
        The norm's epsilon.

    Notes
    -----
    Source: arXiv 2409.19606, App. H (Post-Norm).
    Departures: none.
    """
    h_centred = h - h.mean(-1, keepdim=True)
    y_centred = y - y.mean(-1, keepdim=True)
    variance = (
        h_centred.square().mean(-1) + y_centred.square().mean(-1) + 2 * (h_centred * y_centred).mean(-1)
    )
    w = (variance + eps).rsqrt()
    zero, one = torch.zeros_like(w), torch.ones_like(w)
    return torch.stack([torch.stack([zero, w], dim=-1), torch.stack([one, w], dim=-1)], dim=-2)


def sequential_matrix(num_streams: int = 2) -> Tensor:
    """Return B = 1, A_m = e_0, A_r = I: every stream carries the Pre-Norm trunk.

    With n = 2 it is Eq. 17, [[0, 1, 1], [1, 1, 0], [0, 0, 1]].

    Raises
    ------
    ValueError
        If `num_streams` is below 1.
    """
    _at_least(num_streams, 1)
    identity = torch.eye(num_streams)
    return matrix(torch.ones(num_streams), identity[0], identity)


def parallel_matrices(num_streams: int = 2) -> list[Tensor]:
    """Return the paper's n matrices for n sublayers side by side.

    ::

        first:  B = e_0, A_m = 1,   A_r = J        every stream becomes s = sum_i H_i
        t-th:   B = e_t, A_m = e_t, A_r = I        t = 1 .. n - 1

    so that one group does ``sum_i H_i <- n s + sum_t F_t(N_t(s))``. This is *not* the usual parallel
    block h + sum_t F_t(N_t(h)): the trunk is multiplied by n at every group. It is that of
    `exact_parallel_matrices`. With n = 2 these are Eq. 18 and 19.

    Raises
    ------
    ValueError
        If `num_streams` is below 1.

    Notes
    -----
    Source: arXiv 2409.19606, Eq. 18 and 19, App. H.
    Departures: for n > 2 the t-th matrix has e_t where Eq. 55 as printed has the unit vector before
    it; read literally, the t-th sublayer would read the stream that the one before it wrote to.
    """
    _at_least(num_streams, 1)
    identity, ones = torch.eye(num_streams), torch.ones(num_streams)
    first = matrix(identity[0], ones, torch.ones(num_streams, num_streams))
    return [first, *(matrix(identity[t], identity[t], identity) for t in range(1, num_streams))]


def exact_parallel_matrices(num_streams: int = 2) -> list[Tensor]:
    """Return n matrices for which n sublayers are the parallel block h + sum_t F_t(N_t(h)).

    ::

        first:  B = e_0, A_m = e_0, A_r = e_0 1^T   stream 0 is copied to all, then written to
        t-th:   B = e_0, A_m = e_t, A_r = I         reads its copy of h, writes to stream 0

    Stream 0 is the trunk, before and after each group (`exact_parallel_read_out`); the mean of the
    streams is not. With n = 2: [[0, 1, 0], [1, 1, 1], [0, 0, 0]] and [[0, 1, 0], [0, 1, 0], [1, 0, 1]].

    Raises
    ------
    ValueError
        If `num_streams` is below 1.

    Notes
    -----
    Source: derived here; the paper's own matrices (`parallel_matrices`) compute another function.
    """
    _at_least(num_streams, 1)
    identity = torch.eye(num_streams)
    copies = torch.zeros(num_streams, num_streams)
    copies[0] = 1.0
    first = matrix(identity[0], identity[0], copies)
    return [first, *(matrix(identity[0], identity[t], identity) for t in range(1, num_streams))]


def exact_parallel_read_out(streams: Tensor) -> Tensor:
    """Return stream 0 of (n, B, T, D): the trunk after whole groups of `exact_parallel_matrices`."""
    return streams[0]


def _at_least(num_streams: int, least: int) -> None:
    if not isinstance(num_streams, int) or isinstance(num_streams, bool) or num_streams < least:
        raise ValueError(f"num_streams must be a whole number of at least {least}; got {num_streams!r}.")

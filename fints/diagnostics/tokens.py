r"""Measures between two sites, token by token, and of the tokens of one site.

Z and Z' are the tokens of one tensor at two sites (B, T, D). A token of length zero has no direction: its
value is NaN, and `averages` leaves it out. Shapes: B windows, T tokens, D width, N = B T.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fints.diagnostics.similarity import centred

__all__ = [
    "angular_distance",
    "centred_tokens",
    "cosines",
    "dirichlet",
    "log_log_slope",
    "random_pair_cosine",
    "relative_sizes",
    "sizes",
    "squared_cosine",
    "window_cosine",
    "window_share",
    "z_scored",
]


def cosines(a: Tensor, b: Tensor) -> Tensor:
    r"""Return :math:`\cos(Z_t, Z'_t)` of each token (B, T).

    Of neighbouring branch inputs before their norm this is the adjacent cosine of Hyper-Connections
    (arXiv 2409.19606, Fig. 3); of a block's input and output, 1 less ShortGPT's block influence (arXiv
    2403.03853). Its value for independent terms is `null_cosine`, and a high one alone is no finding.
    """
    lengths = a.norm(dim=-1) * b.norm(dim=-1)
    return (a * b).sum(-1) / torch.where(lengths > 0, lengths, torch.nan)


def angular_distance(a: Tensor, b: Tensor) -> Tensor:
    r"""Return :math:`\frac1\pi \arccos(\cos(Z_t, Z'_t))` of each token (B, T): 0 the same, 1/2 orthogonal.

    Between the trunk n blocks apart: the distance of Gromov et al. (arXiv 2403.17887), who take the last
    token only, and of Sun et al. (arXiv 2502.05795), who average over all tokens.
    """
    # arccos loses half its digits near 1; the angle from sum and difference of unit vectors does not.
    lengths = (z.norm(dim=-1, keepdim=True) for z in (a, b))
    unit, other = (z / torch.where(n > 0, n, torch.nan) for z, n in zip((a, b), lengths, strict=True))
    return 2 * torch.atan2((unit - other).norm(dim=-1), (unit + other).norm(dim=-1)) / math.pi


def centred_tokens(z: Tensor) -> Tensor:
    r"""Return :math:`Z_t - \bar Z` (B, T, D), the mean over all N tokens; see `similarity.centred`."""
    return centred(z).view(z.shape)


def z_scored(z: Tensor) -> Tensor:
    r"""Return tokens centred and divided in each dimension by its standard deviation over the N tokens.

    A few dimensions of large spread can make up a whole cosine (Timkey and van Schijndel, arXiv
    2109.04404); here each counts alike. A dimension without spread is 0.
    """
    rest = centred_tokens(z)
    spread = rest.reshape(-1, z.shape[-1]).square().mean(0).sqrt()
    return torch.where(spread > 0, rest / torch.where(spread > 0, spread, 1.0), 0.0)


def relative_sizes(y: Tensor, trunk: Tensor) -> Tensor:
    r"""Return :math:`\lVert y_t\rVert / \lVert\mathrm{trunk}_t\rVert` of each token (B, T).

    With y a branch's output: the relative update. For independent terms of equal length on a trunk that
    sums them, of which k + 1 (the embedding too) enter sublayer k, it is :math:`1/\sqrt{k + 1}`.
    """
    length = trunk.norm(dim=-1)
    return y.norm(dim=-1) / torch.where(length > 0, length, torch.nan)


def sizes(z: Tensor) -> Tensor:
    r"""Return the root mean square :math:`\lVert Z_t\rVert / \sqrt D` of each token (B, T)."""
    return z.norm(dim=-1) / math.sqrt(z.shape[-1])


def log_log_slope(size: Tensor) -> Tensor:
    r"""Return the slope of :math:`\log \mathrm{size}_k` on :math:`\log(k + 1)`, sizes (K,) from site 0.

    How the trunk grows: 1/2 for independent terms (a random walk), 1 for terms that all point one way, 0
    for a trunk that is normed. NaN with fewer than two positive sizes.
    """
    logs = torch.log(torch.arange(1, len(size) + 1, dtype=torch.float64))
    known = size > 0
    x, y = logs[known.cpu()], size.detach().cpu().double()[known.cpu()].log()
    x = x - x.mean()
    return (x @ (y - y.mean())) / (x @ x) if len(x) > 1 else torch.tensor(torch.nan)


def window_cosine(z: Tensor) -> Tensor:
    r"""Return the mean cosine of two different tokens of the same window (B,).

    .. math:: \frac{1}{T(T-1)} \sum_{t \ne t'} \cos(Z_t, Z_{t'})

    Read beside `random_pair_cosine`: what two tokens of different windows have in common is no sign that a
    window's tokens have become alike.
    """
    unit, number = _units(z)
    pairs = number * (number - 1)
    return (unit.sum(-2).square().sum(-1) - number) / torch.where(pairs > 0, pairs, torch.nan)


def random_pair_cosine(z: Tensor) -> Tensor:
    r"""Return the mean cosine of two tokens of different windows, a 0-d tensor.

    .. math:: \mathrm{mean}_{b \ne b',\, t,\, t'} \cos(Z_{bt}, Z_{b't'})

    The baseline of Ethayarajh (arXiv 1909.00512), over all such pairs rather than a sample of them.
    """
    unit, number = _units(z)
    sums = unit.sum(-2)
    total = number.sum()
    pairs = total.square() - number.square().sum()
    inner = sums.sum(0).square().sum() - sums.square().sum()
    return inner / torch.where(pairs > 0, pairs, torch.nan)


def squared_cosine(z: Tensor) -> Tensor:
    r"""Return the root mean squared cosine of two different centred tokens of the site, a 0-d tensor.

    .. math:: \Bigl(\frac{1}{N(N-1)} \sum_{t \ne t'} \cos^2(\tilde Z_t, \tilde Z_{t'})\Bigr)^{1/2}

    The plain mean of centred cosines is near 0 whatever the tokens do, since they sum to 0; this is 1
    where they lie on a line and :math:`1/\sqrt D` where they fill the space.
    """
    unit, number = _units(centred_tokens(z).reshape(1, -1, z.shape[-1]))
    pairs = (number * (number - 1)).squeeze()
    squares = (unit[0].mT @ unit[0]).square().sum()
    mean = (squares - number.squeeze()) / torch.where(pairs > 0, pairs, torch.nan)
    return mean.clamp(min=0).sqrt()


def dirichlet(z: Tensor, *, normalised: bool) -> Tensor:
    r"""Return the mean squared distance of a window's tokens from their mean (B,).

    .. math:: \frac1T \sum_t \lVert Z_t - \bar Z\rVert^2, \qquad \bar Z = \frac1T \sum_t Z_t

    The Dirichlet energy of the complete graph over T, as in work on over-smoothing (its root is the mean
    average distance from the mean). Normalised, it is divided by :math:`\frac1T\sum_t\lVert Z_t\rVert^2`: in
    [0, 1], 0 where all tokens are one, and for tokens of equal length 1 less about their mean cosine.
    """
    energy = (z - z.mean(-2, keepdim=True)).square().sum(-1).mean(-1)
    if not normalised:
        return energy
    whole = z.square().sum(-1).mean(-1)
    return energy / torch.where(whole > 0, whole, torch.nan)


def window_share(z: Tensor) -> Tensor:
    r"""Return how much of the spread of tokens is within windows, a 0-d tensor in [0, 1].

    .. math:: \frac{\sum_{bt} \lVert Z_{bt} - \bar Z_b\rVert^2}{\sum_{bt} \lVert Z_{bt} - \bar Z\rVert^2}

    The normalised Dirichlet energy of centred tokens: 0 where the tokens of a window have become one, however
    much windows differ. Centred, since a direction that all tokens share would make them alike in
    `dirichlet` without their having lost anything.
    """
    rest = centred_tokens(z)
    whole = rest.square().sum()
    within = (rest - rest.mean(-2, keepdim=True)).square().sum()
    return within / torch.where(whole > 0, whole, torch.nan)


def _units(z: Tensor) -> tuple[Tensor, Tensor]:
    """Return tokens of length 1 (or 0), and how many of them a window has (B,)."""
    length = z.norm(dim=-1, keepdim=True)
    unit = z / torch.where(length > 0, length, 1.0)
    return unit, (length > 0).sum((-2, -1)).to(z.dtype)

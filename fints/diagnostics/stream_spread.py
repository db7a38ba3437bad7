r"""Whether a scheme's streams carry different things, and what its mixing matrices do to them.

H_i are the streams of a token, (B, T, n, D) in all, :math:`\bar H` their mean. For one sublayer the mixing
weights are read (n,), carry (n, n), source first, and write (n,), as in `fints.residual.base.Mixing`.
Stream collapse is spread and diversity falling to 0 and the effective number to 1; all start there in
Hyper-Connections, whose streams are equal at first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from fints.diagnostics.record import Record, streams
from fints.diagnostics.tokens import cosines
from fints.model import Transformer

__all__ = [
    "composite_gain",
    "diversity",
    "effective_streams",
    "mixing_entropy",
    "off_diagonal_mass",
    "second_eigenvalue",
    "stream_cosines",
    "stream_rows",
    "stream_spread",
]


def stream_spread(held: Tensor) -> Tensor:
    r"""Return :math:`\mathrm{mean}_i \lVert H_i - \bar H\rVert / \lVert\bar H\rVert` of each token (B, T)."""
    mean = held.mean(-2, keepdim=True)
    length = mean.squeeze(-2).norm(dim=-1)
    return (held - mean).norm(dim=-1).mean(-1) / torch.where(length > 0, length, torch.nan)


def stream_cosines(held: Tensor) -> Tensor:
    """Return the mean over tokens of the cosine of each pair of streams (n, n)."""
    pairs = cosines(held.unsqueeze(-2), held.unsqueeze(-3))
    return pairs.reshape(-1, *pairs.shape[-2:]).nanmean(0)


def diversity(held: Tensor) -> Tensor:
    """Return 1 less the mean cosine of two different streams, a 0-d tensor; NaN with one stream."""
    matrix = stream_cosines(held)
    number = len(matrix)
    if number < 2:
        return matrix.new_tensor(torch.nan)
    return 1 - (matrix.sum() - matrix.trace()) / (number * (number - 1))


def effective_streams(reads: Sequence[Tensor], writes: Sequence[Tensor]) -> Tensor:
    r"""Return how many streams the network uses, from 1 to n, a 0-d tensor.

    .. math:: \exp\Bigl(-\sum_i p_i \log p_i\Bigr), \qquad
        p_i \propto \Bigl(\sum_k |\mathrm{read}_{k,i}|\Bigr) \Bigl(\sum_k |\mathrm{write}_{k,i}|\Bigr)

    over the sublayers k, with the mean over tokens of each absolute weight: a stream counts if it is written
    and read at all. A single sublayer may read one home stream only, which is no collapse.
    """
    read = torch.stack([_over_tokens(weights.abs(), 1) for weights in reads]).sum(0)
    written = torch.stack([_over_tokens(weights.abs(), 1) for weights in writes]).sum(0)
    share = read * written
    return torch.exp(torch.special.entr(share / share.sum()).sum())


def off_diagonal_mass(carry: Tensor) -> Tensor:
    r"""Return :math:`\sum_{i \ne j} |c_{ij}| / \sum_{ij} |c_{ij}|` of a carry (n, n): 0 for the identity."""
    size = carry.abs()
    return (size.sum() - size.diagonal().sum()) / size.sum()


def second_eigenvalue(carry: Tensor) -> Tensor:
    r"""Return :math:`|\lambda_2| / |\lambda_1|`: 1 for the identity, 0 for one that averages the streams.

    How much of the differences between streams a sublayer keeps. NaN with one stream.
    """
    values = torch.linalg.eigvals(carry.cpu().double()).abs().sort(descending=True).values
    return values[1] / values[0] if len(values) > 1 else values.new_tensor(torch.nan)


def composite_gain(carries: Sequence[Tensor], *, of: str) -> Tensor:
    r"""Return how far the product of carries is from keeping every stream's total, a 0-d tensor.

    .. math:: \max_i \bigl|\log |\textstyle\sum_j C_{ij}|\bigr|, \qquad C = c_0 c_1 \cdots c_k

    0 for the identity and for every doubly stochastic product. The largest sum alone, the gain of Xie et
    al. (arXiv 2512.24880), misses a stream that is lost: sums of 0.41, 1.5, 1.5, 0.6 have the largest 1.5.

    Parameters
    ----------
    carries
        (n, n) each, in order of depth.
    of
        "source" sums over destinations: what becomes of a stream; "destination" sums over sources: what a
        stream receives.

    Raises
    ------
    ValueError
        If `of` is neither.
    """
    if of not in ("source", "destination"):
        raise ValueError(f'the gain is of "source" or "destination"; got {of!r}.')
    product = carries[0].double()
    for carry in carries[1:]:
        product = product @ carry.double()
    return product.sum(1 if of == "source" else 0).abs().log().abs().max()


def mixing_entropy(weights: Tensor) -> Tensor:
    r"""Return the entropy in nats of normalised absolute weights (..., n), a mean over the leading axes.

    .. math:: -\sum_i p_i \log p_i, \qquad p_i = |w_i| / \sum_j |w_j|

    At most ln n: 1.39 nats for four streams.
    """
    size = weights.abs()
    return torch.special.entr(size / size.sum(-1, keepdim=True)).sum(-1).mean()


def stream_rows(model: Transformer, held: Record) -> list[dict[str, float | int | None]]:
    """Return one row a sublayer of a scheme with several streams, plain numbers; none for another.

    ``layer``; ``num_streams``; ``spread`` and ``diversity`` of the streams that enter it; ``off_diagonal``,
    ``second_eigenvalue`` of its carry, averaged over tokens; ``gain_source``, ``gain_destination`` of the
    carries from the first sublayer to this one; ``entropy_read``, ``entropy_write``, ``entropy_carry`` (mean
    over destinations) and ``entropy_bound`` = ln n; ``effective_streams`` of the whole network. The last
    eight need mixing weights, and are None where a scheme has none.
    """
    residual, number = model.residual, len(held.outputs)
    rows: list[dict[str, float | int | None]] = []
    carries: list[Tensor] = []
    reads, writes = [], []
    for layer in range(number):
        streamed = streams(residual, held.states[layer], layer)
        if streamed is None or streamed.shape[-2] < 2:
            return []
        n = streamed.shape[-2]
        row: dict[str, float | int | None] = {
            "layer": layer,
            "num_streams": n,
            "spread": _plain(stream_spread(streamed).nanmean()),
            "diversity": _plain(diversity(streamed)),
            "entropy_bound": math.log(n),
        }
        mixing = residual.mixing(held.states[layer], layer)
        if mixing is not None and mixing.carry.shape[-2:] == (n, n):
            carry = _over_tokens(mixing.carry, 2)
            carries.append(carry)
            reads.append(mixing.read)
            writes.append(mixing.write)
            row |= {
                "off_diagonal": _plain(off_diagonal_mass(carry)),
                "second_eigenvalue": _plain(second_eigenvalue(carry)),
                "gain_source": _plain(composite_gain(carries, of="source")),
                "gain_destination": _plain(composite_gain(carries, of="destination")),
                "entropy_read": _plain(mixing_entropy(mixing.read)),
                "entropy_write": _plain(mixing_entropy(mixing.write)),
                "entropy_carry": _plain(mixing_entropy(mixing.carry.mT)),
            }
        rows.append(row)
    whole = _plain(effective_streams(reads, writes)) if len(reads) == number else None
    return [row | {"effective_streams": whole} for row in rows]


def _over_tokens(weights: Tensor, axes: int) -> Tensor:
    """Return the mean over tokens of weights whose last `axes` axes are their own."""
    return weights.detach().reshape(-1, *weights.shape[weights.dim() - axes :]).mean(0)


def _plain(value: Tensor) -> float | None:
    number = float(value.detach())
    return number if math.isfinite(number) else None

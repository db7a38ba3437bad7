"""Attention of each token over what the network computed for it at earlier depths.

Shapes: n sources, B batch, T tokens, D width, L sublayers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fints.residual.base import Residual, full_precision

__all__ = ["AttendsOverDepth", "DepthQueries", "halves", "literal_weighted_sum", "new_slot", "weighted_sum"]

QUERIES = ("static", "input")
SCORE_NORMS = ("rms", "none")
NORMALISERS = ("softmax", "sigmoid")


class DepthQueries(nn.Module):
    """The queries of the sublayers 1 ... L - 1 and of the read-out, layer L, and what they weigh.

    ::

        s_i     = (w_k * g_k)^T v_i / rms(v_i)                score of source v_i (D,) at layer k
        alpha_i = softmax_i(s_i)  or  sigmoid(s_i)

    Sublayer 0 has one source, whose weight is 1 whatever the query: it has none, since it could not
    learn. Symbols: w_k ``w[k - 1]`` (D,), or W_k v_last with ``W[k - 1]`` (D, D) where the query
    depends on the input; g_k ``gain[k - 1]`` (D,). w and W start at 0, so all sources weigh the same.

    A learned vector is no function of the input. So `key` scores a source for all later layers in one
    product as soon as the source is there, and `weights` only picks scores. A query that depends on
    the input has to wait for it; of its sources `key` holds one over the root mean square.

    Parameters
    ----------
    width : int
        D.
    num_sublayers : int
        L.
    eps : float
        Added to the mean square under the root.
    query : str
        "static" (one learned vector a layer) or "input" (a learned map of the latest source).
    score_norm : str
        "rms" (keys are normed) or "none".
    normaliser : str
        "softmax" or "sigmoid".
    window : int
        How many of the latest sources are seen beside the first; 0 for all.

    Raises
    ------
    ValueError
        If an option is unknown or `window` is below 0.
    """

    def __init__(
        self,
        width: int,
        num_sublayers: int,
        *,
        eps: float,
        query: str,
        score_norm: str,
        normaliser: str,
        window: int,
    ) -> None:
        super().__init__()
        for name, value, known in (
            ("query", query, QUERIES),
            ("score_norm", score_norm, SCORE_NORMS),
            ("normaliser", normaliser, NORMALISERS),
        ):
            if value not in known:
                raise ValueError(f"{name} = {value!r} is unknown. Choose one of {', '.join(known)}.")
        if not isinstance(window, int) or isinstance(window, bool) or window < 0:
            raise ValueError(
                f"window must be a whole number of at least 0; got {window!r}. With 0 all sources are seen."
            )
        self.width = width
        self.num_sublayers = num_sublayers
        self.eps = eps
        self.normaliser = normaliser
        self.window = window
        self.static: bool = query == "static"
        self.normed: bool = score_norm == "rms"
        self.w = nn.ParameterList(torch.zeros(width) for _ in range(num_sublayers if self.static else 0))
        self.W = nn.ParameterList(
            torch.zeros(width, width) for _ in range(0 if self.static else num_sublayers)
        )
        self.gain = nn.ParameterList(torch.ones(width) for _ in range(num_sublayers if self.normed else 0))

    @staticmethod
    def count(width: int, num_sublayers: int, *, query: str, score_norm: str) -> int:
        """Return the number of parameters."""
        return num_sublayers * width * ((1 if query == "static" else width) + (score_norm == "rms"))

    def key(self, source: Tensor, layer: int, stop: int) -> Tensor:
        """Return what `weights` needs of a source (B, T, D) at the layers from `layer` to before `stop`.

        That is its scores (stop - layer, B, T) or, with queries that depend on the input, one over its
        root mean square (1, B, T).
        """
        with full_precision(source):
            scale = self._inverse_rms(source) if self.normed else None
            if not self.static:
                return source.new_ones(1, *source.shape[:-1]) if scale is None else scale.unsqueeze(0)
            layers = range(max(layer, 1), stop)
            if not layers:
                return source.new_empty(0, *source.shape[:-1])
            queries = torch.stack([self._vector(self.w[k - 1], k) for k in layers])
            scores = queries @ source.reshape(-1, source.shape[-1]).t()
            scores = scores.view(len(layers), *source.shape[:-1])
            return scores if scale is None else scores * scale

    def weights(self, sources: Sequence[Tensor], keys: Sequence[Tensor], layer: int) -> Tensor:
        """Return alpha (n, B, T) of the sources at `layer`; a key ends at L or is the row of `layer`."""
        if len(sources) == 1:
            return sources[0].new_ones(1, *sources[0].shape[:-1])
        with full_precision(sources[0]):
            if self.static:
                row = layer - self.num_sublayers - 1
                scores = torch.stack([key[max(row, -len(key))] for key in keys])
            else:
                query = self._vector(sources[-1] @ self.W[layer - 1].t(), layer)
                dots = [torch.linalg.vecdot(source, query) for source in sources]
                scores = torch.stack([dot * key[0] for dot, key in zip(dots, keys, strict=True)])
            return scores.softmax(0) if self.normaliser == "softmax" else scores.sigmoid()

    def seen(self, count: int) -> list[int]:
        """Return the indices of the sources within the window, of `count`."""
        if self.window == 0 or count <= self.window + 1:
            return list(range(count))
        return [0, *range(count - self.window, count)]

    def equal_share(self, count: int) -> float:
        """Return the weight that each of `count` seen sources has where all scores are 0."""
        return 0.5 if self.normaliser == "sigmoid" and count > 1 else 1 / count

    def _vector(self, query: Tensor, layer: int) -> Tensor:
        return query * self.gain[layer - 1] if self.normed else query

    def _inverse_rms(self, source: Tensor) -> Tensor:
        return (torch.linalg.vecdot(source, source) / source.shape[-1] + self.eps).rsqrt()


class AttendsOverDepth(Residual[tuple[Tensor, ...]], ABC):
    """A scheme whose sublayers read a weighted sum of sources; the state is the sources, then their keys."""

    queries: DepthQueries
    final_norm: nn.Module

    @abstractmethod
    def scale(self, count: int) -> float:
        """Return the number by which the weighted sum of `count` sources is multiplied."""

    def read(self, state: tuple[Tensor, ...], layer: int) -> Tensor:
        """Return u."""
        sources, alpha = self._attend(state, layer)
        if len(sources) == 1:
            return sources[0]
        return weighted_sum(self.scale(len(sources)) * alpha, sources)

    def merge(self, state: tuple[Tensor, ...], layer: int) -> Tensor:
        """Return u."""
        return self.read(state, layer)

    def close(self, state: tuple[Tensor, ...], layer: int) -> Tensor:
        """Return N(u)."""
        return self.final_norm(self.read(state, layer))

    def no_decay(self) -> set[str]:
        """Return all names but those of W: only maps of the input may be decayed."""
        return {name for name, _ in self.named_parameters() if not name.startswith("queries.W.")}

    def weights(self, state: tuple[Tensor, ...], layer: int) -> dict[str, Tensor]:
        """Return alpha (B, T, n), 0 for sources beyond the window."""
        return {"alpha": self._over_all(state, self._attend(state, layer)[1])}

    def merging(self, state: tuple[Tensor, ...], layer: int) -> Tensor:
        """Return the weights in u (B, T, n)."""
        sources, alpha = self._attend(state, layer)
        return self._over_all(state, self.scale(len(sources)) * alpha)

    def _attend(self, state: tuple[Tensor, ...], layer: int) -> tuple[list[Tensor], Tensor]:
        """Return the sources within the window and their alpha (n, B, T)."""
        sources, keys = halves(state)
        seen = self.queries.seen(len(sources))
        sources, keys = [sources[i] for i in seen], [keys[i] for i in seen]
        return sources, self.queries.weights(sources, keys, layer)

    def _over_all(self, state: tuple[Tensor, ...], weights: Tensor) -> Tensor:
        """Return weights (n seen, B, T) as (B, T, n)."""
        count = len(state) // 2
        full = [torch.zeros_like(weights[0])] * count
        for weight, i in zip(weights, self.queries.seen(count), strict=True):
            full[i] = weight
        return torch.stack(full, dim=-1)


def new_slot(state: tuple[Tensor, ...], after: int) -> tuple[Tensor, Tensor]:
    """Return carry (n, n') and write (n',) of a step that keeps its n slots and adds y to the last of n'."""
    device = state[0].device
    return torch.eye(len(state) // 2, after, device=device), torch.eye(after, device=device)[-1]


def halves(state: tuple[Tensor, ...]) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
    """Return the sources of a state and their keys."""
    return state[: len(state) // 2], state[len(state) // 2 :]


def weighted_sum(weights: Tensor, sources: Sequence[Tensor]) -> Tensor:
    """Return sum_i a_i v_i (B, T, D) from weights a (n, B, T) or (n, 1, 1) and n sources v_i (B, T, D)."""
    with full_precision(sources[0]):
        if torch.compiler.is_compiling():
            # One loop over all sources, which the compiler fuses in both directions.
            return literal_weighted_sum(weights, sources)
        h: Tensor = _WeightedSum.apply(weights, *sources)
        return h


def literal_weighted_sum(weights: Tensor, sources: Sequence[Tensor]) -> Tensor:
    """Return the same by plain operations: the oracle of `weighted_sum`."""
    h = weights[0].unsqueeze(-1) * sources[0]
    for weight, source in zip(weights[1:].unbind(0), sources[1:], strict=True):
        h = h + weight.unsqueeze(-1) * source
    return h


class _WeightedSum(torch.autograd.Function):
    """h = sum_i a_i v_i with da_i = dh^T v_i and dv_i = a_i dh; keeps references to the sources only.

    Plain operations take twice as long: each product passes through memory once more, forward for
    the sum and backward for da.
    """

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], weights: Tensor, *sources: Tensor
    ) -> tuple[Tensor, int]:
        # Members are one more axis of the tokens, for which the equation has room.
        members = [
            each.expand(info.batch_size, *each.shape) if at is None else each.movedim(at, 0)
            for each, at in zip((weights, *sources), in_dims, strict=True)
        ]
        h: Tensor = _WeightedSum.apply(members[0].transpose(0, 1), *members[1:])
        return h, 0

    @staticmethod
    def forward(weights: Tensor, *sources: Tensor) -> Tensor:
        columns = weights.unsqueeze(-1).unbind(0)
        h = columns[0] * sources[0]
        for column, source in zip(columns[1:], sources[1:], strict=True):
            h.addcmul_(column, source)
        return h

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, dh: Tensor) -> tuple[Tensor | None, ...]:
        weights, *sources = ctx.saved_tensors
        wanted, *of_sources = ctx.needs_input_grad
        with full_precision(dh):
            dweights = None
            if wanted:
                dots = torch.stack([torch.linalg.vecdot(dh, source) for source in sources])
                dweights = dots.sum_to_size(weights.shape)
            columns = weights.unsqueeze(-1).unbind(0)
            return dweights, *(
                column * dh if needed else None for column, needed in zip(columns, of_sources, strict=True)
            )

"""Attention over the states between sublayers: the shorthand that Attention Residuals are not."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn

from fints.residual.base import Branch, Mixing, check_sizes, make_norm
from fints.residual.depth_attention import AttendsOverDepth, DepthQueries, halves, new_slot

__all__ = ["StateAttention"]


class StateAttention(AttendsOverDepth):
    """Every sublayer reads a weighted mean of all running sums before it.

    With h_0 the embedding, at sublayer k::

        s_i     = w_k^T RMSNorm_k(h_i)            i = 0 ... k
        alpha   = softmax(s)
        u       = sum_i alpha_i h_i
        h_{k+1} = h_k + F_k(N_k(u))
        read-out N(u_L), with a query of its own

    Symbols: w_k ``queries.w[k - 1]`` (D,), the gain of RMSNorm_k ``queries.gain[k - 1]``, N_k
    ``norms[k]``, N `final_norm`; `state` is the states h, then the scores that each gets from the later
    sublayers. An early output is part of every later state, so it counts many times over. At the
    start w = 0: u is the plain mean of all states and *not* the last one, so the network does not start
    as Pre-Norm.

    Parameters
    ----------
    width : int
        D.
    num_sublayers : int
        L.
    norm : str
        "layer_norm" or "rms_norm", for the branches and the read-out; keys have an RMSNorm always.
    norm_eps : float
        Added to the variance (or mean square) inside the norm's root.
    first_layer : int
        Global index of the first sublayer; the equation does not use it.
    query : str
        "static", or "input": w_k = W_k h_k with W_k = 0 at the start, so alpha depends on the state.

    Notes
    -----
    Source: written u = sum_i alpha_i(h) h_i where Kimi Team 2026, arXiv 2603.15031, is summed up, and
    found in public code under their name; that paper attends over outputs instead
    (`AttentionResiduals`).
    Departures: none, as no paper fixes it; the details are those of `AttentionResiduals`.
    Parameters per sublayer beyond the branch's norm: 2 D (w and gain); none at sublayer 0, and 2 D for
    the read-out. With ``query="input"`` D (D + 1) each.
    """

    paper: ClassVar[str] = "no paper; a misreading of Kimi Team 2026, arXiv 2603.15031"
    equation: ClassVar[str] = "u = sum_i softmax_i(w^T RMSNorm(h_i)) h_i; h_n = h_{n-1} + F(N(u))"
    equals_pre_norm_at_start: ClassVar[bool] = False
    normalises_trunk: ClassVar[bool] = False
    parameter_formula: ClassVar[str] = "2 D a sublayer but the first, and 2 D once"

    def __init__(
        self,
        width: int,
        num_sublayers: int,
        *,
        norm: str = "layer_norm",
        norm_eps: float = 1e-5,
        first_layer: int = 0,
        query: str = "static",
    ) -> None:
        super().__init__()
        check_sizes(width, num_sublayers, first_layer)
        self.num_sublayers = num_sublayers
        self.norms = nn.ModuleList(make_norm(norm, width, norm_eps) for _ in range(num_sublayers))
        self.final_norm = make_norm(norm, width, norm_eps)
        self.queries = DepthQueries(
            width,
            num_sublayers,
            eps=norm_eps,
            query=query,
            score_norm="rms",
            normaliser="softmax",
            window=0,
        )

    @staticmethod
    def extra_parameters(width: int, num_sublayers: int, *, norm: str, query: str = "static") -> int:
        """Return L times the size of a query and its gain: L - 1 sublayers and the read-out."""
        return DepthQueries.count(width, num_sublayers, query=query, score_norm="rms")

    def open(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return x as the only state, and its key."""
        return x, self.queries.key(x, 1, self.num_sublayers + 1)

    def step(self, state: tuple[Tensor, ...], layer: int, branch: Branch) -> tuple[Tensor, ...]:
        """Return the states with h + F(N(u)) behind them, and their keys."""
        u = self.read(state, layer)
        states, keys = halves(state)
        h = states[-1] + branch(self.norms[layer](u))
        return *states, h, *keys, self.queries.key(h, layer + 1, self.num_sublayers + 1)

    def scale(self, count: int) -> float:
        """Return 1: a mean of states has the scale of a state."""
        return 1.0

    def mixing(self, state: tuple[Tensor, ...], layer: int) -> Mixing:
        """Return how u reads the states, which are the slots; the next one is the last plus y."""
        carry, write = new_slot(state, len(state) // 2 + 1)
        carry[-1, -1] = 1.0
        return Mixing(self.merging(state, layer), carry, write)

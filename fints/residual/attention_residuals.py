"""Attention Residuals: each sublayer attends over earlier outputs (Kimi Team 2026, arXiv 2603.15031)."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn

from fints.residual.base import Branch, Mixing, check_sizes, make_norm
from fints.residual.depth_attention import AttendsOverDepth, DepthQueries, halves, new_slot

__all__ = ["AttentionResiduals", "BlockAttentionResiduals"]


class AttentionResiduals(AttendsOverDepth):
    """Every sublayer reads its own weighted sum of the embedding and all earlier outputs.

    With the sources v_0, the embedding, and v_{i+1}, the output of sublayer i, at sublayer k::

        s_i     = w_k^T RMSNorm_k(v_i)            i = 0 ... k
        alpha   = softmax(s)
        u       = (k + 1) sum_i alpha_i v_i
        v_{k+1} = F_k(N_k(u))
        read-out N(u_L), with a query of its own

    Symbols: w_k ``queries.w[k - 1]`` (D,), the gain of RMSNorm_k ``queries.gain[k - 1]``, N_k
    ``norms[k]``, N `final_norm`; `state` is the sources, then the scores that each gets from the later
    sublayers. Scores and weights are computed in full precision under autocast.

    Values are *outputs* of sublayers, not the running sums of them (that is `StateAttention`), and the
    query is a learned constant: the input acts through the keys. At the start w = 0, so u is the plain
    sum and the network computes what Pre-Norm computes. Sublayer 0 has one source, hence no query.

    `merge` at layer k >= 1 is u_k: the number of sources times their weighted mean by the query of
    that layer, which is the trunk of Pre-Norm while w = 0.

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
        "static", or "input": w_k = W_k v_k with W_k = 0 at the start, from the latest source.
    score_norm : str
        "rms", or "none": keys are the sources as they are.
    normaliser : str
        "softmax", or "sigmoid": each weight for itself; u is then twice the weighted sum.
    window : int
        0, or how many of the latest sources are seen beside the embedding. All are kept all the same.
        With a window the network does not start as Pre-Norm once there are more sources than that.

    Notes
    -----
    Source: Kimi Team 2026, arXiv 2603.15031.
    Departures: u and the read-out are the weighted mean times the number of sources (the paper has the
    mean itself). The norm that follows removes the factor up to eps; with it eps acts as in
    Pre-Norm, without it a mean over 33 sources of variance 1e-3 would be shrunk by half a percent.
    The scores' eps is that of the other norms. The embedding is one source, counted once; the
    paper's listing adds it to the first block as well.
    Parameters per sublayer beyond the branch's norm: 2 D (w and gain); none at sublayer 0, and 2 D for
    the read-out. With ``query="input"`` D (D + 1) each; with ``score_norm="none"`` D less.
    The number of sources grows by one at each sublayer, so no two steps have the same shapes.
    """

    paper: ClassVar[str] = "Kimi Team 2026, arXiv 2603.15031"
    equation: ClassVar[str] = "u = n sum_i softmax_i(w^T RMSNorm(v_i)) v_i; v_n = F(N(u))"
    equals_pre_norm_at_start: ClassVar[bool] = True
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
        score_norm: str = "rms",
        normaliser: str = "softmax",
        window: int = 0,
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
            score_norm=score_norm,
            normaliser=normaliser,
            window=window,
        )

    @staticmethod
    def extra_parameters(
        width: int,
        num_sublayers: int,
        *,
        norm: str,
        query: str = "static",
        score_norm: str = "rms",
        normaliser: str = "softmax",
        window: int = 0,
    ) -> int:
        """Return L times the size of a query and its gain: L - 1 sublayers and the read-out."""
        return DepthQueries.count(width, num_sublayers, query=query, score_norm=score_norm)

    def open(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return x as the only source, and its key."""
        return x, self.queries.key(x, 1, self.num_sublayers + 1)

    def step(self, state: tuple[Tensor, ...], layer: int, branch: Branch) -> tuple[Tensor, ...]:
        """Return the sources with F(N(u)) behind them, and their keys."""
        u = self.read(state, layer)
        y = branch(self.norms[layer](u)).to(u.dtype)
        sources, keys = halves(state)
        return *sources, y, *keys, self.queries.key(y, layer + 1, self.num_sublayers + 1)

    def scale(self, count: int) -> float:
        """Return the number of sources; 2 for sigmoids."""
        return 1 / self.queries.equal_share(count)

    def mixing(self, state: tuple[Tensor, ...], layer: int) -> Mixing:
        """Return how u reads the sources, which are the slots; y becomes the next one."""
        return Mixing(self.merging(state, layer), *new_slot(state, len(state) // 2 + 1))


class BlockAttentionResiduals(AttendsOverDepth):
    """Attention Residuals over the sums of outputs of blocks of S sublayers.

    With b_0 the embedding, b_{j+1} the sum of the outputs of the sublayers j S ... (j + 1) S - 1, and p
    the sum so far of the block that sublayer k is in, the sources v of sublayer k are::

        b_0 ... b_{floor(k / S)}, and p unless k is a multiple of S

        u = n sum_i softmax_i(w_k^T RMSNorm_k(v_i)) v_i            n sources
        p <- p + F_k(N_k(u)),    from p = 0 at the first sublayer of a block
        read-out N(u_L), with a query of its own; a last, shorter block counts as one

    Symbols as in `AttentionResiduals`; a block here is S sublayers, whatever their kind. With S = 1 this
    is `AttentionResiduals`; with S = L the embedding and a plain sum.

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
    block_size : int, optional
        S, at least 1. None: so many that there are about 8 blocks, the paper's choice.
    query, score_norm, normaliser, window
        As in `AttentionResiduals`.

    Notes
    -----
    Source: Kimi Team 2026, arXiv 2603.15031.
    Departures: those of `AttentionResiduals`. The step here is one softmax over all sources; the fused pass
    takes the paper's two phases (`fints.residual.two_phase`), which give the same numbers.
    Parameters per sublayer beyond the branch's norm: as in `AttentionResiduals`.
    """

    paper: ClassVar[str] = "Kimi Team 2026, arXiv 2603.15031"
    equation: ClassVar[str] = "u = n sum_i softmax_i(w^T RMSNorm(v_i)) v_i, v block sums; p <- p + F(N(u))"
    equals_pre_norm_at_start: ClassVar[bool] = True
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
        block_size: int | None = None,
        query: str = "static",
        score_norm: str = "rms",
        normaliser: str = "softmax",
        window: int = 0,
    ) -> None:
        super().__init__()
        check_sizes(width, num_sublayers, first_layer)
        if block_size is not None and (
            not isinstance(block_size, int) or isinstance(block_size, bool) or block_size < 1
        ):
            raise ValueError(
                f"block_size must be a whole number of at least 1; got {block_size!r}. It counts sublayers; "
                "leave it out for about 8 blocks."
            )
        self.num_sublayers = num_sublayers
        self.block_size = max(1, round(num_sublayers / 8)) if block_size is None else block_size
        self.norms = nn.ModuleList(make_norm(norm, width, norm_eps) for _ in range(num_sublayers))
        self.final_norm = make_norm(norm, width, norm_eps)
        self.queries = DepthQueries(
            width,
            num_sublayers,
            eps=norm_eps,
            query=query,
            score_norm=score_norm,
            normaliser=normaliser,
            window=window,
        )

    @staticmethod
    def extra_parameters(
        width: int,
        num_sublayers: int,
        *,
        norm: str,
        block_size: int | None = None,
        query: str = "static",
        score_norm: str = "rms",
        normaliser: str = "softmax",
        window: int = 0,
    ) -> int:
        """Return L times the size of a query and its gain: L - 1 sublayers and the read-out."""
        return DepthQueries.count(width, num_sublayers, query=query, score_norm=score_norm)

    def open(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return x as the only source, and its key."""
        return x, self.queries.key(x, 1, self.num_sublayers + 1)

    def step(self, state: tuple[Tensor, ...], layer: int, branch: Branch) -> tuple[Tensor, ...]:
        """Return the sources with F(N(u)) added to the last, or behind them, and their keys."""
        u = self.read(state, layer)
        p = branch(self.norms[layer](u)).to(u.dtype)
        sources, keys = halves(state)
        if layer % self.block_size:
            p = sources[-1] + p
            sources, keys = sources[:-1], keys[:-1]
        # A sum that still grows is a source of the next sublayer alone.
        block_ends = (layer + 1) % self.block_size == 0
        stop = self.num_sublayers + 1 if block_ends else layer + 2
        return *sources, p, *keys, self.queries.key(p, layer + 1, stop)

    def scale(self, count: int) -> float:
        """Return the number of sources; 2 for sigmoids."""
        return 1 / self.queries.equal_share(count)

    def mixing(self, state: tuple[Tensor, ...], layer: int) -> Mixing:
        """Return how u reads the sources, which are the slots; y is added to the last or a new one."""
        count = len(state) // 2
        after = count if layer % self.block_size else count + 1
        return Mixing(self.merging(state, layer), *new_slot(state, after))

"""Manifold-constrained Hyper-Connections: streams mixed by doubly stochastic matrices (Xie et al. 2025).

State (B, T, n, D), as in dynamic Hyper-Connections: the streams of a token lie together, so that the
coefficients are one product of the flattened token and the mix one small product a token.
"""

from __future__ import annotations

import math
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from fints.residual.base import (
    Branch,
    Mixing,
    Residual,
    check_sizes,
    full_precision,
    make_norm,
    mean_of_streams,
)
from fints.residual.sinkhorn import permutation_matrices, sinkhorn
from fints.residual.streams import check_num_streams, copies, home_stream

__all__ = ["ManifoldHyperConnections"]

# t_max of the paper.
ITERATIONS = 20
# n! logits a token: 24 for 4 streams, 120 for 5.
MOST_PERMUTED_STREAMS = 4


class _Start(NamedTuple):
    """Starting values of the logits: of read and write at home and elsewhere, of the mix on its diagonal.

    A mix of permutations has one logit for the identity (`identity`) and `off` for the others.
    """

    pre: tuple[float, float]
    post: tuple[float, float]
    diagonal: float
    off: float


_STARTS = {
    "home": _Start(pre=(3.0, -3.0), post=(0.0, 0.0), diagonal=3.0, off=0.0),
    "megatron": _Start(pre=(0.0, 0.0), post=(0.0, 0.0), diagonal=0.0, off=0.0),
    "mhc_lite": _Start(pre=(1.0, -1.0), post=(1.0, -1.0), diagonal=0.0, off=-8.0),
}


class ManifoldHyperConnections(Residual[Tensor]):
    """Streams mixed by a doubly stochastic matrix that each token computes from all its streams.

    With the streams x_i as rows of x (n, D), at sublayer k::

        x'        = RMSNorm(vec x)                      (n D), without a gain
        [p, q, r] = alpha (x' phi) + b                  one alpha each for p (n), q (n) and r
        H_pre     = sigmoid(p)                          (1, n), what is read, in (0, 1)
        H_post    = 2 sigmoid(q)                        (1, n), what is written, in (0, 2)
        H_res     = Sinkhorn(exp(r as (n, n)))          mix "sinkhorn", 20 iterations
                  = sum_p softmax(r)_p P_p              mix "permutations", over all n! of them

        u   = H_pre x
        x  <- H_res x + H_post^T F_k(N_k(u))            x_i <- sum_j H_res[i, j] x_j + H_post_i y
        read-out N(mean_i x_i)

    H_res is *not* transposed: its first index is the destination, its second the source, the other
    way round than A_r of Hyper-Connections. Its rows sum to 1 (to rounding), so that equal streams
    stay equal; its columns too, for permutations exactly, for Sinkhorn as far as 20 iterations go
    (rows are normalised last): then the sum of the streams is carried on unchanged. Symbols: phi
    (n D, columns [p | q | r]) is ``phi[layer]``, b ``b[layer]``, the three alpha ``alpha[layer]``,
    N_k ``norms[layer]``, N `final_norm`; x is `state` (B, T, n, D).

    The root mean square of vec x is divided out after the product with phi, which is the same to
    rounding and reads x once. Coefficients are computed in full precision under autocast.

    At the start, by `init`: with "home", phi = 0, H_post = 1, sublayer k reads stream (first_layer + k)
    mod n with weight 0.95 and the others with 0.05, and H_res has 0.87 on its diagonal, in both
    forms of mix. Whatever H_pre and H_res, equal streams then stay equal and the network computes
    what Pre-Norm computes; the unequal reads tell the streams apart once training begins, and H_res
    is far enough from the identity to learn (at 0.99 and beyond its gradients all but vanish).

    Parameters
    ----------
    width : int
        D.
    num_sublayers : int
        L.
    norm : str
        "layer_norm" or "rms_norm", for the branches and the read-out; the coefficients have an RMSNorm.
    norm_eps : float
        Added to the variance (or mean square) inside the norm's root.
    first_layer : int
        Global index of the first sublayer.
    num_streams : int
        n, at least 1; at most 4 with permutations.
    mix : str
        "sinkhorn" (the paper) or "permutations" (mHC-lite): exactly doubly stochastic, n! logits.
    init : str
        "home" as above; "megatron": phi Xavier-uniform, b = 0, so H_pre = 1/2, H_post = 1, H_res = 1/n
        up to O(alpha), and Pre-Norm's function only up to O(alpha); "mhc_lite": phi = 0, read and write
        logits +1 at home and -1 elsewhere, mix logits 0 for the identity and -8 elsewhere, which
        writes 1.46 and 0.54 and so is another function than Pre-Norm, with H_res all but frozen.

    Notes
    -----
    Source: Xie et al. 2025, arXiv 2512.24880; permutations: mHC-lite, arXiv 2601.05732; starts:
    Megatron-LM and the mHC-lite repository.
    Departures: the paper states neither b, phi at the start nor the read-out, so "home" and the mean
    are choices of this package; Sinkhorn runs on logarithms; no epsilon is added to it.
    Parameters per sublayer beyond the branch's norm: (2 n + r) (n D + 1) + 3, with r = n^2 for
    Sinkhorn, n! for permutations. About 248 D operations a sublayer and token at n = 4.
    """

    paper: ClassVar[str] = "Xie et al. 2025, arXiv 2512.24880"
    equation: ClassVar[str] = "u = H_pre x; x <- H_res x + H_post^T F(N(u)); H_res doubly stochastic"
    equals_pre_norm_at_start: ClassVar[bool] = True
    normalises_trunk: ClassVar[bool] = False
    parameter_formula: ClassVar[str] = "(n^2 + 2 n) (n D + 1) + 3 a sublayer"

    permutations: Tensor

    def __init__(
        self,
        width: int,
        num_sublayers: int,
        *,
        norm: str = "layer_norm",
        norm_eps: float = 1e-5,
        first_layer: int = 0,
        num_streams: int = 4,
        mix: str = "sinkhorn",
        init: str = "home",
    ) -> None:
        super().__init__()
        check_sizes(width, num_sublayers, first_layer)
        check_num_streams(num_streams)
        if init not in _STARTS:
            raise ValueError(f"unknown init {init!r}. Choose one of {', '.join(_STARTS)}.")
        self.num_streams = num_streams
        self.mix = mix
        self.norm_eps = norm_eps
        self.sizes = [num_streams, num_streams, _mix_logits(mix, num_streams)]
        self.norms = nn.ModuleList(make_norm(norm, width, norm_eps) for _ in range(num_sublayers))
        self.final_norm = make_norm(norm, width, norm_eps)
        self.phi = nn.ParameterList(
            torch.zeros(num_streams * width, sum(self.sizes)) for _ in range(num_sublayers)
        )
        if init == "megatron":
            for phi in self.phi:
                nn.init.xavier_uniform_(phi)
        self.b = nn.ParameterList(
            _start(init, mix, first_layer + k, num_streams) for k in range(num_sublayers)
        )
        self.alpha = nn.ParameterList(torch.full((3,), 0.01) for _ in range(num_sublayers))
        permuted = permutation_matrices(num_streams) if mix == "permutations" else torch.zeros(0)
        self.register_buffer("permutations", permuted, persistent=False)

    @staticmethod
    def extra_parameters(
        width: int,
        num_sublayers: int,
        *,
        norm: str,
        num_streams: int = 4,
        mix: str = "sinkhorn",
        init: str = "home",
    ) -> int:
        """Return L ((2 n + r) (n D + 1) + 3), with r the logits of the mix: n^2 or n!."""
        logits = 2 * num_streams + _mix_logits(mix, num_streams)
        return num_sublayers * (logits * (num_streams * width + 1) + 3)

    def open(self, x: Tensor) -> Tensor:
        """Return n copies of x."""
        return copies(x, self.num_streams)

    def read(self, state: Tensor, layer: int) -> Tensor:
        """Return u = H_pre x."""
        with full_precision(state):
            width_connection, _ = self._coefficients(state, layer)
            return (width_connection[..., :1, :] @ state).squeeze(-2)

    def step(self, state: Tensor, layer: int, branch: Branch) -> Tensor:
        """Return H_res x + H_post^T F(N(H_pre x))."""
        with full_precision(state):
            width_connection, H_post = self._coefficients(state, layer)
            u, carried = (width_connection @ state).split([1, self.num_streams], dim=-2)
        y = branch(self.norms[layer](u.squeeze(-2)))
        return torch.addcmul(carried, H_post.unsqueeze(-1), y.to(carried.dtype).unsqueeze(-2))

    def merge(self, state: Tensor, layer: int) -> Tensor:
        """Return the mean of the streams."""
        return mean_of_streams(state, -2)

    def close(self, state: Tensor, layer: int) -> Tensor:
        """Return N(mean of the streams)."""
        return self.final_norm(self.merge(state, layer))

    def no_decay(self) -> set[str]:
        """Return all names but those of phi: only the maps from the state may be decayed."""
        return {name for name, _ in self.named_parameters() if not name.startswith("phi.")}

    def weights(self, state: Tensor, layer: int) -> dict[str, Tensor]:
        """Return H_pre (B, T, n), H_res (B, T, n, n) [destination, source] and H_post (B, T, n)."""
        with full_precision(state):
            width_connection, H_post = self._coefficients(state, layer)
        return {
            "H_pre": width_connection[..., 0, :],
            "H_res": width_connection[..., 1:, :],
            "H_post": H_post,
        }

    def mixing(self, state: Tensor, layer: int) -> Mixing:
        """Return (H_pre, H_res^T, H_post); the slots are the streams."""
        weights = self.weights(state, layer)
        return Mixing(weights["H_pre"], weights["H_res"].mT, weights["H_post"])

    def merging(self, state: Tensor, layer: int) -> Tensor:
        """Return 1 / n for every stream."""
        return state.new_full((self.num_streams,), 1 / self.num_streams)

    def logits(self, state: Tensor, layer: int) -> Tensor:
        """Return [p | q | r] (B, T, 2 n + r)."""
        x = state.flatten(-2)
        scale = torch.cat([a.expand(size) for a, size in zip(self.alpha[layer], self.sizes, strict=True)])
        # A norm, not a mean of squares, which would write x^2 to memory and read it in the backward pass.
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        root_mean_square = (length.square() / x.shape[-1] + self.norm_eps).sqrt()
        return torch.addcmul(self.b[layer], (x @ self.phi[layer]) / root_mean_square, scale)

    def _coefficients(self, state: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """Return H_pre above H_res, (B, T, n + 1, n), and H_post (B, T, n)."""
        p, q, r = self.logits(state, layer).split(self.sizes, dim=-1)
        n = self.num_streams
        if self.mix == "sinkhorn":
            H_res = sinkhorn(r.unflatten(-1, (n, n)), ITERATIONS)
        else:
            H_res = (r.softmax(-1) @ self.permutations.flatten(1)).unflatten(-1, (n, n))
        return torch.cat([p.sigmoid().unsqueeze(-2), H_res], dim=-2), 2 * q.sigmoid()


def _mix_logits(mix: str, num_streams: int) -> int:
    """Return how many logits the mix has.

    Raises
    ------
    ValueError
        If `mix` is unknown, or there are too many streams for permutations.
    """
    if mix not in ("sinkhorn", "permutations"):
        raise ValueError(f"unknown mix {mix!r}. Choose one of sinkhorn, permutations.")
    if mix == "sinkhorn":
        return num_streams**2
    if num_streams > MOST_PERMUTED_STREAMS:
        raise ValueError(
            f'num_streams must be at most {MOST_PERMUTED_STREAMS} with mix = "permutations", which has one '
            f'logit a permutation; got {num_streams}. Use mix = "sinkhorn".'
        )
    return math.factorial(num_streams)


def _start(init: str, mix: str, layer: int, num_streams: int) -> Tensor:
    """Return b at the start, [p | q | r]."""
    n, start = num_streams, _STARTS[init]
    home = home_stream(layer, n)
    p, q = (at_home * home + elsewhere * (1 - home) for at_home, elsewhere in (start.pre, start.post))
    if mix == "sinkhorn":
        r = torch.full((n, n), start.off).fill_diagonal_(start.diagonal).flatten()
    else:
        r = torch.full((math.factorial(n),), start.off)
        r[0] = start.diagonal
        if init == "home" and n > 1:
            # The logit of the identity that gives the same H_res as Sinkhorn's start. Equal weights
            # on all n! permutations give 1 / n everywhere, so with weight c on the identity beyond
            # that the diagonal is c + (1 - c) / n.
            diagonal = math.exp(start.diagonal) / (math.exp(start.diagonal) + n - 1)
            c = (n * diagonal - 1) / (n - 1)
            r[0] = math.log(1 + c * len(r) / (1 - c))
    return torch.cat([p, q, r])

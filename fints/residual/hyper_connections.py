"""Hyper-Connections: n streams with learned reads, mixes and writes (Zhu et al. 2025, arXiv 2409.19606).

The mixes run as matrix products over all tokens at once. On one CPU thread (B 64, T 24, D 64,
n 4, forward and backward) that took 1.5 ms a sublayer against 5.9 ms for sums unrolled over
streams (static), and 2.3 ms against 4.9 ms (dynamic). The two classes lay their streams out
differently for that reason: static (n, B, T, D), one product of an (n + 1, n) matrix with n long
rows; dynamic (B, T, n, D), one small product a token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

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
    norm_parameters,
)
from fints.residual.streams import check_num_streams, copies, home_stream, output_factor, scale_output

__all__ = ["DynamicHyperConnections", "StaticHyperConnections"]


class StaticHyperConnections(Residual[Tensor]):
    """Streams mixed by learned constants.

    With the streams H_i as rows of H (n, D), at sublayer k::

        u    = A_m^T H                    width connection: what the branch reads
        y    = F_k(N_k(u))
        H_j <- (A_r^T H)_j + B_j y        i.e. H_j <- sum_i A_r[i, j] H_i + B_j y
        read-out N(mean_j H_j)

    The first index of A_r is the source stream, the second the destination. Symbols: A_m (n, 1)
    is ``A_m[layer]``, A_r (n, n) ``A_r[layer]``, B (1, n) ``B[layer]``, N_k ``norms[layer]``, N
    `final_norm`; H is `state` (n, B, T, D).

    At the start A_m = e_{(first_layer + k) mod n} (each sublayer reads a home stream), A_r = I and
    B = 1, so all streams are equal and the network computes what Pre-Norm computes. The one-hot
    read is what tells the streams apart once training begins.

    Parameters
    ----------
    width : int
        D.
    num_sublayers : int
        L.
    norm : str
        "layer_norm" or "rms_norm".
    norm_eps : float
        Added to the variance (or mean square) inside the norm's root.
    first_layer : int
        Global index of the first sublayer.
    num_streams : int
        n, at least 1. With 1 the scheme is known to be worse than Pre-Norm: a negative control.
    out_init_scale : str
        What `init_branch` does to the fresh output weights of a branch: "none" leaves them,
        "mul_sqrt_n" and "div_sqrt_n" multiply or divide them by sqrt(n), the two readings of the
        paper. Either gives up the equality with Pre-Norm at the start.

    Notes
    -----
    Source: Zhu et al. 2025, arXiv 2409.19606v3.
    Departures: the read-out averages the streams where the paper sums them (the final norm removes
    the factor n, and an average keeps its input's scale, so that eps acts as in Pre-Norm); output
    weights of branches are not rescaled by sqrt(n) unless asked for: the paper leaves the direction
    open, and neither keeps the spread of the summed output, since the streams start equal.
    Parameters per sublayer beyond the branch's norm: n (n + 2).
    """

    paper: ClassVar[str] = "Zhu et al. 2025, arXiv 2409.19606"
    equation: ClassVar[str] = "u = A_m^T H; H <- A_r^T H + B^T F(N(u))"
    equals_pre_norm_at_start: ClassVar[bool] = True
    normalises_trunk: ClassVar[bool] = False
    parameter_formula: ClassVar[str] = "n (n + 2) a sublayer"

    def __init__(
        self,
        width: int,
        num_sublayers: int,
        *,
        norm: str = "layer_norm",
        norm_eps: float = 1e-5,
        first_layer: int = 0,
        num_streams: int = 4,
        out_init_scale: str = "none",
    ) -> None:
        super().__init__()
        check_sizes(width, num_sublayers, first_layer)
        check_num_streams(num_streams)
        self.num_streams = num_streams
        self.output_factor = output_factor(out_init_scale, num_streams)
        self.norms = nn.ModuleList(make_norm(norm, width, norm_eps) for _ in range(num_sublayers))
        self.final_norm = make_norm(norm, width, norm_eps)
        self.A_m = nn.ParameterList(
            home_stream(first_layer + k, num_streams).view(-1, 1) for k in range(num_sublayers)
        )
        self.A_r = nn.ParameterList(torch.eye(num_streams) for _ in range(num_sublayers))
        self.B = nn.ParameterList(torch.ones(1, num_streams) for _ in range(num_sublayers))

    @classmethod
    def from_matrices(
        cls, matrices: Sequence[Tensor], width: int, *, norm: str = "layer_norm", norm_eps: float = 1e-5
    ) -> StaticHyperConnections:
        """Return the scheme whose sublayers start from the given [[0, B], [A_m, A_r]] (n + 1, n + 1).

        `fints.residual.hyper_connection_matrices` has those of known layouts. They are starting
        values: the matrices are parameters like any others.

        Raises
        ------
        ValueError
            If there is no matrix, their shapes differ or are not square, or a corner is not 0.
        """
        shapes = {tuple(each.shape) for each in matrices}
        if len(shapes) != 1 or not all(len(s) == 2 and s[0] == s[1] >= 2 for s in shapes):
            raise ValueError(
                "matrices must be one square matrix [[0, B], [A_m, A_r]] of one size for each sublayer; "
                f"got shapes {sorted(shapes)}."
            )
        if any(each[0, 0] != 0 for each in matrices):
            raise ValueError("the first entry of each matrix must be 0: a branch's output is not its input.")
        num_streams = matrices[0].shape[0] - 1
        scheme = cls(width, len(matrices), norm=norm, norm_eps=norm_eps, num_streams=num_streams)
        with torch.no_grad():
            for layer, each in enumerate(matrices):
                scheme.B[layer].copy_(each[:1, 1:])
                scheme.A_m[layer].copy_(each[1:, :1])
                scheme.A_r[layer].copy_(each[1:, 1:])
        return scheme

    @staticmethod
    def extra_parameters(
        width: int, num_sublayers: int, *, norm: str, num_streams: int = 4, out_init_scale: str = "none"
    ) -> int:
        """Return L n (n + 2)."""
        return num_sublayers * num_streams * (num_streams + 2)

    def open(self, x: Tensor) -> Tensor:
        """Return n copies of x."""
        return x.expand(self.num_streams, *x.shape).contiguous()

    def read(self, state: Tensor, layer: int) -> Tensor:
        """Return u = A_m^T H."""
        with full_precision(state):
            return (self.A_m[layer].t() @ state.reshape(self.num_streams, -1)).view(state.shape[1:])

    def step(self, state: Tensor, layer: int, branch: Branch) -> Tensor:
        """Return A_r^T H + B^T F(N(A_m^T H))."""
        shape = state.shape
        with full_precision(state):
            # One product for [A_m | A_r]: the streams are read from memory once.
            width_connection = torch.cat([self.A_m[layer], self.A_r[layer]], dim=1)
            mixed = width_connection.t() @ state.reshape(self.num_streams, -1)
            u, carried = mixed.split([1, self.num_streams])
        y = branch(self.norms[layer](u.view(shape[1:])))
        with full_precision(state):
            y = y.to(carried.dtype).reshape(1, -1)
            return torch.addmm(carried, self.B[layer].t(), y).view(shape)

    def merge(self, state: Tensor, layer: int) -> Tensor:
        """Return the mean of the streams."""
        return mean_of_streams(state, 0)

    def close(self, state: Tensor, layer: int) -> Tensor:
        """Return N(mean of the streams)."""
        return self.final_norm(self.merge(state, layer))

    def init_branch(self, branch: nn.Module, layer: int) -> None:
        """Multiply the weight of ``branch.output`` as `out_init_scale` says.

        Raises
        ------
        ValueError
            If it says so and the branch has no linear map called `output`.
        """
        scale_output(branch, self.output_factor)

    def no_decay(self) -> set[str]:
        """Return all names: decay would pull A_r = I and B = 1 towards a network without streams."""
        return {name for name, _ in self.named_parameters()}

    def weights(self, state: Tensor, layer: int) -> dict[str, Tensor]:
        """Return A_m (n,), A_r (n, n) [source, destination] and B (n,)."""
        return {"A_m": self.A_m[layer][:, 0], "A_r": self.A_r[layer], "B": self.B[layer][0]}

    def mixing(self, state: Tensor, layer: int) -> Mixing:
        """Return (A_m, A_r, B); the slots are the streams."""
        weights = self.weights(state, layer)
        return Mixing(weights["A_m"], weights["A_r"], weights["B"])

    def merging(self, state: Tensor, layer: int) -> Tensor:
        """Return 1 / n for every stream."""
        return state.new_full((self.num_streams,), 1 / self.num_streams)


class DynamicHyperConnections(Residual[Tensor]):
    """Streams mixed by constants plus a part that each token computes from its own streams.

    With the streams H_i as rows of H (n, D) and Hb = N_dyn(H), stream by stream::

        A_m(H) = s_alpha tanh(Hb W_m)      + A_m        (n, 1)
        A_r(H) = s_alpha tanh(Hb W_r)      + A_r        (n, n)
        B(H)   = s_beta  tanh(Hb W_beta)^T + B          (1, n)

        u    = A_m(H)^T H
        y    = F_k(N_k(u))
        H_j <- (A_r(H)^T H)_j + B(H)_j y
        read-out N(mean_j H_j)

    The first index of A_r is the source stream, the second the destination; row i of the dynamic
    part comes from stream i alone. Symbols: ``A_m[layer]``, ``A_r[layer]``, ``B[layer]`` as in
    `StaticHyperConnections`; ``W[layer]`` (D, n + 2) holds [W_m | W_r | W_beta];
    ``s_alpha[layer]``, ``s_beta[layer]`` are scalars; N_dyn is ``coefficient_norms[layer]``; H is
    `state` (B, T, n, D).

    At the start W = 0, s_alpha = s_beta = 0.01 and the constants are those of
    `StaticHyperConnections`, so the network computes what Pre-Norm computes. Coefficients are
    computed in full precision under autocast.

    Parameters
    ----------
    width : int
        D.
    num_sublayers : int
        L.
    norm : str
        "layer_norm" or "rms_norm", for the branches, the read-out and the coefficients.
    norm_eps : float
        Added to the variance (or mean square) inside the norm's root.
    first_layer : int
        Global index of the first sublayer.
    num_streams : int
        n, at least 1.
    tanh : bool
        Whether the dynamic part passes through tanh (the paper's default) or is linear.
    out_init_scale : str
        As in `StaticHyperConnections`.

    Notes
    -----
    Source: Zhu et al. 2025, arXiv 2409.19606v3.
    Departures: those of `StaticHyperConnections`; the coefficient norm is of the branches' type
    (the paper's pseudo-code has a LayerNorm); s_alpha, s_beta and norm gains are not decayed, on
    which the paper is silent.
    Parameters per sublayer beyond the branch's norm: |N_dyn| + D (n + 2) + n (n + 2) + 2, with
    |N_dyn| = 2 D for LayerNorm, D for RMSNorm.
    """

    paper: ClassVar[str] = "Zhu et al. 2025, arXiv 2409.19606"
    equation: ClassVar[str] = "u = A_m(H)^T H; H <- A_r(H)^T H + B(H)^T F(N(u)); A(H) = A + s tanh(N(H) W)"
    equals_pre_norm_at_start: ClassVar[bool] = True
    normalises_trunk: ClassVar[bool] = False
    parameter_formula: ClassVar[str] = "|N_dyn| + D (n + 2) + n (n + 2) + 2 a sublayer"

    def __init__(
        self,
        width: int,
        num_sublayers: int,
        *,
        norm: str = "layer_norm",
        norm_eps: float = 1e-5,
        first_layer: int = 0,
        num_streams: int = 4,
        tanh: bool = True,
        out_init_scale: str = "none",
    ) -> None:
        super().__init__()
        check_sizes(width, num_sublayers, first_layer)
        check_num_streams(num_streams)
        self.num_streams = num_streams
        self.output_factor = output_factor(out_init_scale, num_streams)
        self.tanh = tanh
        self.norms = nn.ModuleList(make_norm(norm, width, norm_eps) for _ in range(num_sublayers))
        self.final_norm = make_norm(norm, width, norm_eps)
        self.A_m = nn.ParameterList(
            home_stream(first_layer + k, num_streams).view(-1, 1) for k in range(num_sublayers)
        )
        self.A_r = nn.ParameterList(torch.eye(num_streams) for _ in range(num_sublayers))
        self.B = nn.ParameterList(torch.ones(1, num_streams) for _ in range(num_sublayers))
        self.W = nn.ParameterList(torch.zeros(width, num_streams + 2) for _ in range(num_sublayers))
        self.s_alpha = nn.ParameterList(torch.tensor(0.01) for _ in range(num_sublayers))
        self.s_beta = nn.ParameterList(torch.tensor(0.01) for _ in range(num_sublayers))
        self.coefficient_norms = nn.ModuleList(make_norm(norm, width, norm_eps) for _ in range(num_sublayers))

    @staticmethod
    def extra_parameters(
        width: int,
        num_sublayers: int,
        *,
        norm: str,
        num_streams: int = 4,
        tanh: bool = True,
        out_init_scale: str = "none",
    ) -> int:
        """Return L times the size of N_dyn + D (n + 2) + n (n + 2) + 2."""
        per_sublayer = norm_parameters(norm, width) + (width + num_streams) * (num_streams + 2) + 2
        return num_sublayers * per_sublayer

    def open(self, x: Tensor) -> Tensor:
        """Return n copies of x."""
        return copies(x, self.num_streams)

    def read(self, state: Tensor, layer: int) -> Tensor:
        """Return u = A_m(H)^T H."""
        with full_precision(state):
            width_connection, _ = self._coefficients(state, layer)
            return (width_connection[..., :1].mT @ state).squeeze(-2)

    def step(self, state: Tensor, layer: int, branch: Branch) -> Tensor:
        """Return A_r(H)^T H + B(H)^T F(N(A_m(H)^T H))."""
        with full_precision(state):
            width_connection, depth_connection = self._coefficients(state, layer)
            u, carried = (width_connection.mT @ state).split([1, self.num_streams], dim=-2)
        y = branch(self.norms[layer](u.squeeze(-2)))
        return torch.addcmul(carried, depth_connection, y.to(carried.dtype).unsqueeze(-2))

    def merge(self, state: Tensor, layer: int) -> Tensor:
        """Return the mean of the streams."""
        return mean_of_streams(state, -2)

    def close(self, state: Tensor, layer: int) -> Tensor:
        """Return N(mean of the streams)."""
        return self.final_norm(self.merge(state, layer))

    def init_branch(self, branch: nn.Module, layer: int) -> None:
        """Multiply the weight of ``branch.output`` as `out_init_scale` says.

        Raises
        ------
        ValueError
            If it says so and the branch has no linear map called `output`.
        """
        scale_output(branch, self.output_factor)

    def no_decay(self) -> set[str]:
        """Return all names but those of W: only the dynamic part may be decayed."""
        return {name for name, _ in self.named_parameters() if not name.startswith("W.")}

    def weights(self, state: Tensor, layer: int) -> dict[str, Tensor]:
        """Return A_m(H) (B, T, n), A_r(H) (B, T, n, n) [source, destination] and B(H) (B, T, n)."""
        with full_precision(state):
            width_connection, depth_connection = self._coefficients(state, layer)
        return {
            "A_m": width_connection[..., 0],
            "A_r": width_connection[..., 1:],
            "B": depth_connection[..., 0],
        }

    def mixing(self, state: Tensor, layer: int) -> Mixing:
        """Return (A_m, A_r, B); the slots are the streams."""
        weights = self.weights(state, layer)
        return Mixing(weights["A_m"], weights["A_r"], weights["B"])

    def merging(self, state: Tensor, layer: int) -> Tensor:
        """Return 1 / n for every stream."""
        return state.new_full((self.num_streams,), 1 / self.num_streams)

    def _coefficients(self, state: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """Return [A_m(H) | A_r(H)] (B, T, n, n + 1) and B(H)^T (B, T, n, 1)."""
        dynamic = self.coefficient_norms[layer](state) @ self.W[layer]
        if self.tanh:
            dynamic = dynamic.tanh()
        n = self.num_streams
        static = torch.cat([self.A_m[layer], self.A_r[layer], self.B[layer].t()], dim=1)
        scale = torch.cat([self.s_alpha[layer].expand(n + 1), self.s_beta[layer].expand(1)])
        width_connection, depth_connection = torch.addcmul(static, dynamic, scale).split([n + 1, 1], dim=-1)
        return width_connection, depth_connection

"""Frac-Connections: one stream cut into m fractions that are mixed like streams (arXiv 2503.14125).

The state is an ordinary (B, T, D), so memory is that of Pre-Norm; a fraction is D / m neighbouring
features, and only equal offsets of different fractions are mixed.
"""

from __future__ import annotations

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
    norm_parameters,
)

__all__ = ["FracConnections", "StaticFracConnections"]


class StaticFracConnections(Residual[Tensor]):
    """Fractions of one stream mixed by learned constants.

    With h (D,) seen as m fractions H_i (D / m,), rows of H, and y likewise, at sublayer k::

        u    = vec(Y^T H)                 u_j = sum_i Y[i, j] H_i: what the branch reads
        y    = F_k(N_k(u))
        H_j <- (A^T H)_j + B_j y_j        i.e. H_j <- sum_i A[i, j] H_i + B_j y_j
        read-out N(vec H)

    The first index of Y and A is the source fraction, the second the destination. Symbols:
    ``Y[layer]`` (m, m), ``A[layer]`` (m, m), ``B[layer]`` (1, m), N_k ``norms[layer]``, N
    `final_norm`; h is `state` (B, T, D).

    At the start Y = A = I and B = 1: exactly Pre-Norm, its scale too. The fractions hold different
    features, so no home is needed to tell them apart.

    Parameters
    ----------
    width : int
        D, a multiple of `num_fractions`.
    num_sublayers : int
        L.
    norm : str
        "layer_norm" or "rms_norm".
    norm_eps : float
        Added to the variance (or mean square) inside the norm's root.
    first_layer : int
        Global index of the first sublayer; the equation does not use it.
    num_fractions : int
        m, at least 1. With 1 it is Hyper-Connections of one stream.

    Notes
    -----
    Source: Zhu et al. 2025, arXiv 2503.14125.
    Departures: none.
    Parameters per sublayer beyond the branch's norm: m (2 m + 1).
    """

    paper: ClassVar[str] = "Zhu et al. 2025, arXiv 2503.14125"
    equation: ClassVar[str] = "u = vec(Y^T H); H_j <- (A^T H)_j + B_j F(N(u))_j; H is h as m fractions"
    equals_pre_norm_at_start: ClassVar[bool] = True
    normalises_trunk: ClassVar[bool] = False
    parameter_formula: ClassVar[str] = "m (2 m + 1) a sublayer"

    def __init__(
        self,
        width: int,
        num_sublayers: int,
        *,
        norm: str = "layer_norm",
        norm_eps: float = 1e-5,
        first_layer: int = 0,
        num_fractions: int = 4,
    ) -> None:
        super().__init__()
        check_sizes(width, num_sublayers, first_layer)
        _check_num_fractions(width, num_fractions)
        self.num_fractions = num_fractions
        self.norms = nn.ModuleList(make_norm(norm, width, norm_eps) for _ in range(num_sublayers))
        self.final_norm = make_norm(norm, width, norm_eps)
        self.Y = nn.ParameterList(torch.eye(num_fractions) for _ in range(num_sublayers))
        self.A = nn.ParameterList(torch.eye(num_fractions) for _ in range(num_sublayers))
        self.B = nn.ParameterList(torch.ones(1, num_fractions) for _ in range(num_sublayers))

    @staticmethod
    def extra_parameters(width: int, num_sublayers: int, *, norm: str, num_fractions: int = 4) -> int:
        """Return L m (2 m + 1)."""
        return num_sublayers * num_fractions * (2 * num_fractions + 1)

    def open(self, x: Tensor) -> Tensor:
        """Return x."""
        return x

    def read(self, state: Tensor, layer: int) -> Tensor:
        """Return u = vec(Y^T H)."""
        with full_precision(state):
            fractions = state.unflatten(-1, (self.num_fractions, -1))
            return (self.Y[layer].t() @ fractions).flatten(-2)

    def step(self, state: Tensor, layer: int, branch: Branch) -> Tensor:
        """Return vec(A^T H + B^T * F(N(vec(Y^T H))))."""
        m = self.num_fractions
        with full_precision(state):
            # One product for [Y | A]: the state is read from memory once.
            mixed = torch.cat([self.Y[layer], self.A[layer]], dim=1).t() @ state.unflatten(-1, (m, -1))
            u, carried = mixed.split([m, m], dim=-2)
        y = branch(self.norms[layer](u.flatten(-2)))
        written = y.to(carried.dtype).unflatten(-1, (m, -1))
        with full_precision(state):
            return torch.addcmul(carried, self.B[layer].t(), written).flatten(-2)

    def merge(self, state: Tensor, layer: int) -> Tensor:
        """Return h: the fractions side by side."""
        return state

    def close(self, state: Tensor, layer: int) -> Tensor:
        """Return N(h)."""
        return self.final_norm(state)

    def no_decay(self) -> set[str]:
        """Return all names: decay would pull A = I and B = 1 towards a network without a trunk."""
        return {name for name, _ in self.named_parameters()}

    def weights(self, state: Tensor, layer: int) -> dict[str, Tensor]:
        """Return Y (m, m) and A (m, m), both [source, destination], and B (m,)."""
        return {"Y": self.Y[layer], "A": self.A[layer], "B": self.B[layer][0]}

    def mixing_of_fractions(self, state: Tensor, layer: int) -> Mixing:
        """Return the step on fractions: (Y, A, diag(B)), each (..., m, m); the slots are the H_i.

        ::

            u_b  = sum_i read_ib H_i
            H'_j = sum_i carry_ij H_i + sum_a write_aj y_a

        One number a slot cannot say this map, since each fraction of u and y has weights of its own:
        `mixing` is None. M[j -> k] is an (m, m) matrix [fraction of v_j, fraction of u_k], the product
        write_j carry_{j+1} ... carry_{k-1} read_k (of the embedding: with the identity for write);
        under Pre-Norm the identity. As one number take its trace over m: the weight with which a
        fraction meets itself again, on average; what is off the diagonal has moved between fractions.
        """
        weights = self.weights(state, layer)
        return Mixing(weights["Y"], weights["A"], torch.diag_embed(weights["B"]))


class FracConnections(Residual[Tensor]):
    """Fractions of one stream mixed by constants plus a part that each token computes from them.

    With h (D,) seen as m fractions H_i (D / m,), rows of H, and Hb = N_dyn(H), fraction by fraction::

        Y(H) = s_alpha tanh(Hb W_y)        + Y        (m, m)
        A(H) = s_alpha tanh(Hb W_a)        + A        (m, m)
        B(H) = s_beta  tanh(Hb W_beta)^T   + B        (1, m)

        u    = vec(Y(H)^T H)
        y    = F_k(N_k(u))
        H_j <- (A(H)^T H)_j + B(H)_j y_j
        read-out N(vec H)

    The first index of Y and A is the source fraction, the second the destination; row i of the
    dynamic parts comes from fraction i alone. Symbols: ``Y[layer]``, ``A[layer]``, ``B[layer]`` as
    in `StaticFracConnections`; ``W[layer]`` (D / m, 2 m + 1) holds [W_y | W_a | W_beta];
    ``s_alpha[layer]``, ``s_beta[layer]`` are scalars; N_dyn is ``coefficient_norms[layer]``, over
    D / m; h is `state` (B, T, D).

    At the start W = 0, s_alpha = s_beta = 0.01, Y = A = I and B = 1: exactly Pre-Norm, its scale too.
    Coefficients are computed in full precision under autocast.

    Parameters
    ----------
    width : int
        D, a multiple of `num_fractions`.
    num_sublayers : int
        L.
    norm : str
        "layer_norm" or "rms_norm", for the branches, the read-out and the coefficients.
    norm_eps : float
        Added to the variance (or mean square) inside the norm's root.
    first_layer : int
        Global index of the first sublayer; the equation does not use it.
    num_fractions : int
        m, at least 1. Fractions of fewer than 16 features have noisy norms, and of one feature
        (LayerNorm of a single number) none at all.

    Notes
    -----
    Source: Zhu et al. 2025, arXiv 2503.14125.
    Departures: the coefficient norm is of the branches' type; s_alpha, s_beta and norm gains are not
    decayed, on which the paper is silent.
    Parameters per sublayer beyond the branch's norm: |N_dyn| + (D / m) (2 m + 1) + m (2 m + 1) + 2, with
    |N_dyn| = 2 D / m for LayerNorm, D / m for RMSNorm.
    """

    paper: ClassVar[str] = "Zhu et al. 2025, arXiv 2503.14125"
    equation: ClassVar[str] = (
        "u = vec(Y(H)^T H); H_j <- (A(H)^T H)_j + B(H)_j F(N(u))_j; H is h as m fractions; "
        "A(H) = A + s tanh(N(H) W)"
    )
    equals_pre_norm_at_start: ClassVar[bool] = True
    normalises_trunk: ClassVar[bool] = False
    parameter_formula: ClassVar[str] = "|N_dyn| + (D / m) (2 m + 1) + m (2 m + 1) + 2 a sublayer"

    def __init__(
        self,
        width: int,
        num_sublayers: int,
        *,
        norm: str = "layer_norm",
        norm_eps: float = 1e-5,
        first_layer: int = 0,
        num_fractions: int = 4,
    ) -> None:
        super().__init__()
        check_sizes(width, num_sublayers, first_layer)
        _check_num_fractions(width, num_fractions)
        m, part = num_fractions, width // num_fractions
        self.num_fractions = m
        self.norms = nn.ModuleList(make_norm(norm, width, norm_eps) for _ in range(num_sublayers))
        self.final_norm = make_norm(norm, width, norm_eps)
        self.Y = nn.ParameterList(torch.eye(m) for _ in range(num_sublayers))
        self.A = nn.ParameterList(torch.eye(m) for _ in range(num_sublayers))
        self.B = nn.ParameterList(torch.ones(1, m) for _ in range(num_sublayers))
        self.W = nn.ParameterList(torch.zeros(part, 2 * m + 1) for _ in range(num_sublayers))
        self.s_alpha = nn.ParameterList(torch.tensor(0.01) for _ in range(num_sublayers))
        self.s_beta = nn.ParameterList(torch.tensor(0.01) for _ in range(num_sublayers))
        self.coefficient_norms = nn.ModuleList(make_norm(norm, part, norm_eps) for _ in range(num_sublayers))

    @staticmethod
    def extra_parameters(width: int, num_sublayers: int, *, norm: str, num_fractions: int = 4) -> int:
        """Return L times the size of N_dyn + (D / m) (2 m + 1) + m (2 m + 1) + 2."""
        part = width // num_fractions
        per_sublayer = norm_parameters(norm, part) + (part + num_fractions) * (2 * num_fractions + 1) + 2
        return num_sublayers * per_sublayer

    def open(self, x: Tensor) -> Tensor:
        """Return x."""
        return x

    def read(self, state: Tensor, layer: int) -> Tensor:
        """Return u = vec(Y(H)^T H)."""
        with full_precision(state):
            fractions = state.unflatten(-1, (self.num_fractions, -1))
            width_connection, _ = self._coefficients(fractions, layer)
            return (width_connection[..., : self.num_fractions].mT @ fractions).flatten(-2)

    def step(self, state: Tensor, layer: int, branch: Branch) -> Tensor:
        """Return vec(A(H)^T H + B(H)^T * F(N(vec(Y(H)^T H))))."""
        m = self.num_fractions
        with full_precision(state):
            fractions = state.unflatten(-1, (m, -1))
            width_connection, depth_connection = self._coefficients(fractions, layer)
            u, carried = (width_connection.mT @ fractions).split([m, m], dim=-2)
        y = branch(self.norms[layer](u.flatten(-2)))
        written = y.to(carried.dtype).unflatten(-1, (m, -1))
        return torch.addcmul(carried, depth_connection, written).flatten(-2)

    def merge(self, state: Tensor, layer: int) -> Tensor:
        """Return h: the fractions side by side."""
        return state

    def close(self, state: Tensor, layer: int) -> Tensor:
        """Return N(h)."""
        return self.final_norm(state)

    def no_decay(self) -> set[str]:
        """Return all names but those of W: only the dynamic part may be decayed."""
        return {name for name, _ in self.named_parameters() if not name.startswith("W.")}

    def weights(self, state: Tensor, layer: int) -> dict[str, Tensor]:
        """Return Y(H) and A(H) (B, T, m, m), both [source, destination], and B(H) (B, T, m)."""
        m = self.num_fractions
        with full_precision(state):
            width_connection, depth_connection = self._coefficients(state.unflatten(-1, (m, -1)), layer)
        return {
            "Y": width_connection[..., :m],
            "A": width_connection[..., m:],
            "B": depth_connection[..., 0],
        }

    def mixing_of_fractions(self, state: Tensor, layer: int) -> Mixing:
        """Return the step on fractions: (Y, A, diag(B)), each (..., m, m); the slots are the H_i.

        See `StaticFracConnections.mixing_of_fractions`.
        """
        weights = self.weights(state, layer)
        return Mixing(weights["Y"], weights["A"], torch.diag_embed(weights["B"]))

    def _coefficients(self, fractions: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """Return [Y(H) | A(H)] (B, T, m, 2 m) and B(H)^T (B, T, m, 1)."""
        m = self.num_fractions
        dynamic = (self.coefficient_norms[layer](fractions) @ self.W[layer]).tanh()
        static = torch.cat([self.Y[layer], self.A[layer], self.B[layer].t()], dim=1)
        scale = torch.cat([self.s_alpha[layer].expand(2 * m), self.s_beta[layer].expand(1)])
        width_connection, depth_connection = torch.addcmul(static, dynamic, scale).split([2 * m, 1], dim=-1)
        return width_connection, depth_connection


def _check_num_fractions(width: int, num_fractions: int) -> None:
    if not isinstance(num_fractions, int) or isinstance(num_fractions, bool) or num_fractions < 1:
        raise ValueError(
            f"num_fractions must be a whole number of at least 1; got {num_fractions!r}. Usual are 2 and 4."
        )
    if width % num_fractions:
        raise ValueError(
            f"width must be a multiple of num_fractions; got {width} and {num_fractions}. "
            f"Choose another width or another num_fractions."
        )

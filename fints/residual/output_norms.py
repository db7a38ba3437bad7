"""Pre-Norm with a second norm, on what the branch returns."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn

from fints.residual.base import Branch, check_sizes, make_norm, norm_parameters
from fints.residual.single_stream import AddingStream

__all__ = ["PeriLN", "SandwichNorm"]


class SandwichNorm(AddingStream):
    """Norm on the branch's input and on its output, none on the trunk.

    ::

        h <- h + N'_k(F_k(N_k(h))),      read-out N(h)

    Symbols: h is `state`, N_k ``norms[layer]``, N'_k ``output_norms[layer]``, N `final_norm`. The
    output norm stands before the addition: the scale of the branch's last map does not matter, and
    each sublayer adds one unit of variance (at a gain of 1), so the trunk's grows linearly.

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
        Global index of the first sublayer; the equation does not use it.

    Notes
    -----
    Source: Ding et al. 2021, arXiv 2105.13290 (CogView).
    Departures: none.
    Parameters per sublayer beyond the branch's norm: those of one norm.
    """

    paper: ClassVar[str] = "Ding et al. 2021, arXiv 2105.13290"
    equation: ClassVar[str] = "h <- h + N'(F(N(h)))"
    equals_pre_norm_at_start: ClassVar[bool] = False
    normalises_trunk: ClassVar[bool] = False
    parameter_formula: ClassVar[str] = "one norm a sublayer"

    def __init__(
        self,
        width: int,
        num_sublayers: int,
        *,
        norm: str = "layer_norm",
        norm_eps: float = 1e-5,
        first_layer: int = 0,
    ) -> None:
        super().__init__()
        check_sizes(width, num_sublayers, first_layer)
        self.norms = nn.ModuleList(make_norm(norm, width, norm_eps) for _ in range(num_sublayers))
        self.output_norms = nn.ModuleList(make_norm(norm, width, norm_eps) for _ in range(num_sublayers))
        self.final_norm = make_norm(norm, width, norm_eps)

    @staticmethod
    def extra_parameters(width: int, num_sublayers: int, *, norm: str) -> int:
        """Return the size of L norms."""
        return num_sublayers * norm_parameters(norm, width)

    def open(self, x: Tensor) -> Tensor:
        """Return x."""
        return x

    def step(self, state: Tensor, layer: int, branch: Branch) -> Tensor:
        """Return h + N'(F(N(h)))."""
        y = branch(self.norms[layer](state))
        return state + self.output_norms[layer](y.to(state.dtype))

    def close(self, state: Tensor, layer: int) -> Tensor:
        """Return N(h)."""
        return self.final_norm(state)


class PeriLN(AddingStream):
    """`SandwichNorm` whose embedding is normed too.

    ::

        h_0 = N_e(x),      h <- h + N'_k(F_k(N_k(h))),      read-out N(h)

    Symbols: h is `state`, N_e `embedding_norm`, N_k ``norms[layer]``, N'_k ``output_norms[layer]``,
    N `final_norm`. With the embedding at unit variance too, every sublayer starts with a say of the
    same order, whatever the scale of the input.

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
        Global index of the first sublayer; the equation does not use it.

    Notes
    -----
    Source: Kim et al. 2025, arXiv 2502.02732.
    Departures: none. The norm of the embedding is an option in practice; without it the scheme is
    `SandwichNorm`.
    Parameters per sublayer beyond the branch's norm: those of one norm, and one for the embedding.
    """

    paper: ClassVar[str] = "Kim et al. 2025, arXiv 2502.02732"
    equation: ClassVar[str] = "h_0 = N(x); h <- h + N'(F(N(h)))"
    equals_pre_norm_at_start: ClassVar[bool] = False
    normalises_trunk: ClassVar[bool] = False
    parameter_formula: ClassVar[str] = "one norm a sublayer, one for the embedding"

    def __init__(
        self,
        width: int,
        num_sublayers: int,
        *,
        norm: str = "layer_norm",
        norm_eps: float = 1e-5,
        first_layer: int = 0,
    ) -> None:
        super().__init__()
        check_sizes(width, num_sublayers, first_layer)
        self.embedding_norm = make_norm(norm, width, norm_eps)
        self.norms = nn.ModuleList(make_norm(norm, width, norm_eps) for _ in range(num_sublayers))
        self.output_norms = nn.ModuleList(make_norm(norm, width, norm_eps) for _ in range(num_sublayers))
        self.final_norm = make_norm(norm, width, norm_eps)

    @staticmethod
    def extra_parameters(width: int, num_sublayers: int, *, norm: str) -> int:
        """Return the size of L + 1 norms."""
        return (num_sublayers + 1) * norm_parameters(norm, width)

    def open(self, x: Tensor) -> Tensor:
        """Return N_e(x)."""
        return self.embedding_norm(x)

    def step(self, state: Tensor, layer: int, branch: Branch) -> Tensor:
        """Return h + N'(F(N(h)))."""
        y = branch(self.norms[layer](state))
        return state + self.output_norms[layer](y.to(state.dtype))

    def close(self, state: Tensor, layer: int) -> Tensor:
        """Return N(h)."""
        return self.final_norm(state)

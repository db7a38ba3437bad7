"""Schemes of one stream (B, T, D): what they share, and those without parameters of their own."""

from __future__ import annotations

from abc import ABC
from typing import ClassVar

from torch import Tensor, nn

from fints.residual.base import Branch, Mixing, Residual, check_sizes, make_norm, norm_parameters

__all__ = ["AddingStream", "NoSkip", "OneStream", "PostNorm", "PreNorm"]


class OneStream(Residual[Tensor], ABC):
    """A scheme whose state is h (B, T, D), read as it is, and whose parameters are gains and scales."""

    def read(self, state: Tensor, layer: int) -> Tensor:
        """Return h."""
        return state

    def merge(self, state: Tensor, layer: int) -> Tensor:
        """Return h."""
        return state

    def no_decay(self) -> set[str]:
        """Return all names: gains and biases of norms, and scales, whose neutral value is not 0."""
        return {name for name, _ in self.named_parameters()}


class AddingStream(OneStream, ABC):
    """One stream that is the plain sum of what entered and of the increments since.

    A factor on a branch's output (a learned scale, a norm) belongs to the increment, so the mixing
    weights are those of Pre-Norm: ones.
    """

    def mixing(self, state: Tensor, layer: int) -> Mixing:
        """Return ones: h is the plain sum of what came before."""
        return Mixing(state.new_ones(1), state.new_ones(1, 1), state.new_ones(1))

    def merging(self, state: Tensor, layer: int) -> Tensor:
        """Return 1."""
        return state.new_ones(1)


class PreNorm(AddingStream):
    """Norm on the branch's input, none on the trunk.

    ::

        h <- h + F_k(N_k(h)),      read-out N(h)

    Symbols: h is `state`, N_k ``norms[layer]``, N `final_norm`. The reference scheme: it adds no
    parameter to a sublayer; the final norm is part of it.

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
    Source: Xiong et al. 2020, arXiv 2002.04745.
    Departures: none.
    Parameters per sublayer beyond the branch's norm: 0.
    """

    paper: ClassVar[str] = "Xiong et al. 2020, arXiv 2002.04745"
    equation: ClassVar[str] = "h <- h + F(N(h))"
    equals_pre_norm_at_start: ClassVar[bool] = True
    normalises_trunk: ClassVar[bool] = False
    parameter_formula: ClassVar[str] = "0"

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
        self.final_norm = make_norm(norm, width, norm_eps)

    @staticmethod
    def extra_parameters(width: int, num_sublayers: int, *, norm: str) -> int:
        """Return 0."""
        return 0

    def open(self, x: Tensor) -> Tensor:
        """Return x."""
        return x

    def step(self, state: Tensor, layer: int, branch: Branch) -> Tensor:
        """Return h + F(N(h))."""
        return state + branch(self.norms[layer](state))

    def close(self, state: Tensor, layer: int) -> Tensor:
        """Return N(h)."""
        return self.final_norm(state)


class NoSkip(OneStream):
    """No skip at all: the negative control.

    ::

        h <- F_k(N_k(h)),      read-out N(h)

    Symbols: h is `state`, N_k ``norms[layer]``, N `final_norm`. Pre-Norm less the trunk, with the
    same parameters: what a skip connection is good for is the distance between the two. It is
    expected to fail when deep.

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
    Source: the network before He et al. 2015, arXiv 1512.03385, which introduced the skip.
    Departures: none.
    Parameters per sublayer beyond the branch's norm: 0.
    """

    paper: ClassVar[str] = "control; skips are from He et al. 2015, arXiv 1512.03385"
    equation: ClassVar[str] = "h <- F(N(h))"
    equals_pre_norm_at_start: ClassVar[bool] = False
    normalises_trunk: ClassVar[bool] = False
    parameter_formula: ClassVar[str] = "0"

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
        self.final_norm = make_norm(norm, width, norm_eps)

    @staticmethod
    def extra_parameters(width: int, num_sublayers: int, *, norm: str) -> int:
        """Return 0."""
        return 0

    def open(self, x: Tensor) -> Tensor:
        """Return x."""
        return x

    def step(self, state: Tensor, layer: int, branch: Branch) -> Tensor:
        """Return F(N(h))."""
        # The trunk keeps its precision under autocast, as in every scheme.
        return branch(self.norms[layer](state)).to(state.dtype)

    def close(self, state: Tensor, layer: int) -> Tensor:
        """Return N(h)."""
        return self.final_norm(state)

    def mixing(self, state: Tensor, layer: int) -> Mixing:
        """Return a carry of 0: h is the last branch's output alone."""
        return Mixing(state.new_ones(1), state.new_zeros(1, 1), state.new_ones(1))

    def merging(self, state: Tensor, layer: int) -> Tensor:
        """Return 1."""
        return state.new_ones(1)


class PostNorm(OneStream):
    """Norm on the trunk, after each addition.

    ::

        h <- N_k(h + F_k(h)),      read-out h

    Symbols: h is `state`, N_k ``norms[layer]``. There is no final norm, because the last
    operation is one. Needs a warm-up of the learning rate, and trains poorly when deep.

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
    Source: Vaswani et al. 2017, arXiv 1706.03762; analysed in Xiong et al. 2020, arXiv 2002.04745.
    Departures: none.
    Parameters per sublayer beyond the norm: 0.
    """

    paper: ClassVar[str] = "Vaswani et al. 2017, arXiv 1706.03762"
    equation: ClassVar[str] = "h <- N(h + F(h))"
    equals_pre_norm_at_start: ClassVar[bool] = False
    normalises_trunk: ClassVar[bool] = True
    own_branch_scale: ClassVar[bool] = True
    parameter_formula: ClassVar[str] = "0 a sublayer, less the final norm"

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

    @staticmethod
    def extra_parameters(width: int, num_sublayers: int, *, norm: str) -> int:
        """Return minus the size of the final norm, which there is none of."""
        return -norm_parameters(norm, width)

    def open(self, x: Tensor) -> Tensor:
        """Return x."""
        return x

    def step(self, state: Tensor, layer: int, branch: Branch) -> Tensor:
        """Return N(h + F(h))."""
        return self.norms[layer](state + branch(state))

    def close(self, state: Tensor, layer: int) -> Tensor:
        """Return h, which is normed already."""
        return state

"""A Post-Norm trunk and a plain sum beside it (Xie et al. 2023, arXiv 2304.14802)."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn

from fints.residual.base import Branch, Residual, check_sizes, make_norm

__all__ = ["ResiDual"]


class ResiDual(Residual[tuple[Tensor, Tensor]]):
    """Branches read a Post-Norm trunk; what they return is also summed without any norm.

    ::

        f   = F_k(x_ln)                  no norm before the branch
        x_ln <- N_k(x_ln + f)
        x_d  <- x_d + f
        read-out x_ln + N(x_d),      x_ln = x_d = x at the start

    Symbols: (x_ln, x_d) is `state`, N_k ``norms[layer]``, N `final_norm`. The sum x_d gives gradients
    Pre-Norm's way past all norms but one. `merge` returns x_ln, which the branches read: in a mixture
    by depth the next part continues from it.

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
    Source: Xie et al. 2023, arXiv 2304.14802.
    Departures: none; the paper shrinks x_d in float16, which is not used here.
    Parameters per sublayer beyond the norm: 0.
    """

    paper: ClassVar[str] = "Xie et al. 2023, arXiv 2304.14802"
    equation: ClassVar[str] = "x_ln <- N(x_ln + F(x_ln)); x_d <- x_d + F(x_ln)"
    equals_pre_norm_at_start: ClassVar[bool] = False
    normalises_trunk: ClassVar[bool] = True
    own_branch_scale: ClassVar[bool] = True
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

    def open(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return (x, x)."""
        return x, x

    def read(self, state: tuple[Tensor, Tensor], layer: int) -> Tensor:
        """Return x_ln."""
        return state[0]

    def step(self, state: tuple[Tensor, Tensor], layer: int, branch: Branch) -> tuple[Tensor, Tensor]:
        """Return (N(x_ln + f), x_d + f) with f = F(x_ln)."""
        x_ln, x_d = state
        f = branch(x_ln)
        return self.norms[layer](x_ln + f), x_d + f

    def merge(self, state: tuple[Tensor, Tensor], layer: int) -> Tensor:
        """Return x_ln."""
        return state[0]

    def close(self, state: tuple[Tensor, Tensor], layer: int) -> Tensor:
        """Return x_ln + N(x_d)."""
        x_ln, x_d = state
        return x_ln + self.final_norm(x_d)

    def no_decay(self) -> set[str]:
        """Return all names: they are gains and biases of norms."""
        return {name for name, _ in self.named_parameters()}

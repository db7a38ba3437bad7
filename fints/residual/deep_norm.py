"""Post-Norm made deep by a stronger skip and smaller branches (Wang et al. 2022, arXiv 2203.00555)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from fints.residual.base import Branch, check_sizes, make_norm, norm_parameters
from fints.residual.single_stream import OneStream

__all__ = ["DeepNorm", "Writing"]


@runtime_checkable
class Writing(Protocol):
    """A branch that says through which weights its input reaches its output."""

    def written_weights(self) -> Sequence[Tensor]:
        """Return those weights, or views of them: of attention the value and output maps alone."""
        ...


class DeepNorm(OneStream):
    """Post-Norm with the skip scaled up and fresh branches scaled down, both by the depth.

    ::

        h <- N_k(alpha h + F_k(h)),      read-out h
        alpha = (2 N)^(1/4),      W <- beta W at the start,      beta = (8 N)^(-1/4)

    with N the number of *blocks* of the scheme, and W the value and output maps of attention and both
    maps of the feed-forward (query and key keep a gain of 1). Symbols: h is `state`, alpha `alpha`,
    beta `beta`, N_k ``norms[layer]``. The update of a deep network is then bounded by a constant.

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
        Global index of the first sublayer; the equation does not use it: in a mixture by
        depth N counts the blocks of this part.

    Notes
    -----
    Source: Wang et al. 2022, arXiv 2203.00555, the constants of a decoder alone or an encoder alone.
    Departures: beta multiplies the weights of the network's own initialiser, where the paper draws
    Xavier-normal weights of gain beta.
    Parameters per sublayer beyond the norm: 0; there is no final norm.
    """

    paper: ClassVar[str] = "Wang et al. 2022, arXiv 2203.00555"
    equation: ClassVar[str] = "h <- N(alpha h + F(h))"
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
        # Without a sublayer there is nothing to scale, and no power of 0.
        num_blocks = max(1, (num_sublayers + 1) // 2)
        self.alpha = (2 * num_blocks) ** 0.25
        self.beta = (8 * num_blocks) ** -0.25

    @staticmethod
    def extra_parameters(width: int, num_sublayers: int, *, norm: str) -> int:
        """Return minus the size of the final norm, which there is none of."""
        return -norm_parameters(norm, width)

    def open(self, x: Tensor) -> Tensor:
        """Return x."""
        return x

    def step(self, state: Tensor, layer: int, branch: Branch) -> Tensor:
        """Return N(alpha h + F(h))."""
        return self.norms[layer](torch.add(branch(state), state, alpha=self.alpha))

    def close(self, state: Tensor, layer: int) -> Tensor:
        """Return h, which is normed already."""
        return state

    @torch.no_grad()
    def init_branch(self, branch: nn.Module, layer: int) -> None:
        """Multiply the branch's written weights by beta.

        Raises
        ------
        ValueError
            If the branch does not say which they are.
        """
        if not isinstance(branch, Writing):
            raise ValueError(
                f"DeepNorm scales the weights that a branch writes through; {type(branch).__name__} does not "
                "say which they are. Give it a method written_weights() that returns them."
            )
        for weight in branch.written_weights():
            weight.mul_(self.beta)
